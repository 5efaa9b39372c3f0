"""Where snapshots go.

`output` is None (nothing is written), a file name ending in `.pickle`, or a directory, which gets
the layout of verl's `torch_memory` profiler. {file} is `torch_memory_{who}_pid{P}.pickle`, and
{who} is `rank{R}`, of a process without a rank its role, if it was given one, and its host's name:

| snapshot | in a directory | beside `name.pickle` |
|---|---|---|
| at the end | `exit/{file}` | `name.pickle` itself |
| of a step | `step{N}/{file}` | `name.step{N}.pickle` |
| of a window of steps | `steps{A}-{B}/{file}` | `name.steps{A}-{B}.pickle` |
| of a phase in a step | `step{N}/{phase}/{file}` | `name.step{N}.{phase}.pickle` |
| out of memory | `oom_{time}/torch_memory_oom_{who}_pid{P}.pickle` | `name.oom-{time}.pickle` |
| on demand | `demand_{time}/{file}` | `name.demand-{time}.pickle` |

Of several ranks, each has `name.rank{R}` for `name`. A process that the environment traces adds
`.pid{P}` if one of the same rank (or of none, as itself) started it. A second tracer of a process
in the same directory gets `_2`; so does a step that comes again, and a phase's name when the phase
does in its step. No file is looked for, none is locked: any number of processes may share a
directory.
"""

import contextlib
import importlib
import os
import re
import tempfile
import threading
from collections import deque
from datetime import datetime
from pathlib import Path

from pytracer import ranks
from pytracer.config import Options
from pytracer.errors import ConfigError
from pytracer.windows import Window

FIRST_PROCESS = "PYTRACER_FIRST_PROCESS"
"""Variable, "rank:pid:output", that the environment's tracer leaves to the process's children."""

MAX_PHASE_LENGTH = 50  # of its name in a file's, which may have 255 bytes

MAX_CLAIMED = 10_000

_directories: dict[str, int] = {}  # how many tracers of this process write there
_of_process = os.getpid()
_claimed: dict[Path, object] = {}  # files of steps, by whom; the last MAX_CLAIMED


class Files:
    """The files of one tracer: their names, which of them are wanted, and what becomes of them.

    Any thread; `_on_demand` alone is changed by several, under the lock.
    """

    def __init__(self, options: Options) -> None:
        """`options.output` is not None; relative to the current directory of now."""
        assert options.output is not None
        ranks.remember_group()
        self._options = options
        self._output = Path(os.path.abspath(options.output))
        self._is_file = self._output.suffix == ".pickle"
        self._number = 1 if self._is_file else _count(str(self._output))
        self._oom_snapshots = 0
        self._on_demand: deque[Path] = deque()
        self._changing = threading.Lock()

    def prepare(self, make: bool) -> None:
        """Makes the directory, or else tries where it would be made, when there is what to write.

        A bad one is known before the training then, not after.

        Raises:
            ConfigError: the directory cannot be made or written to.
        """
        directory = self._output.parent if self._is_file else self._output
        try:
            if make:
                directory.mkdir(parents=True, exist_ok=True)
            while not directory.exists():
                directory = directory.parent
            with tempfile.TemporaryFile(dir=directory, prefix=".pytracer-"):
                pass
        except OSError as error:
            raise ConfigError(
                f"output={self._options.output!r} cannot be written: {directory}: "
                f"{error.strerror}; give a path in a directory that exists and is writable, or "
                "None to write nothing"
            ) from None
        if self._is_file and self._output.is_dir():
            raise ConfigError(
                f"output={self._options.output!r} is a directory: give another file name, or a "
                "directory whose name does not end in .pickle"
            )

    def at_the_end(self) -> Path | None:
        """Of the snapshot when the recording ends; None: another rank's is wanted."""
        return self._path("exit", "torch_memory", "") if self.are_wanted() else None

    def are_wanted(self) -> bool:
        """Whether this rank writes at the end, and files of steps."""
        return ranks.current().selected(self._options.ranks, self._options.all_ranks)

    def of_window(self, window: Window) -> Path:
        """Of a step, or of several."""
        return self._unclaimed(window.name)

    def of_phase(self, step: int, phase: str, occurrence: int) -> Path:
        """Of one time that a phase occurs in a step."""
        name = re.sub(r"[^\w.-]+", "_", phase).lstrip(".")[:MAX_PHASE_LENGTH] or "phase"
        number = f"_{occurrence}" if occurrence > 1 else ""
        return self._unclaimed(f"step{step}/{name}{number}")

    def _unclaimed(self, event: str) -> Path:
        """A framework may repeat a step, and a tracer may start again: each has its file."""
        number, claim = self._number, object()
        beside = event.replace("/", ".")
        path = self._path(event, "torch_memory", beside, number)
        while _claimed.setdefault(path, claim) is not claim:
            number += 1
            path = self._path(event, "torch_memory", beside, number)
        if len(_claimed) > MAX_CLAIMED:
            _claimed.pop(next(iter(_claimed)), None)
        return path

    def out_of_memory(self, now: datetime) -> Path | None:
        """None: enough of these were asked for, or another rank's are wanted."""
        rank = ranks.current()
        chosen = self._options.oom_ranks
        if self._oom_snapshots >= self._options.max_oom_snapshots or not (
            chosen is None or rank.rank is None or rank.rank in chosen
        ):
            return None
        self._oom_snapshots += 1
        return self._path(f"oom_{now:%Y%m%d-%H%M%S-%f}", "torch_memory_oom")

    def on_demand(self, now: datetime) -> Path:
        """Older ones than the last `keep_last` go when it is written."""
        path = self._path(f"demand_{now:%Y%m%d-%H%M%S-%f}", "torch_memory")
        with self._changing:
            self._on_demand.append(path)
        return path

    def claim_first(self) -> bool:
        """Marks this process as its rank's first here, for its children; whether it is that."""
        rank = ranks.current()
        if self._first_process(rank) is None:
            os.environ[FIRST_PROCESS] = f"{rank.rank}:{os.getpid()}:{self._output}"
        return self._first_process(rank) == str(os.getpid())

    def _first_process(self, rank: ranks.Rank) -> str | None:
        """Its pid; a launcher, say, is of no rank, and what it starts are of others."""
        of, _, mark = os.environ.get(FIRST_PROCESS, "").partition(":")
        pid, _, output = mark.partition(":")
        return pid if (of, output) == (str(rank.rank), str(self._output)) else None

    @property
    def oom_snapshots(self) -> int:
        """How many were asked for so far."""
        return self._oom_snapshots

    def written(self, path: Path) -> None:
        """Calls the user's function with the path, and deletes what is not to be kept."""
        for old in self._surplus():
            with contextlib.suppress(OSError):
                old.unlink(missing_ok=True)
                if not self._is_file:
                    old.parent.rmdir()
        call = self._options.on_snapshot
        if isinstance(call, str):
            module, _, name = call.partition(":")
            call = getattr(importlib.import_module(module), name)
        if call is not None:
            call(os.fspath(path))

    def _surplus(self) -> list[Path]:
        keep = self._options.keep_last
        with self._changing:
            count = 0 if keep is None else max(0, len(self._on_demand) - keep)
            return [self._on_demand.popleft() for _ in range(count)]

    def _path(
        self, event: str, tag: str, beside: str | None = None, number: int | None = None
    ) -> Path:
        """`beside`: what the event is called in a name beside the file."""
        rank = ranks.current()
        pid = os.getpid()
        number = self._number if number is None else number
        again = f"_{number}" if number > 1 else ""
        if not self._is_file:
            who = rank.name(self._options.role)
            return self._output / event / f"{tag}_{who}_pid{pid}{again}.pickle"
        parts = [self._output.stem]
        if rank.is_one_of_several:
            parts.append(f"rank{rank.rank}")
        if self._first_process(rank) not in (None, str(pid)):
            parts.append(f"pid{pid}")
        parts.append(event.replace("_", "-", 1) if beside is None else beside)
        return self._output.with_name(".".join(filter(None, parts)) + f"{again}.pickle")


def _count(directory: str) -> int:
    global _of_process
    if _of_process != os.getpid():
        _of_process = os.getpid()
        _directories.clear()
    _directories[directory] = _directories.get(directory, 0) + 1
    return _directories[directory]
