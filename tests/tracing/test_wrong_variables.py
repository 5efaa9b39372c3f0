"""Does a wrong value in a variable cost the recording, or fill the log?"""

from pathlib import Path

import pytest
import torch

import pytracer
from pytracer import log
from pytracer.activation.environment import EnvironmentTracer
from pytracer.errors import ConfigError
from pytracer.tracing.options import OPTIONS, Options, variable

# One for each place that a value goes to; tests/tracing/test_options.py has those of all options.
WRONG = {
    "stack_depth": "6o4",
    "steps": "12-10",
    "ranks": "0-3",
    "on_snapshot": "upload",
    "dump_signal": "SIGKILL",
}


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the messages that the test logs."""
    messages: set[str] = set()
    monkeypatch.setattr(log, "_logged", messages)
    return messages


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Run a test in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recorded() -> set[str]:
    """Record as `PYTRACER=1` does; return the files."""
    tracer = EnvironmentTracer(device="cpu").start()
    torch.empty(1000)
    assert tracer.stats()["recording"]
    tracer._finish()
    return {path.as_posix() for path in Path().rglob("*.pickle")}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_warns_and_the_default_is_recorded(
    name: str, monkeypatch: pytest.MonkeyPatch, logged: set[str]
) -> None:
    # GIVEN a wrong value in a variable
    monkeypatch.setenv(variable(name), WRONG[name])
    # WHEN the environment's tracer records
    files = recorded()
    # THEN there is a file, and one warning that names the variable and the default
    assert len(files) == 1
    (message,) = logged
    assert message.startswith(f"{variable(name)}=")
    assert "default" in message
    # AND the option has its default
    default = OPTIONS[name].check(name, OPTIONS[name].default)
    assert getattr(Options.checked({}), name) == default


@pytest.mark.parametrize("output", ["job/x", "job/x.pickle"])
def test_an_output_that_cannot_be_written(
    output: str, monkeypatch: pytest.MonkeyPatch, logged: set[str]
) -> None:
    # GIVEN an output in a folder that is a file
    Path("job").touch()
    monkeypatch.setenv("PYTRACER_OUTPUT", output)
    # WHEN
    (file,) = recorded()
    # THEN the default folder has the file, and one warning is logged
    assert file.startswith("outputs/profile/exit/")
    (message,) = (text for text in logged if "PYTRACER_OUTPUT" in text)
    assert message.startswith(f"PYTRACER_OUTPUT='{output}' cannot be written: ")
    assert message.endswith(". The default, 'outputs/profile', is used")
    # AND a tracer in the code with the same value raises
    with pytest.raises(ConfigError, match="cannot be written"):
        pytracer.Tracer(output).start()


def test_wrong_steps_do_not_make_a_correct_option_in_code_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN an option in the code that needs the steps of a wrong variable
    monkeypatch.setenv("PYTRACER_STEPS", "one")
    # WHEN the options are checked
    options = Options.checked({"discrete": True})
    # THEN everything is recorded
    assert (options.steps, options.discrete) == (None, False)
    assert str(options.problem).startswith("PYTRACER_STEPS='one' is not a list of steps")
    # AND an error in the code alone stays an error
    with pytest.raises(ConfigError, match="stack_depth=0"):
        Options.checked({"stack_depth": 0})


def test_a_blank_variable_is_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN blank variables
    for option in OPTIONS.values():
        monkeypatch.setenv(option.variable, "  ")
    monkeypatch.setenv("PYTRACER", " ")
    # WHEN / THEN every option has its default, and the file at the end is written
    assert Options.checked({}).problem is None
    assert len(recorded()) == 1


@pytest.mark.parametrize("name", ["stack_depth", "output", "metadata", "steps", "device"])
def test_a_long_value_is_quoted_in_part(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a value of 100 KB
    end = ".json" if name == "output" else ""
    monkeypatch.setenv(variable(name), "x" * 100_000 + end)
    # WHEN / THEN the message has a part of it
    problem = Options.checked({}).problem
    assert problem is not None
    assert "xxx...xxx" in problem
    assert len(problem) < 1000


def test_a_ring_without_room(monkeypatch: pytest.MonkeyPatch, logged: set[str]) -> None:
    # GIVEN a number of entries in a variable for which the process has no address space
    import resource

    monkeypatch.setenv("PYTRACER_TRACE_ALLOC_MAX_ENTRIES", str(2**28))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**31, limits[1]))
    # WHEN / THEN the default is recorded, and one warning is logged
    try:
        assert len(recorded()) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    (message,) = (text for text in logged if "ENTRIES" in text.upper())
    assert message.endswith(". The default is used")
