"""What `torch_patch` records: the sessions of torch's `_record_memory_history`, each a tracer."""

import operator
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytracer.actions import ACTIONS
from pytracer.config import MAX_ENTRIES_LIMIT, OF_STEPS, OPTIONS, Options
from pytracer.config_checks import CONTEXTS
from pytracer.errors import ConfigError
from pytracer.notices import say_once
from pytracer.tracer import Tracer

Snapshot = dict[str, Any]

SKIPPABLE = {*ACTIONS} - {"workspace_snapshot"}
TORCHS_EVENTS = [*ACTIONS[: ACTIONS.index("oom") + 1]]  # of the device, in every torch that skips


@dataclass(frozen=True)
class Asked:
    """Arguments of `_record_memory_history`; the defaults are for a torch that has not got them."""

    enabled: str | None
    context: str | None
    stacks: str
    max_entries: int
    clear_history: bool = True  # which such a torch always does
    compile_context: bool = False
    global_record_annotations: bool = False
    skip_actions: Sequence[str] | None = None
    record_pinned_host_memory: bool = False
    record_cuda: bool = True

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Asked | None":
        """From all arguments of the call by name. None: some value is not known here."""
        try:
            known = {name: given[name] for name in cls.__annotations__ if name in given}
            asked = cls(**{**known, "max_entries": operator.index(given["max_entries"])})
            return asked if asked._is_known() else None
        except TypeError:
            return None

    @classmethod
    def of_legacy(cls, given: dict[str, Any]) -> "Asked | None":
        """The same of a call with a bool for `enabled`, whose other arguments differ."""
        entries = given["trace_alloc_max_entries"]
        events = isinstance(entries, int) and entries > 1
        context = "state" if given["record_context"] else None
        return cls.of(
            {
                **given,
                "enabled": ("all" if events else "state") if given["enabled"] else None,
                "context": "alloc" if given["trace_alloc_record_context"] else context,
                "stacks": "all" if given["record_context_cpp"] else "python",
                "max_entries": entries,
            }
        )

    def _is_known(self) -> bool:
        flags = (
            self.clear_history,
            self.compile_context,
            self.global_record_annotations,
            self.record_pinned_host_memory,
            self.record_cuda,
        )
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
    def needs_torchs(self) -> bool:
        """Whether some of it only torch's own recorder has."""
        return (
            self.compile_context or self.global_record_annotations or self.record_pinned_host_memory
        )

    def torchs_part(self, max_entries: int) -> dict[str, Any]:
        """Arguments for torch's own recorder: what it alone can serve, at the least cost.

        Its annotations come only while it records the device: all events are skipped then.
        """
        pinned = self.record_pinned_host_memory
        return {
            "enabled": "all" if pinned or self.global_record_annotations else "state",
            "context": self.context if pinned else None,
            "stacks": self.stacks if pinned else "python",
            "max_entries": self.max_entries if pinned else max_entries,
            "compile_context": self.compile_context,
            "global_record_annotations": self.global_record_annotations,
            "skip_actions": TORCHS_EVENTS,
            "record_pinned_host_memory": pinned,
            "record_cuda": self.global_record_annotations or not pinned,
        }


class Session(Tracer):
    """One owner's.

    Attributes:
        enabled: Between `begin()` and `end()`.
    """

    def __init__(self, backend: str, owner: str) -> None:
        """Records nothing yet."""
        super().__init__(None, device=backend)
        self._backend = backend
        self._told: dict[str, Any] = {"owner": owner}
        self._skipped: frozenset[str] = frozenset()
        self.enabled = False

    def begin(self, asked: Asked, depth: dict[str, Any]) -> str | None:
        """Records what is asked from now on; or returns why it does not.

        `depth`: the option `stack_depth`, if it was given.
        """
        self._options = options = self._checked(asked, depth)
        self._recording.change(options)
        self.start()
        if not self.stats()["recording"]:
            return self._recording.why_untraced or "the allocator cannot be recorded here"
        self._owner.start(history=asked.enabled == "all")
        if asked.clear_history:
            self.clear()
        self._skipped = frozenset(asked.skip_actions or ())
        self._told.update(
            enabled=asked.enabled,
            stacks=asked.stacks,
            max_entries=min(asked.max_entries, sys.maxsize),
            skip_actions=sorted(self._skipped),
        )
        self.enabled = True
        return None

    def _checked(self, asked: Asked, depth: dict[str, Any]) -> Options:
        given: dict[str, Any] = {
            "output": None,
            "device": self._backend,
            "context": asked.context,
            **{name: OPTIONS[name].default for name in OF_STEPS},
        }
        if asked.max_entries <= MAX_ENTRIES_LIMIT:
            given["trace_alloc_max_entries"] = max(1, asked.max_entries)
        try:
            return Options.checked({**given, **depth})
        except ConfigError as error:  # in the depth: torch's own options were looked at
            say_once(str(error))
            return Options.checked(given)

    def end(self) -> None:
        """No events any more. Until it begins again the blocks alive stay known."""
        self._owner.pause()
        self.enabled = False

    @property
    def max_entries(self) -> int:
        """Of the ring."""
        return self._options.trace_alloc_max_entries

    @property
    def skips(self) -> bool:
        """Whether `snapshot()` leaves events out, as `dump()` cannot."""
        return bool(self._skipped)

    def snapshot(self) -> Snapshot:
        """Without the events that were to be skipped."""
        snapshot = super().snapshot()
        if self._skipped:
            snapshot["device_traces"] = [
                [event for event in trace if event["action"] not in self._skipped]
                for trace in snapshot["device_traces"]
            ]
        return snapshot

    def segments(self) -> list[dict[str, Any]]:
        """Those of a snapshot, without the cost of the events."""
        snapshot = pickle.loads(self._owner.view(history=False).to_bytes({}, {}))
        segments: list[dict[str, Any]] = snapshot["segments"]
        return segments

    def _about(self) -> dict[str, Any]:
        return {**super()._about(), "stand_in": dict(self._told)}
