"""Does each view draw what the analysis says?"""

import pickle
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import browser
import pytest
from browser import Tab
from random_allocators import snapshot_of, used_allocator
from shown_pages import (
    CUDA,
    GOLDEN,
    IS_READY,
    MIB,
    TABS,
    of_file,
    page_of_two_files,
    rows,
    settled,
    shown,
    state,
    tab_named,
    training,
)
from synthetic_snapshots import Program, file_metadata
from view_command import view

from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.holders import sites_at
from pytracer.analysis.layout import layout_at
from pytracer.page.open_file import open_file
from pytracer.page.page import page_of
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Snapshot

pytestmark = pytest.mark.slow


def tabs(tab: Tab) -> list[str]:
    """Return the views that the page has."""
    found: list[str] = tab.run(
        "() => [...document.querySelectorAll('[role=tab]')].map(tab => tab.id.slice(4))"
    )
    return found


# The views are drawn a moment after the selection has changed.
PANEL_HAS = "text => document.querySelector('aside').innerText.includes(text)"


# What is shown equals the analysis


def check_model(tab: Tab, snapshot: Snapshot, rng: random.Random) -> None:
    """Compare the page's own figures at random moments with the analysis."""
    opened = open_file(snapshot)
    devices = tab.run("() => window.pytracerModel.file.devices.map(device => device.name)")
    for data, explanation in zip(opened.devices, opened.file.devices, strict=True):
        if not data.history.is_known:
            continue
        index = devices.index(explanation.name)
        tab.run("device => window.pytracerSelection.update({device})", index)
        tab.wait("name => window.pytracerModel.device.name === name", explanation.name)
        events = tab.run("() => window.pytracerModel.device.events.count")
        cut = len(data.trace) - events
        usage = data.history.usage
        # In any order: the page continues the layout that was asked for last
        entries = [0, events, *(rng.randrange(events + 1) for _ in range(30))]
        rng.shuffle(entries)
        answers = tab.run(
            """entries => entries.map(entry => {
                const {usage, layouts, device, file} = window.pytracerModel;
                const {segments, blocks} = layouts.at(entry);
                const text = value => String(BigInt(device.address_base) + BigInt(value));
                const sites = {};
                for (const block of blocks) {
                    const site = file.sites[file.stacks.site[device.blocks.stack[block]]];
                    sites[site] = (sites[site] ?? 0) + device.blocks.size_bytes[block];
                }
                return {
                    allocated: usage.allocated[entry],
                    active: usage.active[entry],
                    reserved: usage.reserved[entry],
                    segments: segments.map(each => [text(each.address), each.size_bytes,
                        each.stream, each.is_small, each.is_expandable]),
                    blocks: [...blocks].map(block =>
                        [text(device.blocks.address[block]), device.blocks.size_bytes[block]]),
                    sites,
                };
            })""",
            entries,
        )
        for entry, found in zip(entries, answers, strict=True):
            there = entry + cut
            layout = layout_at(snapshot, data.device, data.history, there)
            assert found["allocated"] == usage.allocated_bytes[there]
            assert found["active"] == usage.active_bytes[there]
            assert found["reserved"] == usage.reserved_bytes[there]
            if not data.is_cpu:  # whose segments are not shown
                assert found["segments"] == [
                    [str(s.address), s.size_bytes, s.stream, s.is_small, s.is_expandable]
                    for s in layout.segments
                ]
            addresses = map(str, layout.block_address.tolist())
            assert found["blocks"] == [
                list(pair) for pair in zip(addresses, layout.block_bytes.tolist(), strict=True)
            ]
            expected: dict[str, int] = {}
            for site in sites_at(data, there):
                text = call_site_text(site.call_site)
                expected[text] = expected.get(text, 0) + site.size_bytes
            assert found["sites"] == expected


@pytest.mark.parametrize(
    "name",
    [
        *("snapshot-1.0", "snapshot-1.5-cpu", "snapshot-1.5-cuda"),
        *("native/cuda-2.0.1", "native/cuda-2.15.0", "native/cuda-2.15.0-ring"),
        *("native/cuda-2.15.0-all", "native/npu-2.14.0", "native/npu-2.13.0-ring"),
    ],
)
def test_the_page_computes_what_the_analysis_says(name: str, chromium: Any, tmp_path: Path) -> None:
    # GIVEN a file of one of the recorders
    snapshot, rng = load(GOLDEN / f"{name}.pickle"), random.Random(name)
    for kept in (10**6, 61):
        # WHEN its page is open, THEN its figures at random moments are those of the analysis
        with shown(chromium, tmp_path, page_of(open_file(snapshot), kept)) as tab:
            check_model(tab, snapshot, rng)


@pytest.mark.parametrize(
    "name", ["segments", "expandable", "toggled", "max-split", "npu", "npu-toggled", "cpu"]
)
def test_random_traces(name: str, chromium: Any, tmp_path: Path) -> None:
    # GIVEN the trace of an allocator that was used at random
    rng = random.Random(name)
    allocator = used_allocator(name, rng.randrange(100))
    snapshot = snapshot_of(allocator, name, rng.randrange(len(allocator.events) // 2))
    with shown(chromium, tmp_path, page_of(open_file(snapshot), 300)) as tab:
        check_model(tab, snapshot, rng)


# Views


DRAWN = ["native/cuda-2.15.0", "snapshot-1.5-cpu", "native/npu-2.14.0", "native/cuda-1.13.1"]
SCHEMES = ["light", "dark"]


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        # Each file in one scheme; `make test-long` has both.
        pytest.param(name, scheme, marks=[pytest.mark.long] if (i + j) % 2 else [])
        for i, name in enumerate(DRAWN)
        for j, scheme in enumerate(SCHEMES)
    ],
)
def test_every_view_draws(name: str, scheme: str, chromium: Any, tmp_path: Path) -> None:
    # GIVEN pages with and without times, segments and events
    page = of_file(GOLDEN / f"{name}.pickle")
    with shown(chromium, tmp_path, page, color_scheme=scheme) as tab:
        # THEN each view shows something
        assert tab.page.inner_text("#verdict h1") == page.verdict.heading
        is_drawn = """selector => [...document.querySelectorAll(selector)].some(canvas => {
            const {width, height} = canvas;
            if (!width || !height) return false;
            const {data} = canvas.getContext("2d").getImageData(0, 0, width, height);
            const colours = new Set();
            for (let i = 0; i < data.length; i += 4) if (data[i + 3]) colours.add(data[i] << 16 |
                data[i + 1] << 8 | data[i + 2]);
            return colours.size > 2;
        })"""
        settled(tab)  # Chromium warns of a canvas that is read twice
        if tab.run("() => window.pytracerModel.device.events.count"):
            tab.wait(is_drawn, "#timeline canvas")
        for view in TABS:
            if view == "map" and not tab.run("() => window.pytracerModel.usage.has_segments"):
                assert "map" not in tabs(tab)
                continue
            tab_named(tab, view)
            settled(tab)
            if view == "map":
                tab.wait(is_drawn, "#map canvas")
            elif view == "flame":
                assert len(tab.page.inner_text("#flame")) > 50
            elif view == "blocks" or tab.run("() => window.pytracerModel.device.events.count"):
                assert rows(tab, view)


def test_a_contradiction_shows_events_and_the_reason(chromium: Any, tmp_path: Path) -> None:
    content = pickle.loads(CUDA.read_bytes())
    events = content["device_traces"][0]
    del events[next(i for i, e in enumerate(events) if e["action"] == "free_completed")]
    snapshot = load(pickle.dumps(content))
    names = ["device 0", "device 0, at the end"]
    with shown(chromium, tmp_path, page_of(open_file(snapshot))) as tab:
        devices = tab.run("() => window.pytracerModel.file.devices.map(device => device.name)")
        assert set(names) < set(devices)
        tab.run("device => window.pytracerSelection.update({device})", devices.index(names[0]))
        tab.wait("name => window.pytracerModel.device.name === name", names[0])
        assert "does not give the final state" in tab.page.inner_text("main")
        for view in tabs(tab):
            tab_named(tab, view)
            settled(tab)
        tab_named(tab, "events")
        settled(tab)
        assert len(rows(tab, "events")) > 5
        tab.run("device => window.pytracerSelection.update({device})", devices.index(names[1]))
        tab.wait("name => window.pytracerModel.device.name === name", names[1])
        assert set(TABS) <= set(tabs(tab))
        for view in TABS:
            tab_named(tab, view)
            settled(tab)
        tab_named(tab, "blocks")
        tab.page.uncheck("text=Group by call site")
        settled(tab)
        assert len(rows(tab, "blocks")) > 5


# The selection


def test_one_selection_links_all_views(chromium: Any, tmp_path: Path) -> None:
    with shown(chromium, tmp_path, page_of(open_file(training()))) as tab:
        # WHEN a row of the blocks is clicked
        tab_named(tab, "blocks")
        tab.page.uncheck("text=Group by call site")
        tab.page.select_option("#blocks select >> nth=0", "all")
        settled(tab)
        body = "#blocks .table-body [data-index='3']"
        row = int(tab.page.get_attribute(body, "data-row"))
        tab.page.click(f"{body} [role=gridcell]")
        # THEN the moment is its allocation, and it is the selected block everywhere
        tab.wait("() => window.pytracerSelection.state.block !== null")
        found = state(tab)
        alloc = tab.run("row => window.pytracerModel.device.blocks.alloc_event[row]", row)
        assert (found["block"], found["entry"]) == (row, alloc + 1)
        address = tab.run(
            """row => "0x" + (BigInt(window.pytracerModel.device.address_base) +
            BigInt(window.pytracerModel.device.blocks.address[row])).toString(16)""",
            row,
        )
        tab.wait(PANEL_HAS, address)
        # AND the address of the page has both, and opens the same
        settled(tab)
        link = tab.page.url.partition("#")[2]
        assert f"block={row}" in link
        with browser.opened(chromium, tmp_path / "page.html", link) as other:
            other.wait(IS_READY)
            assert state(other) == state(tab)
            assert other.problems == []
        # WHEN the timeline is clicked
        box = tab.page.locator("#timeline .over").bounding_box()
        tab.page.mouse.click(box["x"] + box["width"] / 4, box["y"] + box["height"] / 2)
        settled(tab)
        entry = state(tab)["entry"]
        events = tab.run("() => window.pytracerModel.device.events.count")
        # THEN the moment is there, in the panel, the map and the flame graph too
        assert abs(entry - events / 4) < events / 20
        tab.wait(PANEL_HAS, f"event {entry - 1:,}\n")
        tab_named(tab, "map")
        tab.wait(
            "entry => Number(document.querySelector('#map input[type=range]').value) === entry",
            entry,
        )
        # AND the arrow keys move it
        tab.page.focus("#map .map-box")
        tab.page.keyboard.press("ArrowRight")
        tab.wait("entry => window.pytracerSelection.state.entry === entry", entry + 1)


def dropped(tab: Tab, name: str, text: str, shown: str) -> None:
    """Drop a file onto the page, and wait until the verdict shows a text."""
    tab.run(
        """([name, text]) => {
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File([text], name));
            window.dispatchEvent(new DragEvent("drop", {dataTransfer}));
        }""",
        [name, text],
    )
    tab.wait("text => document.querySelector('#verdict')?.innerText.includes(text)", shown)


def test_files_can_be_dropped_onto_an_empty_page(chromium: Any, tmp_path: Path) -> None:
    path, page = tmp_path / "empty.html", of_file(CUDA)
    assert view("-o", path).exit_code == 0
    with browser.opened(chromium, path) as tab:
        dropped(tab, "it's.pickle", "", "pytracer view 'it'\"'\"'s.pickle'")
        dropped(
            tab, "other.html", "<script>alert(1)</script>", "other.html is not a page of pytracer"
        )
        dropped(tab, "page.html", page.html().decode(), page.verdict.heading)
        tab.wait(IS_READY)
        assert set(TABS) <= set(tabs(tab))
        assert tab.problems == []


# What a page opens with


def opened_with(tab: Tab) -> dict[str, Any]:
    settled(tab)
    found: dict[str, Any] = tab.run(
        """() => ({
        tab: document.querySelector("[role=tab][aria-selected=true]").id,
        colour: document.querySelector("#timeline select").value,
        legend: [...document.querySelectorAll(".groups .name")].map(name => name.textContent),
    })"""
    )
    return found


def test_a_page_opens_with_the_answer(chromium: Any, tmp_path: Path) -> None:
    # A leak: coloured by call site. A reader's choice of another colour is kept in the address
    with shown(chromium, tmp_path, page_of(open_file(training()))) as tab:
        found = opened_with(tab)
        assert (found["tab"], found["colour"]) == ("tab-map", "site")
        assert any("cache.py:7 remember" in name for name in found["legend"])
        tab.page.select_option("#timeline select", "category")
        settled(tab)
        link = tab.page.url.partition("#")[2]
        assert "colour=category" in link
        with browser.opened(chromium, tmp_path / "page.html", link) as other:
            other.wait(IS_READY)
            assert opened_with(other)["colour"] == "category"
    # The CPU, which has no memory map, so no tab for it, also if a link names one: the blocks. A
    # fifth of the memory has no category: call sites say more
    page = of_file(GOLDEN / "snapshot-1.5-cpu.pickle")
    with shown(chromium, tmp_path, page, "tab=map") as tab:
        found = opened_with(tab)
        assert (found["tab"], found["colour"]) == ("tab-blocks", "site")
        assert "map" not in tabs(tab)
    # A baseline: the difference
    page = page_of_two_files()
    with shown(
        chromium,
        tmp_path,
        replace(page, difference={"rows": [], "modules": [], "sentence": "None.", "curves": None}),
    ) as tab:
        assert opened_with(tab)["tab"] == "tab-difference"


def frames_shown(tab: Tab, level: int | str = "") -> list[str]:
    settled(tab)
    found: list[str] = tab.run(
        """level => [...document.querySelectorAll(`.flame-box${level}`)].map(box => box.title)""",
        f"[aria-level='{level}']" if level else "",
    )
    return found


def test_the_flame_graph_has_the_frames_of_the_program(chromium: Any, tmp_path: Path) -> None:
    # GIVEN a program whose layer is called by torch, and a deeper stack that was cut
    program = Program()
    program.metadata = file_metadata(stack_depth=4)
    outer = ("/job/train.py", "main", 1)
    module = ("/lib/torch/nn/modules/module.py", "_call_impl", 2)
    layer = ("/job/model.py", "forward", 3)
    program.alloc(MIB, layer, module, outer)
    program.alloc(MIB // 4, layer, module, layer, module)
    with shown(chromium, tmp_path, page_of(open_file(program.snapshot()))) as tab:
        # THEN the frames of torch are hidden, and the stack that was cut has a box above it
        tab_named(tab, "flame")
        assert not any("torch" in text for text in frames_shown(tab))
        top = [text.partition(":")[0] for text in frames_shown(tab, 2)]
        assert top == ["main (/job/train.py", "(cut at 4 frames)"]
        assert len(frames_shown(tab, 4)) == 1
        # WHEN they are asked for, THEN they are shown
        tab.page.check("text=Frames of torch")
        assert sum("_call_impl" in text for text in frames_shown(tab)) == 3
        # WHEN the graph is inverted, THEN the call site is on top, with all of the bytes
        tab.page.check("text=Callers below")
        (site,) = frames_shown(tab, 2)
        # WHEN bytes count by their lifetime, THEN they were held for 2 and 1 of 4 moments
        tab.page.check("text=lifetime")
        settled(tab)
        title = tab.page.inner_text("#flame h2")
        assert title.startswith("576 KiB active on average from the first event up to event 2")
        tab.page.uncheck("text=lifetime")
        assert site == "forward (/job/model.py:3): 1.25 MiB, 100.0 %, 2 blocks"


def test_one_thing_has_one_colour_in_all_views(chromium: Any, tmp_path: Path) -> None:
    # GIVEN a page by category: the memory of nearly all blocks has one
    with shown(chromium, tmp_path, of_file(GOLDEN / "snapshot-1.12-cuda.pickle")) as tab:
        assert opened_with(tab)["colour"] == "category"
        for colour in ("category", "site"):
            tab.run("colour => window.pytracerSelection.update({colour})", colour)
            # THEN the legend's colour of the largest group is also that of the flame graph
            tab_named(tab, "flame")
            settled(tab)
            swatches = tab.run(
                """() => [...document.querySelectorAll(".groups tr")].map(row => [
                row.cells[2].textContent, row.querySelector(".swatch").style.background])"""
            )
            largest = max(swatches, key=lambda each: int(each[0].removesuffix(" %")))
            boxes = tab.run(
                """() => [...document.querySelectorAll(".flame-box")]
                .map(box => box.style.getPropertyValue("--swatch")).filter(Boolean)
                .map(color => Object.assign(new Option(), {style: `color: ${color}`}))
                .map(({style}) => style.color)"""
            )
            assert largest[1] in boxes
            assert set(boxes) <= {colour for _, colour in swatches}
        # AND of the map, which has it on most pixels of its blocks
        tab_named(tab, "map")
        settled(tab)
        red, green, blue = (int(part) for part in re.findall(r"\d+", largest[1]))
        pixels = tab.run(
            """rgb => {
            const canvas = document.querySelector(".map-box canvas");
            const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width,
                canvas.height);
            let found = 0;
            for (let i = 0; i < data.length; i += 4) {
                found += rgb.every((part, k) => data[i + k] === part);
            }
            return found;
        }""",
            [red, green, blue],
        )
        assert pixels > 1000


def test_a_limit_that_did_not_last_has_an_end(chromium: Any, tmp_path: Path) -> None:
    # GIVEN an out-of-memory, after which more was reserved than the limit at that moment
    with shown(chromium, tmp_path, of_file(CUDA)) as tab:
        until = tab.run("() => window.pytracerModel.device.capacity_until")
        for entry, expected in ((until - 1, True), (until + 5, False)):
            tab.run("entry => window.pytracerSelection.update({entry})", entry)
            settled(tab)
            # THEN the details have the limit, by its name, until that moment only
            text = tab.page.inner_text("aside")
            assert ("The limit when memory ran out" in text) == expected
            assert "Device limit" not in text
