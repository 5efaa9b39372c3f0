"""Test how the tests run programs: in forks, which end as a new process does."""

import os
from pathlib import Path

import processes
import pytest
from processes import run

ENDS = {
    "pass": 0,
    "raise SystemExit": 0,
    "raise SystemExit(3)": 3,
    "raise SystemExit('no')": 1,
    "raise ValueError('no')": 1,
    "raise KeyboardInterrupt": -2,
    "import os; os._exit(4)": 4,
}


def test_programs_are_forked(tmp_path: Path) -> None:
    # GIVEN the environment after all tests were collected, and a variable that programs read
    # WHEN programs run, THEN their parent is the process that is forked, which has imported torch
    program = "import os, sys; print(os.getppid(), 'torch' in sys.modules, os.environ.get('PART'))"
    warm = processes.warm_python()._process.pid
    assert run(program, cwd=tmp_path).stdout == f"{warm} True None\n"
    env = processes.environment(PART="2")
    assert run(program, cwd=tmp_path, env=env).stdout == f"{warm} True 2\n"
    # AND where torch's import or Python reads it, it is another one
    env = processes.environment(PYTHONHASHSEED="1")
    assert run(program, cwd=tmp_path, env=env).stdout == f"{os.getpid()} False None\n"


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("is_finalised", [False, pytest.param(True, marks=pytest.mark.long)])
def test_ends_of_forks(tmp_path: Path, end: str, is_finalised: bool) -> None:
    # GIVEN a program with an exit callback and a thread
    program = f"""
import atexit, sys, threading, time
atexit.register(print, "callback")
def work():
    time.sleep(0.05)
    print("thread")
print("begun", end=" ")
threading.Thread(target=work).start()
{end}
"""
    # WHEN it ends
    done = run(program, cwd=tmp_path, is_finalised=is_finalised)
    # THEN its status and output are those of a new process
    assert done.returncode == ENDS[end]
    if "_exit" not in end:
        assert done.stdout == "begun thread\ncallback\n"
    if "no" in end:
        assert done.stderr.splitlines()[-1] in ("no", "ValueError: no")
