"""Test the categories of arguments and results of models, and of gradients that are returned."""

import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from synthetic_snapshots import Program
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pytracer
from pytracer import _core
from pytracer.analysis.device_data import device_data
from pytracer.owners import uses
from pytracer.owners.uses import tensors_in
from pytracer.reading.reader import load

INPUT, OUTPUT = ("input", "argument"), ("output", "result")
DEEP = 500  # more frames than pytest has
Kinds = dict[int, set[tuple[str, str]]]
"""The categories and rules of blocks by the number of their float32 elements."""


pytestmark = pytest.mark.usefixtures("own_module_phases")


def kinds_of(content: dict[str, Any]) -> Kinds:
    data = device_data(load(pickle.dumps(content, protocol=4)), 0)
    assert data.block_categories is not None
    assert data.history.is_known
    found: Kinds = defaultdict(set)
    sizes = (data.history.blocks.requested_bytes // 4).tolist()
    for size, kind in zip(sizes, data.block_categories.kind.tolist(), strict=True):
        found[size].add(data.block_categories.kinds[kind])
    return found


class Model(nn.Module):
    """A model whose argument has 1,000 elements, and its result 60."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(50, 3)
        self.outer = nn.Linear(3, 3)

    def forward(self, x: Tensor, *others: Any, scale: Any = None) -> Tensor:
        y = self.outer(self.inner(x[:500].view(10, 50)))
        return torch.cat([y, y])


@contextmanager
def automatic(_model: nn.Module) -> Iterator[pytracer.Tracer]:
    with pytracer.Tracer(device="cpu", phases="auto", stack_depth=DEEP) as tracer:
        yield tracer


@contextmanager
def annotated(model: nn.Module) -> Iterator[pytracer.Tracer]:
    with (
        pytracer.Tracer(device="cpu", stack_depth=DEEP) as tracer,
        pytracer.annotate_modules(model),
    ):
        yield tracer


@pytest.mark.parametrize("record", [automatic, annotated])
def test_arguments_and_results_also_after_they_are_freed(record: Any) -> None:
    model = Model()
    with record(model) as tracer, torch.no_grad():
        for _ in range(3):
            x = torch.ones(1000)
            y = model(x, [torch.ones(400, dtype=torch.int64)[100:]])
        del x
        found = kinds_of(tracer.snapshot())
        # A view of the result is in the same block.
        assert y[1:].numel() == 57
    assert found[1000] == found[800] == {INPUT}
    assert found[60] == {OUTPUT}


def test_keyword_arguments_of_an_annotated_model() -> None:
    model = Model()
    with annotated(model) as tracer:
        model(torch.ones(1000), scale={"by": torch.ones(200)})
        assert kinds_of(tracer.snapshot())[200] == {INPUT}


def test_what_modules_pass_to_each_other_is_no_input() -> None:
    # GIVEN two models, of which the second gets the result of the first
    model, following = Model(), nn.Linear(3, 40)
    with automatic(model) as tracer, torch.no_grad():
        y = model(torch.ones(1000))
        following(y)
        found = kinds_of(tracer.snapshot())
    assert found[60] == {OUTPUT}


def test_calls_inside_of_another_module_are_not_outermost() -> None:
    # GIVEN a model of which a part is annotated
    model = Model()
    with (
        pytracer.Tracer(device="cpu", stack_depth=DEEP) as tracer,
        pytracer.annotate_modules(model.inner),
        torch.no_grad(),
    ):
        y = model(torch.ones(1000))
        found = kinds_of(tracer.snapshot())
    assert y.numel() == 60
    assert not {category for kinds in found.values() for category, _ in kinds} & {"input", "output"}


def test_a_tracer_that_starts_inside_of_a_call() -> None:
    class Starts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Model()

        def forward(self) -> Tensor:
            tracer.start()
            self.kept = self.inner(torch.ones(1000))
            y: Tensor = self.kept + 1
            return y

    tracer = pytracer.Tracer(device="cpu", phases="auto", stack_depth=DEEP)
    model = Starts()
    model()
    found = kinds_of(tracer.snapshot())
    tracer.stop()
    assert OUTPUT not in found[60]
    assert INPUT not in found[1000]


def test_arguments_that_may_be_something_else_are_unknown() -> None:
    model = Model()
    with automatic(model) as tracer:
        loss = nn.CrossEntropyLoss()
        scores, target = torch.ones(70, 7), torch.ones(70, dtype=torch.int64)
        wanted = torch.ones(1000, requires_grad=True)
        other = nn.Parameter(torch.ones(1001))
        with torch.no_grad():
            loss(scores, target)  # a module without parameters
            model(wanted)
            model(other.detach())
            model(other.data[:1000])
        found = kinds_of(tracer.snapshot())
    assert INPUT not in {kind for kinds in found.values() for kind in kinds}


def test_a_stack_that_was_cut_off_decides_nothing() -> None:
    # GIVEN an argument that another model's call allocated, and stacks without its frame
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, depth: int = 8) -> Tensor:
            if depth == 0:
                return torch.ones(1000)
            return Deep.forward(self, depth - 1)

    deep, model = Deep(), Model()
    for depth, kinds in ((5, "unknown"), (DEEP, "output")):
        with (
            pytracer.Tracer(device="cpu", phases="auto", stack_depth=depth) as tracer,
            torch.no_grad(),
        ):
            model(deep())
            found = kinds_of(tracer.snapshot())
        assert {category for category, _ in found[1000]} == {kinds}


def test_gradients_that_are_returned() -> None:
    model = Model()
    with automatic(model) as tracer:
        x = torch.ones(1000, requires_grad=True)
        gradients = torch.autograd.grad(model(x).sum(), [x, model.inner.weight])
        assert kinds_of(tracer.snapshot())[150] == {("gradient", "autograd_grad")}
        del gradients
        found = kinds_of(tracer.snapshot())
    assert found[150] == {("gradient", "autograd_grad")}
    assert ("gradient", "autograd_grad") in found[1000]


@pytest.mark.parametrize("stop", [True, False])
def test_uses_of_other_times_are_left_out(stop: bool) -> None:
    # GIVEN a use before the recording begins, and one while it is paused
    model = Model()
    x = torch.ones(1000)
    with automatic(model) as tracer, torch.no_grad():
        tracer._session.pause()
        paused = torch.ones(1001)
        model(paused)
        tracer._session.start()
        later = torch.ones(1002)
        model(later)
        model(x)
        if stop:
            tracer.stop()
        content = tracer.snapshot()
    devices = content["pytracer"]["devices"]
    known = {address for _, address, role in devices[0]["uses"] if role == "argument"}
    assert known == {later.data_ptr()}


def test_uses_beyond_the_bound_are_forgotten() -> None:
    with pytracer.Tracer(device="cpu", stack_depth=DEEP) as tracer:
        first, last = torch.ones(10), torch.ones(20)
        _core.note_use(_core.CPU_DEVICE, first.data_ptr(), uses.ARGUMENT)
        for _ in range(2**15):
            _core.note_use(_core.CPU_DEVICE, last.data_ptr(), uses.RESULT)
        _core.note_use(_core.CPU_DEVICE, 12345, uses.ARGUMENT)  # no block
        _core.note_use(63, last.data_ptr(), uses.ARGUMENT)  # no such device
        noted = tracer.snapshot()["pytracer"]["devices"][0]["uses"]
    assert len(noted) == 2**15
    assert {tuple(use[1:]) for use in noted} == {(last.data_ptr(), "result")}


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        # The events are: 0 segment, 1 alloc, 2 and 3 its free, 4 alloc at the same address.
        (lambda address: [1, address, "argument"], set()),
        (lambda address: [2, address, "argument"], {1000}),
        (lambda address: [3, address, "argument"], set()),
        (lambda address: [4, address, "argument"], set()),
        (lambda address: [5, address, "argument"], {2000}),
        (lambda address: [2**31 - 1, address, "argument"], set()),
        (lambda address: [5, address + 8, "argument"], set()),
        (lambda address: [5, address, "other"], set()),
        (lambda address: [5, 2**64, "argument"], set()),
        (lambda address: [-1, address, "argument"], set()),
        (lambda address: [5, address], set()),
        (lambda address: "text", set()),
    ],
)
def test_a_use_is_that_of_the_block_at_its_time(
    use: Callable[[int], Any], expected: set[int]
) -> None:
    program = Program()
    frame = ("train.py", "f", 1)
    program.free(program.alloc(1000, frame))
    program._end -= 1024
    address = program.alloc(2000, frame)
    device = {"index": 0, "uses": [use(address)]}
    program.metadata = {"context": "all", "stack_depth": 5, "devices": [device]}
    found = device_data(program.snapshot(), 0)
    assert found.block_categories is not None
    assert found.history.is_known
    sizes = found.history.blocks.requested_bytes.tolist()
    kinds = [found.block_categories.kinds[kind] for kind in found.block_categories.kind.tolist()]
    assert {size for size, kind in zip(sizes, kinds, strict=True) if kind == INPUT} == expected


def test_what_a_pipeline_receives_is_no_input() -> None:
    # GIVEN a buffer that torch allocated for what another rank sends, and a batch
    program = Program()
    stage = "/lib/python3.11/site-packages/torch/distributed/pipelining/stage.py"
    received = program.alloc(1000, (stage, "_create_act_recv_info", 1), ("train.py", "f", 2))
    batch = program.alloc(2000, ("train.py", "f", 3))
    end = len(program.events)
    device = {"index": 0, "uses": [[end, address, "argument"] for address in (received, batch)]}
    program.metadata = {"context": "all", "stack_depth": 5, "devices": [device]}
    found = device_data(program.snapshot(), 0).block_categories
    assert found is not None
    assert [found.kinds[kind] for kind in found.kind.tolist()] == [("unknown", "no_fact"), INPUT]


def test_tensors_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    class Hostile(Tensor):
        def __tensor_flatten__(self) -> Any:
            raise KeyError("hostile use")

    class Returns(Model):
        def forward(self, x: Tensor, *others: Any, scale: Any = None) -> Tensor:
            return scale if scale is not None else x

    model = Returns()
    with automatic(model), torch.no_grad():
        # Tensors without memory, and one that fails, do not disturb the program.
        model(torch.ones(1000), torch.ones(3, device="meta"), torch.ones(3).to_sparse())
        for _ in range(2):
            model(torch.ones(1000), scale=torch.ones(10).as_subclass(Hostile))
    assert len([r for r in caplog.records if "hostile use" in r.getMessage()]) == 1


@pytest.mark.filterwarnings("ignore:.*requires_grad.*:UserWarning")
def test_layers_that_a_checkpoint_computes_again_are_no_results() -> None:
    # GIVEN a model with a checkpointed layer, which backward computes again, on a thread of its own
    # on an accelerator: there, no frame shows that the model called the layer
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(50, 50)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = checkpoint(self.layer, x, use_reentrant=True)
            return y * 2

    model = Checkpointed()
    with automatic(model) as tracer:
        for _ in range(3):
            model(torch.ones(20, 50, requires_grad=True)).sum().backward()
        noted = tracer.snapshot()["pytracer"]["devices"][0]["uses"]
    # THEN only the results of the model are noted
    assert [role for *_, role in noted] == ["result"] * 3


def test_a_model_in_functions_of_torch_func(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    with automatic(model), torch.no_grad():
        torch.func.vmap(model)(torch.ones(2, 1000))
    assert not caplog.records


def test_a_view_without_events_has_no_uses() -> None:
    model = Model()
    with automatic(model) as tracer, torch.no_grad():
        y = model(torch.ones(1000))
        # Such a view is read at steps, to find what keeps memory.
        content = pickle.loads(tracer._recording.view(history=False).to_bytes({}, {}))
    assert y.numel() == 60
    assert not content["pytracer"]["devices"][0].get("uses")


def test_long_lists_in_arguments_are_looked_at_in_part() -> None:
    tensor = torch.ones(3)
    assert list(tensors_in(torch, [0, tensor], max_items=2)) == [tensor]
    assert not list(tensors_in(torch, [[0, 0, tensor]], max_items=2))
