"""Does the touch of a trigger file lead to a snapshot?"""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from demands import SIGNAL, on_demand_files, send, wait_for, wait_until

from pytracer import Tracer
from pytracer.tracing import on_demand

pytestmark = pytest.mark.usefixtures("handler", "short_intervals")


@pytest.fixture
def touch() -> Callable[[Path], None]:
    """Return a function that touches a file with a new time on any file system."""
    times = iter(range(10**9, 2 * 10**9))

    def touch(path: Path) -> None:
        new = path.with_name("new")  # its time is set before anyone can see it
        new.touch()
        os.utime(new, (now := next(times), now))
        new.replace(path)

    return touch


def test_a_trigger_file(
    tmp_path: Path, touch: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a tracer that watches a file with a relative name, in a folder that does not exist yet
    monkeypatch.chdir(tmp_path)
    trigger = tmp_path / "folder" / "trigger"
    with Tracer("out", device="cpu", trigger_file="folder/trigger"):
        monkeypatch.chdir("/")
        # WHEN nothing happens, THEN nothing is written
        time.sleep(0.2)
        assert on_demand_files(tmp_path / "out") == []
        # WHEN the file is made, touched, deleted and made again, THEN each except the deletion
        # gives a snapshot
        trigger.parent.mkdir()
        touch(trigger)
        wait_for(1, tmp_path / "out")
        touch(trigger)
        wait_for(2, tmp_path / "out")
        trigger.unlink()
        time.sleep(0.2)
        touch(trigger)
        wait_for(3, tmp_path / "out")
        time.sleep(0.2)
    assert len(on_demand_files(tmp_path / "out")) == 3
    # AND the tracer does not delete the file
    assert trigger.exists()


def test_a_trigger_file_that_exists_at_the_start(
    tmp_path: Path, touch: Callable[[Path], None]
) -> None:
    # GIVEN two tracers that watch one existing file
    trigger = tmp_path / "trigger"
    touch(trigger)
    first = Tracer(tmp_path / "one", device="cpu", trigger_file=trigger)
    second = Tracer(tmp_path / "two", device="cpu", trigger_file=trigger, dump_signal=SIGNAL)
    with first, second:
        time.sleep(0.2)
        assert on_demand_files(tmp_path / "one") == on_demand_files(tmp_path / "two") == []
        # WHEN the file is touched, THEN both write
        touch(trigger)
        wait_for(1, tmp_path / "one")
        wait_for(1, tmp_path / "two")
        # WHEN a signal comes instead, THEN only the tracer that watches the signal writes
        send()
        wait_for(2, tmp_path / "two")
    # WHEN the file is touched after the stop, THEN no tracer writes
    touch(trigger)
    time.sleep(0.2)
    assert len(on_demand_files(tmp_path / "one")) == 1


def test_a_trigger_file_with_an_invalid_time(
    tmp_path: Path, touch: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a file system that gives a file a time which no date can represent
    trigger = tmp_path / "trigger"
    monkeypatch.setattr(on_demand, "_touched_ns", lambda file: 10**30 if trigger.exists() else None)
    tracer = Tracer(tmp_path / "out", device="cpu", trigger_file=trigger, dump_signal=SIGNAL)
    with tracer:
        # WHEN the file is made, THEN a snapshot is written
        touch(trigger)
        wait_for(1, tmp_path / "out")
        # AND signals still lead to snapshots
        send()
        wait_for(2, tmp_path / "out")


def test_a_failing_check_of_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN checks of the trigger file, of which one raises an unexpected error
    looks: list[None] = []

    def look(file: str | None) -> int | None:
        looks.append(None)
        if len(looks) == 2:
            raise RuntimeError("what is this?")
        return None

    monkeypatch.setattr(on_demand, "_touched_ns", look)
    tracer = Tracer(tmp_path, device="cpu", trigger_file=tmp_path / "file", dump_signal=SIGNAL)
    with tracer, caplog.at_level(logging.WARNING, "pytracer"):
        # WHEN a check has failed, THEN that is logged, and signals still lead to snapshots
        wait_until(lambda: len(looks) > 3)
        send()
        wait_for(1, tmp_path)
    assert caplog.messages == ["a snapshot on demand failed: RuntimeError('what is this?')"]
