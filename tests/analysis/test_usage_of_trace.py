"""Files whose trace does not lead to their final state: the trace alone is summed up."""

import pickle
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from commands import cells, invoke

from pytracer.analysis import stats, who_holds
from pytracer.analysis.answer_words import answer_of
from pytracer.analysis.device_data import device_data
from pytracer.analysis.explanation import explain
from pytracer.analysis.pinned_segments import fragmentation
from pytracer.analysis.report import DeviceReport
from pytracer.errors import NoMomentError
from pytracer.reading import Snapshot, load
from pytracer.text import size

Event = dict[str, Any]


def file_of(events: list[Event], held_bytes: int = 2048) -> Snapshot:
    return load(content_of(events, held_bytes))


def content_of(events: list[Event], held_bytes: int) -> bytes:
    """Return a file whose segment has nothing to do with its events, as a generated file has."""
    block = {"address": 4096, "size": held_bytes, "requested_size": 9, "state": "active_allocated"}
    segment = {"device": 0, "address": 4096, "total_size": 50 << 20, "blocks": [block]}
    trace = [deepcopy(each) for each in events]
    return pickle.dumps({"segments": [segment], "device_traces": [trace]})


def event(action: str, address: int, size_bytes: int, line: int = 0) -> Event:
    frames = [{"filename": "/home/me/train.py", "name": "step", "line": line}] if line else []
    return {"action": action, "addr": address, "size": size_bytes, "stream": 0, "frames": frames}


def report_of(events: list[Event], held_bytes: int = 2048) -> DeviceReport:
    (device,) = stats(file_of(events, held_bytes)).devices
    return device


def random_program(seed: int) -> tuple[list[Event], list[int], dict[int, int]]:
    """Return the events of a program, its usage after each, and what lines hold at the peak.

    Some blocks are older than the trace, some are never freed, and addresses are used again. Where
    `seed` is odd, frees are requested before they complete.
    """
    chosen = random.Random(seed)
    addresses = [(1 << 40) + (i << 30) for i in range(20)]
    alive = {address: (chosen.randint(1, 1 << 28), 0) for address in addresses[:5]}
    untouched = {**alive}
    events: list[Event] = []
    states = [{**alive}]
    for number in range(200):
        address = chosen.choice(addresses)
        size_bytes, _ = alive.get(address, (chosen.randint(1, 1 << 28), 0))
        if address in alive:
            if seed % 2:
                events.append(event("free_requested", address, size_bytes))
                states.append({**alive})
            del alive[address]
            events.append(event("free_completed", address, size_bytes))
        else:
            alive[address] = (size_bytes, number + 1)
            events.append(event("alloc", address, size_bytes, number + 1))
        states.append({**alive})
        if untouched.get(address, (0, 0))[1] == 0:
            untouched.pop(address, None)
    # A block that the trace neither allocates nor frees is not in the file.
    for state in states:
        for address in untouched:
            state.pop(address)
    usage = [sum(size for size, _ in state.values()) for state in states]
    held: dict[int, int] = {}
    for size_bytes, line in states[usage.index(max(usage))].values():
        held[line] = held.get(line, 0) + size_bytes
    return events, usage, held


@pytest.mark.parametrize("seed", range(6))
def test_the_peak_is_the_sum_of_the_trace(seed: int) -> None:
    # GIVEN a trace that does not lead to the file's segments and blocks
    events, usage, held = random_program(seed)
    snapshot = file_of(events)
    # WHEN it is reported
    (device,) = stats(snapshot).devices
    # THEN the usage after each event is that of the program
    found = device_data(snapshot, 0).history
    assert found.is_known
    assert not found.is_replayed
    assert found.usage.active_bytes.tolist() == usage
    # AND the peak is that of the program's own sum, and no value of it is called exact
    peak = device.peak_allocated
    assert peak is not None
    assert peak.requested_bytes == peak.active_bytes == max(usage)
    assert peak.allocated_bytes == max(usage)
    assert peak.event == usage.index(max(usage)) - 1
    assert (peak.is_exact, peak.uncertain_bytes) == (False, None)
    # AND so are the lines that hold it; blocks older than the trace have no line
    lines = {site.call_site.line if site.call_site else 0: site.size_bytes for site in device.sites}
    assert lines == held
    # AND the report says where the figures come from, and claims no reserved memory
    assert "does not lead to the final state" in (device.contradiction or "")
    assert "the sum of the trace alone" in (device.contradiction or "")
    assert device.peak_reserved is device.peak_most_bytes is None
    assert not device.is_peak_certain
    assert device.end.allocated_bytes == 2048


def test_other_answers_have_the_sum_too(tmp_path: Path) -> None:
    # GIVEN such a file
    events, usage, _ = random_program(0)
    path = tmp_path / "a.pickle"
    path.write_bytes(content_of(events, 2048))
    snapshot = load(path)
    # THEN the memory at its peak, and the explanation, are those of the sum
    for by in ("line", "module", "stream"):
        (at_peak,) = who_holds(snapshot, at="peak", by=by)
        assert (at_peak.active_bytes, at_peak.is_exact) == (max(usage), False)
    (explanation,) = explain(snapshot)
    assert (explanation.held_at, explanation.held_bytes) == ("peak", max(usage))
    answer = answer_of(explanation)
    assert answer.kind == "unknown"
    assert "the sum of the trace alone" in answer.texts("why")[0]
    assert answer.texts("peak") == [size(max(usage))]
    # AND the table of the usage has neither reserved nor free memory at its peak
    rows = cells(invoke("show", "--all", path).output)
    assert ["reserved", "-", "50 MiB"] in rows
    assert ["segments", "-", "1"] in rows
    # AND free memory is that at the end
    (fragments,) = fragmentation(snapshot)
    assert str(fragments.moment) == "at the end"
    with pytest.raises(NoMomentError, match="give --at end"):
        fragmentation(snapshot, at="peak")
    # AND the held memory at the end is that of the state
    (at_end,) = who_holds(snapshot, at="end", by="line")
    assert (at_end.active_bytes, at_end.is_exact) == (2048, True)


ALLOC, FREE = event("alloc", 1 << 40, 8192), event("free_completed", 1 << 40, 8192)


@pytest.mark.parametrize(
    "events",
    [
        # segments lead to the state, so that events must be missing
        [event("segment_alloc", 1 << 41, 1 << 21), ALLOC, FREE],
        # nothing is freed, or nothing is allocated
        [ALLOC, event("alloc", 1 << 41, 8192)],
        [FREE, event("free_completed", 1 << 41, 8192)],
        # a free, or an allocation, is missing
        [ALLOC, ALLOC, FREE],
        [ALLOC, FREE, FREE],
        [ALLOC, event("free_completed", 1 << 40, 512)],
        [ALLOC, FREE, event("free_requested", 1 << 40, 8192)],
        # sizes that no memory has
        [event("alloc", 1 << 40, 2**62), event("free_completed", 1 << 40, 2**62)],
    ],
)
def test_no_sum_without_a_complete_trace(events: list[Event]) -> None:
    # GIVEN a trace that is not complete, so that its sum would be wrong
    device = report_of(events)
    # THEN only the end is known
    assert device.contradiction is not None
    assert device.peak_allocated is None
    assert "the usage over time is unknown" in device.contradiction


def test_no_sum_that_is_less_than_the_end() -> None:
    # GIVEN a file that holds more at the end than the trace sums up to
    held = [report_of([ALLOC, FREE], held_bytes).peak_allocated for held_bytes in (8192, 8193)]
    # THEN its peak is no less than the end
    assert held[0] is not None
    assert held[0].allocated_bytes == 8192
    assert held[1] is None
