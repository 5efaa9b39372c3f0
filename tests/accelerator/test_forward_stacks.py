"""Allocations in backward have the forward stacks that torch's own recorder gives in anomaly mode.

torch's forward stacks are exact, and cost ten times the step. Only its CUDA recorder has them.
"""

import linecache
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from autograd_models import MODELS, fsdp2
from processes import run
from torch.testing._internal.distributed import fake_pg

import pytracer
from pytracer.tracing import ranks

# The share of torch's attributed allocations that is exact in pytracer's.
LEAST_EXACT = {
    "gpt": 0.9,
    "checkpointed": 0.85,
    "reentrantly_checkpointed": 0.7,
    "in_place": 0.1,
    "custom_function": 0.3,
    "two_threads": 0.7,
    "double_backward": 0.8,
    "llama": 0.7,
    "resnet": 0.8,
    "lora": 0.7,
    "fsdp2": 0.6,
}


def lines(event: dict[str, Any]) -> list[str]:
    """Return the forward frames of an event, without their source lines."""
    return [text.split("\n")[0] for text in event.get("forward_frames", [])]


def allocs(trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in trace if event["action"] == "alloc"]


@pytest.fixture
def native(backend: str, device: ModuleType) -> Any:
    """Record with torch's own recorder; skip where it has no forward stacks."""
    if backend != "cuda":
        pytest.skip("torch_npu's own recorder has no forward stacks")
    device.memory._record_memory_history(max_entries=100_000, stacks="python", context="all")
    yield device.memory
    device.memory._record_memory_history(enabled=None)


@pytest.fixture
def process_group(backend: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make a group of two ranks, of which the other one is not there."""
    monkeypatch.setattr(ranks, "_last_group", None)  # other tests have no group, and had none
    if backend not in dist.Backend.backend_capability["fake"]:
        dist.Backend.register_backend(
            "fake", fake_pg._create_fake_pg, extended_api=True, devices=[backend]
        )
    dist.init_process_group("fake", rank=0, world_size=2, store=fake_pg.FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_forward_stacks_of_sharded_training(backend: str, native: Any) -> None:
    compare_with_torch(backend, native, "fsdp2", fsdp2)


@pytest.mark.parametrize("name", MODELS)
def test_forward_stacks_are_those_of_torch(backend: str, native: Any, name: str) -> None:
    compare_with_torch(backend, native, name, MODELS[name])


def compare_with_torch(backend: str, native: Any, name: str, model: Callable[[str], None]) -> None:
    # GIVEN both recorders, in anomaly mode
    with (
        pytracer.Tracer(device=backend, forward_stacks=True, stack_depth=200) as tracer,
        torch.autograd.set_detect_anomaly(True, check_nan=False),
    ):
        begin = len(allocs(native._snapshot()["device_traces"][0]))
        model(backend)
        theirs = allocs(native._snapshot()["device_traces"][0])[begin:]
        ours = allocs(tracer.snapshot()["device_traces"][0])
    assert [(e["addr"], e["size"]) for e in ours] == [(e["addr"], e["size"]) for e in theirs]
    # THEN each allocation for which torch has a forward stack is one of a node
    exact = attributed = 0
    wrong = []
    for own, their in zip(ours, theirs, strict=True):
        if "forward_frames" not in their:
            continue
        assert own["autograd_node"]
        if own["autograd_node"] == "AccumulateGrad":
            continue
        attributed += 1
        if own.get("forward_exact"):
            exact += 1
            if lines(own) != lines(their):
                wrong.append((own["autograd_node"], lines(own), lines(their)))
    # AND those marked as exact have torch's stack, without exception
    assert wrong == []
    # AND these are most of them
    print(f"{name}: {exact} of {attributed} exact")
    assert exact >= LEAST_EXACT[name] * attributed > 0


def test_nodes_have_the_lines_of_their_operators(backend: str, device: ModuleType) -> None:
    # GIVEN forward passes on two threads that have ended, each line with other operators
    with pytracer.Tracer(device=backend, forward_stacks=True) as tracer:
        MODELS["two_threads"](backend)
        events = allocs(tracer.snapshot()["device_traces"][0])
    in_nodes = [event for event in events if "autograd_node" in event]
    # THEN the nodes ran without Python frames, and have the line that names their operator
    exact = [event for event in in_nodes if event.get("forward_exact")]
    assert len(exact) >= 0.7 * len(in_nodes) > 0
    for event in exact:
        _, name, rest = lines(event)[-1].split('"')
        source = linecache.getline(name, int(rest.split()[2].rstrip(",")))
        assert event["frames"] == []
        assert event["autograd_node"].removesuffix("Backward0").lower() in source


WITHOUT_LIBRARY = """
import sys
import life_programs, life_truth
from pytracer.backends.hook_attach import HOOKS
from pytracer.backends.hook_build import HookBuilder
for name in ("find", "find_or_build"):
    def find(self, library, found=getattr(HookBuilder, name)):
        return None if library == "autograd" else found(self, library)
    setattr(HookBuilder, name, find)
for name in ("gpt", "reentrant_checkpointing", "gradient_penalty"):
    rules = life_truth.check(getattr(life_programs, name), sys.argv[1])["rules"]
    print(HOOKS.reads_autograd, rules["activation", "freed_by_node"] > 0)
"""


def test_without_the_library_activations_are_known_by_the_thread_that_freed_them(
    backend: str, device: ModuleType, tmp_path: Path
) -> None:
    # GIVEN processes whose torch has no library for autograd's state
    # WHEN programs train, THEN what backward freed were activations, and no category is wrong
    done = run(WITHOUT_LIBRARY, backend, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False True\n" * 3


def test_allocations_outside_of_backward_have_no_node(backend: str, device: ModuleType) -> None:
    with pytracer.Tracer(device=backend, forward_stacks=True) as tracer:
        x = torch.ones(10, device=backend, requires_grad=True)
        y = x.exp()
        events = tracer.snapshot()["device_traces"][0]
    assert allocs(events)
    assert not any({"forward_frames", "autograd_node"} & event.keys() for event in events)
    del y
