"""The recorder against a plain model of it, under random operations."""

import pickle
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from core_events import ALLOC, FREE, owner
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pytracer import _core

EVENT_BYTES = 64
Event = tuple[int, int, int]  # action, address, size
FILE_ACTIONS = {"alloc": ALLOC, "free_completed": FREE}


class Mode(Enum):
    """What an owner wants recorded."""

    OFF = auto()
    PAUSED = auto()
    BLOCKS = auto()
    EVENTS = auto()


@dataclass
class ModelOwner:
    """What an owner should see."""

    bound: int
    real: Any
    mode: Mode = Mode.OFF
    begin: int = 0
    end: int = 0  # once stopped
    step: int = 0
    steps: dict[int, int] = field(default_factory=dict)  # of the events that came meanwhile
    unknown_before: int = 0
    unknown_end: int = 0
    live_at_stop: dict[int, int] = field(default_factory=dict)
    oldest_kept: int | None = None  # the ring it stopped with was replaced by a larger one

    @property
    def recording(self) -> bool:
        return self.mode != Mode.OFF


class Recorder(RuleBasedStateMachine):
    """Owners come, go, clear, take turns and are read while blocks are allocated and freed."""

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
        writing = [each for each in self.owners if each.mode == Mode.EVENTS]
        for each in writing:
            each.steps[len(self.events)] = each.step
        if writing:
            self.events.append(event)
            self.oldest = max(self.oldest, len(self.events) - self.capacity)

    def change_mode(self, changed: ModelOwner, mode: Mode) -> None:
        if changed.mode == mode:
            return
        if not self.recording():
            self.live = {}  # what went meanwhile was not seen
        changed.mode = mode
        changed.oldest_kept = None
        self.begin_window(changed)

    def begin_window(self, changed: ModelOwner) -> None:
        changed.begin = len(self.events)
        changed.unknown_before = self.unknown_frees

    def seen(self, by: ModelOwner) -> tuple[int, int, int]:
        """Numbers of events: the first that is an owner's, the first that is held, the end."""
        end = len(self.events) if by.recording else by.end
        begin = by.begin if by.mode in (Mode.OFF, Mode.EVENTS) else end
        oldest = self.oldest if by.oldest_kept is None else by.oldest_kept
        return begin, min(end, max(begin, end - by.bound, oldest)), end

    @rule(bound=st.integers(1, 12))
    def start_owner(self, bound: int) -> None:
        if len(self.owners) == 4:
            return
        if bound > self.capacity:
            for each in self.owners:
                if not each.recording and each.oldest_kept is None:
                    each.oldest_kept = self.oldest
        self.capacity = max(self.capacity, bound)
        made = ModelOwner(bound, owner(bound))
        self.change_mode(made, Mode.EVENTS)
        self.owners.append(made)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def stop_owner(self, data: st.DataObject) -> None:
        stopped = data.draw(st.sampled_from(self.owners))
        if stopped.recording:
            stopped.begin, _, stopped.end = self.seen(stopped)
            stopped.live_at_stop = dict(self.live)
            stopped.unknown_end = self.unknown_frees
            stopped.mode = Mode.OFF
        stopped.real.stop()

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), history=st.booleans())
    def restart_owner(self, data: st.DataObject, history: bool) -> None:
        restarted = data.draw(st.sampled_from(self.owners))
        restarted.real.start(history)
        self.change_mode(restarted, Mode.EVENTS if history else Mode.BLOCKS)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def pause_owner(self, data: st.DataObject) -> None:
        paused = data.draw(st.sampled_from(self.owners))
        paused.real.pause()
        if paused.recording:
            self.change_mode(paused, Mode.PAUSED)

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), step=st.integers(0, 3))
    def begin_step(self, data: st.DataObject, step: int) -> None:
        beginning = data.draw(st.sampled_from(self.owners))
        beginning.real.begin_step(step)
        beginning.step = step

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), history=st.booleans(), step=st.integers(0, 3))
    def turn_owner(self, data: st.DataObject, history: bool, step: int) -> None:
        turning = data.draw(st.sampled_from(self.owners))
        self.check_view(turning, turning.real.turn(history, step))
        if turning.recording:
            turning.step = step
            self.begin_window(turning)
            self.change_mode(turning, Mode.EVENTS if history else Mode.BLOCKS)

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
            begin, first, end = self.seen(each)
            rows = each.real.events()
            assert rows["sequence"].tolist() == list(range(first, end))
            seen = [tuple(map(int, row)) for row in rows[["action", "address", "size_bytes"]]]
            assert seen == self.events[first:end]
            assert rows["step"].tolist() == [each.steps[i] for i in range(first, end)]
            stacks = rows["stack"][rows["action"] == ALLOC]
            assert all(each.real.frames(int(stack)) for stack in stacks)
            stats = each.real.stats()["devices"][0]
            assert stats["recorded"] == end - begin
            assert stats["held"] == end - first
            assert stats["overwritten"] == first - begin
            assert stats["unknown_frees"] == self.unknown(each)
            live = self.live if each.recording else each.live_at_stop
            assert stats["live_blocks"] == len(live)
            assert stats["live_block_bytes"] == sum(live.values())
            assert stats["max_ring_bytes"] == self.capacity * EVENT_BYTES
            assert stats["ring_bytes"] <= stats["max_ring_bytes"]
            assert stats["live_table_bytes"] <= stats["max_live_table_bytes"]

    def unknown(self, of: ModelOwner) -> int:
        return (self.unknown_frees if of.recording else of.unknown_end) - of.unknown_before

    @invariant()
    def a_file_is_that_of_the_instant(self) -> None:
        for each in self.owners:
            self.check_view(each, each.real.view())

    def check_view(self, of: ModelOwner, view: Any) -> None:
        snapshot = pickle.loads(view.to_bytes({}, {}))
        first_blocks = [segment["blocks"][0] for segment in snapshot["segments"]]
        blocks = {block["address"]: block["size"] for block in first_blocks}
        assert blocks == (self.live if of.recording else of.live_at_stop)
        begin, first, end = self.seen(of)
        about = snapshot["pytracer"]["devices"][0]
        assert about["recorded"] == end - begin
        assert about["overwritten"] == view.overwritten == first - begin
        assert about["unknown_frees"] == self.unknown(of)
        assert view.has_events == (first < end)
        seen = []  # events and their steps
        step_at = {index: step for step, index in about["steps"]}
        step = 0
        for index, event in enumerate(snapshot["device_traces"][0]):
            step = step_at.get(index, step)
            if event["action"] in FILE_ACTIONS:  # segments are made up
                seen.append(((FILE_ACTIONS[event["action"]], event["addr"], event["size"]), step))
        assert seen == [(self.events[i], of.steps[i]) for i in range(first, end)]

    def teardown(self) -> None:
        for each in self.owners:
            each.real = None


TestRecorder = Recorder.TestCase
TestRecorder.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
