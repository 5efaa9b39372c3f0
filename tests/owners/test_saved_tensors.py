"""Test the names of the memory that autograd keeps, and that reading it changes nothing."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from autograd_models import MODELS
from owner_programs import block_of, blocks_in
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pytracer
from pytracer import _core
from pytracer.owners import holders

pytestmark = pytest.mark.usefixtures("no_collector")


@pytest.fixture
def tracer() -> Iterator[pytracer.Tracer]:
    with pytracer.Tracer(device="cpu") as tracer:
        yield tracer


def categories(tracer: pytracer.Tracer, *tensors: Tensor) -> list[tuple[str, str]]:
    """Return the category and the owner of the blocks of tensors, as a file would have them."""
    blocks = blocks_in(tracer.snapshot())
    found = [block_of(tensor, blocks) for tensor in tensors]
    return [(block["category"], block.get("owner", "")) for block in found]


def test_tensors_are_named_after_their_nodes(tracer: pytracer.Tracer) -> None:
    layer = nn.Linear(50, 40)
    x = torch.ones(30, 50)
    y = layer(x)
    z = y.exp()
    loss = z.sum()
    # THEN what a node keeps has its name; a weight that it keeps too remains a parameter, and a
    # tensor that no node keeps has no owner
    *found, (category, name) = categories(tracer, x, y, z, layer.weight)
    assert found == [
        ("activation", "AddmmBackward0.mat1"),
        ("unknown", ""),
        ("activation", "ExpBackward0.result"),
    ]
    assert category == "parameter"
    assert name.endswith("weight")  # with other tests' models in this process, after the class
    # AND after the backward pass nothing is kept
    loss.backward()
    assert categories(tracer, x, z) == [("unknown", "")] * 2


def test_a_model_that_no_optimizer_has(tracer: pytracer.Tracer) -> None:
    # GIVEN a trained model, two that no optimizer has, one of these that the trained one needs, and
    # a model of which an optimizer has a part
    policy, reference, judge = (nn.Linear(50, 50) for _ in range(3))
    partly = nn.Sequential(nn.Linear(50, 50), nn.Linear(50, 50))
    optimizer = torch.optim.SGD([*policy.parameters(), *partly[1].parameters()])
    x, a = torch.ones(30, 50), policy(torch.zeros(30, 50))
    inputs = [torch.ones(30, 50) for _ in range(3)]
    hidden = [policy(inputs[0]), reference(inputs[1]).exp()]
    loss = (a - reference(x)).sum() + judge(hidden[0]).sum() + hidden[1].sum()
    loss += partly(inputs[2]).sum()
    # THEN only what is kept for gradients that nobody uses is named so
    found = [name for _, name in categories(tracer, x, *inputs, *hidden)]
    ends = [name.endswith(" without an optimizer") for name in found]
    assert ends == [True, False, True, False, False, True]
    del loss, optimizer


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.kept = {"half": [x * 0.5]}
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


def test_functions_of_the_program(tracer: pytracer.Tracer) -> None:
    x = torch.ones(300, requires_grad=True)
    y = x * 1
    z = _Doubled.apply(y)
    half = z.grad_fn.kept["half"][0]
    assert categories(tracer, y, half) == [
        ("activation", "_DoubledBackward.tensors"),
        ("activation", "_DoubledBackward.kept"),
    ]


def test_what_hooks_made_of_saved_tensors(tracer: pytracer.Tracer) -> None:
    # GIVEN hooks that keep copies, and that fail when they are asked for the tensors
    copies = []

    def pack(tensor: Tensor) -> tuple[str, Tensor]:
        copies.append(tensor.clone())
        return "a copy", copies[-1]

    def unpack(_: object) -> Tensor:
        raise AssertionError("a snapshot has asked for a saved tensor")

    x = torch.ones(300, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = x.exp()
    assert categories(tracer, copies[0], y) == [
        ("activation", "ExpBackward0.result"),
        ("unknown", ""),
    ]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_is_not_computed_again(use_reentrant: bool, tracer: pytracer.Tracer) -> None:
    calls = []

    def region(x: Tensor) -> Tensor:
        calls.append(x)
        return x.exp().sin()

    x = torch.ones(300, requires_grad=True)
    argument = x * 1
    y = checkpoint(region, argument, use_reentrant=use_reentrant)
    ((category, _),) = categories(tracer, argument)
    assert (category, len(calls)) == ("activation", 1)
    y.sum().backward()


def number_of_next_node(x: Tensor) -> int:
    node = x.sin().grad_fn
    assert node is not None
    return int(node._sequence_nr())  # type: ignore[attr-defined]


def test_a_view_of_changed_memory_gets_no_new_node(tracer: pytracer.Tracer) -> None:
    # GIVEN a view whose memory was changed in place, which torch finds out when it is asked
    x = torch.ones(8, 300, requires_grad=True) * 1
    row = x[0]
    x.mul_(2)
    before = number_of_next_node(x)
    tracer.snapshot()
    # THEN no node was made between two of the program
    assert number_of_next_node(x) == before + 1
    assert row.grad_fn is not None  # which this question makes
    assert number_of_next_node(x) == before + 3


def gradients_of(
    model: Callable[[str], None], look: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> list[Tensor]:
    """Run a model with a look after each operator and each gradient; return the gradients."""
    gc.collect()  # the models of other runs
    torch.manual_seed(0)
    found: list[Tensor] = []
    backward = Tensor.backward

    def noting(loss: Tensor, *arguments: Any, **given: Any) -> None:
        look()
        backward(loss, *arguments, **given)
        look()
        found.append(loss.detach())
        found.extend(
            thing.grad.clone()
            for thing in gc.get_objects()
            if isinstance(thing, Tensor)
            if thing.is_leaf and thing.requires_grad and thing.grad is not None
        )

    call = nn.Module.__call__

    def looking(module: nn.Module, *arguments: Any, **given: Any) -> Any:
        result = call(module, *arguments, **given)
        look()
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "backward", noting)
        patch.setattr(nn.Module, "__call__", looking)
        model("cpu")
    return sorted(found, key=lambda each: (each.numel(), float(each.double().sum())))


@pytest.mark.parametrize("name", ["gpt", "llama", "resnet", "checkpointed", "custom_function"])
def test_results_are_the_same(
    name: str, tracer: pytracer.Tracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    untouched = gradients_of(MODELS[name], lambda: None, monkeypatch)
    looked_at = gradients_of(MODELS[name], tracer.snapshot, monkeypatch)
    assert len(looked_at) == len(untouched) > 1
    assert all(map(torch.equal, looked_at, untouched))


def test_nothing_lives_longer(tracer: pytracer.Tracer) -> None:
    x = torch.ones(300, requires_grad=True)
    y = x.exp()
    z = y.sin()
    saved = weakref.ref(y)
    tracer.snapshot()
    del y, z
    assert saved() is None


def test_graphs_of_another_thread_are_not_read(tracer: pytracer.Tracer) -> None:
    # GIVEN a program whose main thread steps an optimizer
    layer = nn.Linear(50, 40)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = torch.ones(30, 50)
    layer(x).sum().backward()
    optimizer.step()
    kept = layer(x)
    found = []
    thread = threading.Thread(target=lambda: found.append(categories(tracer, x)))
    thread.start()
    thread.join()
    # THEN another thread leaves alone what a backward pass may release meanwhile
    assert found == [[("unknown", "")]]
    assert categories(tracer, x) == [("activation", "AddmmBackward0.mat1")]
    del kept


def test_no_graph_is_read_while_another_thread_runs_a_backward_pass(
    tracer: pytracer.Tracer,
) -> None:
    # GIVEN a thread that is in a backward pass, in a program that has no optimizer
    begun, may_end = threading.Event(), threading.Event()
    x = torch.ones(30, 50, requires_grad=True)
    kept = x.exp()

    def wait(_gradient: Tensor) -> None:
        begun.set()
        may_end.wait()

    kept.register_hook(wait)
    thread = threading.Thread(target=lambda: x.exp().add(kept).sum().backward(), daemon=True)
    thread.start()
    begun.wait()
    layer = nn.Linear(50, 40)
    layer.weight.grad = torch.ones(40, 50)
    try:
        meanwhile = categories(tracer, kept, layer.weight.grad)
    finally:
        may_end.set()
        thread.join()
    # THEN what that may release or replace is left alone
    assert meanwhile == [("unknown", "")] * 2
    # AND it is read before and after
    again = x.exp()
    (saved, _), (gradient, _) = categories(tracer, again, layer.weight.grad)
    assert (saved, gradient) == ("activation", "gradient")


def test_a_bound_is_told(tracer: pytracer.Tracer, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(300, requires_grad=True)
    y = x
    for _ in range(20):
        y = y.sin()
    unread = tracer.snapshot()["pytracer"]["tensors"]["unread"]
    monkeypatch.setattr(holders, "MAX_NODES", 10)
    assert tracer.snapshot()["pytracer"]["tensors"]["unread"] == unread + 1


def saved_now(nodes: int) -> tuple[set[int], bool]:
    """Return the addresses of what graphs keep, and whether all were read."""
    kinds = None, None, None
    now = _core.kept_tensors(
        torch, kinds, [], {-1}, None, {}, 0, nodes, 60.0, 0, 0, False, 0.0, [], [], [], {}, 0
    )
    return {address for address, *_ in now["saved"]}, now["has_all_graphs"]


def test_few_tensors_are_asked_for_their_nodes() -> None:
    x = torch.ones(300, requires_grad=True)
    kept = [x.sin() for _ in range(20)]
    saved, is_complete = saved_now(nodes=8000)
    assert x.data_ptr() in saved
    assert is_complete
    # WHEN there are more tensors than nodes may be read, THEN not all of them are asked
    assert not saved_now(nodes=10)[1]
    assert len(kept) == 20


def test_the_bound_is_one_of_connected_graphs() -> None:
    gc.collect()
    x = torch.ones(300, requires_grad=True)

    def after_ten_nodes(tensor: Tensor) -> Tensor:
        for _ in range(10):
            tensor = tensor + 1  # which saves nothing
        return tensor

    # Graphs that share a parameter alone are freed one by one, and those of a chain together.
    kept = [after_ten_nodes(x) for _ in range(6)]
    assert saved_now(nodes=20)[1]
    kept[3:] = [after_ten_nodes(kept[0])]
    assert saved_now(nodes=22)[1]
    kept[3:] = [after_ten_nodes(kept[3])]
    assert not saved_now(nodes=22)[1]
    kept.clear()
