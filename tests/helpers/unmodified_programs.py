"""Runs programs that know nothing of pytracer, and says what their files have."""

import pickle
import subprocess
import sys
from pathlib import Path

import processes
import viewers
from processes import HANG_S, Done

Env = dict[str, str]

JOB = """
import torch

def work(size):
    global held
    held = torch.empty(size, dtype=torch.uint8)

def nth(number):
    work(2000 + number)

class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.ones(4000)
"""
ALONE = "import job\njob.work(1000)\nprint('done')"

IGNORED_WARNINGS = [
    # From 3.12 on, Python warns of a fork in a process with threads; torch starts some.
    "-Wignore::DeprecationWarning",
    # Python's tracker of semaphores warns if it ends before a killed worker's message arrives.
    "-Wignore::UserWarning:multiprocessing.resource_tracker",
]


def forked(*arguments: str, cwd: Path, env: Env, program: str = ALONE) -> Done:
    """Run Python like `python`, in a fork (warm_python): where it is not the start that is tested.

    What reads the variables is the same as at the end of torch's import.
    """
    _write(program, cwd)
    return processes.run_python(*arguments, cwd=cwd, env=env)


def _write(program: str, cwd: Path) -> None:
    (cwd / "job.py").write_text(JOB)
    (cwd / "program.py").write_text(program)


def python(*arguments: str, cwd: Path, env: Env, program: str = ALONE) -> Done:
    """Run Python in a folder with the program, which is also its standard input."""
    _write(program, cwd)
    done = subprocess.run(
        [sys.executable, *IGNORED_WARNINGS, *arguments],
        cwd=cwd,
        env=env,
        input=program,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    done.stderr = processes.without_end_line(done.stderr)
    return done


def snapshots(cwd: Path) -> dict[str, int]:
    """Return the files, and for each the live bytes that `work` allocated."""
    found = {}
    for path in cwd.rglob("*.pickle"):
        snapshot = pickle.loads(path.read_bytes())
        viewers.check_snapshot(snapshot)
        found[str(path.relative_to(cwd))] = sum(
            block["size"]
            for segment in snapshot["segments"]
            for block in segment["blocks"]
            if block["frames"] and block["frames"][0]["name"] == "work"
        )
    return found
