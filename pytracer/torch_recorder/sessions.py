"""The arguments of torch's `_record_memory_history`, and the sessions that they begin."""

import operator
import os
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from pytracer import ACTIONS, _core
from pytracer.errors import ConfigError
from pytracer.log import warn_once
from pytracer.tracing.cell_names import cell_names
from pytracer.tracing.device_recording import CONTEXTS
from pytracer.tracing.options import MAX_ENTRIES_LIMIT, OPTIONS, STEP_OPTIONS, Options
from pytracer.tracing.source_lines import generated_code
from pytracer.tracing.tracer import Tracer

SKIPPABLE = {*ACTIONS} - {"workspace_snapshot"}
DEVICE_ACTIONS = [*ACTIONS[: ACTIONS.index("oom") + 1]]
"""The actions of devices that every torch with `skip_actions` can skip."""


@dataclass(frozen=True)
class RecordArguments:
    """The arguments of `_record_memory_history`. Defaults are for arguments that a torch lacks."""

    enabled: str | None
    context: str | None
    stacks: str
    max_entries: int
    clear_history: bool = True  # a torch without the argument always clears
    compile_context: bool = False
    global_record_annotations: bool = False
    skip_actions: Sequence[str] | None = None
    record_pinned_host_memory: bool = False
    record_cuda: bool = True

    @classmethod
    def of_call(cls, given: dict[str, Any]) -> "RecordArguments | None":
        """Return the arguments of a call, by name; None if pytracer does not know a value."""
        try:
            known = {name: given[name] for name in cls.__annotations__ if name in given}
            arguments = cls(**{**known, "max_entries": operator.index(given["max_entries"])})
            return arguments if arguments._is_known() else None
        except TypeError:
            return None

    @classmethod
    def of_legacy_call(cls, given: dict[str, Any]) -> "RecordArguments | None":
        """Return the arguments of a call with a bool for `enabled`, whose other names differ."""
        entries = given["trace_alloc_max_entries"]
        events = isinstance(entries, int) and entries > 1
        context = "state" if given["record_context"] else None
        return cls.of_call(
            {
                **given,
                "enabled": ("all" if events else "state") if given["enabled"] else None,
                "context": "alloc" if given["trace_alloc_record_context"] else context,
                "stacks": "all" if given["record_context_cpp"] else "python",
                "max_entries": entries,
            }
        )

    def _is_known(self) -> bool:
        flags = [getattr(self, each.name) for each in fields(self) if each.type is bool]
        skipped = () if self.skip_actions is None else self.skip_actions
        return (
            self.enabled in (None, "state", "all")
            and self.context in CONTEXTS
            and self.stacks in ("python", "all")
            and 0 <= self.max_entries < 1 << 64
            and all(isinstance(flag, bool) for flag in flags)
            and not isinstance(skipped, str)
            and {*skipped} <= SKIPPABLE
        )

    @property
    def needs_torch(self) -> bool:
        """Whether only torch's own recorder has some of what is asked for."""
        return (
            self.compile_context or self.global_record_annotations or self.record_pinned_host_memory
        )

    def torchs_part(self, max_entries: int) -> dict[str, Any]:
        """Return arguments for torch's own recorder: what only it can serve, at the least cost.

        torch records annotations only while it records the device. All events are skipped then.
        """
        pinned = self.record_pinned_host_memory
        return {
            "enabled": "all" if pinned or self.global_record_annotations else "state",
            "context": self.context if pinned else None,
            "stacks": self.stacks if pinned else "python",
            "max_entries": self.max_entries if pinned else max_entries,
            "compile_context": self.compile_context,
            "global_record_annotations": self.global_record_annotations,
            "skip_actions": DEVICE_ACTIONS,
            "record_pinned_host_memory": pinned,
            "record_cuda": self.global_record_annotations or not pinned,
        }


class TorchSession(Tracer):
    """The session of one caller of torch's recorder.

    Attributes:
        enabled: True between `begin()` and `end()`.
        skipped: The actions that `snapshot()` leaves out, which `dump()` cannot do.
    """

    def __init__(self, backend: str, owner: str) -> None:
        super().__init__(None, device=backend, pinned_memory=False)
        self._backend = backend
        self._described: dict[str, Any] = {"owner": owner}
        self.skipped: frozenset[str] = frozenset()
        self._most_entries = MAX_ENTRIES_LIMIT
        self.enabled = False

    def begin(self, arguments: RecordArguments, depth: dict[str, Any]) -> str | None:
        """Record from now on; return None, or why nothing can be recorded.

        `depth` has the option `stack_depth`, if the call gave it.
        """
        self._recording.change(self._checked(arguments, depth), arguments.context)
        self.start()
        if not self.stats()["recording"]:
            return self._recording.why_untraced or "the allocator cannot be recorded here"
        keeps_events = self.enabled and not arguments.clear_history
        self._session.start(arguments.enabled == "all", keeps_events)
        if arguments.clear_history:
            self.clear()
        if arguments.enabled == "all":
            self._most_entries = max(1, arguments.max_entries)
        self.skipped = frozenset(arguments.skip_actions or ())
        self._described.update(
            enabled=arguments.enabled,
            stacks=arguments.stacks,
            max_entries=min(arguments.max_entries, sys.maxsize),
            skip_actions=sorted(self.skipped),
        )
        self.enabled = True
        return None

    def _checked(self, arguments: RecordArguments, depth: dict[str, Any]) -> Options:
        given: dict[str, Any] = {
            "output": None,
            "device": self._backend,
            "pinned_memory": False,  # torch's own recorder has it
            **{name: OPTIONS[name].default for name in STEP_OPTIONS},
            "step_from": "none",
        }
        if arguments.enabled == "state":  # the events so far stay
            given["trace_alloc_max_entries"] = self.max_entries
        elif arguments.max_entries <= MAX_ENTRIES_LIMIT:
            given["trace_alloc_max_entries"] = max(1, arguments.max_entries)
        try:
            return Options.checked({**given, **depth})
        except ConfigError as error:  # the depth is wrong: torch's own arguments are checked
            warn_once(str(error))
            return Options.checked(given)

    def end(self) -> None:
        """Record no more events. Live blocks stay known until the session begins again."""
        self._session.pause()
        self.enabled = False

    @property
    def max_entries(self) -> int:
        """How many events the ring holds."""
        return self._options.trace_alloc_max_entries

    def snapshot(self) -> dict[str, Any]:
        """Return the snapshot without the skipped actions."""
        snapshot = self._writer.as_dict(self._metadata(), self._bounded_view())
        if self.skipped:
            snapshot["device_traces"] = [
                [event for event in trace if event["action"] not in self.skipped]
                for trace in snapshot["device_traces"]
            ]
        return snapshot

    def dump(self, path: str | os.PathLike[str] | int) -> None:
        """Write the snapshot, with the skipped actions; see `Tracer.dump`."""
        self._writer.write(path, self._metadata(), self._bounded_view())

    def _bounded_view(self) -> _core.View:
        """Return the view of the present. A ring event may have several entries in a trace."""
        view = self._recording.view()
        view.keep_last_entries(self._most_entries)
        return view

    def traceback(self, address: int) -> list[dict[str, Any]] | None:
        """Return the frames of the live block that begins at an address; None: unknown."""
        try:
            return self.frames(self._session.stack_of(address)) or None
        except IndexError:  # the block was freed, and its stack was removed
            return None

    def segments(self) -> list[dict[str, Any]]:
        """Return the segments of a snapshot, without the cost of the events."""
        view = self._session.view(history=False)
        snapshot = pickle.loads(view.to_bytes({}, {}, generated_code(view), cell_names()))
        segments: list[dict[str, Any]] = snapshot["segments"]
        return segments

    def _metadata(self) -> dict[str, Any]:
        return {**super()._metadata(), "stand_in": dict(self._described)}
