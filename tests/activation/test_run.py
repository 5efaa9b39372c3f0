"""Test `pytracer run` with unmodified programs."""

import pickle
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from unmodified_programs import Env, python, snapshots

from pytracer.commands.main import main
from pytracer.tracing.options import OPTIONS

REPORT = """
import job, sys
job.work(1000)
print(__name__, sys.argv[1:])
sys.exit(7)
"""


@pytest.mark.parametrize("program", [["program.py"], ["-m", "program"], ["--", "program.py"]])
def test_run_becomes_the_program(tmp_path: Path, env: Env, program: list[str]) -> None:
    # WHEN a program is run with options of pytracer and of its own
    command = [
        "-m",
        "pytracer",
        "run",
        "-o",
        "job.pickle",
        "--stack-depth",
        "1",
        "--no-pinned-memory",
    ]
    arguments = ["--output", "mine", "-m", "--", "x y"]
    done = python(*command, *program, *arguments, cwd=tmp_path, env=env, program=REPORT)
    # THEN it has its own arguments, and its exit code is that of the command
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == f"__main__ {arguments}\n"
    # AND pytracer's options were applied
    assert snapshots(tmp_path) == {"job.pickle": 1000}
    snapshot = pickle.loads((tmp_path / "job.pickle").read_bytes())
    assert snapshot["pytracer"]["stack_depth"] == 1


def test_run_obeys_the_off_switch(tmp_path: Path, env: Env) -> None:
    env["PYTRACER"] = "0"
    done = python("-m", "pytracer", "run", "program.py", cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr == "pytracer: PYTRACER=0 is set: nothing is recorded\n"
    assert snapshots(tmp_path) == {}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--stack-depth", "deep"], "stack_depth='deep' is not an integer"),
        (["--device", "gpu"], "device=['gpu'] is unknown"),
        (["--output", ""], "output='' is not a path: give"),
        (["--schedule", "active=1", "--steps", "3"], "both select steps: give one of them"),
        (["--discrete", "rollout"], "give `steps` or `schedule`, or leave this option out"),
        (["--nonsense"], "No such option"),
    ],
)
def test_run_refuses_bad_options(arguments: list[str], problem: str) -> None:
    # WHEN an option is wrong, THEN the error is reported before the program is looked up
    result = CliRunner().invoke(main, ["run", *arguments, "nowhere.py"])
    assert result.exit_code == 2
    assert problem in result.output


def test_run_has_every_option() -> None:
    text = CliRunner().invoke(main, ["run", "--help"], terminal_width=300).output
    for name in OPTIONS:
        flag = re.escape(f"--{name.replace('_', '-')} ")
        (description,) = re.findall(rf"^ +(?:-o, )?{flag}.*?\s\s+(\S.*)$", text, re.MULTILINE)
        assert len(description) > 10, f"{name} is not described"
