"""Allocations of the CPU in backward have the forward stacks that autograd's anomaly mode notes."""

import gc
import linecache
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from autograd_models import MODELS, ddp
from contexts import with_context
from cpu_events import allocs
from torch.utils._python_dispatch import TorchDispatchMode

import pytracer
import pytracer.analysis
from pytracer.backends.hook_attach import HOOKS
from pytracer.reading.reader import load

MARKER = 1_000_003  # bytes; the models allocate nothing as large

LEAST_EXACT = {
    "gpt": 0.8,  # which buffers the kernels need depends on the processor
    "checkpointed": 0.6,
    "two_threads": 0.7,
    "custom_function": 0.3,
    "llama": 0.7,
    "resnet": 0.8,
    "lora": 0.7,
}


class Markers(TorchDispatchMode):
    """Allocate a marker before each operator of a node, and note the node's own forward stack."""

    def __init__(self) -> None:
        super().__init__()
        self.expected: list[tuple[str, list[str]] | None] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        node = torch._C._current_autograd_node()
        texts = None if node is None else node.metadata.get("traceback_")
        self.expected.append(None if texts is None else (node.name(), lines(texts)))
        torch.empty(MARKER + len(self.expected) - 1, dtype=torch.uint8)
        return func(*args, **(kwargs or {}))


def lines(texts: list[str]) -> list[str]:
    """Return formatted frames without their source lines."""
    return [text.split("\n")[0] for text in texts]


@pytest.fixture(autouse=True)
def library() -> None:
    assert HOOKS.reads_autograd


@pytest.mark.parametrize("name", LEAST_EXACT)
def test_forward_stacks_are_those_of_anomaly_mode(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_with_anomaly_mode(name, MODELS[name], LEAST_EXACT[name], monkeypatch)


@pytest.mark.usefixtures("process_group")
def test_forward_stacks_under_ddp(monkeypatch: pytest.MonkeyPatch) -> None:
    compare_with_anomaly_mode("ddp", ddp, 0.5, monkeypatch)


def compare_with_anomaly_mode(
    name: str, model: Callable[[str], None], least_exact: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a program whose backward pass shows which node each of its operators runs in
    markers = Markers()
    backward = torch.Tensor.backward

    def marked_backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        with markers:
            backward(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "backward", marked_backward)
    gc.collect()
    # WHEN it is recorded
    with (
        torch.autograd.set_detect_anomaly(True, check_nan=False),
        pytracer.Tracer(device="cpu", forward_stacks=True, stack_depth=200) as tracer,
    ):
        model("cpu")
        events = allocs(tracer)
    # THEN the allocations after each marker have the stack of its node, or are not exact
    exact = attributed = 0
    expected: tuple[str, list[str]] | None = None
    for event in events:
        if event["size"] >= MARKER:
            expected = markers.expected[event["size"] - MARKER]
            continue
        node = event.get("autograd_node")
        if expected is None or node != expected[0].rpartition("::")[2]:
            continue  # what the engine allocates for a node has no marker
        if node == "AccumulateGrad":
            continue
        attributed += 1
        if event.get("forward_exact"):
            exact += 1
            assert lines(event["forward_frames"]) == expected[1]
    print(f"{name}: {exact} of {attributed} exact")
    assert exact >= least_exact * attributed > 0


def test_no_in_place_call_gets_the_stack_of_its_neighbour_as_exact() -> None:
    with pytracer.Tracer(device="cpu", forward_stacks=True) as tracer:
        MODELS["in_place"]("cpu")
        events = allocs(tracer)
    exact = {
        (event["autograd_node"], own_line(event["forward_frames"][-1]))
        for event in events
        if event.get("forward_exact")
    }
    # THEN exact ones are calls of the operator that the node names
    assert exact
    for node, source in exact:
        operator = node.split("Backward")[0].lower()
        symbol = {"mul": "*", "add": "+"}.get(operator, operator)
        assert operator in source or symbol in source, (node, source)


def own_line(text: str) -> str:
    """Return the source of a formatted frame."""
    name, number = text.split('"')[1], int(text.split(", line ")[1].split(",")[0])
    return linecache.getline(name, number)


def test_second_derivatives_have_the_forward_call() -> None:
    with pytracer.Tracer(device="cpu", forward_stacks=True) as tracer:
        MODELS["double_backward"]("cpu")
        events = allocs(tracer)
    functions = {
        (event["autograd_node"], own_line(event["forward_frames"][-1]).strip())
        for event in events
        if event.get("forward_exact")
    }
    # THEN nodes that autograd.grad() made have the line of the forward call too
    assert functions
    assert not any("autograd.grad" in source for _, source in functions)


def test_live_blocks_keep_them_and_frames_are_as_before() -> None:
    # GIVEN a gradient whose event has left the ring
    with pytracer.Tracer(device="cpu", forward_stacks=True, trace_alloc_max_entries=4) as tracer:
        x = torch.ones(333, 7, requires_grad=True)
        y = x.cosh()
        (gradient,) = torch.autograd.grad(y.sum(), x)
        for _ in range(20):
            torch.ones(10)
        snapshot = tracer.snapshot()
    blocks = {s["blocks"][0]["address"]: s["blocks"][0] for s in snapshot["segments"]}
    block = blocks[gradient.data_ptr()]
    # THEN the block has the forward call, and its frames are those of the thread
    assert block["autograd_node"] == "CoshBackward0"
    assert block["forward_exact"]
    assert "y = x.cosh()" in own_line(block["forward_frames"][-1])
    assert block["frames"][0]["name"] == "_engine_run_backward"
    assert not {"forward_frames", "autograd_node"} & blocks[y.data_ptr()].keys()


def test_allocations_in_backward_have_the_module_of_the_forward_call() -> None:
    # GIVEN modules that are called from one line, and are the same but for their size
    model = torch.nn.Sequential(torch.nn.Linear(31, 37), torch.nn.Linear(37, 41))
    with (
        pytracer.Tracer(device="cpu", forward_stacks=True) as tracer,
        pytracer.annotate_modules(model),
    ):
        model(torch.ones(53, 31)).cosh().sum().backward()
        events = [event for event in allocs(tracer) if event.get("forward_exact")]
    # THEN the gradients of their weights have the module's path, and what is in none has no phase
    phases = {event["size"]: event.get("forward_phase") for event in events}
    assert phases[31 * 37 * 4] == "0"
    assert phases[37 * 41 * 4] == "1"
    assert [e.get("forward_phase") for e in events if e["autograd_node"] == "CoshBackward0"]
    assert not any(
        "forward_phase" in event for event in events if event["autograd_node"] == "CoshBackward0"
    )


@pytest.mark.parametrize(("is_on", "context"), [(False, "all"), (True, None)])
def test_they_can_be_switched_off(is_on: bool, context: str | None) -> None:
    with with_context(pytracer.Tracer(device="cpu", forward_stacks=is_on), context) as tracer:
        MODELS["two_threads"]("cpu")
        snapshot = tracer.snapshot()
    assert not any({"forward_frames", "autograd_node"} & e.keys() for e in allocs(tracer))
    assert snapshot["pytracer"]["forward_stacks"] is False


def test_the_lists_of_operators_fit_the_running_torch() -> None:
    # GIVEN the operators that torch has in place too, and the types of its nodes
    root = Path(torch.__file__).parent / "include/torch/csrc/autograd/generated/Functions.h"
    text = root.read_text()
    types = set(re.findall(r"struct TORCH_API (\w+?)Backward\w*\d", text))
    names = {schema.name for schema in torch._C._jit_get_all_schemas()}
    matches = [re.fullmatch(r"aten::([a-z]\w*)_", name) for name in names]
    in_place = {match[1].replace("_", "") for match in matches if match}
    wanted = {name for name in types if name.lower() in in_place and "Foreach" not in name}
    # THEN each of them is in a list of csrc/record/node_types.cpp
    source = Path(__file__).parents[2] / "csrc" / "record" / "node_types.cpp"
    listed = set(" ".join(re.findall(r'^    "(.*)"', source.read_text(), re.MULTILINE)).split())
    assert len(wanted) > 100
    assert wanted - listed == set()
    # AND a node that keeps its argument, says the other list, keeps nothing else
    fields = {
        match[1]: re.findall(r"SavedVariable>? (\w+);", match[2])
        for match in re.finditer(r"struct TORCH_API (\w+) : .*?\{(.*?)\n\};", text, re.DOTALL)
    }
    kept = {name for name in listed if "Backward" in name}
    both = {"DivBackward0", "DivBackward2", "MulBackward0"}
    assert len(kept & fields.keys()) > 35
    assert {name for name in kept - both if fields.get(name, ["self_"]) != ["self_"]} == set()
    assert all({*fields[name]} == {"other_", "self_"} for name in both)


def test_accumulate_grad_is_named_after_its_parameter() -> None:
    # GIVEN two gradients that their last node does not allocate, because it expands a number
    gc.collect()
    with pytracer.Tracer(device="cpu", forward_stacks=True) as tracer:
        model = torch.nn.Sequential(torch.nn.Bilinear(3, 31, 37))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            sum(parameter.sum() for parameter in model.parameters()).backward()  # type: ignore[union-attr]
            optimizer.step()
        snapshot = tracer.snapshot()
    # THEN the nodes have the parameters' names, also in events of blocks that were freed
    expected = {"0.weight": 37 * 3 * 31 * 4, "0.bias": 37 * 4}
    events = [event for trace in snapshot["device_traces"] for event in trace]
    nodes = [
        (event["autograd_node"], event["size"])
        for event in events
        if event["action"] == "alloc" and "AccumulateGrad" in event.get("autograd_node", "")
    ]
    # A name begins with the module's class if another test's module still exists.
    nodes = [(node.replace(" Sequential.", " "), size) for node, size in nodes]
    named = [(f"AccumulateGrad of {name}", size) for name, size in expected.items()]
    assert sorted(nodes) == sorted(2 * named)
    # AND so have the blocks, whose owner is the gradient
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    found = {
        block["owner"].removeprefix("grad of "): block["requested_size"]
        for block in blocks
        if block.get("autograd_node", "").removeprefix("AccumulateGrad of ")
        == block.get("owner", "none").removeprefix("grad of ")
    }
    assert {name.removeprefix("Sequential."): size for name, size in found.items()} == expected
    # AND call sites show them
    (held,) = pytracer.analysis.who_holds(load(pickle.dumps(snapshot, 4)), at="peak")
    frames = (frame for group in held.groups for frame in group.frames)
    (site,) = (frame for frame in frames if "0.weight" in frame.name)
    assert site.name.startswith("backward (AccumulateGrad of ")
