"""A tool of the tests that is missing fails CI, and the end of a run has the skipped tests."""

import subprocess
import sys
from pathlib import Path

import pytest
import tools

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("required", "outcome"), [("0", "Skipped"), ("1", "Failed")])
def test_a_missing_tool(required: str, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN no programs
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("REQUIRE_TOOLS", required)
    # WHEN a test needs a program or a package, THEN it is skipped or fails, and the reason names it
    ends = (pytest.skip.Exception, pytest.fail.Exception)
    with pytest.raises(ends, match="chromium is not installed: apt-get install chromium") as error:
        tools.program("chromium", "chrome")
    assert error.typename == outcome
    with pytest.raises(ends, match="no_package is not installed: the Makefile lists it") as error:
        tools.packages("json", "no_package", source="the Makefile")
    assert error.typename == outcome


def test_the_summary_of_a_suite(tmp_path: Path) -> None:
    # GIVEN tests of all outcomes
    (tmp_path / "test_x.py").write_text("""
import pytest
@pytest.mark.parametrize("reason", ["no pools", "one device", "no pools"])
def test_that_is_skipped(reason): pytest.skip(reason)
@pytest.mark.skipif(True, reason="one device")
def test_that_is_not_called(): pass
def test_that_fails(): assert False
def test_without_a_fixture(fixture): pass
def test_that_passes(): pass
""")
    # WHEN a process of xdist runs them
    suites = tmp_path / "suites.txt"
    options = ["-p", "suite_summary", "-p", "xdist.plugin", "--numprocesses=1"]
    helpers = str(ROOT / "tests/helpers")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": helpers, "SUITES": str(suites)},
        capture_output=True,
        text=True,
        check=False,
    )
    # THEN the output has the reasons, and the file one line
    assert "\n4 skipped: 2 no pools; 2 one device\n" in done.stdout, done.stderr
    (line,) = suites.read_text().splitlines()
    assert line.startswith("cpu, torch ")
    assert line.endswith(": passed 1, failed 2, skipped 4: 2 no pools; 2 one device")


def test_ci_stops_if_it_cannot_install_a_tool(tmp_path: Path) -> None:
    # GIVEN no chromium, an apt-get that cannot install it, and linters that find nothing
    calls, apt = tmp_path / "calls", tmp_path / "apt-get"
    apt.write_text(f'#!/bin/sh\necho "$*" >> {calls}\necho "E: no candidate"\nexit 100\n')
    apt.chmod(0o755)
    for program in ("bash", "dirname", "env", "mktemp", "rm", "sh", "tail", "timeout"):
        (tmp_path / program).symlink_to(tools.program(program))
    (tmp_path / "make").symlink_to(tools.program("true"))
    # WHEN CI runs
    done = subprocess.run(
        [ROOT / ".ci/run"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    # THEN it asks for new lists of packages first, and ends with a message that names the tool
    assert [call.split()[5] for call in calls.read_text().splitlines()] == ["update", "install"]
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Cannot install chromium. The last lines of apt-get:\nE: no cand")
