"""Tests that the README and the pages of docs/ only name things that exist."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import pytracer
from pytracer.tracing.options import OPTIONS, OTHER_VARIABLES, variable

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted([README, *(ROOT / "docs").rglob("*.md")])
NO_VARIABLES = {"PYTRACER_", "PYTRACER_FIRST_PROCESS"}


def test_readme_is_one_page() -> None:
    assert len(README.read_text().splitlines()) <= 130


def test_ci_runs_the_commands_of_the_readme() -> None:
    # GIVEN the make targets that CI runs
    targets = set(re.findall(r"\bmake (?:-\S+ )*(\w+)", (ROOT / ".ci/run").read_text()))
    # THEN the README names the same commands
    assert targets
    assert targets <= set(re.findall(r"^make (\w+)", README.read_text(), re.MULTILINE))


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {
        name for line in re.findall(r"^([\w -]+):", makefile, re.MULTILINE) for name in line.split()
    }
    for page in PAGES:
        text = page.read_text()
        named = set(re.findall(r"(?:^|`)make (?:\w+=\S+ )*([\w-]+)", text, re.MULTILINE))
        assert named <= targets, page


def test_every_option_is_an_argument() -> None:
    assert [*OPTIONS] == [*inspect.signature(pytracer.Tracer).parameters]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_variable_exists(page: Path) -> None:
    named = set(re.findall(r"\bPYTRACER(?:_[A-Z]+)*\b_?", page.read_text())) - NO_VARIABLES
    assert named <= {*map(variable, OPTIONS), *OTHER_VARIABLES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_function_exists(page: Path) -> None:
    text = page.read_text()
    dotted = r"(?<![\w./~])pytracer((?:\.[A-Za-z_]\w+)+)\b(?<!\.py)(?![/-])"
    for name in set(re.findall(dotted, text)):
        found: object = pytracer
        for part in name[1:].split("."):
            if inspect.ismodule(found) and not hasattr(found, part):
                importlib.import_module(f"{found.__name__}.{part}")
            found = getattr(found, part)


@pytest.mark.parametrize(
    ("page", "answer"),
    [
        ("out-of-memory", "pytracer show /shared/run7"),
        ("phases", "PYTRACER_STEPS=10-12"),
        ("verl", "python -m verl"),
        ("frameworks", "integrations.lightning.PytracerCallback"),
        ("container", "No compiler on the nodes"),
        ("view", "too large for memory_viz"),
        ("ci", "--fail-over 5%"),
        ("what-takes-memory", "Much is `unknown`"),
        ("choose-settings", "pytracer recommend snapshot"),
        ("read-files", "pip install"),
        ("always-on", "What does it cost"),
        ("add-a-backend", "csrc/hooks/{backend}"),
        ("hooks", "For any other torch"),
        ("other-tools", "pandas.read_parquet"),
    ],
)
def test_an_answer_is_one_click_and_a_hundred_words_away(page: str, answer: str) -> None:
    path = f"docs/how-to/{page}.md"
    assert f"({path}" in README.read_text()
    before, found, _ = (ROOT / path).read_text().partition(answer)
    assert found
    prose = re.sub(r"^```.*?(?:^```$|\Z)", "", before, flags=re.DOTALL | re.MULTILINE)
    assert len(re.findall(r"\S*\w\S*", prose)) <= 100


def test_every_figure_is_in_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN the script that writes the tables
    monkeypatch.syspath_prepend(ROOT / "bench")
    tables = importlib.import_module("tables")
    for path in tables.PAGES:
        text = path.read_text()
        assert "<!-- " in text
        # THEN it would write the same tables
        assert tables.filled(text) == text, f"{path}: run bench/tables.py"
