"""Options from variables: argument, then variable, then default."""

import signal
from typing import Any

import pytest

from pytracer.config import OPTIONS, Options, switch, switched_off, variable
from pytracer.errors import ConfigError


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
    ("context", "alloc", "alloc"),
    ("context", "None", None),
    ("max_stack_bytes", "1000000", 1_000_000),
    ("metadata", '{"run": 7}', {"run": 7}),
    ("ranks", "0,3", (0, 3)),
    ("all_ranks", "yes", True),
    ("oom_ranks", "1", (1,)),
    ("role", "critic-2", "critic-2"),
    ("on_oom", "0", False),
    ("max_oom_snapshots", "0", 0),
    ("keep_last", "5", 5),
    ("on_snapshot", "package.module:upload", "package.module:upload"),
    ("dump_signal", "SIGUSR2", signal.SIGUSR2),
    ("dump_signal", "12", signal.SIGUSR2),
    ("trigger_file", "/tmp/now", "/tmp/now"),
]


@pytest.mark.parametrize(("name", "text", "value"), GOOD)
def test_a_variable_for_each_option(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: Any
) -> None:
    # GIVEN the default, WHEN the variable is set, THEN it counts
    default = getattr(Options.checked({}), name)
    assert default != value or value is None
    monkeypatch.setenv(variable(name), text)
    options = Options.checked({})
    assert (getattr(options, name), options.problem) == (value, None)
    # AND an argument counts more, and an empty variable for nothing
    assert getattr(Options.checked({name: OPTIONS[name].default}), name) == default
    monkeypatch.setenv(variable(name), "")
    assert getattr(Options.checked({}), name) == default


def test_every_option_was_tried() -> None:
    assert {name for name, *_ in GOOD} == set(OPTIONS)


BAD = [
    ("output", "x.pkl", "PYTRACER_OUTPUT='x.pkl' is not a name of a snapshot: give a file name"),
    ("device", "cuda,tpu", "PYTRACER_DEVICE=['cuda', 'tpu'] is unknown: give "),
    ("trace_alloc_max_entries", "0", "PYTRACER_TRACE_ALLOC_MAX_ENTRIES=0 is out of range: give"),
    ("stack_depth", "deep", "PYTRACER_STACK_DEPTH='deep' is not an integer: give an integer"),
    ("stack_depth", "-1", "PYTRACER_STACK_DEPTH=-1 is out of range: give an integer from 1 to"),
    ("context", "everything", "PYTRACER_CONTEXT='everything' is unknown: give None, "),
    ("max_stack_bytes", "1", "PYTRACER_MAX_STACK_BYTES=1 is out of range: give"),
    ("metadata", "{run: 7}", "PYTRACER_METADATA='{run: 7}' is not a dict: give"),
    ("ranks", "0-3", "PYTRACER_RANKS=['0-3'] is not a list of ranks: give integers from 0"),
    ("all_ranks", "maybe", "PYTRACER_ALL_RANKS='maybe' is not a boolean: give True or False"),
    ("oom_ranks", "-1", "PYTRACER_OOM_RANKS=[-1] is not a list of ranks: give"),
    ("role", "a/b", "PYTRACER_ROLE='a/b' cannot be part of a file name: give up to"),
    ("on_oom", "2", "PYTRACER_ON_OOM='2' is not a boolean: give"),
    ("max_oom_snapshots", "1e3", "PYTRACER_MAX_OOM_SNAPSHOTS='1e3' is not an integer: give"),
    ("keep_last", "0", "PYTRACER_KEEP_LAST=0 is out of range: give an integer from 1"),
    ("on_snapshot", "upload", "PYTRACER_ON_SNAPSHOT='upload' is not a function: give one"),
    ("dump_signal", "SIGKILL", "PYTRACER_DUMP_SIGNAL='SIGKILL' has another use: give the name"),
    ("dump_signal", "SIGNAL", "PYTRACER_DUMP_SIGNAL='SIGNAL' is not a signal: give the name"),
    ("dump_signal", "99", "PYTRACER_DUMP_SIGNAL='99' is not a signal: give the name"),
]


@pytest.mark.parametrize(("name", "text", "said"), BAD)
def test_a_bad_variable_is_told_and_not_raised(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, said: str
) -> None:
    monkeypatch.setenv(variable(name), text)
    options = Options.checked({})
    assert options.problem is not None
    assert options.problem.startswith(said)
    # An argument that takes its place mends it
    mended = Options.checked({name: OPTIONS[name].default})
    assert mended.problem is None
    assert getattr(options, name) == getattr(mended, name)


def test_several_bad_variables_are_all_told(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_files_that_are_the_environments_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN an output in the environment, WHEN its tracer is not on, THEN it is any tracer's
    monkeypatch.setenv("PYTRACER_OUTPUT", "x.pickle")
    assert Options.checked({}).output == "x.pickle"
    # WHEN it is, THEN it is that one's alone, unless the code names it
    monkeypatch.setenv("PYTRACER", "1")
    assert Options.checked({}).output is None
    assert Options.checked({}, output="outputs/profile").output == "x.pickle"
    assert Options.checked({"output": "x.pickle"}).output == "x.pickle"
