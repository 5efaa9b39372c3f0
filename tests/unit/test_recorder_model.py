"""The recorder against a plain model of it, under random operations."""

import pickle
from dataclasses import dataclass, field
from typing import Any

from core_events import ALLOC, FREE, owner
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pytracer import _core

EVENT_BYTES = 64
Event = tuple[int, int, int]  # action, address, size


@dataclass
class ModelOwner:
    """What an owner should see."""

    bound: int
    real: Any
    begin: int = 0
    end: int = 0  # once stopped
    recording: bool = True
    unknown_before: int = 0
    unknown_end: int = 0
    live_at_stop: dict[int, int] = field(default_factory=dict)
    oldest_kept: int | None = None  # the ring it stopped with was replaced by a larger one


class Recorder(RuleBasedStateMachine):
    """Owners come, go, clear and are read while blocks are allocated and freed."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: list[ModelOwner] = []
        self.forget()

    def forget(self) -> None:
        """The last owner went: nothing is held any more."""
        self.events: list[Event] = []
        self.oldest = 0
        self.capacity = 0
        self.live: dict[int, int] = {}
        self.unknown_frees = 0

    def recording(self) -> bool:
        return any(each.recording for each in self.owners)

    def append(self, event: Event) -> None:
        self.events.append(event)
        self.oldest = max(self.oldest, len(self.events) - self.capacity)

    @rule(bound=st.integers(1, 12))
    def start_owner(self, bound: int) -> None:
        if len(self.owners) == 4:
            return
        if not self.recording():
            self.live = {}  # what went meanwhile was not seen
        if bound > self.capacity:
            for each in self.owners:
                if not each.recording and each.oldest_kept is None:
                    each.oldest_kept = self.oldest
        self.capacity = max(self.capacity, bound)
        made = ModelOwner(bound, owner(bound), len(self.events))
        made.unknown_before = self.unknown_frees
        self.owners.append(made)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def stop_owner(self, data: st.DataObject) -> None:
        stopped = data.draw(st.sampled_from(self.owners))
        if stopped.recording:
            stopped.end, stopped.live_at_stop = len(self.events), dict(self.live)
            stopped.unknown_end = self.unknown_frees
            stopped.recording = False
        stopped.real.stop()

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def restart_owner(self, data: st.DataObject) -> None:
        restarted = data.draw(st.sampled_from(self.owners))
        restarted.real.start()
        if not restarted.recording:
            if not self.recording():
                self.live = {}
            restarted.begin, restarted.recording = len(self.events), True
            restarted.unknown_before = self.unknown_frees
            restarted.oldest_kept = None

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def clear_owner(self, data: st.DataObject) -> None:
        cleared = data.draw(st.sampled_from(self.owners))
        cleared.real.clear()
        cleared.begin = len(self.events) if cleared.recording else cleared.end
        cleared.unknown_before = self.unknown_frees if cleared.recording else cleared.unknown_end

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def drop_owner(self, data: st.DataObject) -> None:
        dropped = data.draw(st.sampled_from(self.owners))
        self.owners.remove(dropped)
        dropped.real = None  # the last reference
        if not self.owners:
            self.forget()

    @rule(block=st.integers(1, 8), size=st.integers(1, 1 << 40))
    def allocate(self, block: int, size: int) -> None:
        _core.testing.record(ALLOC, 64 * block, size)
        if self.recording():
            if 64 * block in self.live:  # its free was missed
                self.append((FREE, 64 * block, self.live[64 * block]))
            self.live[64 * block] = size
            self.append((ALLOC, 64 * block, size))

    @rule(block=st.integers(1, 8))
    def free(self, block: int) -> None:
        _core.testing.record(FREE, 64 * block, 0)
        if not self.recording():
            return
        size = self.live.pop(64 * block, None)
        if size is None:
            self.unknown_frees += 1
        else:
            self.append((FREE, 64 * block, size))

    @rule(pairs=st.integers(1, 30))
    def many(self, pairs: int) -> None:
        _core.testing.record_pairs(pairs, 64 * 100)
        for _ in range(pairs if self.recording() else 0):
            self.append((ALLOC, 6400, 512))
            self.append((FREE, 6400, 512))

    @invariant()
    def everyone_sees_what_is_theirs(self) -> None:
        for each in self.owners:
            end = len(self.events) if each.recording else each.end
            oldest = self.oldest if each.oldest_kept is None else each.oldest_kept
            first = min(end, max(each.begin, end - each.bound, oldest))
            rows = each.real.events()
            assert rows["sequence"].tolist() == list(range(first, end))
            seen = [tuple(map(int, row)) for row in rows[["action", "address", "size_bytes"]]]
            assert seen == self.events[first:end]
            stacks = rows["stack"][rows["action"] == ALLOC]
            assert all(each.real.frames(int(stack)) for stack in stacks)
            stats = each.real.stats()["devices"][0]
            assert stats["recorded"] == end - each.begin
            assert stats["held"] == end - first
            assert stats["overwritten"] == first - each.begin
            unknown = self.unknown_frees if each.recording else each.unknown_end
            assert stats["unknown_frees"] == unknown - each.unknown_before
            live = self.live if each.recording else each.live_at_stop
            assert stats["live_blocks"] == len(live)
            assert stats["live_block_bytes"] == sum(live.values())
            assert stats["max_ring_bytes"] == self.capacity * EVENT_BYTES
            assert stats["ring_bytes"] <= stats["max_ring_bytes"]
            assert stats["live_table_bytes"] <= stats["max_live_table_bytes"]

    @invariant()
    def the_state_is_that_of_the_instant(self) -> None:
        for each in self.owners:
            snapshot = pickle.loads(each.real.view().to_bytes({}, {}))
            first_blocks = [segment["blocks"][0] for segment in snapshot["segments"]]
            blocks = {block["address"]: block["size"] for block in first_blocks}
            assert blocks == (self.live if each.recording else each.live_at_stop)

    def teardown(self) -> None:
        for each in self.owners:
            each.real = None


TestRecorder = Recorder.TestCase
TestRecorder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
