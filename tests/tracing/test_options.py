"""Tests of options: an argument overrides a variable, and a variable overrides the default."""

import inspect
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import pytracer
from pytracer.errors import ConfigError
from pytracer.tracing.options import OPTIONS, Options, switch, switched_off, variable
from pytracer.tracing.step_windows import CyclicSchedule


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OPTIONS:
        monkeypatch.delenv(variable(name), raising=False)
    monkeypatch.delenv("PYTRACER", raising=False)


GOOD: list[tuple[str, str, Any]] = [
    ("output", "runs/7", "runs/7"),
    ("output", "none", None),
    ("device", "cuda:1, cpu", ("cuda:1", "cpu")),
    ("trace_alloc_max_entries", "200_000", 200_000),
    ("stack_depth", "64", 64),
    ("max_stack_bytes", "1000000", 1_000_000),
    ("source_lines", "0", False),
    ("metadata", '{"run": 7}', {"run": 7}),
    ("metadata", "batch=2, length=-64,run=a b", {"batch": 2, "length": -64, "run": "a b"}),
    ("steps", "1,2, 5", (1, 2, 5)),
    ("steps", "[1,2,5]", (1, 2, 5)),
    ("steps", "[]", ()),
    ("steps", "10-12", range(10, 13)),
    ("steps", "7", range(7, 8)),
    ("steps", "3, 10 - 12,1", (3, 10, 11, 12, 1)),
    ("steps", "[3,10-12]", (3, 10, 11, 12)),
    ("steps", "1-4294967295", range(1, 2**32)),
    ("steps", "5,1-99999", (5, *range(1, 100_000))),
    ("steps", "none", None),
    ("memory_snapshot_num_steps", "2", 2),
    ("schedule", "active=3", CyclicSchedule(3)),
    (
        "schedule",
        "wait=1, warmup=2,active=3,repeat=4,skip_first=5",
        CyclicSchedule(wait=1, warmup=2, active=3, repeat=4, skip_first=5),
    ),
    ("schedule", "none", None),
    ("step_from", "framework", "framework"),
    ("step_from", "optimizer", "optimizer"),
    ("step_from", "optimizer:AdamW", "optimizer:AdamW"),
    ("step_from", "none", "none"),
    ("phases", "auto", "auto"),
    ("phases", "none", None),
    ("discrete", "1", True),
    ("discrete", "rollout, actor_update", ("rollout", "actor_update")),
    ("ranks", "0,3", (0, 3)),
    ("ranks", " All", "all"),
    ("forward_stacks", "1", True),
    ("all_ranks", "yes", True),
    ("role", "critic-2", "critic-2"),
    ("pinned_memory", "1", True),
    ("max_oom_snapshots", "0", 0),
    ("keep_last", "5", 5),
    ("on_snapshot", "package.module:upload", "package.module:upload"),
    ("dump_signal", "SIGUSR2", signal.SIGUSR2),
    ("dump_signal", "12", signal.SIGUSR2),
    ("trigger_file", "/tmp/now", "/tmp/now"),
]


NEEDS_STEPS = ("memory_snapshot_num_steps", "discrete")


@pytest.mark.parametrize(("name", "text", "value"), GOOD)
def test_a_variable_for_each_option(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: Any
) -> None:
    if name in NEEDS_STEPS:
        monkeypatch.setenv("PYTRACER_STEPS", "1")
    # GIVEN the default, WHEN the variable is set, THEN the variable's value is used
    default = getattr(Options.checked({}), name)
    assert default != value or value is None
    monkeypatch.setenv(variable(name), text)
    options = Options.checked({})
    assert (getattr(options, name), options.problem) == (value, None)
    # AND an argument overrides the variable, and an empty variable is ignored
    assert getattr(Options.checked({name: OPTIONS[name].default}), name) == default
    monkeypatch.setenv(variable(name), "")
    assert getattr(Options.checked({}), name) == default


def test_every_option_has_a_case() -> None:
    assert {name for name, *_ in GOOD} == set(OPTIONS)


def test_the_signature_and_the_documentation_show_the_table() -> None:
    signature = inspect.signature(pytracer.Tracer)
    assert {name: option.default for name, option in OPTIONS.items()} == {
        name: parameter.default for name, parameter in signature.parameters.items()
    }
    documented = inspect.getdoc(pytracer.Tracer) or ""
    for option in OPTIONS.values():
        assert f"\n    {option.name}: " in documented
        assert " ".join(f"{option.doc} Default: `".split()) in " ".join(documented.split())
        assert "|" not in option.doc
    assert "see `pytracer" not in documented


def test_an_argument_that_equals_the_default_overrides_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTRACER_STACK_DEPTH", "7")
    monkeypatch.setenv("PYTRACER_OUTPUT", "x.pickle")
    assert pytracer.Tracer().snapshot()["pytracer"]["stack_depth"] == 7
    assert pytracer.Tracer(stack_depth=32).snapshot()["pytracer"]["stack_depth"] == 32
    with pytracer.Tracer(None, device="cpu"):
        pass
    assert not [*tmp_path.glob("[!.]*")]
    with pytracer.Tracer(device="cpu"):
        pass
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["x.pickle"]


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        pytracer.Tracer(depth=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional arguments"):
        pytracer.Tracer("x.pickle", "cpu")  # type: ignore[misc]


BAD = [
    ("output", "x.pt", "PYTRACER_OUTPUT='x.pt' is not the name of a snapshot file: give"),
    ("device", "cuda,tpu", "PYTRACER_DEVICE=['cuda', 'tpu'] is unknown: give "),
    ("trace_alloc_max_entries", "0", "PYTRACER_TRACE_ALLOC_MAX_ENTRIES=0 is out of range: give"),
    ("stack_depth", "deep", "PYTRACER_STACK_DEPTH='deep' is not an integer: give an integer"),
    ("stack_depth", "-1", "PYTRACER_STACK_DEPTH=-1 is out of range: give an integer from 1 to"),
    ("max_stack_bytes", "1", "PYTRACER_MAX_STACK_BYTES=1 is out of range: give"),
    ("metadata", "{run: 7}", "PYTRACER_METADATA='{run: 7}' is not a dict: give"),
    ("metadata", "batch=2,run", "PYTRACER_METADATA='batch=2,run' is not a dict: give"),
    *(
        ("steps", text, f"PYTRACER_STEPS={text!r} is not a list of steps: give integers")
        for text in (
            *("0,1", "0-3", "3-1", "1-", "-1", "1-2-3", "1,,2", "1;2", "one", "1-4294967296"),
            *("5,1-100000", "1-4294967295,7", f"1{'0' * 20}"),
        )
    ),
    (
        "memory_snapshot_num_steps",
        "0",
        "PYTRACER_MEMORY_SNAPSHOT_NUM_STEPS=0 is out of range: give an integer from 1",
    ),
    (
        "memory_snapshot_num_steps",
        "2",
        "PYTRACER_MEMORY_SNAPSHOT_NUM_STEPS=2 has no effect without `steps`: give",
    ),
    ("schedule", "wait=1", "PYTRACER_SCHEDULE='wait=1' is not a schedule: give what torch.prof"),
    ("schedule", "active=0", "PYTRACER_SCHEDULE='active=0' is not a schedule: give what"),
    ("schedule", "active=-1", "PYTRACER_SCHEDULE='active=-1' is not a schedule: give what"),
    ("schedule", "active=1,on=1", "PYTRACER_SCHEDULE='active=1,on=1' is not a schedule: give"),
    ("step_from", "loss", 'PYTRACER_STEP_FROM=\'loss\' is unknown: give "framework", "optimizer"'),
    ("step_from", "optimizer:", "PYTRACER_STEP_FROM='optimizer:' is unknown: give"),
    ("discrete", "1", "PYTRACER_DISCRETE=True needs selected steps, to limit the"),
    ("discrete", "a,,b", "PYTRACER_DISCRETE=['a', '', 'b'] is not a list of phases: give"),
    ("ranks", "0-3", "PYTRACER_RANKS=['0-3'] is not a list of ranks: give integers from 0"),
    ("all_ranks", "maybe", "PYTRACER_ALL_RANKS='maybe' is not a boolean: give True or False"),
    ("ranks", "-1", "PYTRACER_RANKS=[-1] is not a list of ranks: give"),
    ("ranks", "all,1", "PYTRACER_RANKS=['all', 1] is not a list of ranks: give"),
    ("role", "a/b", "PYTRACER_ROLE='a/b' cannot be part of a file name: give up to"),
    ("max_oom_snapshots", "1e3", "PYTRACER_MAX_OOM_SNAPSHOTS='1e3' is not an integer: give"),
    ("keep_last", "0", "PYTRACER_KEEP_LAST=0 is out of range: give an integer from 1"),
    ("on_snapshot", "upload", "PYTRACER_ON_SNAPSHOT='upload' is not a function: give one"),
    ("dump_signal", "SIGKILL", "PYTRACER_DUMP_SIGNAL='SIGKILL' cannot be used, because it has"),
    ("dump_signal", "SIGNAL", "PYTRACER_DUMP_SIGNAL='SIGNAL' is not a signal: give the name"),
    ("dump_signal", "99", "PYTRACER_DUMP_SIGNAL='99' is not a signal: give the name"),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_a_bad_variable_is_reported_and_not_raised(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str
) -> None:
    monkeypatch.setenv(variable(name), text)
    options = Options.checked({})
    assert options.problem is not None
    assert options.problem.startswith(message)
    # An argument overrides the bad variable
    mended = Options.checked({name: OPTIONS[name].default})
    assert mended.problem is None
    assert getattr(options, name) == getattr(mended, name)


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"steps": [1], "schedule": CyclicSchedule(1)}, r"steps=\(1,\) and schedule=.+ both select"),
    ({"steps": [], "schedule": CyclicSchedule(1)}, r"steps=\(\) and schedule=.+ both select"),
    ({"memory_snapshot_num_steps": 2}, "=2 has no effect without `steps`: give"),
    ({"memory_snapshot_num_steps": 2, "schedule": CyclicSchedule(1)}, "leave it out: a schedule"),
    ({"discrete": True}, "discrete=True needs selected steps, .*: give `steps` or `schedule`"),
    ({"discrete": ["a"], "steps": []}, r"discrete=\('a',\) needs selected steps, .*: give `steps`"),
]


@pytest.mark.parametrize(("given", "message"), CONTRADICTIONS)
def test_options_that_contradict_each_other(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Options.checked(given)


def test_a_variable_that_contradicts_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN steps in a variable, and a schedule in the code
    monkeypatch.setenv("PYTRACER_STEPS", "1,2")
    # WHEN they are checked, THEN the code overrides the variable
    options = Options.checked({"schedule": CyclicSchedule(3)})
    assert (options.steps, options.schedule) == (None, CyclicSchedule(3))
    assert options.problem is None
    # AND two contradicting variables are reported
    monkeypatch.setenv("PYTRACER_SCHEDULE", "active=3")
    options = Options.checked({})
    assert options.problem is not None
    assert options.problem.startswith(
        "PYTRACER_STEPS=(1, 2) and PYTRACER_SCHEDULE=CyclicSchedule(active=3"
    )
    assert (options.steps, options.schedule) == (None, None)


def test_all_ranks_is_the_same_as_ranks_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Options.checked({"all_ranks": True}).ranks == "all"
    assert Options.checked({"all_ranks": True, "ranks": [1]}).ranks == "all"
    assert Options.checked({"ranks": "all"}).ranks == "all"
    monkeypatch.setenv("PYTRACER_ALL_RANKS", "1")
    assert Options.checked({}).ranks == "all"
    assert Options.checked({"all_ranks": False}).ranks == ()


def test_steps_of_many_kinds() -> None:
    every = range(1, 2**31)  # a range that is too large for a list
    assert Options.checked({"steps": every}).steps is every
    assert Options.checked({"steps": {2, 1}}).steps in ((1, 2), (2, 1))
    assert Options.checked({"steps": (step for step in (3, 1))}).steps == (3, 1)
    assert Options.checked({"steps": "3,10-12"}).steps == (3, 10, 11, 12)
    for bad in (range(3), range(1, 2**40), range(5, -1, -1), "", "none", "0-2"):
        with pytest.raises(ConfigError, match="is not a list of steps: give integers"):
            Options.checked({"steps": bad})


def test_schedules_like_torchs() -> None:
    # GIVEN torch's own schedule, one of the user, and invalid ones
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2)
    assert Options.checked({"schedule": schedule}).schedule is schedule

    class Action:
        name = "RECORD"

    assert Options.checked({"schedule": lambda step: Action()}).schedule is not None
    for bad, message in (
        (
            lambda step: True,
            r"schedule=<function .*> returns True for step 0, not a torch\.prof",
        ),
        (lambda: None, r"schedule=<function .*> fails for step 0: TypeError\(.*: give what torch"),
        (["RECORD"], r"schedule=\['RECORD'\] is not a schedule: give what torch"),
    ):
        with pytest.raises(ConfigError, match=message):
            Options.checked({"schedule": bad})


def test_several_bad_variables_are_all_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTRACER_STACK_DEPTH", "x")
    monkeypatch.setenv("PYTRACER_ROLE", "a b")
    problem = Options.checked({}).problem
    assert problem is not None
    assert problem.index("PYTRACER_STACK_DEPTH") < problem.index("; PYTRACER_ROLE")


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, value in {"1": True, "on": True, "0": False, "False": False, "": None}.items():
        monkeypatch.setenv("PYTRACER", text)
        assert switch("PYTRACER") is value
        assert switched_off() == (value is False)
    monkeypatch.setenv("PYTRACER", "maybe")
    with pytest.raises(ConfigError, match="PYTRACER='maybe' is not a boolean: give"):
        switch("PYTRACER")
    assert not switched_off()


def test_files_that_only_the_environments_tracer_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN an output in the environment, WHEN PYTRACER is not set, THEN every tracer uses it
    monkeypatch.setenv("PYTRACER_OUTPUT", "x.pickle")
    assert Options.checked({}).output == "x.pickle"
    # WHEN PYTRACER is set, THEN only the environment's tracer uses it, or code that names it
    monkeypatch.setenv("PYTRACER", "1")
    assert Options.checked({}).output is None
    assert Options.checked({}, output="outputs/profile").output == "x.pickle"
    assert Options.checked({"output": "x.pickle"}).output == "x.pickle"
    # AND the steps of the environment apply only to the environment's tracer
    monkeypatch.setenv("PYTRACER_STEPS", "1,2")
    assert Options.checked({}).steps is None
    assert Options.checked({}, output="outputs/profile").steps == (1, 2)


def test_pinned_memory_needs_a_cuda_device(caplog: pytest.LogCaptureFixture) -> None:
    # GIVEN the option, and a recording of the CPU alone
    with pytracer.Tracer(device="cpu", pinned_memory=True) as tracer:
        stats = tracer.stats()
    # THEN the CPU is recorded, and the reason is kept
    assert stats["recording"]
    assert "only together with a CUDA device" in stats["untraced"]
