"""Test the answers about the programs of this folder: the oracle is how each was made.

`make test` runs a quarter of them, which the commit chooses, and `make test-long` all.
"""

import functools
import tempfile
from pathlib import Path

import pytest
import simulated
from amount import LONG, is_turn
from corpus.answers import PROPERTIES, Found, look, stated
from corpus.truth import PROGRAMS, Program, programs

pytestmark = pytest.mark.slow


def is_due(number: int, program: Program, device: str) -> bool:
    """Return whether a device's tests run the program of this number.

    Each commit has a quarter of them, on the CPU or on CUDA; NPUs run a quarter, too, of all.
    """
    if device not in program.devices or not (device == "cpu" or simulated.active()):
        return False
    own = "cpu" if program.mib is None else "cuda"
    return is_turn(number, 4) and (LONG or device in (own, "npu"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    device = metafunc.config.getoption("--device")
    here = [p for number, p in enumerate(programs().values()) if is_due(number, p, device)]
    metafunc.parametrize(
        ("device", "name", "checked"),
        [
            pytest.param(device, program.name, checked, marks=_marks(program, checked))
            for program in here
            for checked in stated(program, device)
        ],
    )


def _marks(program: Program, checked: str) -> list[pytest.MarkDecorator]:
    is_wrong = pytest.mark.xfail(strict=True, raises=AssertionError)
    return [is_wrong] if checked in program.wrong else []


@functools.lru_cache(maxsize=2)
def found(name: str, device: str, *, is_fixed: bool) -> Found:
    """Return the answer about a program, of which all properties are checked in turn."""
    program = PROGRAMS[name]
    more = program.helped or {} if is_fixed else {}
    with tempfile.TemporaryDirectory() as folder:
        return look(program, device, Path(folder), PATIENT="1", **more)


def test_the_answer_is_true(device: str, name: str, checked: str) -> None:
    answer = found(name, device, is_fixed=checked == "remedy")
    assert PROPERTIES[checked][1](PROGRAMS[name], answer), answer.text
