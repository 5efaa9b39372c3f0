"""Jobs of frameworks from PyPI, unmodified, and the files that they leave."""

import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tools
from processes import environment, run


def needs(package: str) -> None:
    tools.packages(package, source="the Makefile's FRAMEWORKS")


@dataclass(frozen=True)
class Job:
    """The folder with the files of a job."""

    folder: Path

    def files(self, pattern: str = "out/**/*.pickle") -> list[str]:
        """List files, with N for the process id and TIME for dates."""
        names = sorted(str(path.relative_to(self.folder)) for path in self.folder.glob(pattern))
        return [
            re.sub(r"oom_[\d-]+", "oom_TIME", re.sub(r"pid\d+", "pidN", name)) for name in names
        ]

    def path(self, pattern: str) -> Path:
        (path,) = self.folder.glob(pattern)
        return path

    def snapshot(self, pattern: str) -> dict[str, Any]:
        snapshot: dict[str, Any] = pickle.loads(self.path(pattern).read_bytes())
        return snapshot

    def events(self, pattern: str, *actions: str) -> list[dict[str, Any]]:
        return [
            event
            for trace in self.snapshot(pattern)["device_traces"]
            for event in trace
            if event["action"] in actions
        ]

    def blocks(self, pattern: str) -> Iterator[dict[str, Any]]:
        """Yield the allocated blocks."""
        for segment in self.snapshot(pattern)["segments"]:
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    yield block


def job(program: str, folder: Path, backend: str, recorder: str) -> Job:
    done = run(program, backend, recorder, cwd=folder, env=environment(RANK="3"))
    assert done.returncode == 0, done.stderr
    return Job(folder)
