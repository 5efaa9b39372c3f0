"""What do variables of pytracer do that have no effect?"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest

from pytracer import log
from pytracer.activation import unused_variables
from pytracer.errors import ConfigError


@pytest.fixture(autouse=True)
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Return the messages of a test, whose environment has no variable of pytracer."""
    for name in [*os.environ]:
        if name.startswith("PYTRACER"):
            monkeypatch.delenv(name)
    monkeypatch.setenv(unused_variables.REPORTED, "")  # it is restored at the end
    del os.environ[unused_variables.REPORTED]
    monkeypatch.setattr(log, "_logged", set())
    yield log._logged
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def autoload() -> None:
    """Do what torch does at the end of its import."""
    import _torch_pytracer

    _torch_pytracer.autoload()


@pytest.mark.parametrize("switch", [None, "0", "maybe"])
def test_the_signal_does_not_end_the_job(
    switch: str | None, monkeypatch: pytest.MonkeyPatch, logged: set[str]
) -> None:
    # GIVEN a signal for snapshots, and no PYTRACER=1
    monkeypatch.setenv("PYTRACER_DUMP_SIGNAL", "SIGUSR2")
    if switch is not None:
        monkeypatch.setenv("PYTRACER", switch)
    # WHEN torch was imported, and the signal comes
    if switch == "maybe":
        from pytracer.activation import environment

        environment.begin(lambda: None)
    else:
        autoload()
    os.kill(os.getpid(), signal.SIGUSR2)
    # THEN the process goes on
    assert not any("PYTRACER_DUMP_SIGNAL" in text for text in logged)


def test_a_handler_of_the_program_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a program that has a handler of the signal
    got = []
    signal.signal(signal.SIGUSR2, lambda *_: got.append(1))
    monkeypatch.setenv("PYTRACER_DUMP_SIGNAL", "SIGUSR2")
    # WHEN
    autoload()
    os.kill(os.getpid(), signal.SIGUSR2)
    # THEN
    assert got == [1]


def test_variables_are_reported_once_in_a_job(
    monkeypatch: pytest.MonkeyPatch, logged: set[str]
) -> None:
    # GIVEN options and a misspelt one, without PYTRACER=1
    monkeypatch.setenv("PYTRACER_OUTPUT", "x")
    monkeypatch.setenv("PYTRACER_STEPS", "1")
    monkeypatch.setenv("PYTRACER_STACK_DEPT", "7")
    # WHEN torch was imported
    autoload()
    # THEN the misspelt one is in a message
    (misspelt,) = logged
    assert misspelt.endswith("did you mean PYTRACER_STACK_DEPTH?")
    # AND a child says nothing
    logged.clear()
    autoload()
    assert not logged


@pytest.mark.parametrize("has_tracer", [False, True])
def test_options_without_a_tracer_are_reported_at_the_end(tmp_path: Path, has_tracer: bool) -> None:
    # GIVEN options in the environment, without PYTRACER=1
    env = processes.installed(tmp_path, PYTRACER_OUTPUT="x", PYTRACER_STEPS="1")
    program = "import torch"
    if has_tracer:
        program += "\nimport pytracer\npytracer.Tracer(device='cpu', output=None, steps=[])"
    # WHEN a program ends
    done = processes.run(program, cwd=tmp_path, env=env)
    # THEN they are reported, unless a tracer in the code has used them
    assert done.returncode == 0
    if has_tracer:
        assert done.stderr == ""
    else:
        (line,) = done.stderr.splitlines()
        assert line.startswith("pytracer: PYTRACER=1 was not set: process ")
        assert "PYTRACER_OUTPUT, PYTRACER_STEPS had no effect" in line


def test_nothing_is_said_without_variables(logged: set[str]) -> None:
    # WHEN / THEN
    autoload()
    assert not logged


def test_a_tracer_that_cannot_start_keeps_no_other_variable_from_its_effect(
    monkeypatch: pytest.MonkeyPatch, logged: set[str]
) -> None:
    # GIVEN a process that asks for a tracer, which cannot start, and for torch's functions
    from pytracer.activation import environment
    from pytracer.torch_recorder import patch

    def refused() -> None:
        raise ConfigError("output='x' cannot be written")

    done: list[str] = []
    monkeypatch.setattr(environment, "_tracer", None)
    monkeypatch.setattr(environment, "_follow_children", lambda _: None)
    monkeypatch.setattr(environment, "EnvironmentTracer", refused)
    monkeypatch.setattr(environment.verl, "follow", lambda: None)
    monkeypatch.setattr(patch, "patch_torch", lambda: done.append("patched"))
    monkeypatch.setenv("PYTRACER", "1")
    monkeypatch.setenv("PYTRACER_PATCH_TORCH", "1")
    # WHEN torch was imported
    environment.begin(lambda: None)
    # THEN the functions are replaced, and the reason is logged
    assert done == ["patched"]
    (line,) = logged
    assert line.startswith("nothing is recorded, and the job continues: PYTRACER_OUTPUT='x'")
