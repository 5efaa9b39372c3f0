"""What is true of the programs of this folder, and how they run.

A program is a function, written as people write a job, without any option of pytracer. `truth` says
what is known of it because of how it was made. It runs in a process of its own, recorded by default
(`PYTRACER=1`):

    python -m corpus NAME

`DEVICE` is the device of its tensors. With `REMEDY`, it does what helps; `PART` divides its batch.
"""

import functools
import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import processes

DEVICE = os.environ.get("DEVICE", "cpu")
FIXED = "REMEDY" in os.environ
PART = int(os.environ.get("PART", "1"))

HERE = Path(__file__).parent
REMEDY = MappingProxyType({"REMEDY": "1"})

HEALTHY = "healthy"
LEAK = "leak"
UNKNOWN = "can't tell"

Job = Callable[[], None]


@dataclass(frozen=True)
class Program:
    """A program, and what is true of it.

    Attributes:
        job: The function.
        kinds: The right answers: `HEALTHY`, or the kind of the first reason or verdict. The first
            one is the best.
        kept: A part of the name of what keeps the memory; "" if nothing keeps it too long.
        do: A part of what to do, which is among the first two remedies; "" for anything.
        per_step: The bytes a step of a leak; None if they are not the same.
        mib: The memory of the device; None if the program needs little, and runs on the CPU, too.
        env: Variables that it needs.
        helped: The variables with which nothing is wrong; None if no remedy is known.
        which: The error that the truth is of: a second one may have another reason.
        wrong: The properties (answers.py) of which the answer is wrong today.
        lines: The lines that leak, or that call what leaks: those that end in `# LEAK` or name it.
    """

    job: Job
    kinds: tuple[str, ...]
    kept: str = ""
    do: str = ""
    per_step: float | None = None
    mib: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    helped: Mapping[str, str] | None = None
    which: int = -1
    wrong: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.job.__name__

    @property
    def what(self) -> str:
        """The truth in words."""
        return " ".join((self.job.__doc__ or "").split())

    @property
    def devices(self) -> tuple[str, ...]:
        if self.mib is None:
            return ("cpu", "cuda", "npu")
        needs_cuda = re.search(r"torch\.cuda\.|[\"']cuda", inspect.getsource(self.job))
        return ("cuda",) if needs_cuda or "CUDA" in str(self.env) else ("cuda", "npu")

    @functools.cached_property
    def lines(self) -> list[int]:
        lines, first = inspect.getsourcelines(inspect.unwrap(self.job))
        own = [i for i, line in enumerate(lines, first) if line.endswith("# LEAK\n")]
        named = re.compile(rf"# LEAK .*\b{self.name}\b")
        text = Path(self.file).read_text().splitlines()
        return own + [i for i, line in enumerate(text, 1) if named.search(line)]

    @property
    def file(self) -> str:
        return inspect.unwrap(self.job).__code__.co_filename

    def run(self, device: str, folder: Path, **more: str) -> "processes.Done":
        """Run the program to its end, under the default options, in a folder."""
        import processes  # not in the program's process

        env = {"PYTRACER": "1", "DEVICE": device, **self.env, **more}
        if device != "cpu":
            env["SIMULATED_CAPACITY_MB"] = str(self.mib or 512)
        return processes.run_python(
            *("-m", "corpus", self.name), cwd=folder, env=processes.environment(**env)
        )

    def recording(self, folder: Path) -> Path:
        """Return the file that the truth is of."""
        paths = sorted(folder.glob("outputs/profile/oom_*/*.pickle"))
        return paths[self.which] if paths else next(folder.glob("outputs/profile/exit/*.pickle"))


PROGRAMS: dict[str, Program] = {}


def truth(*kinds: str, **stated: object) -> Callable[[Job], Job]:
    """Register a program, with the fields of `Program`."""

    def register(job: Job) -> Job:
        assert job.__name__ not in PROGRAMS, f"{job.__name__} is the name of two programs"
        PROGRAMS[job.__name__] = Program(job, kinds, **stated)  # type: ignore[arg-type]
        return job

    return register


def leak(per_step: float | None, kept: str, **stated: object) -> Callable[[Job], Job]:
    return truth(LEAK, per_step=per_step, kept=kept, **stated)


def programs() -> dict[str, Program]:
    """Return the programs of all files of this folder."""
    for path in sorted(HERE.glob("*.py")):
        if path.stem not in ("answers", "truth", "__main__") and not path.stem.startswith(
            ("test_", "_")
        ):
            importlib.import_module(f"corpus.{path.stem}")
    return PROGRAMS


def steps(count: int = 60) -> Iterator[int]:
    yield from range(1, count + 1)
