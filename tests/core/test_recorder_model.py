"""Compare the recorder with a simple model of it, under random operations."""

import pickle
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from core_events import ALLOC, FREE, started_session
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pytracer import _core

EVENT_BYTES = 48
Event = tuple[int, int, int]  # action, address, size
FILE_ACTIONS = {"alloc": ALLOC, "free_completed": FREE}


class Mode(Enum):
    """The events that a session asks for."""

    OFF = auto()
    PAUSED = auto()
    BLOCKS = auto()
    EVENTS = auto()


@dataclass
class ModelSession:
    """The state that a session should report."""

    bound: int
    real: Any
    mode: Mode = Mode.OFF
    begin: int = 0
    end: int = 0  # set by the stop
    step: int = 0
    steps: dict[int, int] = field(default_factory=dict)  # step of each event of this session
    unknown_before: int = 0
    unknown_end: int = 0
    live_at_stop: dict[int, int] = field(default_factory=dict)

    @property
    def recording(self) -> bool:
        return self.mode != Mode.OFF


class Recorder(RuleBasedStateMachine):
    """Sessions start, stop, clear, take turns and are read while blocks are allocated and freed."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[ModelSession] = []
        self.forget()

    def forget(self) -> None:
        """Reset the model after the last session was dropped: the recorder holds no events."""
        self.events: list[Event] = []
        self.oldest = 0
        self.capacity = 0
        self.live: dict[int, int] = {}
        self.unknown_frees = 0

    def recording(self) -> bool:
        return any(session.recording for session in self.sessions)

    def append(self, event: Event) -> None:
        writing = [session for session in self.sessions if session.mode == Mode.EVENTS]
        for session in writing:
            session.steps[len(self.events)] = session.step
        if writing:
            self.events.append(event)
            self.oldest = max(self.oldest, len(self.events) - self.capacity)

    def change_mode(self, changed: ModelSession, mode: Mode) -> None:
        if changed.mode == mode:
            return
        if not self.recording():
            self.live = {}  # frees since the last recording were not seen
        changed.mode = mode
        self.begin_window(changed)

    def begin_window(self, changed: ModelSession) -> None:
        changed.begin = len(self.events)
        changed.unknown_before = self.unknown_frees

    def seen(self, session: ModelSession) -> tuple[int, int, int]:
        """Return three event numbers: the session's first, the first still held, and the end."""
        end = len(self.events) if session.recording else session.end
        begin = session.begin if session.mode in (Mode.OFF, Mode.EVENTS) else end
        return begin, min(end, max(begin, end - session.bound, self.oldest)), end

    @rule(bound=st.integers(1, 12))
    def start_session(self, bound: int) -> None:
        if len(self.sessions) == 4:
            return
        self.capacity = max(self.capacity, bound)
        started = ModelSession(bound, started_session(bound))
        self.change_mode(started, Mode.EVENTS)
        self.sessions.append(started)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def stop_session(self, data: st.DataObject) -> None:
        stopped = data.draw(st.sampled_from(self.sessions))
        if stopped.recording:
            stopped.begin, _, stopped.end = self.seen(stopped)
            stopped.live_at_stop = dict(self.live)
            stopped.unknown_end = self.unknown_frees
            stopped.mode = Mode.OFF
        stopped.real.stop()

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), history=st.booleans())
    def restart_session(self, data: st.DataObject, history: bool) -> None:
        restarted = data.draw(st.sampled_from(self.sessions))
        restarted.real.start(history)
        self.change_mode(restarted, Mode.EVENTS if history else Mode.BLOCKS)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def pause_session(self, data: st.DataObject) -> None:
        paused = data.draw(st.sampled_from(self.sessions))
        paused.real.pause()
        if paused.recording:
            self.change_mode(paused, Mode.PAUSED)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), step=st.integers(0, 3))
    def begin_step(self, data: st.DataObject, step: int) -> None:
        beginning = data.draw(st.sampled_from(self.sessions))
        beginning.real.begin_step(step)
        beginning.step = step

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), history=st.booleans(), step=st.integers(0, 3))
    def turn_session(self, data: st.DataObject, history: bool, step: int) -> None:
        turning = data.draw(st.sampled_from(self.sessions))
        self.check_view(turning, turning.real.end_window(history, step))
        if turning.recording:
            turning.step = step
            self.begin_window(turning)
            self.change_mode(turning, Mode.EVENTS if history else Mode.BLOCKS)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def clear_session(self, data: st.DataObject) -> None:
        cleared = data.draw(st.sampled_from(self.sessions))
        cleared.real.clear()
        cleared.begin = len(self.events) if cleared.recording else cleared.end
        cleared.unknown_before = self.unknown_frees if cleared.recording else cleared.unknown_end

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def drop_session(self, data: st.DataObject) -> None:
        dropped = data.draw(st.sampled_from(self.sessions))
        self.sessions.remove(dropped)
        dropped.real = None  # the last reference
        if not self.sessions:
            return self.forget()
        self.capacity = max(session.bound for session in self.sessions)
        self.oldest = max(self.oldest, len(self.events) - self.capacity)

    @rule(block=st.integers(1, 8), size=st.integers(1, 1 << 40))
    def allocate(self, block: int, size: int) -> None:
        _core.testing.record(ALLOC, 64 * block, size)
        if self.recording():
            if 64 * block in self.live:  # the free of the previous block was missed
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
    def allocate_and_free(self, pairs: int) -> None:
        _core.testing.record_pairs(pairs, 64 * 100)
        for _ in range(pairs if self.recording() else 0):
            self.append((ALLOC, 6400, 512))
            self.append((FREE, 6400, 512))

    @invariant()
    def every_session_sees_its_own_events(self) -> None:
        for session in self.sessions:
            begin, first, end = self.seen(session)
            rows = session.real.events()
            assert rows["sequence"].tolist() == list(range(first, end))
            seen = [tuple(map(int, row)) for row in rows[["action", "address", "size_bytes"]]]
            assert seen == self.events[first:end]
            assert rows["step"].tolist() == [session.steps[i] for i in range(first, end)]
            stacks = rows["stack"][rows["action"] == ALLOC]
            assert all(session.real.frames(int(stack)) for stack in stacks)
            stats = session.real.stats()["devices"][0]
            assert stats["recorded"] == end - begin
            assert stats["held"] == end - first
            assert stats["overwritten"] == first - begin
            assert stats["unknown_frees"] == self.unknown(session)
            live = self.live if session.recording else session.live_at_stop
            assert stats["live_blocks"] == len(live)
            assert stats["live_block_bytes"] == sum(live.values())
            assert stats["max_ring_bytes"] == self.capacity * EVENT_BYTES
            assert stats["ring_bytes"] <= stats["max_ring_bytes"]
            assert stats["live_table_bytes"] <= stats["max_live_table_bytes"]

    def unknown(self, session: ModelSession) -> int:
        end = self.unknown_frees if session.recording else session.unknown_end
        return end - session.unknown_before

    @invariant()
    def a_view_shows_the_current_state(self) -> None:
        for session in self.sessions:
            self.check_view(session, session.real.view())

    def check_view(self, session: ModelSession, view: Any) -> None:
        snapshot = pickle.loads(view.to_bytes({}, {}))
        first_blocks = [segment["blocks"][0] for segment in snapshot["segments"]]
        blocks = {block["address"]: block["size"] for block in first_blocks}
        assert blocks == (self.live if session.recording else session.live_at_stop)
        begin, first, end = self.seen(session)
        metadata = snapshot["pytracer"]["devices"][0]
        assert metadata["recorded"] == end - begin
        assert metadata["overwritten"] == view.overwritten == first - begin
        assert metadata["unknown_frees"] == self.unknown(session)
        assert view.has_events == (first < end)
        seen = []  # pairs of an event and its step
        step_at = {index: step for step, index in metadata["steps"]}
        step = 0
        for index, event in enumerate(snapshot["device_traces"][0]):
            step = step_at.get(index, step)
            if event["action"] in FILE_ACTIONS:  # segment events are synthetic
                seen.append(((FILE_ACTIONS[event["action"]], event["addr"], event["size"]), step))
        assert seen == [(self.events[i], session.steps[i]) for i in range(first, end)]

    def teardown(self) -> None:
        for session in self.sessions:
            session.real = None


TestRecorder = Recorder.TestCase
TestRecorder.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
