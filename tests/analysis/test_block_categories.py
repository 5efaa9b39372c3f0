"""Test the categories of all blocks of a trace, also of freed ones, against the truth."""

import pickle
from pathlib import Path
from typing import Any

import life_programs
import pytest
import torch
from life_programs import PROGRAMS
from torch import nn

import pytracer
from pytracer.analysis.device_data import device_data
from pytracer.backends.hook_attach import HOOKS
from pytracer.reading.reader import load

MOST_UNKNOWN = {"gpt": 0.02, "convolutions": 0.05, "reentrant_checkpointing": 0.06}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_no_block_has_a_wrong_category(program: Any) -> None:
    HOOKS.attach_autograd()
    assert HOOKS.reads_autograd
    # GIVEN a training, and what each of its blocks was
    # WHEN it is recorded, and snapshots are taken in the middle of forward and backward too
    # THEN no block has a wrong category
    found = life_programs.check(program, "cpu")
    rules, peak = found["rules"], found["peak"]
    print(program.__name__, rules, peak)
    # AND activations and temporary blocks were found, and little is unknown at the peak
    assert rules["activation", "freed_by_node"]
    assert rules["temporary", "within_backward"]
    unknown = peak["unknown"] / sum(peak.values())
    assert unknown <= MOST_UNKNOWN.get(program.__name__, 0.5)


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))


def _categories(content: dict[str, Any] | bytes) -> dict[tuple[str, str], int]:
    raw = content if isinstance(content, bytes) else pickle.dumps(content, protocol=4)
    found = device_data(load(raw), 0).block_categories
    assert found is not None
    names = [found.kinds[kind] for kind in found.kind.tolist()]
    return {name: names.count(name) for name in names}


def _train(context: Any = "all") -> dict[str, Any]:
    with pytracer.Tracer(device="cpu", context=context) as tracer:
        model = _model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(8, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return tracer.snapshot()


def test_the_cpu_needs_no_forward_stacks() -> None:
    # GIVEN a recording without forward stacks, in which the engine's frame shows the backward pass
    found = _categories(_train())
    # THEN the blocks that were freed in it are activations, and those of zero_grad are gradients
    assert found["activation", "freed_by_node"]
    assert found["gradient", "zero_grad"] == 2 * 4


@pytest.mark.parametrize("context", ["alloc", "state"])
def test_without_the_stacks_of_frees_no_life_decides(context: str) -> None:
    found = _categories(_train(context))
    assert {rule for _, rule in found} <= {"module", "no_owner", "no_fact", "optimizer", "grad"}
    assert found["unknown", "no_fact"]


def test_a_gap_between_steps_ends_all_runs() -> None:
    # GIVEN a file of steps that are not consecutive: what happened between them is not known
    with pytracer.Tracer(device="cpu") as tracer:
        _model()(torch.ones(8, 64))
        content = tracer.snapshot()
    assert _categories(content)["temporary", "within_forward"]
    (trace,) = content["device_traces"]
    for device in content["pytracer"]["devices"]:
        device["steps"] = [[1 + 2 * i, i] for i in range(len(trace))]
    # THEN no block was certainly temporary
    assert ("temporary", "within_forward") not in _categories(content)


def test_files_of_one_phase_have_no_lives(tmp_path: Path) -> None:
    content = _train()
    content["pytracer"]["window"] = {"phase": "forward", "occurrence": 1}
    assert {rule for _, rule in _categories(content)} <= {"module", "no_owner", "no_fact"}
