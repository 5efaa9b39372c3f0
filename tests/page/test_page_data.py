"""Test the data of a page: what it shows at a moment equals what `pytracer.analysis` says."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import page_decoder
import pytest
from page_decoder import page_file, page_json
from random_allocators import ALLOCATORS, snapshot_of, used_allocator

from pytracer.analysis.call_sites import sites_at
from pytracer.analysis.categories import categories_at
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.layout import layout_at
from pytracer.page.open_file import open_file
from pytracer.page.page import page_of
from pytracer.reading.metadata import step_at
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Snapshot, has_events

GOLDEN = sorted((Path(__file__).parents[1] / "golden").rglob("*.pickle"))
golden = pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)


def devices_of(
    snapshot: Snapshot, most_events: int = 10**6
) -> list[tuple[DeviceData, dict[str, Any], dict[str, Any]]]:
    """Return the devices, each with the page's file and device."""
    opened = open_file(snapshot)
    file = page_file(page_of(opened, most_events).html())
    shown = {device["name"]: device for device in file["devices"]}
    assert len(shown) == len(file["devices"])
    names = [explanation.name for explanation in opened.explanations]
    return [(data, file, shown[name]) for data, name in zip(opened.devices, names, strict=True)]


def check_moment(
    data: DeviceData, file: dict[str, Any], device: dict[str, Any], entry: int
) -> None:
    """Compare what the page shows at an entry of the page with the analysis."""
    assert data.history is not None
    first = device["first_event"]
    there, usage = entry + first, data.history.usage
    shown = page_decoder.moment(device, entry)
    # The usage, the segments and the blocks
    assert shown.allocated == usage.allocated_bytes[there]
    assert shown.active == usage.active_bytes[there]
    assert shown.reserved == usage.reserved_bytes[there]
    layout = layout_at(data.snapshot, data.device, data.history, there)
    assert shown.segments == [(each.address, each.size_bytes) for each in layout.segments]
    blocks, base = device["blocks"], int(device["address_base"], 16)
    order = np.argsort(blocks["address"][shown.blocks])
    rows = shown.blocks[order]
    assert (blocks["address"][rows] + base).astype(np.int64).tolist() == (
        layout.block_address.tolist()
    )
    assert blocks["size_bytes"][rows].astype(np.int64).tolist() == layout.block_bytes.tolist()
    # The frames of each block
    stacks = data.snapshot.stacks
    for row, stack in zip(rows.tolist(), layout.block_stack.tolist(), strict=True):
        frames = [(f.filename, f.name, f.line) for f in stacks.frames(stack)]
        assert frames_of(file, int(blocks["stack"][row])) == frames
    # The call sites: files of one name in two folders look alike
    held: dict[str, int] = {}
    for row in rows.tolist():
        site = file["sites"][file["stacks"]["site"][blocks["stack"][row]]]
        held[site] = held.get(site, 0) + int(blocks["size_bytes"][row])
    expected: dict[str, int] = {}
    for found in sites_at(data.history, data.snapshot, there):
        text = call_site_text(found.call_site)
        expected[text] = expected.get(text, 0) + found.size_bytes
    assert held == expected
    # The categories
    by_category: dict[str, int] = {}
    for row in rows.tolist():
        name = file["categories"][file["kinds"][blocks["kind"][row]][0]]
        by_category[name] = by_category.get(name, 0) + int(blocks["size_bytes"][row])
    assert by_category == {each.category: each.size_bytes for each in categories_at(data, there)}


def frames_of(file: dict[str, Any], stack: int) -> list[tuple[str, str, int]]:
    stacks, frames, strings = file["stacks"], file["frames"], file["strings"]
    begin, end = stacks["offsets"][stack : stack + 2]
    return [
        (strings[frames["filename"][i]], strings[frames["name"][i]], int(frames["line"][i]))
        for i in stacks["frame"][begin:end].tolist()
    ]


@golden
@pytest.mark.parametrize("kept", [10**6, 40, 7, 1])
def test_each_moment_of_a_file(path: Path, kept: int) -> None:
    # GIVEN a file of one of the recorders, of which the page keeps some events
    snapshot = load(path)
    for data, file, device in devices_of(snapshot, kept):
        if data.history is None:
            continue
        events = device["events"]["count"]
        assert device["first_event"] == len(data.trace) - events
        # THEN what it shows at each moment equals the analysis
        for entry in range(events + 1):
            check_moment(data, file, device, entry)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ALLOCATORS)
def test_random_moments_of_random_traces(name: str, seed: int) -> None:
    # GIVEN the trace of an allocator that was used at random, of which a ring kept the end
    rng = random.Random(seed)
    allocator = used_allocator(name, seed)
    first = rng.choice([0, rng.randrange(len(allocator.events))])
    snapshot = snapshot_of(allocator, name, first)
    # WHEN a page has all of its events, or the last ones
    for kept in (10**6, rng.randrange(1, len(allocator.events))):
        ((data, file, device),) = devices_of(snapshot, kept)
        events = device["events"]["count"]
        # THEN the page shows at random moments what the analysis says
        for entry in {0, events, *(rng.randrange(events + 1) for _ in range(8))}:
            check_moment(data, file, device, entry)


@golden
def test_the_events_are_those_of_the_trace(path: Path) -> None:
    snapshot = load(path)
    for data, file, device in devices_of(snapshot):
        if not has_events(data.trace):
            continue
        events, trace = device["events"], data.trace
        assert (events["action"] == trace.action).all()
        assert (events["time_us"] == trace.time_us).all()
        assert device["has_times"] == snapshot.has_times(data.device)
        phases = [file["phases"][i] for i in events["phase"].tolist()]
        assert phases == [snapshot.strings[i] for i in trace.user_metadata.tolist()]
        for event in range(len(trace)):
            frames = [
                (f.filename, f.name, f.line) for f in snapshot.stacks.frames(trace.stack[event])
            ]
            assert frames_of(file, int(events["stack"][event])) == frames
            row, base = int(events["row"][event]), int(device["address_base"], 16)
            is_block = trace.action[event] in page_decoder.OF_BLOCKS
            table = device["blocks" if is_block else "others"]
            address = int(table["address"][row]) + base * (
                trace.action[event] <= page_decoder.UNMAP
            )
            assert address == trace.address[event]
            size = table["requested_bytes" if is_block else "size_bytes"][row]
            assert size == trace.size_bytes[event]
            assert table["stream"][row] == trace.stream[event]
            pool = file["pools"][table["pool"][row]]
            older = is_block and table["alloc_event"][row] < 0
            assert older or pool == snapshot.pools[trace.pool[event]].tolist()
            assert step_at([tuple(pair) for pair in device["steps"]], event) == step_at(
                data.boundaries, event
            )


@golden
def test_the_page_is_smaller_than_the_snapshot(path: Path) -> None:
    page = page_of(open_file(load(path)))
    assert len(page.data[0]) * 4 / 3 < path.stat().st_size


def test_the_peak_and_the_out_of_memory_are_marked() -> None:
    path = next(path for path in GOLDEN if path.stem == "cuda-2.15.0")
    for data, _, device in devices_of(load(path)):
        assert data.history is not None
        marks = {mark["kind"]: mark["event"] for mark in device["marks"]}
        allocated = data.history.usage.allocated_bytes
        assert allocated[marks["peak"] + 1] == allocated.max()
        assert data.trace.action[marks["oom"]] == 8
        assert marks["end"] == len(data.trace) - 1


def test_a_cut_says_what_is_missing_and_how_to_have_it() -> None:
    # GIVEN a file whose peak is not among its last events
    path = next(path for path in GOLDEN if path.stem == "snapshot-1.5-cpu")
    snapshot = load(path)
    history = open_file(snapshot).devices[0].history
    assert history is not None
    peak = int(history.usage.allocated_bytes.argmax())
    # WHEN a page keeps fewer events
    kept = len(snapshot.traces[0]) - peak - 1
    page = page_of(open_file(snapshot), kept)
    # THEN it says so, with the command that shows all
    sentence, remedy = page_json(page.html())["left_out"]
    assert f"the first {peak + 1:,} of {len(snapshot.traces[0]):,} events are left out" in sentence
    assert "does not show the peak of" in sentence
    assert remedy.endswith(f"pytracer view {path} --max-events {len(snapshot.traces[0])}")
    # AND a page with all events says nothing
    assert page_json(page_of(open_file(snapshot)).html())["left_out"] == []
