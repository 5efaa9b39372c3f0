"""Test which module of a model each block belongs to."""

import gc
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import pytracer
from pytracer.analysis import stats, who_holds
from pytracer.analysis.blocks import blocks_of
from pytracer.analysis.device_data import device_data
from pytracer.analysis.modules import BACKWARD, FORWARD, NEAR
from pytracer.backends.hook_attach import HOOKS
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Snapshot


class Block(nn.Module):
    """A module whose own code allocates and that can be recomputed."""

    def __init__(self, width: int, is_checkpointed: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width + 1, bias=False)
        self.is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        if self.is_checkpointed:
            y: Tensor = checkpoint(self.inner, x.log(), use_reentrant=False)
            return y
        y = self.inner(x.log())
        return y


@pytest.fixture(autouse=True)
def library() -> None:
    assert HOOKS.reads_autograd


def _record(make: Callable[[], nn.Module], batch: Tensor) -> Any:
    """Return the snapshot of a training step, in the middle of which there is a phase "loss"."""
    gc.collect()  # models of other tests, which would change the names
    with pytracer.Tracer(device="cpu", forward_stacks=True) as tracer:
        model = make()
        with pytracer.annotate_modules(model):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            output = model(batch)
            with pytracer.annotate("loss"):
                loss = output.cosh()
            loss.sum().backward()
            optimizer.step()
        content = tracer.snapshot()
    # The phases of other tests are in the same process.
    paths = [path for path, _ in model.named_modules() if path]
    content["pytracer"]["module_phases"] = {"models": [type(model).__name__], "paths": paths}
    return content


def _linear() -> nn.Module:
    return nn.Sequential(nn.Linear(31, 37))


def _blocks() -> nn.Module:
    return nn.Sequential(Block(31, False), Block(32, False))


def _load(content: dict[str, Any]) -> Snapshot:
    return load(pickle.dumps(content, protocol=4))


def _modules(snapshot: Snapshot) -> dict[int, set[tuple[str, int]]]:
    """Return the paths and roles of the blocks of each requested size."""
    found = (blocks := blocks_of(device_data(snapshot, 0))).modules
    by_size: dict[int, set[tuple[str, int]]] = {}
    for size, path, role in zip(
        blocks["requested_bytes"].tolist(),
        found.path.tolist(),
        found.role.tolist(),
        strict=True,
    ):
        by_size.setdefault(size, set()).add((found.paths[path], role))
    return by_size


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_each_block_has_the_module_that_ran(is_checkpointed: bool) -> None:
    # GIVEN modules whose inputs, outputs and weights differ in size
    def make() -> nn.Module:
        return nn.Sequential(Block(31, is_checkpointed), Block(32, is_checkpointed))

    snapshot = _load(_record(make, torch.ones(53, 31) * 3))
    found = _modules(snapshot)
    rows = 4 * 53
    # THEN what a module allocates is its own, also when a checkpoint runs it again in backward,
    # and what backward allocates belongs to the module of the forward call
    assert found[rows * 33] == {("1.inner", FORWARD), ("", FORWARD)}  # the output, and the loss
    # The output of the first module, and the logarithm in the second one with its gradients.
    assert ("0.inner", FORWARD) in found[rows * 32]
    assert ("1", FORWARD) in found[rows * 32]
    assert {path for path, _ in found[rows * 32]} <= {"0.inner", "1", "1.inner"}
    assert {path for path, _ in found[rows * 31]} <= {"0", "0.inner"}
    # AND a gradient or a momentum that still exists belongs to the module of its parameter
    assert {path for path, _ in found[4 * 31 * 32]} == {"0.inner"}
    # AND the rows have the paths of the forward calls
    (held,) = who_holds(snapshot, at="peak", by="module")
    names = {group.module for group in held.groups}
    assert names & {"backward of 0.inner", "backward of 1.inner", "backward of 1"}
    assert {"0.inner", "1.inner", None} <= names
    assert sum(group.size_bytes for group in held.groups) == held.active_bytes


def test_what_a_checkpoint_recomputes_has_its_own_module() -> None:
    # GIVEN a checkpoint around two modules, which a node of the second one runs again
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(31, 37), nn.Linear(37, 41))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = checkpoint(self.inner, x, use_reentrant=False)
            return y

    content = _record(lambda: nn.Sequential(Checkpointed()), torch.ones(53, 31))
    # THEN the output of the first module is that module's, both times
    found = (blocks := blocks_of(device_data(_load(content), 0))).modules
    is_output = blocks["requested_bytes"] == 53 * 37 * 4
    assert {found.paths[path] for path in found.path[is_output & (found.role == FORWARD)]} == {
        "0.inner.0"
    }
    assert (found.role[is_output] == FORWARD).sum() == 2


def test_a_phase_that_is_no_module_is_none() -> None:
    # GIVEN a phase of the program inside of the training
    content = _record(_linear, torch.ones(53, 31))
    snapshot = _load(content)
    assert "loss" in snapshot.strings
    (held,) = who_holds(snapshot, at="peak", by="module")
    assert {group.module for group in held.groups} <= {None, "0", "backward of 0"}
    # AND without the names of modules' phases, only the owners of tensors name modules
    del content["pytracer"]["module_phases"]
    (held,) = who_holds(_load(content), at="peak", by="module")
    assert {group.module for group in held.groups} == {None, "0"}
    (device,) = stats(_load(content)).devices
    assert device.held_by("module", "peak") is None


def test_a_neighbours_phase_is_marked() -> None:
    # GIVEN a recording in which no forward call is certain
    content = _record(_blocks, torch.ones(53, 31) * 3)
    for event in content["device_traces"][0]:
        event["forward_exact"] = False
    snapshot = _load(content)
    # THEN each module of what backward allocates is marked, and no other
    roles = {role for found in _modules(snapshot).values() for _, role in found}
    assert roles == {FORWARD, NEAR}
    (held,) = who_holds(snapshot, at="peak", by="module")
    assert any((group.module or "").startswith("backward near ") for group in held.groups)


def test_tensors_belong_to_the_innermost_module_with_a_phase() -> None:
    # GIVEN phases for all modules, for the outer modules only, and for the model only
    content = _record(_blocks, torch.ones(53, 31) * 3)
    assert _modules(_load(content))[4 * 31 * 32] >= {("0.inner", FORWARD)}
    content["pytracer"]["module_phases"]["paths"] = ["0"]
    assert {path for path, _ in _modules(_load(content))[4 * 31 * 32]} == {"0"}
    # AND a model's name is no module around the modules of another model
    content["pytracer"]["module_phases"] = {"models": ["0"], "paths": []}
    assert ("0.inner", FORWARD) in _modules(_load(content))[4 * 31 * 32]


def test_a_block_of_several_tensors_has_no_owners_module() -> None:
    content = _record(_linear, torch.ones(53, 31))
    weight = 4 * 31 * 37
    blocks = [block for segment in content["segments"] for block in segment["blocks"]]
    for block in blocks:
        if block["requested_size"] == weight and block["category"] == "parameter":
            block["owners"] = 2
    assert ("", FORWARD) in _modules(_load(content))[weight]


def test_a_workspace_belongs_to_the_module_that_ran() -> None:
    # GIVEN a block that a module's call allocated, and that torch keeps for cuBLAS
    content = _record(_linear, torch.ones(53, 31))
    owners = {"": "Sequential", "0": "0"}  # what is around no module is the model's
    content["pytracer"]["module_phases"]["paths_of_owners"] = owners
    output = 4 * 53 * 37
    blocks = [block for segment in content["segments"] for block in segment["blocks"]]
    blocks = [block for block in blocks if block["requested_size"] == output]
    before = _modules(_load(content))[output]
    assert ("0", FORWARD) in before
    for block in blocks:
        block |= {"category": "workspace", "category_rule": "cublas"}
        block |= {"owner": "cuBLAS workspace", "owners": 1}
    # THEN its owner's name is not taken for a tensor's
    assert blocks
    assert _modules(_load(content))[output] == before


@pytest.mark.parametrize(
    "names", [None, 3, [], {"models": 3, "paths": {}}, {"paths": [3, [], "x"]}]
)
def test_the_names_of_a_file_may_have_any_type(names: Any) -> None:
    content = _record(_linear, torch.ones(53, 31))
    content["pytracer"]["module_phases"] = names
    (held,) = who_holds(_load(content), at="end", by="module")
    assert {group.module for group in held.groups} <= {None, "0"}


def test_without_a_trace_the_end_has_the_modules_of_tensors() -> None:
    content = _record(_linear, torch.ones(53, 31))
    content["device_traces"] = [[]]
    (device,) = stats(_load(content)).devices
    assert device.held_by("module", "peak") is None
    held = device.held_by("module", "end")
    assert held is not None
    assert {group.module for group in held.groups} >= {"0"}


def _compiled(model: nn.Module) -> nn.Module:
    compiled = torch.compile(model, backend="eager")
    assert isinstance(compiled, nn.Module)
    return compiled


def _layers_in_wrappers(model: nn.Module) -> nn.Module:
    assert isinstance(model, nn.Sequential)
    return nn.Sequential(*(checkpoint_wrapper(layer) for layer in model))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo
@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("is_annotated_first", [False, True])
@pytest.mark.parametrize(
    ("wrap", "runs_modules"),
    [
        (DistributedDataParallel, True),
        (lambda model: DistributedDataParallel(_compiled(model)), False),
        (_compiled, False),
        (_layers_in_wrappers, True),
    ],
    ids=["ddp", "compiled_ddp", "compiled", "layers"],
)
def test_wrappers_are_in_no_path(
    wrap: Callable[[nn.Module], nn.Module], runs_modules: bool, is_annotated_first: bool
) -> None:
    # GIVEN a model in wrappers, which is annotated before or after it is wrapped
    gc.collect()
    torch._dynamo.reset()
    with pytracer.Tracer(device="cpu", forward_stacks=True) as tracer:
        model: nn.Module = nn.Sequential(nn.Linear(31, 37), nn.Linear(37, 41))
        annotated = [pytracer.annotate_modules(model)] if is_annotated_first else []
        wrapped = wrap(model)
        annotated += [] if is_annotated_first else [pytracer.annotate_modules(wrapped)]
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
        wrapped(torch.ones(53, 31)).cosh().sum().backward()
        optimizer.step()
        content = tracer.snapshot()
        for each in annotated:
            each.remove()
    # THEN the names of tensors do not have the wrappers
    owners = {block.get("owner") for segment in content["segments"] for block in segment["blocks"]}
    assert owners >= {"0.weight", "grad of 1.bias", "momentum_buffer of 1.weight"}
    # AND what a module has and what its calls allocate is in one row
    found = _modules(_load(content))
    assert found[4 * 31 * 37] == {("0", FORWARD)}
    assert {path for path, _ in found[4 * 37 * 41]} == {"1"}
    if runs_modules:
        assert ("1", FORWARD) in found[4 * 53 * 41]


def test_tensors_of_an_annotated_part_of_a_model_have_the_parts_phases() -> None:
    # GIVEN two models, of which a part of one is annotated
    gc.collect()
    with pytracer.Tracer(device="cpu", forward_stacks=True) as tracer:
        part = nn.Sequential(nn.Linear(31, 37), nn.Sequential(nn.Linear(37, 41)))
        models = [nn.ModuleDict({"part": part}), nn.Sequential(nn.Linear(43, 47))]
        free = nn.Parameter(torch.ones(53, 59))
        optimizer = torch.optim.SGD([free, *part.parameters()], lr=0.1)
        free.grad = torch.ones(53, 59)
        optimizer.step()
        with pytracer.annotate_modules(part, depth=1):
            part(torch.ones(61, 31))
            content = tracer.snapshot()
    found = _modules(_load(content))
    assert {path for path, _ in found[4 * 31 * 37]} == {"0"}
    assert {path for path, _ in found[4 * 37 * 41]} == {"1"}
    # AND the other model's tensors, and those of no module, do not
    assert {path for path, _ in found[4 * 43 * 47]} == {"Sequential.0"}
    assert {path for path, _ in found[4 * 53 * 59]} == {""}
    assert len(models) == 2


def test_what_a_node_accumulates_belongs_to_the_parameters_module() -> None:
    # GIVEN a gradient that its last node does not allocate, and that is freed
    gc.collect()
    with pytracer.Tracer(device="cpu", forward_stacks=True) as tracer:
        model = nn.Sequential(nn.Linear(31, 37))
        with pytracer.annotate_modules(model):
            next(model.parameters()).sum().backward()
            model.zero_grad()
        content = tracer.snapshot()
    assert _modules(_load(content))[4 * 31 * 37] == {("0", FORWARD), ("0", BACKWARD)}
