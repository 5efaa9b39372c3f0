"""Test the layout of a device at any event, and what pins free memory there."""

import pickle
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest

from pytracer.analysis import fragmentation
from pytracer.analysis.allocator_rules import PAGE_BYTES, UNIT_BYTES
from pytracer.analysis.device_data import DeviceData, device_data
from pytracer.analysis.layout import layout_at
from pytracer.analysis.moments import moment_of
from pytracer.errors import PytracerError
from pytracer.reading import load
from pytracer.reading.snapshot import has_events
from pytracer.text import size

GOLDEN = Path(__file__).parents[1] / "golden"
FILES = [
    *sorted(GOLDEN.glob("snapshot-1.4-cuda.pickle")),
    *sorted((GOLDEN / "native").glob("*.pickle")),
]
CUDA = GOLDEN / "native/cuda-2.15.0.pickle"
MIB = 2**20

invoke = partial(commands.invoke, "show", "--fragmentation")


def replayed_devices(path: Path) -> Iterator[DeviceData]:
    snapshot = load(path)
    for device, trace in enumerate(snapshot.traces):
        data = device_data(snapshot, device)
        if not data.is_cpu and has_events(trace) and data.history.is_known:
            yield data


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_layout_agrees_with_the_usage(path: Path) -> None:
    # GIVEN the usage after each event, which the reader's core computes in another way
    for data in replayed_devices(path):
        usage = data.history.usage
        for entry in range(len(data.trace) + 1):
            # WHEN the layout is made at an event
            layout = layout_at(data.snapshot, data.device, data.history, entry)
            # THEN its sums are those of the usage
            segments = layout.segments
            assert sum(segment.size_bytes for segment in segments) == usage.reserved_bytes[entry]
            assert layout.block_bytes.sum() == usage.active_bytes[entry]
            is_plain = [not segment.is_expandable for segment in segments]
            assert sum(is_plain) == usage.segments[entry]
            # AND each block is inside its segment, next to the others
            ends = layout.block_address + layout.block_bytes
            assert (ends[:-1] <= layout.block_address[1:]).all()
            for index, begin, end in zip(
                layout.block_segment, layout.block_address, ends, strict=True
            ):
                assert segments[index].address <= begin < end <= segments[index].end


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_free_memory_at_each_event(path: Path) -> None:
    for data in replayed_devices(path):
        for event in [*range(0, len(data.trace), 7), len(data.trace) - 1]:
            # GIVEN the free bytes of each part that the allocator can give back as one, without
            # and with a block in it
            layout = layout_at(data.snapshot, data.device, data.history, event + 1)
            begins, ends = layout.block_address, layout.block_address + layout.block_bytes
            free = [0, 0]
            for part in layout.segments:
                page = UNIT_BYTES if part.is_small else PAGE_BYTES
                for at in range(part.address, part.end, page if part.is_expandable else 2**62):
                    end = min(at + page, part.end) if part.is_expandable else part.end
                    used = np.minimum(ends, end) - np.maximum(begins, at)
                    free[int((used > 0).any())] += end - at - used[used > 0].sum()
            # WHEN the file is asked, THEN its sums are these
            (found,) = fragmentation(data.snapshot, data.device, str(event))
            assert [found.returnable_bytes, found.stuck_bytes] == free
            largest = data.history.usage.largest_free_bytes[event + 1]
            assert found.largest_free_bytes == largest
            assert sum(pin.stuck_bytes for pin in found.pins) == found.stuck_bytes


def segment(address: int, size: int, *blocks: tuple[int, str], **changes: Any) -> dict[str, Any]:
    """Return a segment of blocks (size, function), one after the other; the function "" is free."""
    entries, at = [], address
    for block, function in blocks:
        frames = [{"filename": "a.py", "name": function, "line": 1}]
        state = "active_allocated" if function else "inactive"
        entry = {"address": at, "size": block, "requested_size": block, "state": state}
        entries.append({**entry, "frames": frames if function else []})
        at += block
    assert at == address + size
    values = {"device": 0, "address": address, "total_size": size, "stream": 0, "frames": []}
    kinds = {"segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False}
    return {**values, **kinds, "blocks": entries, **changes}


def content(*segments: dict[str, Any], events: Sequence[dict[str, Any]] = ()) -> bytes:
    """Return a file of torch's recorder."""
    found = {"segments": list(segments), "device_traces": [list(events)]}
    return pickle.dumps(found, protocol=4)


def test_who_pins_free_memory() -> None:
    # GIVEN segments of 80 MiB with one block each, a free one, and two of another stream and pool
    first = [
        segment((i + 1) << 30, 80 * MIB, (44 * MIB, "forward"), (36 * MIB, "")) for i in range(9)
    ]
    snapshot = load(
        content(
            *first,
            segment(20 << 30, 60 * MIB, (60 * MIB, "")),
            segment(21 << 30, 20 * MIB, (2 * MIB, "f"), (15 * MIB, ""), (3 * MIB, "g"), stream=7),
            segment(22 << 30, 20 * MIB, (20 * MIB, "full")),
            segment(23 << 30, 2 * MIB, (MIB, "h"), (MIB, ""), segment_type="small"),
        )
    )
    # WHEN the fragmentation is reported
    (found,) = fragmentation(snapshot)
    # THEN a segment without blocks can be given back, and the others are pinned
    assert found.moment.name == "end"
    assert found.returnable_bytes == 60 * MIB
    assert found.stuck_bytes == (9 * 36 + 15 + 1) * MIB
    assert found.largest_free_bytes == 60 * MIB
    forward, side, small = found.pins
    assert forward.call_site is not None
    assert forward.call_site.name == "forward"
    assert (forward.segments, forward.blocks, forward.stuck_bytes) == (9, 9, 9 * 36 * MIB)
    assert forward.least_segment_bytes == forward.most_segment_bytes == 80 * MIB
    # AND the site with most bytes in a segment is the one that pins it
    assert side.call_site is not None
    assert (side.call_site.name, side.stream, side.blocks) == ("g", 7, 2)
    assert (small.kind, small.stuck_bytes) == ("small", MIB)


def test_pages_of_expandable_segments() -> None:
    # GIVEN 100 MiB of an expandable segment: blocks in the first, the fourth and the fifth page
    blocks = ((5 * MIB, "a"), (70 * MIB, ""), (10 * MIB, "b"), (15 * MIB, ""))
    (found,) = fragmentation(
        load(content(segment(1 << 40, 100 * MIB, *blocks, is_expandable=True)))
    )
    # THEN the second and the third page can be given back
    assert found.returnable_bytes == 40 * MIB
    first, second = sorted(found.pins, key=lambda pin: pin.blocks)
    assert (first.segments, first.blocks, first.stuck_bytes) == (1, 1, 15 * MIB)
    assert (second.segments, second.blocks, second.stuck_bytes) == (2, 2, 30 * MIB)


def test_no_number_is_parted_from_its_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a file with several streams and pools, on a narrow terminal
    monkeypatch.setenv("COLUMNS", "80")
    path = GOLDEN / "native/npu-2.13.0.pickle"
    rows = commands.cells(invoke(path, "--device", 0).output)
    # THEN each amount, and each stream, is on one line
    (found,) = fragmentation(load(path), 0)
    assert rows[0][:5] == ["11 MiB", "9 MiB", "3", "1 large", "20 MiB"]
    assert {row[0] for row in rows} >= {size(pin.stuck_bytes) for pin in found.pins}
    lines = {row[-1] for row in rows}
    assert lines >= {f"stream {pin.stream:#x}" for pin in found.pins}
    assert lines >= {f"pool {pin.pool[0]}.{pin.pool[1]}" for pin in found.pins}


def test_several_files(tmp_path: Path) -> None:
    # GIVEN a directory with a file that cannot be read, one of the CPU, and two of an accelerator
    cpu = (GOLDEN / "snapshot-1.4-cpu.pickle").read_bytes()
    (tmp_path / "broken.pickle").write_bytes(b"no pickle")
    (tmp_path / "cpu.pickle").write_bytes(cpu)
    for name, mib in (("few", 20), ("much", 40)):
        only = segment(1 << 40, mib * MIB, (MIB, "f"), ((mib - 1) * MIB, ""))
        (tmp_path / f"{name}.pickle").write_bytes(content(only))
    result = invoke(tmp_path)
    # THEN the file with the most free memory that is pinned comes first, and each error is told
    assert result.output.index("much.pickle") < result.output.index("few.pickle")
    assert "broken.pickle" in result.output
    assert "the CPU has no segments" in result.output
    assert result.exit_code == 1


def test_moments() -> None:
    data = device_data(load(CUDA), 0)
    assert data.history.is_known
    oom, peak, end = (moment_of(data, name) for name in ("oom", "peak", "end"))
    assert oom == moment_of(data, None)
    assert oom.event is not None
    assert data.snapshot.actions[data.trace.action[oom.event]] == "oom"
    assert peak.entry == data.history.usage.allocated_bytes.argmax()
    assert (end.entry, end.event) == (None, len(data.trace) - 1)
    assert moment_of(data, "12").entry == 13
    times = data.trace.time_us
    elapsed = (int(times[20]) - int(times[0])) / 1e6
    found = moment_of(data, f"+{elapsed}").event
    assert found is not None
    assert times[found] <= times[20] < times[found + 1]
    for wrong in ("13000", "-1", "x", "+x", "+nan", "+-1"):
        with pytest.raises(PytracerError, match=r"event|moment"):
            moment_of(data, wrong)


def test_a_page_that_was_mapped_between_others() -> None:
    # GIVEN an expandable segment whose middle page was mapped last
    base, page = 1 << 40, 20 * MIB
    whole = segment(base, 3 * page, (3 * page, ""), is_expandable=True)
    events = [
        {"action": "segment_map", "addr": base + at * page, "size": page, "stream": 0}
        | {"time_us": 1 + at, "pool_id": (0, 0), "frames": []}
        for at in (0, 2, 1)
    ]
    data = device_data(load(content(whole, events=events)), 0)
    assert data.history.is_known
    # WHEN the layout before that is made
    layout = layout_at(data.snapshot, 0, data.history, 2)
    # THEN it has a piece on each side
    assert [(part.address, part.end) for part in layout.segments] == [
        (base, base + page),
        (base + 2 * page, base + 3 * page),
    ]


def test_a_segment_of_an_impossible_size() -> None:
    # GIVEN a file that claims an expandable segment with more pages than can be counted
    blocks = ((5 * MIB, "a"), (2**60 - 5 * MIB, ""))
    (found,) = fragmentation(load(content(segment(1 << 40, 2**60, *blocks, is_expandable=True))))
    # THEN only the pages with blocks are looked at
    assert found.stuck_bytes == 15 * MIB
    assert found.returnable_bytes == 2**60 - 20 * MIB
