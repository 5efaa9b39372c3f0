"""Fixtures of several modules."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from demands import SIGNAL, threads

from pytracer import log
from pytracer.tracing import on_demand


@pytest.fixture
def empty_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test log what earlier ones have logged."""
    monkeypatch.setattr(log, "_logged", set())


@pytest.fixture
def handler() -> Iterator[list[int]]:
    """Set the user's own signal handler; yield the list of signals that it received."""
    calls: list[int] = []
    before = signal.signal(SIGNAL, lambda number, frame: calls.append(number))
    yield calls
    assert threads() == []
    signal.signal(SIGNAL, before)


@pytest.fixture
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "LOOK_SECONDS", 0.02)


@pytest.fixture
def logged(empty_log: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> set[str]:
    """Run a test in a folder of its own; return the messages that it logs."""
    monkeypatch.chdir(tmp_path)
    return log._logged
