"""Test `show --leaks` on an accelerator: the cases of tests/commands/test_show_leaks.py."""

from collections.abc import Iterable
from pathlib import Path

import leak_cases
import leak_programs
import pytest
from leakless_programs import INNOCENTS

from pytracer.analysis import find_leaks
from pytracer.analysis.leaks.results import DeviceLeaks
from pytracer.reading import load

pytestmark = pytest.mark.slow


def search(path: Path) -> DeviceLeaks:
    (device,) = find_leaks(load(path)).devices
    return device


def some(cases: Iterable[str]) -> list[object]:
    """Return the cases of parameters; the CPU's tests have them all, so most are long here."""
    return [
        pytest.param(case, marks=pytest.mark.long if number % 4 else ())
        for number, case in enumerate(cases)
    ]


@pytest.mark.parametrize("case", some(leak_cases.LEAKS))
def test_each_leak_is_named(
    case: str, backend: str, recordings: leak_cases.Recordings, tmp_path: Path
) -> None:
    device = search(recordings.record(case, tmp_path / "a.pickle"))
    assert (device.verdict, device.device) == ("leak", f"{backend}:0")
    assert leak_cases.LEAKS[case] in [frame.line for frame in device.growths[0].frames]
    assert all(any(frame.name == case for frame in growth.frames) for growth in device.growths)
    # AND the device's memory bounds the steps that are left
    assert device.available_bytes is not None
    steps = device.available_bytes / device.bytes_per_step
    assert device.exhausted_step == pytest.approx(60 + steps, abs=1)


@pytest.mark.parametrize("case", some(leak_cases.INNOCENTS))
def test_no_innocent_is_accused(
    case: str, recordings: leak_cases.Recordings, tmp_path: Path
) -> None:
    device = search(recordings.record(case, tmp_path / "a.pickle"))
    expected = {"none", "unknown"} if case == "growing_batches" else {"none"}
    assert device.verdict in expected, device.growths


@pytest.mark.parametrize(
    "case", some(["list_of_activations", "every_seventh_step", "replay_buffer"])
)
def test_a_ring_that_lost_the_beginning(
    case: str, recordings: leak_cases.Recordings, tmp_path: Path
) -> None:
    # GIVEN a ring that has only the last of 200 steps
    device = search(recordings.record(case, tmp_path / "a.pickle", 200, 12_000))
    assert device.first is not None
    assert 20 < device.first < 190
    # THEN the verdict is the same
    assert device.verdict == ("leak" if case in leak_cases.LEAKS else "none")
    if case in leak_cases.LEAKS:
        assert device.growths[0].is_older or (device.growths[0].first_step or 0) < device.first


PROGRAMS = ["concatenated_predictions", "parameter_groups", "deque_that_fills"]
"""Those of tests/analysis/test_leak_programs.py that blocks of an accelerator differ for."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_leaks(name: str, backend: str, tmp_path: Path) -> None:
    device = search(leak_programs.run(name, backend, tmp_path))
    assert device.verdict == INNOCENTS.get(name, "leak"), device
    if truth := leak_programs.TRUTHS.get(name):
        assert truth.line in [frame.line for frame in device.growths[0].frames]
        assert device.bytes_per_step == pytest.approx(truth.rate, rel=0.02)
        assert truth.holder in str(device.growths[0].kept_by)
