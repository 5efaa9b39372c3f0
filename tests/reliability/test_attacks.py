"""Run attacks with a small budget; check that results/README.md agrees with the JSON files."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import simulated
from processes import run_python

HERE = Path(__file__).parent
DEVICES = {"cpu": ("none", "cpu"), "cuda": ("cuda",) if simulated.active() else (), "npu": ()}
SECONDS = 0.3


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "attack" in metafunc.fixturenames:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(HERE)
            runs: Any = importlib.import_module("runs")
            devices = DEVICES[metafunc.config.getoption("--device")]
            names = [name for name in runs.names() if runs.facts(name).device in devices]
        metafunc.parametrize("attack", names)


@pytest.mark.slow
def test_an_attack(attack: str, tmp_path: Path) -> None:
    # WHEN an attack runs for a moment, in a fork: the command would start two processes for it
    file = tmp_path / "found.json"
    options = ["--here", "--seed", 1, "--seconds", SECONDS, "--json", file]
    done = run_python(HERE / "__main__.py", attack, *options, cwd=tmp_path)
    # THEN it has tried some cases, and none failed
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert found["tried"] > 0
    assert found["promise"]
    assert found["failures"] == []


def test_a_failure_is_not_hidden(tmp_path: Path) -> None:
    # GIVEN an attack whose process ends prematurely, but for one seed
    copy = tmp_path / "tests" / "reliability"
    (copy / "attacks").mkdir(parents=True)
    for path in HERE.glob("*.py"):
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "attacks" / "broken.py").write_text(
        '"""Ends."""\nimport os\nimport attack as interface\n'
        'DEVICE = "none"\nSECONDS = 1\nPROMISE = "It ends."\n'
        "def attack(budget):\n"
        '    print("no more", flush=True)\n'
        "    if budget.seed == 2:\n"
        "        return interface.Found(tried=5)\n"
        "    os._exit(0 if budget.seed else 3)\n"
    )
    file = tmp_path / "found.json"
    command = [sys.executable, str(copy), "broken", "--json", str(file), "--seed"]
    for seed, status in ((0, 3), (1, 0)):
        # WHEN it runs
        done = subprocess.run([*command, str(seed)], capture_output=True, text=True, check=False)
        # THEN that is a failure, whatever its exit status
        assert done.returncode == 1, done.stdout
        (found,) = json.loads(file.read_text()).values()
        assert found["failed"] == 1
        assert f"status {status}: no more" in found["failures"][0]
    # AND one that ends well is a success, with what it has found
    done = subprocess.run([*command, "2"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = json.loads(file.read_text()).values()
    assert (found["promise"], found["tried"], found["failed"]) == ("It ends.", 5, 0)


def test_every_figure_of_the_page_is_in_the_results(here: None) -> None:
    # GIVEN the script that writes the page
    page: Any = importlib.import_module("page")
    text = page.PAGE.read_text()
    assert all(f"<!-- {name} -->" in text for name in page.MADE)
    # THEN its output equals the page
    assert page.filled(text) == text, "run tests/reliability/page.py"
