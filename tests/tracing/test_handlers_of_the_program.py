"""What becomes of the program's own handler of the signal for snapshots on demand?"""

import logging
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from demands import wait_until

from pytracer import Tracer, log
from pytracer.tracing import on_demand

SIGNAL = signal.SIGUSR2


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look often, log each message anew, and restore the signal's handler."""
    monkeypatch.setattr(on_demand, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(log, "_logged", set())
    before = signal.getsignal(SIGNAL)
    yield
    signal.signal(SIGNAL, before or signal.SIG_DFL)


def test_a_handler_that_the_program_installs_later_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pytracer")
    with (
        Tracer(tmp_path / "a", device="cpu", dump_signal=SIGNAL),
        Tracer(tmp_path / "b", device="cpu", dump_signal=SIGNAL),
    ):
        time.sleep(0.1)
        assert "own handler" not in caplog.text
        # WHEN the program installs a handler while tracers watch the signal
        signal.signal(SIGNAL, lambda *_: None)
        # THEN this is logged once
        wait_until(lambda: "own handler for SIGUSR2" in caplog.text)
        time.sleep(0.1)
    assert caplog.text.count("own handler") == 1
