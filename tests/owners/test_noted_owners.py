"""Test the categories of what a model and its optimizer had, in files that come after them."""

import gc
import pickle
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import pytracer
from pytracer.analysis.device_data import device_data
from pytracer.reading.reader import load

pytestmark = pytest.mark.usefixtures("no_collector")

KINDS = ("parameter", "buffer", "optimizer_state")


def noted_bytes(content: dict[str, Any]) -> Counter[str]:
    """Return the bytes of the blocks whose category was noted, by category."""
    data = device_data(load(pickle.dumps(content, protocol=4)), 0)
    found, blocks = data.block_categories, data.history.blocks
    sizes: Counter[str] = Counter()
    for kind, size in zip(found.kind.tolist(), blocks.size_bytes.tolist(), strict=True):
        category, rule = found.kinds[kind]
        if rule == "noted":
            sizes[category] += size
    return sizes


class Program:
    """A training that drops its model; it adds up what the model and the optimizer had."""

    def __init__(self, *, freezes: bool = False) -> None:
        self.sizes: Counter[str] = Counter()
        self._freezes = freezes

    def run(self, steps: int = 2) -> None:
        self._train(steps)
        gc.collect()  # the first step imports much, which leaves cycles

    def _train(self, steps: int) -> None:
        model = nn.Sequential(nn.Linear(50, 40), nn.BatchNorm1d(40), nn.Linear(40, 30))
        optimizer = torch.optim.AdamW(model.parameters())
        model[2].requires_grad_(not self._freezes)
        for _ in range(steps):
            model(torch.ones(8, 50)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            model.requires_grad_()
        states = [value for state in optimizer.state.values() for value in state.values()]
        for kind, tensors in zip(KINDS, (model.parameters(), model.buffers(), states), strict=True):
            self.sizes[kind] = sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def test_a_file_after_the_program() -> None:
    program = Program()
    with pytracer.Tracer(device="cpu") as tracer:
        program.run()
        content = tracer.snapshot()
    assert all(program.sizes[kind] for kind in KINDS)
    assert noted_bytes(content) == program.sizes


def test_states_that_a_later_step_makes() -> None:
    # GIVEN a layer that is trained from the second step on
    program = Program(freezes=True)
    with pytracer.Tracer(device="cpu") as tracer:
        program.run(3)
        content = tracer.snapshot()
    assert noted_bytes(content) == program.sizes


def infer(sizes: Counter[str]) -> None:
    model = nn.Sequential(nn.Linear(50, 40), nn.BatchNorm1d(40), nn.Linear(40, 30)).eval()
    with torch.no_grad():
        for _ in range(3):
            model(torch.ones(8, 50))
    for kind, tensors in zip(KINDS, (model.parameters(), model.buffers()), strict=False):
        sizes[kind] = sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def test_a_program_without_an_optimizer() -> None:
    # GIVEN an inference whose model is gone at its end
    sizes: Counter[str] = Counter()
    with pytracer.Tracer(device="cpu") as tracer:
        infer(sizes)
        content = tracer.snapshot()
    # THEN what it had was noted when it was called
    assert sizes["parameter"] > 0
    assert noted_bytes(content) == sizes


def test_a_call_notes_nothing_of_a_model_whose_parameters_are_gathered() -> None:
    # GIVEN a class that has memory of other ranks in place of parameters while it is called
    class FSDPModule(nn.Linear):
        pass

    with pytracer.Tracer(device="cpu") as tracer:
        FSDPModule(50, 40)(torch.ones(8, 50))
        assert not noted_bytes(tracer.snapshot())


def test_sparse_buffers() -> None:
    def call() -> int:
        model = nn.Linear(50, 40)
        model.register_buffer("mask", torch.eye(300).to_sparse())
        with torch.no_grad():
            model(torch.ones(8, 50))
        parts = model.mask._indices(), model.mask._values()
        return sum(part.untyped_storage().nbytes() for part in parts)

    with pytracer.Tracer(device="cpu") as tracer:
        size = call()
        content = tracer.snapshot()
    assert noted_bytes(content)["buffer"] == size


def test_events_that_the_ring_has_lost() -> None:
    # GIVEN a ring that has lost the allocations, and the steps in which they were noted
    program = Program()
    with pytracer.Tracer(device="cpu", trace_alloc_max_entries=300) as tracer:
        program.run(steps=20)
        content = tracer.snapshot()
    assert content["pytracer"]["devices"][0]["overwritten"] > 300
    assert noted_bytes(content) == program.sizes


def test_memory_that_is_given_out_again() -> None:
    with pytracer.Tracer(device="cpu") as tracer:
        program = Program()
        program.run()
        for _ in range(50):  # blocks of the same sizes, most at the same addresses
            torch.ones(50, 40), torch.ones(40), torch.ones(30, 40)
        content = tracer.snapshot()
    assert noted_bytes(content) == program.sizes


def test_a_tracer_that_starts_after_the_first_step() -> None:
    # GIVEN an optimizer that another tracer has seen
    with pytracer.Tracer(device="cpu"):
        model = nn.Linear(50, 40)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(8, 50)).sum().backward()
        optimizer.step()
    # WHEN a new tracer records the model's parameters, which got other memory
    with pytracer.Tracer(device="cpu") as tracer:
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
        optimizer.step()
        del model, optimizer, parameter
        content = tracer.snapshot()
    assert noted_bytes(content) == {"parameter": (50 * 40 + 40) * 4}
