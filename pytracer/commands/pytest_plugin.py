"""The plugin for pytest: markers that check the device memory of a test.

    @pytest.mark.max_device_memory("2 GiB")
    def test_forward(model): ...

    @pytest.mark.no_device_leak
    def test_training_step(model): ...

pytest imports this module in every run where pytracer is installed. So it imports nothing that
takes time, and does nothing for a test without one of the markers.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pytest

if TYPE_CHECKING:
    from pytracer.commands.pytest_checks import Recording

_MARKERS = ("max_device_memory", "no_device_leak")

_recordings: WeakKeyDictionary[pytest.Item, Recording] = WeakKeyDictionary()
"""The recordings that are checked when their test has ended; pytest 6 has no `item.stash`."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, so that `--strict-markers` accepts them."""
    config.addinivalue_line(
        "markers",
        'max_device_memory(limit, *, device=None): the test may allocate at most limit ("2 GiB") '
        'on the device: the accelerator, or "cpu"',
    )
    config.addinivalue_line(
        "markers",
        "no_device_leak(*, allow=None, device=None): once its fixtures are torn down, the test "
        'may still hold at most `allow` ("1 MiB") of the memory that it allocated',
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Record the call of a marked test, and check its peak."""
    if not any(map(item.get_closest_marker, _MARKERS)):
        yield
        return
    from pytracer.commands.pytest_checks import Recording

    recording = Recording(item)  # skips a test that cannot be checked
    outcome = yield
    try:
        recording.end_call(has_passed=outcome.excinfo is None)
    except pytest.fail.Exception as failure:
        outcome.force_exception(failure)
        return
    _recordings[item] = recording


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, None]:
    """Check what a test has left, when its fixtures have ended and are released."""
    yield
    recording = _recordings.pop(item, None)
    if recording is not None:
        recording.end_test()
