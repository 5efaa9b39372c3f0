"""Run users' jobs, which are traced because of their environment variables.

Most jobs are forked from the attack, which has imported torch. They then read the variables as
`import torch` does at its end. Other jobs are new processes, whose start takes seconds.
"""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import forks
import torch
from attack import Found
from processes import installed, without_end_line

from pytracer.backends.hook_build import HookBuilder

ROOT = Path(__file__).parents[2]
PROGRAM = """
import torch
import jobs

jobs.train()
"""
DONE = "trained to the end"
_FAULTS = re.compile(r"Traceback|Segmentation|core dumped|terminate called|Fatal Python")


def train() -> None:
    """Train a small model, and print a last line to show that the job was complete."""
    weight = torch.zeros(8, 8, requires_grad=True)
    for _ in range(4):
        (weight @ torch.ones(8, 8)).sum().backward()
        weight.grad = None
    print(DONE, flush=True)


@dataclass
class Ended:
    """The result of a job: its status (None: it had to be killed), output and snapshots."""

    status: int | None
    output: str
    snapshots: list[Path]

    def problems(self) -> list[str]:
        """Return the problems that no attack may cause."""
        found = [problem for path in self.snapshots if (problem := forks.problem_of(path))]
        if self.status is None:
            found.append("it did not end")
        elif self.status != 0 or DONE not in self.output:
            found.append(f"it ended with {self.status}: {self.output[-300:]!r}")
        elif _FAULTS.search(self.output):
            found.append(f"it wrote {self.output[-300:]!r}")
        return found

    @property
    def is_recorded(self) -> bool:
        """Return whether a snapshot has events."""
        return any(b"alloc" in path.read_bytes() for path in self.snapshots)

    @property
    def lines(self) -> list[str]:
        """Return the output without the job's last line and the line about the written file."""
        output = without_end_line(self.output + "\n")
        return [line for line in output.splitlines() if line.strip() not in ("", DONE)]


class User:
    """A user who has installed pytracer, with a separate home folder.

    Attributes:
        folder: The folder of all of the user's files.
        cache: The folder of the user's hooks.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "installed").mkdir()
        for name in ("home", "tmp", "cache"):
            (folder / name).mkdir(mode=0o700)
        self.cache = folder / "cache" / "pytracer"
        self._env = installed(folder / "installed")
        own = {"HOME": "home", "TMPDIR": "tmp", "XDG_CACHE_HOME": "cache"}
        self._env |= {name: str(folder / place) for name, place in own.items()}
        self._env["PYTRACER"] = "1"
        if importlib.util.find_spec("_torch_pytracer") is None:  # an editable installation
            sys.path.append(str(ROOT / "startup"))

    def get_hook(self) -> None:
        """Put the hook for the running torch into the cache; compile it if necessary."""
        builder = HookBuilder()
        found = builder.find("cpu")
        self.cache.mkdir(mode=0o700, exist_ok=True)
        if found is None:
            builder.build("cpu", self.cache)
        else:
            shutil.copy(found.path, self.cache)

    def keep_hook(self, found: Found) -> Path:
        """Return a copy of the cache with the hook, with which a job ends well."""
        self.get_hook()
        found.fail("before any attack", self.run().problems())
        return shutil.copytree(self.cache, self.folder / "good")

    def run(
        self,
        *,
        before: Callable[[], object] = lambda: None,
        limit_seconds: float = 150.0,
        **variables: str,
    ) -> Ended:
        """Run a forked job with these variables; the job calls `before` first."""

        def job() -> None:
            os.chdir(work)
            os.environ.clear()
            os.environ.update({**self._env, **variables})
            tempfile.tempdir = None
            before()
            import _torch_pytracer

            _torch_pytracer.autoload()
            train()

        work = Path(tempfile.mkdtemp(dir=self.folder))
        ended = forks.run(job, limit_seconds)
        return Ended(ended.status, ended.output, _snapshots(work))

    def run_new(self, limit_seconds: float = 150.0, **variables: str) -> Ended:
        """Run a job in a new process, with these variables."""
        work = Path(tempfile.mkdtemp(dir=self.folder))
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=work,
            env={**self._env, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            status: int | None = None
            try:
                output, _ = process.communicate(timeout=limit_seconds)
                status = process.returncode
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
        return Ended(status, output.decode(errors="replace"), _snapshots(work))


def _snapshots(folder: Path) -> list[Path]:
    found, _ = forks.files(folder)
    return [path for path in found if path.suffix == ".pickle"]
