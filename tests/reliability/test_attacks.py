"""Run each attack with a small budget; check that results/README.md agrees with the JSON files."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import simulated

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
    # WHEN an attack runs, for a moment
    file = tmp_path / "found.json"
    command = [sys.executable, str(HERE), attack, "--seed", "1", "--seconds", str(SECONDS)]
    command += ["--json", str(file), "--cuda-python", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # THEN it has tried some cases, and none failed
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(file.read_text()).values()
    assert found["tried"] > 0
    assert found["promise"]
    assert found["failures"] == []


def test_a_failure_is_not_hidden(tmp_path: Path) -> None:
    # GIVEN an attack whose process ends prematurely
    copy = tmp_path / "tests" / "reliability"
    (copy / "attacks").mkdir(parents=True)
    for path in HERE.glob("*.py"):
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "attacks" / "broken.py").write_text(
        '"""Ends."""\nimport os\nDEVICE = "none"\nSECONDS = 1\n'
        "def attack(budget):\n"
        '    print("no more", flush=True)\n'
        "    os._exit(0 if budget.seed else 3)\n"
    )
    for seed, status in ((0, 3), (1, 0)):
        # WHEN it runs
        file = tmp_path / "found.json"
        command = [sys.executable, str(copy), "broken", "--json", str(file), "--seed", str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        # THEN that is a failure, whatever its exit status
        assert done.returncode == 1, done.stdout
        (found,) = json.loads(file.read_text()).values()
        assert found["failed"] == 1
        assert f"status {status}: no more" in found["failures"][0]


def test_every_figure_of_the_page_is_in_the_results(here: None) -> None:
    # GIVEN the script that writes the page
    page: Any = importlib.import_module("page")
    text = page.PAGE.read_text()
    assert all(f"<!-- {name} -->" in text for name in page.MADE)
    # THEN its output equals the page
    assert page.filled(text) == text, "run tests/reliability/page.py"
