"""Writes the snapshots of one tracer, and counts and reports what fails."""

import contextlib
import errno
import itertools
import os
import pickle
import platform
import shutil
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytracer
from pytracer import _core
from pytracer.atomic_file import open_atomically
from pytracer.backends import oom
from pytracer.backends.names import HOST
from pytracer.errors import ConfigError
from pytracer.log import print_line, report_once, warn_once
from pytracer.owners.registry import REGISTRY
from pytracer.text import END_LINE, brief, printable, size
from pytracer.tracing import box, host_memory, oom_answer, process, ranks
from pytracer.tracing.cell_names import cell_names
from pytracer.tracing.device_recording import LONG_PATIENCE, DeviceRecording, Sizes
from pytracer.tracing.options import variable
from pytracer.tracing.snapshot_files import Files, check_function, existing, note_written
from pytracer.tracing.source_lines import GeneratedCode, generated_code, source_lines
from pytracer.tracing.training_phases import MODULE_PHASES

FORMAT_VERSION = (1, 16)
"""The version of the `pytracer` dict. Minor: keys were added. Major: a key's meaning changed."""

Metadata = dict[str, Any]


def _reason(failure: Exception, path: Path) -> str:
    """Return why a file was not written, and what to do if the disk is full. Never raises."""
    number = getattr(failure, "errno", None)
    if number not in (errno.ENOSPC, errno.EDQUOT):
        return str(failure)
    reason = "the disk is full" if number == errno.ENOSPC else "the user's disk quota is exceeded"
    with contextlib.suppress(OSError):  # the folder may be gone, or its server
        if number == errno.ENOSPC:
            reason += f" ({size(shutil.disk_usage(existing(path.parent)).free)} free)"
    return f"{reason}. The job continues. Free some space, or change {variable('output')}"


def metadata(recording: DeviceRecording) -> Metadata:
    """Return what a snapshot says about the process and the recording."""
    options = recording.options
    modules = [sys.modules.get(name) for name in ("torch", "torch_npu", "functorch")]
    torch, torch_npu, _ = modules
    files = [getattr(module, "__file__", None) for module in modules]
    return {
        "format_version": FORMAT_VERSION,
        "version": pytracer.__version__,
        "written_ns": time.time_ns(),
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "rank": ranks.current().rank,
        "role": options.role,
        "window": None,
        "torch": getattr(torch, "__version__", None),
        "torch_npu": getattr(torch_npu, "__version__", None),
        "torch_folders": [os.path.dirname(file) for file in files if file],
        "python": platform.python_version(),
        "backends": [name for name in recording.indices if name != HOST],
        "trace_alloc_max_entries": options.trace_alloc_max_entries,
        "stack_depth": options.stack_depth,
        "context": recording.context,
        "max_stack_bytes": options.max_stack_bytes,
        "forward_stacks": recording.has_forward_stacks,
        "module_phases": MODULE_PHASES.as_metadata(),
        "untraced": recording.why_untraced,
        "settings": recording.settings,
        "metadata": options.metadata,
    }


class SnapshotWriter:
    """The writer of one tracer's snapshots. Any thread may call its methods.

    `default_output` takes the place of an output in a variable that is wrong. With `only_if_used`,
    a process that used no device leaves nothing on the disk.

    Attributes:
        files: The names of the tracer's files; None before the start, and without an output.
        failures: How many snapshots could not be written, or lack their segments, or whose
            `on_snapshot` failed.
        written, unwritten: How many were written, and could not be.
    """

    def __init__(
        self, recording: DeviceRecording, default_output: str | None, only_if_used: bool
    ) -> None:
        self._recording = recording
        self._default_output = default_output
        self._only_if_used = only_if_used
        self.files: Files | None = None
        self.failures = self.written = self.unwritten = 0
        _ = pytracer.__version__  # destructors may write when Python imports nothing any more
        self._kills: host_memory.Kills | None = None  # before the first recording
        self._has_reported_steps = False
        self._latest_oom: tuple[Path, int] | None = None  # and the device

    def open(self) -> None:
        """Begin a recording's files, or raise a ConfigError if that is impossible.

        So the output can be written to, and `on_snapshot` names a function.
        """
        options = self._recording.options
        if options.output is None:
            return
        try:
            files = self.files or Files(options)
            files.begin(make=not self._only_if_used)
            self.files = files
            self._kills = self._kills or host_memory.kills()
        except ConfigError as error:
            if "output" in options.given or options.output == self._default_output:
                raise
            problem = str(error).removeprefix("output")
            shown = brief(self._default_output)
            warn_once(f"{variable('output')}{problem}. The default, {shown}, is used")
            self._recording.options = replace(options, output=self._default_output)
            self.open()
            return
        files.warn_of_ranks()
        if "on_snapshot" in options.given:  # a variable may be read while torch is imported
            check_function(options.on_snapshot)

    @property
    def writes_steps(self) -> bool:
        """Whether this rank writes files of steps and at the end."""
        return self.files is not None and self.files.are_wanted()

    def keep_in_box(self, more: Callable[[], Metadata], is_urgent: bool = True) -> None:
        """Have what only this process knows outlive it, with the metadata `more`."""
        if self.files is not None:
            box.describe(self._recording, lambda: self._for_box(more()), is_urgent)

    def _for_box(self, more: Metadata) -> dict[str, Any]:
        assert self.files is not None
        recording = self._recording
        return {
            "folder": os.fspath(self.files.folder),
            "path": self.files.by_others(),
            "only_if_used": self._only_if_used,
            "metadata": {**metadata(recording), **more},
            "recording": recording.for_restore,
            "devices": recording.sizes_of_used(),
            "cgroup": self._kills,
            "is_ray_worker": "RAY_RAYLET_PID" in os.environ,  # or a child process of a worker
        }

    def is_worth_writing(self, view: _core.View | None) -> bool:
        """Return whether a view has anything that this tracer writes; None: unknown, so True."""
        return view is None or not self._only_if_used or bool(view.used_devices)

    def save(self, path: Path, more: Metadata, view: _core.View | None = None) -> bool:
        """Write a file of the tracer's own accord. Return whether it was written; never raise.

        The file has the metadata `more` in addition to `metadata()`. Without a view, it has the
        present.
        """
        assert self.files is not None
        try:
            with self.files.writing(path):
                try:
                    self.write(path, more, view)
                except FileNotFoundError:  # another process failed to write, and removed the folder
                    path.parent.mkdir(parents=True, exist_ok=True)
                    self.write(path, more, view)
        except BaseException as failure:
            self.unwritten += 1
            if not isinstance(failure, Exception):  # Control-C
                raise
            kind = f"not written: {getattr(failure, 'strerror', None) or type(failure)}"
            self.fail(f"the snapshot {path} was not written: {_reason(failure, path)}", kind)
            return False
        self.written += 1
        try:
            self.files.written(path)
        except (Exception, SystemExit) as failure:  # from the user's function
            if isinstance(failure, SystemExit) and not self._recording.session.is_ours:
                process.end_forked_child(failure)  # or the child would continue as the program
            self.fail(f"on_snapshot failed: {failure!r}", f"on_snapshot: {type(failure)}")
        return True

    def write(
        self, path: str | os.PathLike[str] | int, more: Metadata, view: _core.View | None = None
    ) -> None:
        """Write a file as `open_atomically` does; see `save`."""
        if view is None:
            view = self._recording.view(patience=LONG_PATIENCE if "oom" in more else 1)
        parts = self._parts(view, more)
        path = path if isinstance(path, int) else Path(os.fsdecode(path))
        with open_atomically(path) as file:
            view.write(file.fileno(), os.fsencode(str(path)), *parts)
        if isinstance(path, Path):
            note_written(path)

    def as_dict(self, more: Metadata, view: _core.View | None = None) -> dict[str, Any]:
        """Return the snapshot that `write` would write."""
        content: dict[str, Any] = pickle.loads(self.as_bytes(more, view))
        return content

    def as_bytes(self, more: Metadata, view: _core.View | None = None) -> bytes:
        """Return the file that `write` would write."""
        view = self._recording.view() if view is None else view
        return view.to_bytes(*self._parts(view, more))

    def _parts(
        self, view: _core.View, more: Metadata
    ) -> tuple[Metadata, Sizes, GeneratedCode, dict[str, str]]:
        """Return what a file has next to its view, as `View.write` and `to_bytes` take it."""
        code = generated_code(view)
        if view.problem:
            self.fail(
                f"a snapshot has no segments: the allocator did not report them: {view.problem}",
                "without segments",
            )
        described = metadata(self._recording)
        if self._recording.options.source_lines:
            described["source_lines"] = source_lines(view, code, described["torch_folders"])
        return {**described, **more}, self._recording.memory(view), code, cell_names()

    def fail(self, message: str, kind: str | None = None) -> None:
        """Count a failure and log it once; the job continues."""
        self.failures += 1
        report_once(message, kind)

    def report_ooms(self) -> None:
        """Report how many out-of-memory errors there were, and the last, unless each was logged."""
        if self.files is None or not self.files.kept_oom.replaced or not self._latest_oom:
            return
        path, device = self._latest_oom
        with contextlib.suppress(Exception):  # there may be no stderr
            print_line(
                f"pytracer: out of memory {self.files.oom_snapshots:,} times; the snapshot from "
                f"the last time is {printable(str(path))}"
            )
        if device >= 0:
            oom_answer.explain(path, device)  # it may be the one that ended the program

    def on_oom(self, event: oom.OutOfMemory, more: Metadata) -> None:
        """Write a snapshot on the thread that ran out of memory; `more`: see `save`."""
        oom_answer.forget_note()
        recorded = itertools.chain(*self._recording.indices.values())
        if not self._recording.session.recording or event.device not in recorded:
            return
        assert self.files is not None
        path = self.files.out_of_memory(datetime.now())
        known = asdict(event) | {"evaluating": REGISTRY.are_models_evaluating()}
        if not self.save(path, {**more, "oom": known}):
            return
        self._latest_oom = path, event.device
        # After an out-of-memory of the CPU, reading might fail too.
        is_known = event.requested_bytes > 0 or event.library_error is not None
        is_explained, answer = event.device >= 0 and is_known, None
        if not self.files.kept_oom.replaced:
            oom_answer.report(f"out of memory: wrote {path}; `pytracer show` shows the reason")
            if is_explained:
                answer = oom_answer.explain(path, event.device)
        elif self.files.kept_oom.replaced == 1:
            most = self._recording.options.max_oom_snapshots
            first = f"; the first {most - 1} stay" if most > 1 else ""
            oom_answer.report(
                f"out of memory more often than max_oom_snapshots={most}: {path} has replaced the "
                "latest snapshot. From now on each further out-of-memory error replaces the latest "
                f"snapshot without a message{first}. To keep more, raise max_oom_snapshots"
            )
        if is_explained:
            oom_answer.leave_note(path, answer)

    def on_demand(self, when: datetime, more: Metadata) -> None:
        """Write a snapshot on the thread that watches for demands; `more`: see `save`."""
        if self._recording.session.recording and self.files is not None:
            path = self.files.on_demand(when)
            if self.save(path, more):
                self._report(path)

    def report_steps(self, path: Path) -> None:
        """Report the first file of a step or a phase on stderr."""
        if not self._has_reported_steps:
            self._has_reported_steps = True
            self._report(path, "; later step files are written without a message")

    def _report(self, path: Path, more: str = "") -> None:
        if self.files is not None and self.files.is_of_first_process:
            with contextlib.suppress(Exception):  # there may be no stderr
                print_line(f"{END_LINE}{printable(str(path))}{more}")
