"""Where snapshots go: the names of docs/reference/files.md, in the layout of verl's `torch_memory`.

A process that the environment traces adds its pid to the name of a file if a traced process of the
same rank, or without a rank like itself, started it (`FIRST_PROCESS`). So does a forked child whose
parent had used the name before the fork. And so does a process that finds another one with the
name: either the file was written since the recording began, or the other process still holds the
name by an abstract Unix socket, which the kernel frees when the process ends, however it ends.

A name that this process has already used gets a number. No directory is listed and no file is
locked, so any number of processes may share a directory; a second run of a program overwrites the
first run's `name.pickle`.
"""

import contextlib
import errno
import hashlib
import importlib
import itertools
import operator
import os
import re
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pytracer.atomic_file import folders_of
from pytracer.errors import ConfigError
from pytracer.log import warn_once
from pytracer.text import brief
from pytracer.tracing import ranks
from pytracer.tracing.option_forms import OnSnapshot
from pytracer.tracing.options import Options
from pytracer.tracing.step_windows import Window

FIRST_PROCESS = "PYTRACER_FIRST_PROCESS"
"""Variable, "rank:pid:output", that the environment's tracer leaves to the process's children."""

FILE_SUFFIXES = (".pickle", ".pkl")
MAX_PHASE_LENGTH = 50  # characters of a phase's name in a file name, which may have 255 bytes
MAX_CLAIMED = 10_000

_directories: Counter[Path] = Counter()  # how many tracers of this process write to each
_claimed: dict[Path, object] = {}  # who used a name in this process; the last MAX_CLAIMED
_written: dict[Path, None] = {}  # by this process; the last MAX_CLAIMED
_held: set[Path] = set()  # names that no other process of this node has
_holding = threading.RLock()  # while a name is looked up in _held and added
_parents_names: frozenset[Path] = frozenset()  # used before this process was forked


def _forget_the_parents() -> None:
    global _parents_names, _holding
    _holding = threading.RLock()  # a thread that this child lacks may have the parent's
    _parents_names |= _claimed.keys()
    _claimed.clear()
    _written.clear()
    _held.clear()
    _directories.clear()


os.register_at_fork(after_in_child=_forget_the_parents)


class _Kept:
    """The files of one kind that are on the disk, in the order in which they were written.

    At most `most` are kept; a further one replaces the file at the index `replaces`.
    """

    def __init__(self, most: int | None, replaces: int) -> None:
        self._most = most
        self._replaces = replaces
        self._paths: list[Path] = []
        self.replaced = 0

    def add(self, path: Path) -> Path | None:
        """Add a file that was written; return the file that it replaces."""
        old = None
        if self._most is not None and len(self._paths) >= self._most:
            old = self._paths.pop(self._replaces)
            self.replaced += 1
        self._paths.append(path)
        return old


class Files:
    """The files of one tracer: their names, which are wanted, and which are deleted.

    The option `output` is not None, and relative to the present working directory. Any thread may
    call the methods: `_changing` is held while a file is added to those kept.
    """

    def __init__(self, options: Options) -> None:
        assert options.output is not None
        ranks.remember_group()
        self._options = options
        self._output = Path(os.path.abspath(options.output))
        self._is_file = self._output.suffix in FILE_SUFFIXES
        self._begun_ns: int | None = None  # by the clock of the file system
        self._number = 1
        if not self._is_file:
            _directories[self._output] += 1
            self._number = _directories[self._output]
        self._end_claim = object()  # claims the name of the snapshot at the end
        self.oom_snapshots = 0  # how many were tried
        self.kept_oom = _Kept(options.max_oom_snapshots, replaces=-1)
        self._kept_demand = _Kept(options.keep_last, replaces=0)
        self._kept: dict[Path, _Kept] = {}  # the bounds of files that are not written yet
        self._changing = threading.RLock()  # a signal's handler may stop a tracer

    def begin(self, make: bool) -> None:
        """Begin another recording, whose snapshot at the end is another file.

        A ConfigError says now that files cannot be written, and not after the training. The
        directory is made now, or without `make` when there is something to write.
        """
        self._check_output(make)
        self._end_claim = object()

    def _check_output(self, make: bool) -> None:
        directory = self._output.parent if self._is_file else self._output
        try:
            if self._is_file and self._output.exists() and not self._output.is_dir():
                # A file may be written to in a folder in which no other file can be made.
                if not os.access(self._output, os.W_OK, effective_ids=True):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                self._begun_ns = self._output.stat().st_mtime_ns
                return
            if self._is_file:
                # The folder of the file that a link leads to.
                directory = Path(os.path.realpath(self._output)).parent
            if make:
                directory.mkdir(parents=True, exist_ok=True)
            directory = existing(directory)
            with tempfile.TemporaryFile(dir=directory, prefix=".pytracer-") as file:
                self._begun_ns = os.fstat(file.fileno()).st_mtime_ns
        except OSError as error:
            raise ConfigError(
                f"output={brief(self._options.output)} cannot be written: {directory}: "
                f"{error.strerror}; give a path in a directory that exists and is writable, or "
                "None to write nothing"
            ) from None
        if self._is_file and self._output.is_dir():
            raise ConfigError(
                f"output={brief(self._options.output)} is a directory: give another file name, or "
                "a directory whose name does not end in .pickle or .pkl"
            )

    @property
    def folder(self) -> Path:
        """The folder that has all files."""
        return self._output.parent if self._is_file else self._output

    def by_others(self) -> tuple[str, str, str]:
        """Return the parts of the path, in `folder`, of a file that another process writes.

        Between the first two is what happened, as in "killed"; between the last two is the time.
        """
        event, time = "EVENT", "YYYYMMDD-HHMMSS"
        path = self._path(f"{event}_{time}", f"{event}-{time}").relative_to(self.folder)
        before, between, after = re.split(f"{event}([_-]){time}", str(path))
        return before, between, after

    def at_the_end(self) -> Path | None:
        """Return the path of the recording's snapshot at the end; None: other ranks write one."""
        return self._unclaimed("exit", "", claim=self._end_claim) if self.are_wanted() else None

    def are_wanted(self) -> bool:
        """Return whether this rank writes snapshots of steps and at the end; it may be set late."""
        return ranks.current().selected(self._options.ranks)

    def warn_of_ranks(self) -> None:
        """Warn on rank 0, so once in a job, if no rank of the job writes files of steps."""
        rank, chosen = ranks.current(), self._options.ranks
        if rank.rank != 0 or rank.world_size is None or isinstance(chosen, str) or not chosen:
            return
        if min(chosen) >= rank.world_size:
            warn_once(
                "no step snapshots and no final snapshot will be written: "
                f"ranks={brief([*chosen])} selects none of the ranks 0 to {rank.world_size - 1}"
            )

    def of_window(self, window: Window) -> Path:
        """Return the path of a window's snapshot."""
        return self._unclaimed(window.name, window.name)

    def of_phase(self, step: int, phase: str, occurrence: int) -> Path:
        """Return the path of the snapshot of an occurrence of a phase in a step."""
        name = re.sub(r"[^\w.-]+", "_", phase).lstrip(".")[:MAX_PHASE_LENGTH] or "phase"
        number = f"_{occurrence}" if occurrence > 1 else ""
        return self._unclaimed(f"step{step}/{name}{number}", f"step{step}.{name}{number}")

    def out_of_memory(self, now: datetime) -> Path:
        """Return the path of the snapshot of an out-of-memory."""
        self.oom_snapshots += 1
        return self._at(now, "oom", self.kept_oom, "torch_memory_oom")

    def on_demand(self, now: datetime) -> Path:
        """Return the path of a snapshot on demand."""
        return self._at(now, "demand", self._kept_demand)

    def _at(self, now: datetime, event: str, kept: _Kept, tag: str = "torch_memory") -> Path:
        time = f"{now:%Y%m%d-%H%M%S-%f}"
        path = self._unclaimed(f"{event}_{time}", f"{event}-{time}", tag)
        self._kept[path] = kept
        return path

    def claim_first(self) -> bool:
        """Mark this process as the first of its rank for its children; return whether it is."""
        if self._first_process is None:
            rank = ranks.current().rank
            os.environ[FIRST_PROCESS] = f"{rank}:{os.getpid()}:{self._output}"
        return self._first_process == str(os.getpid())

    @property
    def is_of_first_process(self) -> bool:
        """Whether no other traced process of this rank started this one."""
        return self._first_process in (None, str(os.getpid()))

    @property
    def _first_process(self) -> str | None:
        """The pid of the rank's first process; None: unknown, or of another rank."""
        first_rank, _, mark = os.environ.get(FIRST_PROCESS, "").partition(":")
        pid, _, output = mark.partition(":")
        own = str(ranks.current().rank), str(self._output)
        return pid if (first_rank, output) == own else None

    @contextlib.contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Make the directory of a file while its body writes the file.

        If the body raises, the file does not count, and the directories that were made for it are
        removed if they are empty.
        """
        try:
            with folders_of(path):
                yield
        except BaseException:
            self._kept.pop(path, None)
            _claimed.pop(path, None)  # the name is free
            raise

    def written(self, path: Path) -> None:
        """Delete the file that this one replaces, and call the user's function with the path."""
        with self._changing:
            kept = self._kept.pop(path, None)
            old = None if kept is None else kept.add(path)
        if old is not None:
            _claimed.pop(old, None)
            with contextlib.suppress(OSError):
                old.unlink(missing_ok=True)
                if not self._is_file:
                    old.parent.rmdir()
        is_at_the_end = self._is_file and _claimed.get(path) is self._end_claim
        if is_at_the_end and path != (first := self._path("exit", "")):
            warn_once(
                f"{first} already has a snapshot of this process. It is kept: the next one is "
                f"{path}, and later ones count up from there. For other names, give each tracer "
                "its own output",
                f"numbered: {first}",
            )
        call: Any = self._options.on_snapshot
        if isinstance(call, str):
            module, _, function = call.partition(":")
            call = operator.attrgetter(function)(importlib.import_module(module))
        if call is not None:
            call(os.fspath(path))

    def _unclaimed(
        self, event: str, suffix: str, tag: str = "torch_memory", claim: object = None
    ) -> Path:
        """Return a name that is unused in this process, or that `claim` has used."""
        claim = object() if claim is None else claim
        first = self._path(event, suffix, tag)
        paths = numbered(first, self._number)
        path = next(path for path in paths if _claimed.setdefault(path, claim) is claim)
        if len(_claimed) > MAX_CLAIMED:
            _claimed.pop(next(iter(_claimed)), None)
        return path

    def _path(self, event: str, suffix: str, tag: str = "torch_memory") -> Path:
        """Return the first choice of a name; `suffix`: the event in a name next to the file."""
        rank = ranks.current()
        pid = os.getpid()
        if not self._is_file:
            who = rank.name(self._options.role)
            return self._output / event / f"{tag}_{who}_pid{pid}.pickle"
        parts = [self._output.stem]
        if rank.is_one_of_several:
            parts.append(f"rank{rank.rank}")
        path = self._next_to([*parts, suffix])
        own_path = self._next_to([*parts, f"pid{pid}", suffix])
        if not self.is_of_first_process or path in _parents_names:
            return own_path
        if _is_held(self._next_to(parts)) and not self._is_of_another(path):
            return path
        warn_once(
            f"another process was given the name {path} too: this process writes {own_path}. To "
            "choose the names, give each process its own output, or a directory",
            f"another process: {self._output}",
        )
        return own_path

    def _is_of_another(self, path: Path) -> bool:
        """Return whether another process has written the file since this recording began."""
        if self._begun_ns is not None and path not in _written:
            with contextlib.suppress(OSError):  # there is no such file
                return path.stat().st_mtime_ns > self._begun_ns
        return False

    def _next_to(self, parts: list[str]) -> Path:
        return self._output.with_name(".".join(filter(None, parts)) + self._output.suffix)


def numbered(first: Path, number: int = 1) -> Iterator[Path]:
    """Yield a path with a number, from this one on, before its suffix; 1 has none."""
    for each in itertools.count(number):
        end = f"_{each}" if each > 1 else ""
        yield first.with_name(f"{first.stem}{end}{first.suffix}")


def existing(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that has been made."""
    while not folder.exists():
        folder = folder.parent
    return folder


def note_written(path: str | os.PathLike[str]) -> None:
    """Note that this process has written a file, which it may overwrite."""
    _written[Path(os.path.abspath(os.fsdecode(path)))] = None
    while len(_written) > MAX_CLAIMED:
        _written.pop(next(iter(_written)), None)


def _is_held(path: Path) -> bool:
    """Hold a name until the process ends; return False if another process of this node has it."""
    with _holding:
        if path not in _held and _hold(path):
            _held.add(path)
        return path in _held


def _hold(path: Path) -> bool:
    place = Path(os.path.realpath(path.parent), path.name)
    disk = 0
    with contextlib.suppress(OSError):
        # Containers that share the machine's network may have other folders of the same name.
        disk = existing(place.parent).stat().st_dev
    digest = hashlib.sha256(b"%d %s" % (disk, os.fsencode(place))).hexdigest()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as holder:
            holder.bind(f"\0pytracer {digest}")
            holder.detach()  # never closed: the program may close the number, and open its own file
    except OSError as error:
        return error.errno != errno.EADDRINUSE  # where sockets are forbidden, times have to do
    except Exception:  # the program has replaced sockets, or forbids them
        return True
    return True


def check_function(name: OnSnapshot) -> None:
    """Raise a ConfigError now, not when memory runs out, if `on_snapshot` names no function.

    A module that is still being imported may define it later.
    """
    if not isinstance(name, str):
        return
    module, _, function = name.partition(":")
    try:
        found = importlib.import_module(module)
        is_incomplete = module == "__main__" or getattr(found.__spec__, "_initializing", False)
        if is_incomplete or callable(operator.attrgetter(function)(found)):
            return
        problem = f"{function} is not a function"
    except (Exception, SystemExit) as error:  # an import may raise anything
        problem = str(error) or repr(error)
    raise ConfigError(
        f"on_snapshot={brief(name)} cannot be used: {problem}; give a function, or "
        '"package.module:function" of a module that can be imported, or None'
    )
