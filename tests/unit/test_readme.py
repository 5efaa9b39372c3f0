"""What the README names is there."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import pytracer
from pytracer.config import OPTIONS, OTHER_VARIABLES, Options, variable

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def readme() -> str:
    return README.read_text()


def test_every_option_has_its_row_and_no_other(readme: str) -> None:
    table = readme[readme.index("| option | default |") : readme.index("| variable | meaning |")]
    rows = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert rows == [*OPTIONS]
    signature = inspect.signature(pytracer.Tracer)
    assert rows == [*signature.parameters]
    documented = re.findall(r"^        (\w+): ", inspect.getdoc(Options) or "", re.MULTILINE)
    documented += re.findall(r"^    (\w+): ", inspect.getdoc(Options) or "", re.MULTILINE)
    assert {*rows} <= {*documented}


def test_every_variable_is_one(readme: str) -> None:
    named = set(re.findall(r"\bPYTRACER(?:_[A-Z]+)*\b", readme)) - {"PYTRACER_"}
    assert named <= {*map(variable, OPTIONS), *OTHER_VARIABLES}
    assert {*OTHER_VARIABLES} <= named


def test_every_function_is_one(readme: str) -> None:
    for name in set(re.findall(r"\bpytracer\.([A-Za-z_]\w+)\b(?!/)", readme)):
        assert hasattr(pytracer, name), name
    for name in pytracer.__all__:
        assert hasattr(pytracer, name), name


def test_every_figure_is_in_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN what writes the tables
    monkeypatch.syspath_prepend(README.parent / "bench")
    tables = importlib.import_module("tables")
    for path in tables.PAGES:
        text = path.read_text()
        assert "<!-- " in text
        # THEN it would write none differently
        assert tables.filled(text) == text, f"{path}: run bench/tables.py"
