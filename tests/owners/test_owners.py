"""Test the categories and owners of live blocks against what the program itself knows."""

import gc
import logging
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import owner_programs
import pytest
import torch
from owner_programs import Moments, Program, block_of, blocks_in
from torch import Tensor, nn

import pytracer
from pytracer import _core
from pytracer.owners import read
from pytracer.owners.registry import REGISTRY, Registry


@pytest.fixture(autouse=True)
def free_other_models() -> None:
    """Free the models of other tests: with several models, the names begin with the class."""
    gc.collect()


@pytest.mark.parametrize("make", owner_programs.PROGRAMS, ids=lambda make: make.__name__)
def test_no_block_has_a_wrong_category(make: Callable[[Program], Moments]) -> None:
    # GIVEN a training, from before its model is made
    # WHEN a snapshot is taken at many moments, in backward too
    # THEN each block has the category and the owner that the program knows
    seen = owner_programs.checked(make, "cpu")
    # AND no tensor of the program is missing
    assert len(seen) >= 3
    assert not any(sizes.pop("missing") for sizes in seen)
    # AND parameters were seen
    assert any(sizes.get("parameter") for sizes in seen)


@pytest.mark.slow
@pytest.mark.usefixtures("process_group")
def test_shards_of_fsdp2() -> None:
    assert any(
        sizes.get("optimizer_state")
        for sizes in owner_programs.checked(owner_programs.fsdp2, "cpu")
    )


def test_a_model_that_is_older_than_the_tracer() -> None:
    # GIVEN a model, an optimizer, and no tracer before
    REGISTRY._end()
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    # WHEN a tracer starts and the model is trained
    with pytracer.Tracer(device="cpu") as tracer:
        model(torch.ones(1, 64)).sum().backward()
        optimizer.step()
        blocks = blocks_in(tracer.snapshot())
    # THEN what was allocated since then has its owner
    assert model.weight.grad is not None
    grad = block_of(model.weight.grad, blocks)
    assert (grad["category"], grad["category_rule"]) == ("gradient", "grad")
    assert grad["owner"].endswith("weight")
    state = block_of(optimizer.state[model.weight]["momentum_buffer"], blocks)
    assert (state["category"], state["category_rule"]) == ("optimizer_state", "optimizer")


def test_a_search_keeps_nothing_alive() -> None:
    # GIVEN objects of all generations, and no collector
    gc.collect()
    gc.disable()
    try:
        model, tensor = nn.Linear(8, 8), torch.ones(100)
        alive = [weakref.ref(model), weakref.ref(model.weight), weakref.ref(tensor)]
        # WHEN a search ends, THEN the program's objects are freed at once
        registry = Registry()
        registry.search()
        assert any(model is reference() for reference in registry.modules())
        del model, tensor
        assert [reference() for reference in alive] == [None, None, None]
    finally:
        gc.enable()


def test_a_search_that_is_interrupted_is_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Registry, "search", interrupt)
    registry = Registry()
    with pytest.raises(KeyboardInterrupt):
        registry.follow()
    registry._end()
    assert not registry.is_complete


def test_nothing_is_searched_for_while_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []
    monkeypatch.setattr(Registry, "search", lambda *_: not searches.append(1))
    # WHEN a tracer starts at the end of torch's import, as with PYTRACER=1
    monkeypatch.setattr(torch.__spec__, "_initializing", True)
    registry = Registry()
    registry.follow()
    registry._end()
    # THEN nothing is searched for, because nothing is older
    assert (searches, registry.is_complete) == ([], True)
    # WHEN it starts later, THEN older modules are searched for
    monkeypatch.setattr(torch.__spec__, "_initializing", False)
    registry.follow()
    registry._end()
    assert (searches, registry.is_complete) == ([1], True)


def test_parameters_without_a_module() -> None:
    with pytracer.Tracer(device="cpu") as tracer:
        parameter = nn.Parameter(torch.ones(100))
        before = block_of(parameter, blocks_in(tracer.snapshot()))
        parameter.grad = torch.ones(100)
        optimizer = torch.optim.SGD([parameter])
        optimizer.step()
        blocks = blocks_in(tracer.snapshot())
    # Before its optimizer steps, nothing knows the parameter.
    assert (before["category"], before["category_rule"]) == ("unknown", "no_owner")
    found = block_of(parameter, blocks)
    assert (found["category"], found["category_rule"]) == ("parameter", "optimizer")
    assert found["owner"] == "SGD group 0 parameter 0"
    assert block_of(parameter.grad, blocks)["owner"] == "grad of SGD group 0 parameter 0"


def test_a_parameter_keeps_its_name_while_another_is_in_its_place() -> None:
    # GIVEN a parameter of a module, and an optimizer that has stepped it
    with pytracer.Tracer(device="cpu") as tracer:
        model = nn.Module()
        model.weight = nn.Parameter(torch.ones(100))
        sharded = model.weight
        sharded.grad = torch.ones(100)
        torch.optim.SGD([sharded], momentum=0.9).step()
        optimizer = torch.optim.SGD([sharded], momentum=0.9)
        optimizer.step()
        # WHEN the module gets another one meanwhile, as under FSDP2
        model._parameters["weight"] = gathered = nn.Parameter(torch.ones(200))
        blocks = blocks_in(tracer.snapshot())
    # THEN both have the name, and so has the optimizer's state
    assert block_of(sharded, blocks)["owner"].endswith("weight")
    assert block_of(gathered, blocks)["owner"].endswith("weight")
    state = block_of(optimizer.state[sharded]["momentum_buffer"], blocks)
    assert state["owner"].startswith("momentum_buffer of ")
    assert state["owner"].endswith("weight")


def test_a_module_can_be_moved_with_swapped_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a program that lets torch swap tensors, which it refuses if they have weak references
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    with pytracer.Tracer(device="cpu") as tracer:
        model = nn.Sequential(nn.Linear(10, 10))
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        model(torch.ones(1, 10)).sum().backward()
        optimizer.step()
        tracer.snapshot()
        optimizer.zero_grad()
        # WHEN a model is moved, THEN it is not refused, and its tensors have names
        model.to(torch.float64)
        blocks = blocks_in(tracer.snapshot())
    assert block_of(model[0].weight, blocks)["owner"].endswith("0.weight")


def test_a_block_of_several_categories_is_mixed() -> None:
    with pytracer.Tracer(device="cpu") as tracer:
        flat = torch.zeros(100)
        module = nn.Module()
        module.weight = nn.Parameter(flat[:30])
        module.register_buffer("scale", flat[30:])
        found = block_of(flat, blocks_in(tracer.snapshot()))
    assert (found["category"], found["category_rule"]) == ("mixed", "several")
    assert found["owner"].endswith("scale")  # the largest
    assert found["owners"] == 2


def test_several_models_have_different_names() -> None:
    with pytracer.Tracer(device="cpu") as tracer:
        models = [nn.Linear(10, 10), nn.Linear(10, 10), nn.Sequential(nn.Linear(10, 10))]
        blocks = blocks_in(tracer.snapshot())
    names = [block_of(next(model.parameters()), blocks)["owner"] for model in models]
    assert len({*names}) == 3
    assert [name.split("#")[0].split(".")[0] for name in names] == [
        "Linear",
        "Linear",
        "Sequential",
    ]


def test_the_owners_of_a_stopped_tracer_are_those_of_its_end() -> None:
    # GIVEN a tracer that has stopped
    model = nn.Module()
    with pytracer.Tracer(device="cpu") as tracer:
        model.weight = nn.Parameter(torch.ones(1000))
        address = model.weight.data_ptr()
        activation = torch.ones(2000)
    # WHEN other tensors become parameters
    del model.weight
    model.other = nn.Parameter(activation)
    # THEN its snapshots have the owners of its end
    blocks = {block["address"]: block for block in blocks_in(tracer.snapshot())}
    assert blocks[address]["owner"].endswith("weight")
    assert blocks[activation.data_ptr()]["category"] == "unknown"


def test_nothing_is_kept_alive() -> None:
    with pytracer.Tracer(device="cpu") as tracer:
        model = nn.Linear(10, 10)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 10)).sum().backward()
        optimizer.step()
        tracer.snapshot()
        alive = [weakref.ref(thing) for thing in (model, optimizer, model.weight)]
        known = len(REGISTRY.modules())
        # WHEN the program drops them
        del model, optimizer
        gc.collect()
        # THEN they are gone
        assert [thing() for thing in alive] == [None, None, None]
        assert len(REGISTRY.modules()) < known


def test_hooks_are_registered_once() -> None:
    from torch.nn.modules import module
    from torch.optim import optimizer

    hooks = [
        module._global_parameter_registration_hooks,
        module._global_buffer_registration_hooks,
        module._global_module_registration_hooks,
        optimizer._global_optimizer_pre_hooks,
    ]
    REGISTRY._end()
    before = [len(each) for each in hooks]
    # WHEN tracers start, also at the same time, THEN torch has each hook once
    outer, inner = pytracer.Tracer(device="cpu"), pytracer.Tracer(device="cpu")
    for tracer in (outer, inner):
        tracer.start()
        assert [len(each) for each in hooks] == [count + 1 for count in before]
    # AND it stays, so that a later tracer knows the modules that were made meanwhile
    outer.stop()
    inner.stop()
    model = nn.Linear(8, 8)
    assert weakref.ref(model) in REGISTRY.modules()


class Hostile(Tensor):
    """A tensor that says it consists of others, has none, and whose code always fails."""

    def __tensor_flatten__(self) -> Any:
        raise KeyError("hostile")


def test_a_failure_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    # GIVEN a module with a tensor that cannot be read
    hostile = nn.Module()
    hostile.register_buffer("wrong", torch.ones(10).as_subclass(Hostile))
    with pytracer.Tracer(device="cpu") as tracer, caplog.at_level(logging.WARNING, "pytracer"):
        model = nn.Module()
        model.weight = nn.Parameter(torch.ones(100))
        # WHEN two snapshots are taken
        tracer.snapshot()
        snapshot = tracer.snapshot()
    # THEN the others have their names, the failure is counted, and was logged once
    assert block_of(model.weight, blocks_in(snapshot))["owner"].endswith("weight")
    assert snapshot["pytracer"]["tensors"]["unread"] == 1 + REGISTRY.dropped
    messages = [record.getMessage() for record in caplog.records]
    assert len([message for message in messages if "could not be read" in message]) == 1


class Unhashable(torch.optim.SGD):
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]


def test_an_optimizer_without_a_hash_does_not_end_the_job() -> None:
    # GIVEN two such optimizers, one of them older than the tracer, which are known by their ids
    parameter = nn.Parameter(torch.ones(100))
    older = Unhashable([parameter], momentum=0.9)
    with pytracer.Tracer(device="cpu") as tracer:
        parameter.grad = torch.ones(100)
        # WHEN they step, THEN nothing fails, and their states have names
        optimizers = [older, Unhashable([parameter], momentum=0.9)]
        for optimizer in optimizers:
            optimizer.step()
        model = nn.Linear(5, 5)
        snapshot = tracer.snapshot()
    for optimizer in optimizers:
        state = block_of(optimizer.state[parameter]["momentum_buffer"], blocks_in(snapshot))
        assert state["category"] == "optimizer_state"
    assert block_of(model.weight, blocks_in(snapshot))["owner"].endswith("weight")


def test_owners_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MAX_OWNERS", 3)
    with pytracer.Tracer(device="cpu") as tracer:
        model = nn.Sequential(*(nn.Linear(5, 5) for _ in range(4)))
        counts = tracer.snapshot()["pytracer"]["tensors"]
    assert (counts["read"], counts["unread"] >= 5) == (3, True)
    assert len(list(model.parameters())) == 8


def test_modules_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytracer.owners.registry.MAX_MODULES", 2)
    registry = Registry()
    modules = [nn.Module() for _ in range(5)]
    for module in modules:
        registry._registered(module, "", None)
    assert (len(registry.modules()), registry.dropped) == (2, 3)


def test_a_block_that_is_younger_than_the_owners_has_no_name() -> None:
    # GIVEN owners that were read
    tracer = pytracer.Tracer(device="cpu").start()
    first = torch.ones(1000)
    marks = tracer._session.mark()
    # WHEN another block is allocated before the snapshot's instant, at an address of an owner
    second = torch.ones(1000)
    owners = [
        (tensor.data_ptr(), 4000, _core.CPU_DEVICE, 1, 2, name)
        for tensor, name in ((first, "first"), (second, "second"))
    ]
    view = tracer._session.view(owners=_core.Owners(marks, owners, 0, 0, True, [], ""))
    blocks = blocks_in(pickle.loads(view.to_bytes({}, {})))
    tracer.stop()
    # THEN only the block that was live at the reading has its name
    old, new = block_of(first, blocks), block_of(second, blocks)
    assert (old["category"], old["owner"]) == ("parameter", "first")
    assert (new["category"], new["category_rule"]) == ("unknown", "too_new")
    assert "owner" not in new


def test_marks_of_an_earlier_recording_name_nothing() -> None:
    # GIVEN owners that were read before the recording was stopped and started again
    tracer = pytracer.Tracer(device="cpu").start()
    before = torch.ones(10)
    marks = tracer._session.mark()
    tracer.stop()
    tracer.start()
    # WHEN a block of the new recording has the address of an owner
    tensor = torch.ones(1000)
    owner = (tensor.data_ptr(), 4000, _core.CPU_DEVICE, 1, 2, "wrong")
    view = tracer._session.view(owners=_core.Owners(marks, [owner], 0, 0, True, [], ""))
    blocks = blocks_in(pickle.loads(view.to_bytes({}, {})))
    tracer.stop()
    # THEN it is not named
    assert block_of(tensor, blocks)["category_rule"] == "too_new"
    assert before.numel() == 10


def test_snapshots_while_another_thread_trains() -> None:
    # GIVEN a thread that makes and drops gradients and temporary tensors of the same size
    model = nn.Module()
    stop, has_stepped = threading.Event(), threading.Event()

    def work() -> None:
        optimizer = torch.optim.SGD([model.weight], momentum=0.9)
        while not stop.is_set():
            model.weight.grad = torch.ones(1000)
            optimizer.step()
            has_stepped.set()
            model.weight.grad = None
            for _ in range(3):
                torch.zeros(1000)

    with pytracer.Tracer(device="cpu") as tracer:
        model.weight = nn.Parameter(torch.ones(1000))
        thread = threading.Thread(target=work)
        thread.start()
        has_stepped.wait()
        try:
            # WHEN snapshots are taken meanwhile
            found = [tracer.snapshot() for _ in range(8)]
        finally:
            stop.set()
            thread.join()
    # THEN the parameter and its state have their names
    for snapshot in found:
        blocks = blocks_in(snapshot)
        assert block_of(model.weight, blocks)["category"] == "parameter"
        named = {block["category"] for block in blocks} - {"unknown"}
        # AND the gradient, which torch cannot read safely on this thread, is unknown and counted
        assert named == {"parameter", "optimizer_state"}
        assert snapshot["pytracer"]["tensors"]["unread_gradients"] == 1


def test_categories_without_a_file() -> None:
    with pytracer.Tracer(device="cpu") as tracer:
        model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(20)))
        model(torch.ones(1, 16)).sum().backward()
        (live,) = tracer.who_holds("category")
        (owners,) = tracer.who_holds("owner")
    counts = {group.category: (group.size_bytes, group.count) for group in live.groups}
    assert counts["parameter"] == counts["gradient"] == (20 * (16 * 16 + 16) * 4, 40)
    assert {"0.weight", "grad of 19.bias"} <= {group.owner for group in owners.groups}
    # AND after stop() they are those of its end
    del model
    (at_end,) = tracer.who_holds("category")
    assert "parameter" in {group.category for group in at_end.groups}
