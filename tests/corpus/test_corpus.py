"""Test the answers about the programs of this folder: the oracle is how each was made.

`make test` runs a quarter of them, another one after each commit, and `make test-long` all.
"""

import functools
import subprocess
import tempfile
from pathlib import Path

import pytest
from amount import LONG
from corpus.answers import PROPERTIES, Found, look, stated
from corpus.truth import HERE, PROGRAMS, Program, programs

pytestmark = pytest.mark.slow


@functools.cache
def turn() -> int:
    """Return how many commits there are, by which the programs take turns."""
    count = ["git", "-C", str(HERE), "rev-list", "--count", "HEAD"]
    done = subprocess.run(count, capture_output=True, text=True, check=False)
    return int(done.stdout or 0)


def is_due(number: int, program: Program, device: str) -> bool:
    """Return whether a device's tests run the program of this number.

    Each commit has a quarter of them, on the CPU or on CUDA; a quarter of that is NPUs', too.
    """
    if LONG or device not in program.devices:
        return device in program.devices
    if device == "npu":
        return (number - turn()) % 16 == 0
    return (number - turn()) % 4 == 0 and device == ("cpu" if program.mib is None else "cuda")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    device = metafunc.config.getoption("--device")
    here = [p for number, p in enumerate(programs().values()) if is_due(number, p, device)]
    metafunc.parametrize(
        ("device", "name", "checked"),
        [
            pytest.param(device, program.name, checked, marks=_marks(program, checked))
            for program in here
            for checked in stated(program)
        ],
    )


def _marks(program: Program, checked: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.xfail(strict=True)] if checked in program.wrong else []


@functools.lru_cache(maxsize=2)
def found(name: str, device: str, *, is_fixed: bool) -> Found:
    """Return the answer about a program, of which all properties are checked in turn."""
    program = PROGRAMS[name]
    with tempfile.TemporaryDirectory() as folder:
        return look(program, device, Path(folder), **(program.helped or {} if is_fixed else {}))


def test_the_answer_is_true(device: str, name: str, checked: str) -> None:
    answer = found(name, device, is_fixed=checked == "remedy")
    assert PROPERTIES[checked][1](PROGRAMS[name], answer), answer.text
