"""Test pages in Chromium: they work without a network, and show what the analysis says."""

import contextlib
import pickle
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import browser
import pytest
from browser import Tab
from page_decoder import page_json
from random_allocators import snapshot_of, used_allocator
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis.call_sites import sites_at
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.layout import layout_at
from pytracer.page.difference import difference_of
from pytracer.page.file_data import file_data
from pytracer.page.open_file import open_file, summarised
from pytracer.page.page import Page, page_of
from pytracer.page.verdict import verdict_of
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Snapshot

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "golden"
AXE = Path("node_modules/axe-core/axe.min.js")
CUDA = GOLDEN / "native" / "cuda-2.15.0.pickle"
TABS = ("map", "blocks", "events", "flame")
MIB = 2**20
IS_READY = "() => window.pytracerModel !== undefined"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.chromium() as started:
        yield started


@contextlib.contextmanager
def shown(
    chromium: Any, folder: Path, page: Page, address: str = "", **options: Any
) -> Iterator[Tab]:
    """Show a page; nothing may go wrong in it, and nothing is fetched."""
    path = folder / "page.html"
    page.save(path)
    with browser.opened(chromium, path, address, **options) as tab:
        tab.wait(IS_READY)
        yield tab
        assert tab.problems == []


def of_file(path: Path, kept: int = 10**6) -> Page:
    return page_of(open_file(load(path)), kept)


def training() -> Snapshot:
    """Return a program with phases, steps, temporary blocks and a growing cache."""
    program = Program()
    program.metadata = file_metadata(current_step=31)
    steps = []
    for step in range(1, 31):
        steps.append((step, len(program.events)))
        inner = [
            program.alloc(size * 1000, ("model.py", f"layer{size}", size), phase="forward")
            for size in range(1, 13)
        ]
        for address in reversed(inner):
            program.free(address, phase="backward")
        program.alloc(64_000 + 512 * step, ("cache.py", "remember", 7), phase="forward")
    program.metadata["devices"][0]["steps"] = steps
    return program.snapshot()


def tab_named(tab: Tab, name: str) -> None:
    tab.page.click(f"#tab-{name}")
    tab.wait("name => !document.getElementById(name).hidden", name)


def state(tab: Tab) -> dict[str, Any]:
    found: dict[str, Any] = tab.run("() => ({...window.pytracerSelection.state})")
    return found


def tabs(tab: Tab) -> list[str]:
    """Return the views that the page has."""
    found: list[str] = tab.run(
        "() => [...document.querySelectorAll('[role=tab]')].map(tab => tab.id.slice(4))"
    )
    return found


def rows(tab: Tab, panel: str) -> list[list[str]]:
    """Return the texts of the rows of a table that exist now, from the top."""
    found: list[list[str]] = tab.run(
        """panel => [...document.querySelectorAll(`#${panel} .table-body [data-row]`)]
        .sort((a, b) => a.dataset.index - b.dataset.index)
        .map(row => [...row.children].map(cell => cell.textContent))""",
        panel,
    )
    return found


def columns(tab: Tab, panel: str) -> list[str]:
    found: list[str] = tab.run(
        """panel => [...document.querySelectorAll(`#${panel} [role=columnheader]`)]
        .map(cell => cell.dataset.column)""",
        panel,
    )
    return found


def page_of_two_files() -> Page:
    first, other = open_file(load(CUDA)), open_file(training())
    return Page(
        title="two",
        verdict=verdict_of(first),
        files=[summarised(first), summarised(other)],
        data={i: file_data(f.snapshot, f.devices, 10**6)[0] for i, f in enumerate((first, other))},
        left_out=[],
    )


# The views are drawn a moment after the selection has changed.
PANEL_HAS = "text => document.querySelector('aside').innerText.includes(text)"


def settled(tab: Tab) -> None:
    """Wait until the tables are filtered, the address is written, and all views are drawn.

    The page's own clock decides, which a slow machine delays as it delays the page's timers.
    """
    tab.run(
        """() => new Promise(done => setTimeout(
        () => requestAnimationFrame(() => requestAnimationFrame(done)), 400))"""
    )


# What is shown equals the analysis


def check_model(tab: Tab, snapshot: Snapshot, rng: random.Random) -> None:
    """Compare the page's own figures at random moments with the analysis."""
    opened = open_file(snapshot)
    devices = tab.run("() => window.pytracerModel.file.devices.map(device => device.name)")
    for data, explanation in zip(opened.devices, opened.explanations, strict=True):
        if data.history is None:
            continue
        index = devices.index(explanation.name)
        tab.run("device => window.pytracerSelection.update({device})", index)
        tab.wait("name => window.pytracerModel.device.name === name", explanation.name)
        events = tab.run("() => window.pytracerModel.device.events.count")
        cut = len(data.trace) - events
        usage = data.history.usage
        entries = sorted({0, events, *(rng.randrange(events + 1) for _ in range(12))})
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
            for site in sites_at(data.history, snapshot, there):
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "name", ["native/cuda-2.15.0", "snapshot-1.5-cpu", "native/npu-2.14.0", "native/cuda-1.13.1"]
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
        if tab.run("() => window.pytracerModel.device.events.count"):
            tab.wait(is_drawn, "#timeline canvas")
        for view in TABS:
            tab_named(tab, view)
            settled(tab)
            if view == "map" and not tab.run("() => window.pytracerModel.usage.has_segments"):
                assert "has no segments" in tab.page.inner_text("#map")
            elif view == "map":
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
        assert "does not lead to the final state" in tab.page.inner_text("main")
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
        settled(tab)
        assert len(rows(tab, "blocks")) > 5


# The selection


def test_one_selection_links_all_views(chromium: Any, tmp_path: Path) -> None:
    with shown(chromium, tmp_path, page_of(open_file(training()))) as tab:
        # WHEN a row of the blocks is clicked
        tab_named(tab, "blocks")
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
        box = tab.page.locator("#timeline .u-over").bounding_box()
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


def test_the_events_play(chromium: Any, tmp_path: Path) -> None:
    with shown(chromium, tmp_path, page_of(open_file(training()))) as tab:
        tab.run("() => window.pytracerSelection.update({entry: 10})")
        tab.page.click("text=Play")
        tab.wait("() => window.pytracerSelection.state.entry > 30")
        tab.page.click("text=Pause")
        stopped = state(tab)["entry"]
        settled(tab)
        assert state(tab)["entry"] == stopped


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
    # The CPU, which has no memory map: the blocks. The map says why it is empty
    with shown(chromium, tmp_path, of_file(GOLDEN / "snapshot-1.5-cpu.pickle")) as tab:
        assert opened_with(tab)["tab"] == "tab-blocks"
        tab_named(tab, "map")
        assert "has no segments: its allocator takes memory for" in tab.page.inner_text("#map")
    # A baseline: the difference
    page = page_of_two_files()
    with shown(
        chromium, tmp_path, replace(page, difference={"rows": [], "sentence": "None."})
    ) as tab:
        assert opened_with(tab)["tab"] == "tab-difference"


def test_a_limit_that_did_not_last_has_an_end(chromium: Any, tmp_path: Path) -> None:
    # GIVEN an out-of-memory, after which more was reserved than the limit at that moment
    with shown(chromium, tmp_path, of_file(CUDA)) as tab:
        until = tab.run("() => window.pytracerModel.device.capacity_until")
        for entry, expected in ((until - 1, True), (until + 5, False)):
            tab.run("entry => window.pytracerSelection.update({entry})", entry)
            settled(tab)
            # THEN the details have the limit, by its name, until that moment only
            text = tab.page.inner_text("aside")
            assert ("Limit at the out-of-memory" in text) == expected
            assert "Device limit" not in text


def test_a_long_call_site_keeps_its_line(chromium: Any, tmp_path: Path) -> None:
    # GIVEN a call site that is too long for the legend
    program = Program()
    program.metadata = file_metadata()
    folders = "/".join(["a_folder_with_a_long_name"] * 3)
    program.alloc(MIB, (f"{folders}/train.py", "step", 1234))
    with shown(chromium, tmp_path, page_of(open_file(program.snapshot()))) as tab:
        settled(tab)
        # THEN its end is in the box, and its beginning is not
        text = tab.run(
            """() => {
            const box = document.querySelector(".groups .name span:last-child");
            const area = box.getBoundingClientRect();
            const inner = box.querySelector("bdi").getBoundingClientRect();
            return {cut: area.left - inner.left, end: inner.right - area.right,
                text: box.textContent};
        }"""
        )
        assert text["text"].endswith("train.py:1234 step")
        assert text["cut"] > 50
        assert text["end"] <= 1


# Tables


def numbers(texts: list[str]) -> list[float]:
    """Return the numbers of sizes and counts, as in "12.05 MiB" and "1,000"."""
    units = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    return [
        float(number.replace(",", "")) * units[unit]
        for number, unit in (re.fullmatch(r"([\d.,]+) ?(\w*)", text).groups() for text in texts)
    ]


def test_tables_sort_filter_and_search(chromium: Any, tmp_path: Path) -> None:
    snapshot = training()
    with shown(chromium, tmp_path, page_of(open_file(snapshot))) as tab:
        tab_named(tab, "blocks")
        names = columns(tab, "blocks")
        at = names.index("size")
        # A click on a header sorts, a second one reverses
        tab.page.click("#blocks [data-column=size] button")
        settled(tab)
        sizes = numbers([row[at] for row in rows(tab, "blocks")])
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] > sizes[-1]
        tab.page.click("#blocks [data-column=size] button")
        settled(tab)
        sizes = numbers([row[at] for row in rows(tab, "blocks")])
        assert sizes == sorted(sizes)
        # A second column sorts equal rows
        tab.page.click("#blocks [data-column=allocated] button", modifiers=["Shift"])
        settled(tab)
        pairs = tab.run(
            """() => [...document.querySelectorAll("#blocks .table-body [data-row]")]
            .sort((a, b) => a.dataset.index - b.dataset.index)
            .map(({dataset: {row}}) => [window.pytracerModel.device.blocks.size_bytes[row],
                -window.pytracerModel.device.blocks.alloc_event[row]])"""
        )
        assert len({size for size, _ in pairs}) < len(pairs)
        assert pairs == sorted(pairs)
        # A search by function, file and size
        history = open_file(snapshot).devices[0].history
        assert history is not None
        blocks = history.blocks
        for text, expected in (
            ("layer7", int((blocks.requested_bytes == 7000).sum())),
            ("cache.py", 30),
            ("cache.py size>=75KiB", int((blocks.size_bytes >= 75 * 1024).sum())),
            ("nothing_of_this", 0),
        ):
            tab.page.fill("#blocks input[type=search]", text)
            settled(tab)
            status = tab.page.inner_text("#blocks [role=status]")
            assert status.startswith(f"{expected:,} of {len(blocks):,} blocks"), text
        # A search by address
        address = f"0x{int(blocks.address[5]):x}"
        tab.page.fill("#blocks input[type=search]", address)
        settled(tab)
        expected = int((blocks.address == blocks.address[5]).sum())
        assert tab.page.inner_text("#blocks [role=status]").startswith(f"{expected} of ")
        # The events are searched too
        tab_named(tab, "events")
        tab.page.fill("#events input[type=search]", "cache.py")
        settled(tab)
        assert tab.page.inner_text("#events [role=status]").startswith("30 of ")


def test_a_table_of_many_rows_scrolls(chromium: Any, tmp_path: Path) -> None:
    with shown(chromium, tmp_path, page_of(open_file(training()))) as tab:
        tab_named(tab, "events")
        events = tab.run("() => window.pytracerModel.device.events.count")
        settled(tab)
        assert 0 < len(rows(tab, "events")) < 100 < events
        tab.page.focus("#events .table")
        tab.page.keyboard.press("End")
        tab.wait(
            "last => document.querySelector(`#events [data-index='${last}']`) !== null", events - 1
        )


def test_a_range_lists_what_was_not_released(chromium: Any, tmp_path: Path) -> None:
    snapshot = training()
    history = open_file(snapshot).devices[0].history
    assert history is not None
    blocks, events = history.blocks, len(snapshot.traces[0])
    with shown(chromium, tmp_path, page_of(open_file(snapshot))) as tab:
        # WHEN a range is dragged over the timeline
        box = tab.page.locator("#timeline .u-over").bounding_box()
        y = box["y"] + box["height"] / 2
        tab.page.mouse.move(box["x"] + 0.2 * box["width"], y)
        tab.page.mouse.down()
        tab.page.mouse.move(box["x"] + 0.5 * box["width"], y, steps=5)
        tab.page.mouse.up()
        tab.wait("() => window.pytracerSelection.state.range !== null")
        first, last = state(tab)["range"]
        assert 0.1 * events < first < 0.3 * events < 0.4 * events < last < 0.6 * events
        # THEN what was allocated in it and exists at its end is listed
        kept = (
            (blocks.alloc_event >= first)
            & (blocks.alloc_event < last)
            & (blocks.free_requested_event >= last)
        )
        tab_named(tab, "blocks")
        settled(tab)
        text = tab.page.inner_text("#range")
        count = int(kept.sum())
        assert f"in {count:,} blocks" in text
        assert "remember" in text
        # AND the table shows these blocks
        tab.page.click("text=Show these blocks in the table")
        settled(tab)
        status = tab.page.inner_text("#blocks [role=status]")
        assert status.startswith(f"{count:,} of {len(blocks):,} blocks")


# Safety


def test_names_run_nothing(chromium: Any, tmp_path: Path) -> None:
    # GIVEN a file whose names would run code if they were read as HTML
    attack = "window.hacked=1"
    names = [
        f"<img src=x onerror={attack}>",
        f"</script><script>{attack}</script>",
        f"\"'><svg onload={attack}>",
        f"javascript:{attack}",
        f"{{{{constructor.constructor('{attack}')()}}}}",
        "__proto__",
    ]
    program = Program()
    program.metadata = file_metadata()
    for name in names:
        program.alloc(MIB, (f"{name}.py", name, 1), (name, name, 2), phase=name)
        program.annotate(name, "START")
    program.out_of_memory(MIB, MIB)
    path = tmp_path / f"{names[0].replace('/', '')}.pickle"
    program.write(path)
    first, other = open_file(load(path)), open_file(training())
    page = Page(
        title=names[1],
        verdict=verdict_of(first),
        files=[summarised(first), summarised(other)],
        data={i: file_data(f.snapshot, f.devices, 10**6)[0] for i, f in enumerate((first, other))},
        left_out=names,
        difference=difference_of(first.snapshot, other.snapshot),
    )
    # WHEN all views are shown, by each colouring
    with shown(chromium, tmp_path, page) as tab:
        for colour in ("category", "site", "phase", "step", "age"):
            tab.run("colour => window.pytracerSelection.update({colour, block: 0})", colour)
            settled(tab)
            for view in (*TABS, "ranks", "difference"):
                tab_named(tab, view)
        tab_named(tab, "blocks")
        box = tab.page.locator("#timeline .u-over").bounding_box()
        tab.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.9)
        settled(tab)
        # THEN nothing of it ran, and the names are texts
        assert tab.run("() => window.hacked") is None
        assert tab.run("() => document.querySelectorAll('img, svg[onload]').length") == 0
        assert names[0] in tab.page.inner_text("aside")
        for name in names:
            assert name in tab.page.inner_text(".left-out")


def test_a_script_in_the_page_is_not_run(chromium: Any, tmp_path: Path) -> None:
    # GIVEN a page into which a script was put
    of_file(CUDA).save(tmp_path / "page.html")
    path = tmp_path / "page.html"
    html = path.read_bytes().replace(b"</body>", b"<script>window.hacked = 1</script></body>")
    path.write_bytes(html)
    # THEN the policy of the page does not let it run, nor anything be fetched
    with browser.opened(chromium, path) as tab:
        tab.wait(IS_READY)
        assert tab.run("() => window.hacked") is None
        fetched = tab.run("() => fetch('http://localhost:9/').then(() => 'yes', () => 'no')")
        assert fetched == "no"
        assert any("Content Security Policy" in problem for problem in tab.problems)


def test_a_notebook_shows_the_page(chromium: Any, tmp_path: Path) -> None:
    # GIVEN the output of a cell
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><body>{of_file(CUDA)._repr_html_()}</body>")
    with browser.opened(chromium, path) as tab:
        frame = tab.page.frame_locator("iframe")
        frame.locator("#verdict h1").wait_for()
        frame.locator("#tab-blocks").click()
        frame.locator("#blocks .table-body [data-index='1']").wait_for()
        settled(tab)
        assert [p for p in tab.problems if "about:srcdoc" not in p] == []


# For everyone


def test_the_keyboard_alone_reaches_everything(chromium: Any, tmp_path: Path) -> None:
    page = page_of_two_files()
    with shown(chromium, tmp_path, page) as tab:
        views = tab.run("() => [...document.querySelectorAll('[role=tab]')].map(tab => tab.id)")
        assert len(views) == 5
        for _ in views:
            settled(tab)
            tab.run(
                """() => {
                document.activeElement.blur();
                window.reached = new Set();
                document.addEventListener("focusin", event => window.reached.add(event.target));
            }"""
            )
            ends = 0  # Tab begins where the focus was, and again at the top
            for _ in range(500):
                tab.page.keyboard.press("Tab")
                ends += tab.run("() => document.activeElement === document.body")
                if ends == 2:
                    break
            # Elements of composite widgets, of which Tab reaches one and arrows the others.
            missed = tab.run(
                """() => [...document.querySelectorAll(
                    "button, input, select, a[href], textarea, [tabindex='0']")]
                .filter(e => e.checkVisibility() && !e.disabled && e.tabIndex >= 0)
                .filter(e => !window.reached.has(e)).map(e => e.outerHTML.slice(0, 200))"""
            )
            assert missed == []
            unreachable = tab.run(
                """() => [...document.querySelectorAll("button, input, select, a[href]")]
                .filter(e => e.checkVisibility() && e.tabIndex < 0)
                .filter(e => !e.closest("[role=tablist], [role=grid], [role=tree], [role=toolbar],"
                    + "[role=group], [role=application]"))
                .map(e => e.outerHTML.slice(0, 200))"""
            )
            assert unreachable == []
            # The next tab, by the keyboard
            tab.page.focus("[role=tab][aria-selected=true]")
            tab.page.keyboard.press("ArrowRight")


def test_a_block_is_selected_by_the_keyboard(chromium: Any, tmp_path: Path) -> None:
    with shown(chromium, tmp_path, page_of(open_file(training()))) as tab:
        tab.page.focus("[role=tab][aria-selected=true]")
        tab.page.keyboard.press("ArrowRight")
        tab.wait("() => window.pytracerSelection.state.tab === 'blocks'")
        tab.page.focus("#blocks .table")
        for key in ("ArrowDown", "ArrowDown", "Enter"):
            tab.page.keyboard.press(key)
        tab.wait("() => window.pytracerSelection.state.block !== null")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_defect(scheme: str, web: Path, chromium: Any, tmp_path: Path) -> None:
    first, other = open_file(load(CUDA)), open_file(training())
    page = Page(
        title="two",
        verdict=verdict_of(first),
        files=[summarised(first), summarised(other)],
        data={i: file_data(f.snapshot, f.devices, 10**6)[0] for i, f in enumerate((first, other))},
        left_out=["Something was left out."],
        difference=difference_of(first.snapshot, other.snapshot),
    )
    with shown(chromium, tmp_path, page, color_scheme=scheme) as tab:
        tab.run((web / AXE).read_text())
        for view in (*TABS, "ranks", "difference"):
            tab_named(tab, view)
            tab.run("() => window.pytracerSelection.update({block: 1})")
            settled(tab)
            found = tab.run(
                """async () => (await axe.run()).violations
                .filter(each => ["serious", "critical"].includes(each.impact))
                .map(each => [each.id, each.nodes.slice(0, 3).map(node => node.html.slice(0, 200)
                    + " " + node.failureSummary)])"""
            )
            assert found == [], view


def test_it_prints_to_one_page(chromium: Any, tmp_path: Path) -> None:
    with shown(chromium, tmp_path, of_file(CUDA)) as tab:
        printed = tab.page.pdf(format="A4")
        assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1


def test_the_files_open(chromium: Any, tmp_path: Path) -> None:
    page = page_of_two_files()
    with shown(chromium, tmp_path, page) as tab:
        tab_named(tab, "ranks")
        tab.wait("() => document.querySelectorAll('#ranks svg').length === 2")
        tab.page.click("#ranks li:nth-child(2) button")
        tab.wait("() => window.pytracerModel.file.path === 'made.pickle'")
        assert [file["name"] for file in page_json(page.html())["files"]][1] == "made.pickle"
