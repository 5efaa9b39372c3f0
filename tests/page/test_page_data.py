"""Test the data of a page: what it shows at a moment equals what `pytracer.analysis` says."""

import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import page_decoder
import pytest
from amount import amount
from page_decoder import page_file, page_json
from random_allocators import ALLOCATORS, snapshot_of, used_allocator
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis import explain, find_leaks, replay, stats
from pytracer.analysis.blocks import Coded, held_at
from pytracer.analysis.call_sites import is_programs
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.holder_names import folded, kept_by_text
from pytracer.analysis.holders import sites_at
from pytracer.analysis.layout import Segment, layout_at, segments_at
from pytracer.errors import PytracerError
from pytracer.page import file_data as page_of_file
from pytracer.page import parts, tables
from pytracer.page.open_file import open_file, summarised
from pytracer.page.page import page_of
from pytracer.page.tables import Packer
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Snapshot
from pytracer.recommendation.recommend import recommend

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
    check_frames(snapshot, file)
    names = [explanation.name for explanation in opened.file.devices]
    return [(data, file, shown[name]) for data, name in zip(opened.devices, names, strict=True)]


def check_frames(snapshot: Snapshot, file: dict[str, Any]) -> None:
    """Check which frames of the page are called the program's."""
    stacks, frames = snapshot.stacks, file["frames"]
    is_program = {
        (stacks.strings[stacks.filename[i]], int(stacks.line[i])): bool(found)
        for i, found in enumerate(is_programs(stacks))
    }
    for i in range(frames["count"]):
        place = file["strings"][frames["filename"][i]], int(frames["line"][i])
        assert frames["is_program"][i] == is_program[place]


def check_moment(
    data: DeviceData, file: dict[str, Any], device: dict[str, Any], entry: int
) -> None:
    """Compare what the page shows at an entry of the page with the analysis."""
    assert data.history.is_known
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
    stacks = blocks["stack"][rows].tolist(), layout.block_stack.tolist()
    for in_page, stack in {*zip(*stacks, strict=True)}:
        frames = [(f.filename, f.name, f.line) for f in data.snapshot.stacks.frames(stack)]
        assert frames_of(file, in_page) == frames
    # The call sites: files of one name in two folders look alike
    held: dict[str, int] = {}
    for row in rows.tolist():
        site = file["sites"][file["stacks"]["site"][blocks["stack"][row]]]
        held[site] = held.get(site, 0) + int(blocks["size_bytes"][row])
    expected: dict[str, int] = {}
    for found in sites_at(data, there):
        text = call_site_text(found.call_site)
        expected[text] = expected.get(text, 0) + found.size_bytes
    assert held == expected
    # The categories, and what keeps blocks
    by_category: dict[str, int] = {}
    by_holder: dict[str, int] = {}
    for row in rows.tolist():
        name = file["categories"][file["kinds"][blocks["kind"][row]][0]]
        by_category[name] = by_category.get(name, 0) + int(blocks["size_bytes"][row])
        holder = folded(file["strings"][blocks["holder"][row]])
        by_holder[holder] = by_holder.get(holder, 0) + int(blocks["size_bytes"][row])
    memory = held_at(data, there)
    for one in memory.group("shown_kind"):
        by_category[one.key[0][0].replace("_", " ")] -= one.size_bytes
    assert not any(by_category.values())
    of_memory: dict[str, int] = {}
    for one in memory.group("holder"):
        holder = folded(kept_by_text(one.key[0])) if one.key[0] else ""
        of_memory[holder] = of_memory.get(holder, 0) + one.size_bytes
    assert by_holder == of_memory


def frames_of(file: dict[str, Any], stack: int) -> list[tuple[str, str, int]]:
    stacks, frames, strings = file["stacks"], file["frames"], file["strings"]
    begin, end = stacks["offsets"][stack : stack + 2]
    return [
        (strings[frames["filename"][i]], strings[frames["name"][i]], int(frames["line"][i]))
        for i in stacks["frame"][begin:end].tolist()
    ]


@golden
@pytest.mark.parametrize("kept", [10**6, 7])
def test_each_moment_of_a_file(path: Path, kept: int) -> None:
    # GIVEN a file of one of the recorders, of which the page keeps some events
    snapshot = load(path)
    for data, file, device in devices_of(snapshot, kept):
        if not data.history.is_known:
            continue
        events = device["events"]["count"]
        assert device["first_event"] == len(data.trace) - events
        # THEN what it shows at each moment equals the analysis
        for entry in {*range(0, events + 1, amount(3, 1)), events}:
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
def test_the_page_is_smaller_than_the_snapshot(path: Path) -> None:
    page = page_of(open_file(load(path)))
    assert len(page.data[0]) * 4 / 3 < path.stat().st_size


def test_a_cut_says_what_is_missing_and_how_to_have_it() -> None:
    # GIVEN a file whose peak is not among its last events
    path = next(path for path in GOLDEN if path.stem == "snapshot-1.5-cpu")
    snapshot = load(path)
    history = open_file(snapshot).devices[0].history
    assert history.is_known
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


# Bounds, and what the page says about them


def test_unknown_segments_are_no_reserved_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a trace whose segment events do not lead to the segments of one device
    def misfit(snapshot: Snapshot, device: int, entry: int) -> list[Segment]:
        if device == 0:
            raise PytracerError("at 0x10")
        return segments_at(snapshot, device, entry)

    monkeypatch.setattr(parts, "segments_at", misfit)
    page = page_of(open_file(load(next(p for p in GOLDEN if p.stem == "cuda-2.15.0"))))
    # THEN the page says that they are unknown, and has all segments of the other device
    shown = {device["name"]: device for device in page_file(page.html())["devices"]}
    assert not shown["device 0"]["segments_are_known"]
    assert shown["device 0"]["segments"]["count"] == 0
    assert shown["device 1"]["segments_are_known"]
    (sentence,) = page.left_out
    assert sentence == (
        "device 0: the segments are unknown, and so are the reserved bytes: at 0x10."
    )


def test_too_many_segments_are_unknown_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MOST_OLDER", 1)
    snapshot = load(next(p for p in GOLDEN if p.stem == "cuda-2.15.0"))
    page = page_of(open_file(snapshot), 1)
    assert any(
        "segments and the curve of reserved bytes are left out" in each for each in page.left_out
    )
    shown = page_file(page.html())["devices"]
    assert not all(device["segments_are_known"] for device in shown)


def test_negative_addresses_are_shown_as_64_bits() -> None:
    # GIVEN a damaged file with negative addresses
    program = Program()
    program.metadata = file_metadata()
    address = program.alloc(1000, ("train.py", "work", 1)) - 2**41
    content = program.content()
    for event in content["device_traces"][0]:
        event["addr"] -= 2**41
    for segment in content["segments"]:
        for each in (segment, *segment["blocks"]):
            each["address"] -= 2**41
    # THEN its page has them as the 64 bits that they are, in both of its parts
    assert address < 0
    events, state = page_file(page_of(open_file(load(pickle.dumps(content)))).html())["devices"]
    assert int(events["address_base"], 16) + events["others"]["address"][1] == address % 2**64
    assert int(state["address_base"], 16) + state["blocks"]["address"][0] == address % 2**64


def test_a_full_budget_of_texts_keeps_actions_and_categories(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN no room for texts
    monkeypatch.setattr(tables, "MOST_TEXT", 0)
    path = next(path for path in GOLDEN if path.stem == "cuda-2.15.0")
    page = page_of(open_file(load(path)))
    file = page_file(page.html())
    # THEN names that the page needs are complete, and others are not
    assert file["actions"][:3] == ["alloc", "free_requested", "free_completed"]
    assert "unknown" in file["categories"]
    assert set(file["strings"]) == {"", "…"}
    assert "Long texts are cut." in page.left_out


def test_the_longest_phases_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a long phase with short ones inside, and more of them than a page has
    monkeypatch.setattr(page_of_file, "MOST_SPANS", 3)
    program = Program()
    program.metadata = file_metadata()
    program.annotate("epoch", "START")
    for i in range(6):
        program.annotate(f"layer{i}", "START")
        for _ in range(i + 1):
            program.free(program.alloc(1000, ("train.py", "work", 1)))
        program.annotate(f"layer{i}", "END")
    program.annotate("epoch", "END")
    page = page_of(open_file(program.snapshot()))
    # THEN the longest are there, by their begin, and a sentence counts the others
    (device,) = page_file(page.html())["devices"]
    spans = [(span["name"], span["depth"]) for span in device["spans"]]
    assert spans == [("epoch", 0), ("layer4", 1), ("layer5", 1)]
    assert page.left_out == ["cuda:0: the 4 shortest of 7 phases are left out."]


def test_the_peak_of_a_cut_page_is_named_so() -> None:
    # GIVEN a file whose peak is at its begin
    program = Program()
    program.metadata = file_metadata()
    program.free(program.alloc(2**20, ("train.py", "work", 1)))
    for _ in range(5):
        program.free(program.alloc(1000, ("train.py", "work", 1)))
    opened = open_file(program.snapshot())
    names = {}
    for kept in (5, 100):
        (device,) = page_file(page_of(opened, kept).html())["devices"]
        (names[kept],) = (m["text"] for m in device["marks"] if m["kind"] == "peak")
    assert names == {5: "Peak of the events shown: 1 KiB allocated", 100: "Peak: 1 MiB allocated"}


def test_kinds_beyond_the_bound_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN more kinds of blocks than a column of bytes can number
    path = next(path for path in GOLDEN if path.stem == "snapshot-1.5-cpu")
    (part,) = parts.parts_of(open_file(load(path)).devices[0], 1.0)
    kinds = Coded([(f"category{i}", "a rule") for i in range(300)], np.array([254, 255]))
    blocks = replace(part.blocks.where(np.arange(2)), made={"shown_kind": kinds})
    made = tables.Tables(part.data.snapshot, [replace(part, blocks=blocks)], Packer())
    # THEN the last of them have a number, those beyond are unknown, and a sentence counts them
    assert made.known(made.kinds, kinds).tolist() == [255, 0]
    assert made.left_out == ["45 kinds of blocks are shown as unknown."]
    assert made.finish()["kinds"][0] == [0, ""]
    assert made.finish()["categories"][0] == "unknown"


def test_steps_and_marks_beyond_their_bounds_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_of_file, "MOST_STEPS", 3)
    monkeypatch.setattr(page_of_file, "MOST_MARKS", 2)
    monkeypatch.setattr(tables, "MOST_NAMES", 4)
    program = Program()
    program.metadata = file_metadata(current_step=7)
    steps = []
    for step in range(1, 7):
        steps.append((step, len(program.events)))
        program.free(program.alloc(1000, ("train.py", "work", 1), phase=f"phase {step}"))
        program.out_of_memory(1000, 1000)
    program.metadata["devices"][0]["steps"] = steps
    page = page_of(open_file(program.snapshot()))
    (device,) = page_file(page.html())["devices"]
    assert [step for step, _ in device["steps"]] == [4, 5, 6]
    assert [mark["kind"] for mark in device["marks"]].count("oom") == 2
    assert page.left_out == [
        "cuda:0: the first 3 of 6 steps are unnamed.",
        "cuda:0: the first 4 of 6 out-of-memory errors have no marks.",
        '3 phases are shown as "no phase".',
    ]


def test_steps_that_nobody_marked_are_not_shown() -> None:
    for current, shown in ((1, []), (2, [[1, 0]])):
        program = Program()
        program.metadata = file_metadata(current_step=current)
        program.metadata["devices"][0]["steps"] = [(1, 0)]
        program.alloc(1000, ("train.py", "work", 1))
        (device,) = page_file(page_of(open_file(program.snapshot())).html())["devices"]
        assert device["steps"] == shown


@pytest.mark.parametrize("name", ["cuda-1.13.1", "contradiction"])
def test_blocks_of_a_file_without_events_are_bounded_too(name: str, tmp_path: Path) -> None:
    # GIVEN a file with the state at the end only, or with a trace that contradicts it
    content = pickle.loads(next(p for p in GOLDEN if p.stem in (name, "cuda-2.15.0")).read_bytes())
    for events in () if isinstance(content, list) else content["device_traces"]:
        missing = next(i for i, e in enumerate(events) if e["action"] == "free_completed")
        del events[missing]
    path = tmp_path / "state.pickle"
    path.write_bytes(pickle.dumps(content))
    opened = open_file(load(path))
    rows = summarised(opened).events
    # WHEN its page may have half of the rows
    half = -(-rows // 2)
    page = page_of(opened, half)
    devices = page_file(page.html())["devices"]
    # THEN it has no more, the largest blocks, and the way to all of them
    shown = sum(d["events"]["count"] + d["blocks"]["count"] for d in devices)
    assert half <= shown <= half + 2 * len(devices)
    assert page.left_out[-1] == f"To show all: pytracer view {path} --max-events {rows}"
    assert any(" blocks of " in sentence for sentence in page.left_out)
    complete = page_file(page_of(opened, rows).html())["devices"]
    assert sum(d["events"]["count"] + d["blocks"]["count"] for d in complete) == rows
    assert page_of(opened, rows).left_out == []
    for few, all_ in zip(devices, complete, strict=True):
        kept = len(few["blocks"]["size_bytes"])
        largest = sorted(all_["blocks"]["size_bytes"], reverse=True)[:kept]
        assert sorted(few["blocks"]["size_bytes"], reverse=True) == largest


def test_a_limit_that_was_exceeded_later_ends_at_the_out_of_memory() -> None:
    # GIVEN an out-of-memory, after which the process reserved more than there was at that moment
    path = next(path for path in GOLDEN if path.stem == "cuda-2.15.0")
    opened = open_file(load(path))
    data = opened.devices[0]
    assert data.history.is_known
    device = page_file(page_of(opened).html())["devices"][0]
    (oom,) = np.flatnonzero(data.trace.action == 8)
    reserved = data.history.usage.reserved_bytes
    assert device["capacity_bytes"] == reserved[oom] + data.trace.address[oom] < reserved.max()
    # THEN the limit is known until then, and with a reservation below the limit for all time
    assert device["capacity_until"] == oom + 2
    program = Program()
    program.metadata = file_metadata()
    program.alloc(1000, ("train.py", "work", 1))
    program.out_of_memory(2**30, 2**20)
    (device,) = page_file(page_of(open_file(program.snapshot())).html())["devices"]
    assert device["capacity_bytes"] == 3 * 2**20
    assert device["capacity_until"] is None


def test_the_text_of_a_result_is_bounded(tmp_path: Path) -> None:
    # GIVEN a recording of much
    program = Program()
    for i in range(300):
        program.alloc(2**20, (f"train{i}.py", "main", i))
    path = program.write(tmp_path / "a.pickle")
    snapshot = load(path)
    # WHEN the cell of a notebook returns a result, THEN the text that it stores is short
    results = [snapshot, stats(snapshot), *explain(snapshot), find_leaks(snapshot)]
    for result in [*results, replay(snapshot), page_of(open_file(snapshot)), recommend(path)]:
        assert 0 < len(repr(result)) < 8000, type(result)
