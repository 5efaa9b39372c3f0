"""Tests of phases that need no change of the program: phases="auto" and annotate_modules."""

import gc
import textwrap
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytracer import Tracer, annotate, annotate_modules
from pytracer.errors import ConfigError
from pytracer.tracing import training_phases
from pytracer.tracing.training_phases import TRAINING_PHASES


def mark(size: int) -> None:
    """Allocate a block that phases_of() finds by its size in bytes."""
    torch.empty(size, dtype=torch.uint8)


def phases_of(tracer: Tracer, size: int) -> list[tuple[str, ...]]:
    """Return the phases of the allocations of this size."""
    return [
        tracer.phase(event["phase"])
        for event in tracer.events()
        if event["action"] == 0 and event["size_bytes"] == size
    ]


class Marks(nn.Module):
    """Allocates a marker in forward."""

    def __init__(self, size: int, *inner: nn.Module) -> None:
        super().__init__()
        self.size = size
        self.weight = nn.Parameter(torch.ones(3))
        self.inner = nn.ModuleList(inner)

    def forward(self, x: Any) -> Any:
        for module in self.inner:
            x = module(x)
        mark(self.size)
        return x * self.weight


class Backward(torch.autograd.Function):
    """Allocates a marker in backward."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        mark(3001)
        return grad


class MarkingSGD(torch.optim.SGD):
    """Allocates a marker in its step, and fails if told so."""

    fails = False

    def step(self, closure: Any = None) -> Any:
        mark(4001)
        if self.fails:
            raise MemoryError
        return super().step(closure)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = torch.autograd.backward, torch.autograd.grad
    yield
    assert (torch.autograd.backward, torch.autograd.grad) == before
    assert not TRAINING_PHASES._undo
    assert not training_phases._CALLS.entered


def test_a_training_has_phases() -> None:
    # GIVEN a training without any name of a phase, recorded with phases="auto"
    model = Marks(1001, Marks(1002))
    optimizer = MarkingSGD(model.parameters(), lr=0.1)
    with Tracer(device="cpu", phases="auto") as tracer:
        for _ in range(2):
            mark(1000)
            loss = Backward.apply(model(torch.ones(3))).sum()
            mark(1003)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.autograd.grad(Backward.apply(model(torch.ones(3))).sum(), model.weight)
    # THEN each part has its phase, and what is outside of all parts has none
    assert phases_of(tracer, 1001) == phases_of(tracer, 1002) == [("forward",)] * 3
    assert phases_of(tracer, 1000) == phases_of(tracer, 1003) == [()] * 2
    assert phases_of(tracer, 3001) == [("backward",)] * 3
    assert phases_of(tracer, 4001) == [("optimizer",)] * 2


def test_a_recomputation_is_a_forward_in_backward() -> None:
    # GIVEN a module whose forward runs again in backward
    model = Marks(1001)
    with Tracer(device="cpu", phases="auto") as tracer:
        x = torch.ones(3, requires_grad=True)
        checkpoint(model, x, use_reentrant=False).sum().backward()
    # THEN the second forward is within the backward
    assert phases_of(tracer, 1001) == [("forward",), ("backward", "forward")]


def test_phases_end_with_exceptions() -> None:
    # GIVEN a forward, a backward and an optimizer's step that raise, in an outer phase
    class Fails(nn.Module):
        def forward(self, x: Any) -> Any:
            raise MemoryError

    class FailsInBackward(Backward):
        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            raise MemoryError

    model = Marks(1001)
    optimizer = MarkingSGD(model.parameters(), lr=0.1)
    optimizer.fails = True
    with Tracer(device="cpu", phases="auto") as tracer, annotate("outer"):
        with pytest.raises(MemoryError):
            nn.Sequential(model, Fails())(torch.ones(3))
        mark(1010)
        with pytest.raises(MemoryError):
            FailsInBackward.apply(model(torch.ones(3))).sum().backward()
        mark(1011)
        with pytest.raises(MemoryError):
            optimizer.step()
        # THEN what follows is in the outer phase; after a step, from the next part on
        model(torch.ones(3))
        mark(1012)
    assert phases_of(tracer, 1001) == [("outer", "forward")] * 3
    for size in (1010, 1011, 1012):
        assert phases_of(tracer, size) == [("outer",)]


def test_an_interrupted_forward_keeps_nothing() -> None:
    # GIVEN a forward that Ctrl-C ends, of which torch reports no end
    class Interrupted(nn.Module):
        def forward(self, x: Any) -> Any:
            raise KeyboardInterrupt

    model = nn.Sequential(Interrupted())
    with Tracer(device="cpu", phases="auto") as tracer, annotate_modules(model):
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(3))
        # THEN the next forward is not inside of it
        Marks(1001)(torch.ones(3))
        assert phases_of(tracer, 1001) == [("forward",)]
    # AND the model is not kept
    watched = weakref.ref(model)
    del model
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("phases", ["auto", pytest.param("none", marks=pytest.mark.long)])
def test_what_a_tracer_registers_can_be_compiled(tmp_path: Path, phases: str) -> None:
    # GIVEN a module that sets a buffer in its forward, and an optimizer, while a tracer records
    # WHEN torch compiles them, THEN the module is one graph (in a process of its own, because torch
    # keeps what it has compiled)
    program = """
        import torch, pytracer

        class Counts(torch.nn.Linear):
            def __init__(self):
                super().__init__(1, 1)
                self.register_buffer("count", torch.zeros(1))
            def forward(self, x):
                self.count = self.count + 1
                return super().forward(x) + self.count

        with pytracer.Tracer(device="cpu", step_from="framework") as tracer:
            module = Counts()
            compiled = torch.compile(module, fullgraph=True, backend="eager")
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            step = torch.compile(optimizer.step, backend="eager")
            for _ in range(2):
                compiled(torch.ones(1)).sum().backward()
                step()
            assert tracer.current_step == 3
    """
    env = processes.environment(PYTRACER_PHASES=phases)
    done = processes.run(textwrap.dedent(program), cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "Dynamo does not know how to trace" not in done.stderr


def test_a_closure_is_within_the_optimizers_step() -> None:
    # GIVEN an optimizer that calls the training
    model = Marks(1001)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = Backward.apply(model(torch.ones(3))).sum()
        loss.backward()
        return loss

    with Tracer(device="cpu", phases="auto") as tracer:
        optimizer.step(closure)
    # THEN its phases are nested
    assert set(phases_of(tracer, 1001)) == {("optimizer", "forward")}
    assert set(phases_of(tracer, 3001)) == {("optimizer", "backward")}


def test_a_module_that_calls_itself() -> None:
    # GIVEN a module that calls itself, and then allocates
    class Recursive(nn.Module):
        def forward(self, levels: int) -> None:
            if levels:
                self(levels - 1)
            mark(1001)

    with Tracer(device="cpu", phases="auto") as tracer:
        Recursive()(3)
        mark(1002)
    # THEN the phase lasts until the outermost call ends
    assert phases_of(tracer, 1001) == [("forward",)] * 4
    assert phases_of(tracer, 1002) == [()]


def test_threads_and_tracers_do_not_disturb_each_other() -> None:
    # GIVEN two tracers, and two threads that are in different parts at the same time
    model, both = Marks(1001), threading.Barrier(2)
    with Tracer(device="cpu", phases="auto") as tracer, Tracer(device="cpu", phases="auto"):

        class Waits(nn.Module):
            def forward(self) -> None:
                both.wait()
                both.wait()

        thread = threading.Thread(target=Waits())
        thread.start()
        both.wait()
        with annotate("evaluation"):
            model(torch.ones(3))
        both.wait()
        thread.join()
    # THEN each call is one phase of its own thread
    assert phases_of(tracer, 1001) == [("evaluation", "forward")]


def test_without_the_option_nothing_is_marked() -> None:
    with Tracer(device="cpu") as tracer:
        Marks(1001)(torch.ones(3))
    assert phases_of(tracer, 1001) == [()]
    with pytest.raises(ConfigError, match="phases='all' is unknown: give \"auto\""):
        Tracer(device="cpu", phases="all")


def test_modules_have_phases() -> None:
    # GIVEN a model whose modules are annotated
    model = nn.Sequential(Marks(1001, Marks(1002)), Marks(1003))
    with Tracer(device="cpu") as tracer:
        with annotate_modules(model):
            Backward.apply(model(torch.ones(3))).sum().backward()
        model(torch.ones(3))
        # THEN an allocation has the path of the innermost module, until the annotation ends
        assert phases_of(tracer, 1001) == [("Sequential", "0"), ()]
        assert phases_of(tracer, 1002) == [("Sequential", "0", "0.inner.0"), ()]
        assert phases_of(tracer, 1003) == [("Sequential", "1"), ()]
        assert phases_of(tracer, 3001) == [()]
        # AND `depth` limits the levels
        tracer.clear()
        annotated = annotate_modules(model, depth=1)
        model(torch.ones(3))
        annotated.remove()
        assert phases_of(tracer, 1002) == [("Sequential", "0")]


@pytest.mark.usefixtures("own_module_phases")
def test_a_snapshot_names_the_phases_that_are_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3)))
    with Tracer(device="cpu") as tracer:
        assert tracer.snapshot()["pytracer"]["module_phases"] == {
            "models": [],
            "paths": [],
            "paths_of_owners": {},
        }
        with annotate("training"), annotate_modules(model, depth=1):
            model(torch.ones(3))
        names = tracer.snapshot()["pytracer"]["module_phases"]
        assert names["models"] == ["Sequential"]
        assert names["paths"] == ["0", "1"]
        # AND the paths of its tensors, which begin with the class if other models exist
        assert {*names["paths_of_owners"].values()} == {"Sequential", "0", "1"}
        # AND there is a limit
        monkeypatch.setattr(training_phases.ModulePhases, "MOST", 3)
        annotate_modules(nn.Sequential(*(nn.Linear(3, 3) for _ in range(9)))).remove()
        assert len(tracer.snapshot()["pytracer"]["module_phases"]["paths"]) == 3
        # AND one for the length of all names
        monkeypatch.setattr(training_phases.ModulePhases, "MOST", 1000)
        monkeypatch.setattr(training_phases.ModulePhases, "MOST_BYTES", 100)
        annotate_modules(nn.ModuleDict({"x" * 60: nn.Linear(3, 3), "y" * 60: nn.Linear(3, 3)}))
        paths = tracer.snapshot()["pytracer"]["module_phases"]["paths"]
        assert "x" * 60 in paths
        assert "y" * 60 not in paths


def test_a_wrong_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"3 is not a torch\.nn\.Module"):
        annotate_modules(3)
    with pytest.raises(ConfigError, match="depth=-1: give an integer"):
        annotate_modules(nn.Linear(1, 1), -1)


def test_a_forked_child_marks_its_own_phases(tmp_path: Path) -> None:
    # GIVEN a child that was forked while a tracer marks phases
    program = """
        import os, torch
        from pytracer import Tracer
        with Tracer(device="cpu", phases="auto"):
            child = os.fork()
            if child == 0:
                with Tracer(device="cpu", phases="auto") as tracer:
                    torch.nn.Linear(1, 1)(torch.ones(1))
                phases = {tracer.phase(event["phase"]) for event in tracer.events()}
                os._exit(0 if ("forward",) in phases else 1)
        assert os.waitpid(child, 0)[1] == 0
    """
    done = processes.run(textwrap.dedent(program), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
