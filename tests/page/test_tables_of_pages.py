"""Can tables be sorted, filtered and searched?"""

import re
from pathlib import Path
from typing import Any

import pytest
from browser import Tab
from shown_pages import GOLDEN, MIB, of_file, rows, settled, shown, state, tab_named, training
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.holders import sites_at
from pytracer.page.open_file import open_file
from pytracer.page.page import page_of
from pytracer.text import size as size_text

pytestmark = pytest.mark.slow


def columns(tab: Tab, panel: str) -> list[str]:
    found: list[str] = tab.run(
        """panel => [...document.querySelectorAll(`#${panel} [role=columnheader]`)]
        .map(cell => cell.dataset.column)""",
        panel,
    )
    return found


def test_a_long_call_site_keeps_its_line(chromium: Any, tmp_path: Path) -> None:
    # GIVEN a call site that is too long for the legend
    program = Program()
    program.metadata = file_metadata()
    folders = "/".join(["a_folder_with_a_long_name"] * 3)
    program.alloc(MIB, (f"{folders}/train.py", "step", 1234))
    with shown(chromium, tmp_path, page_of(open_file(program.snapshot()))) as tab:
        settled(tab)
        # THEN its middle is cut out, its line is there, and the text is not cut by the box
        name = tab.page.locator(".groups .name")
        assert name.inner_text() == "…/train.py:1234 step"
        assert "a_folder_with_a_long_name/train.py:1234 step" in name.get_attribute("title")
        assert name.evaluate("cell => cell.scrollWidth <= cell.clientWidth")


def test_the_legend_has_what_holds_most_first(chromium: Any, tmp_path: Path) -> None:
    # GIVEN a program with more call sites than colours, at its peak
    opened = open_file(training())
    with shown(chromium, tmp_path, page_of(opened)) as tab:
        settled(tab)
        legend = [row.split("\t") for row in tab.page.locator(".groups tr").all_inner_texts()]
        # THEN the largest is the first, and the sites without a colour are the smallest
        assert numbers([size for _, size, _ in legend]) == sorted(
            numbers([size for _, size, _ in legend]), reverse=True
        )
        sites = sites_at(opened.devices[0], state(tab)["entry"])
        names = [name.strip() for name, _, _ in legend if "all others" not in name]
        assert len(names) < len(sites)
        assert names == [call_site_text(one.call_site) for one in sites[: len(names)]]


# Tables


def numbers(texts: list[str]) -> list[float]:
    """Return the numbers of sizes and counts, as in "12.05 MiB" and "1,000"."""
    units = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    return [
        float(number.replace(",", "")) * units[unit]
        for number, unit in (re.fullmatch(r"([\d.,]+) ?(\w*)", text).groups() for text in texts)
    ]


def test_blocks_open_with_what_is_allocated_by_call_site(chromium: Any, tmp_path: Path) -> None:
    snapshot = training()
    opened = open_file(snapshot)
    with shown(chromium, tmp_path, page_of(opened)) as tab:
        # GIVEN a moment
        tab_named(tab, "blocks")
        tab.run("() => window.pytracerSelection.update({entry: 300})")
        settled(tab)
        names = columns(tab, "blocks")
        assert {"category", "owner", "age", "stream"} < set(names)
        size, site = names.index("size"), names.index("site")
        # THEN the rows are its call sites, the largest first, as the analysis has them
        sites = sorted(sites_at(opened.devices[0], 300), key=lambda each: -each.size_bytes)
        found = [(row[site], row[0], row[size]) for row in rows(tab, "blocks")]
        assert found == [
            (call_site_text(each.call_site), f"▸ {each.count:,}", size_text(each.size_bytes))
            for each in sites
        ]
        # WHEN one is opened by the keyboard, THEN its blocks follow, the largest first
        tab.page.focus("#blocks .table")
        tab.page.keyboard.press("Enter")
        settled(tab)
        inside = rows(tab, "blocks")[1 : sites[0].count + 1]
        sizes = numbers([row[size] for row in inside])
        assert sizes == sorted(sizes, reverse=True)
        assert {row[site] for row in inside} == {found[0][0]}
        # AND a sort by another column is one of the call sites and of the blocks inside
        tab.page.click("#blocks [data-column=age] button")
        settled(tab)
        ages = tab.run(
            """() => [...document.querySelectorAll("#blocks .table-body [data-row]")]
            .sort((a, b) => a.dataset.index - b.dataset.index)
            .map(({dataset: {row}}) => window.pytracerModel.device.blocks.alloc_event[row])
            .filter(event => event !== undefined)"""
        )
        assert len(ages) == sites[0].count
        assert ages == sorted(ages)
        # WHEN a block is selected in another view, THEN its call site is opened
        other = tab.run(
            """site => {
            const {file, device: {blocks}} = window.pytracerModel;
            const block = [...blocks.stack.keys()].find(each => blocks.alloc_event[each] < 300 &&
                blocks.free_requested_event[each] >= 300 &&
                file.sites[file.stacks.site[blocks.stack[each]]] !== site);
            window.pytracerSelection.update({block});
            return block;
        }""",
            found[0][0],
        )
        settled(tab)
        chosen = tab.page.locator("#blocks .table-body [aria-selected=true]")
        assert int(chosen.get_attribute("data-row")) == other


def test_what_kept_blocks_that_were_freed(chromium: Any, tmp_path: Path) -> None:
    # GIVEN a file whose answer says until when a line's memory was kept
    page = of_file(GOLDEN / "snapshot-1.7-cuda.pickle")
    until = "kept until forward() released it (train.py:5)"
    (line,) = (line for line in page.verdict.lines if line.startswith("Lines: 8.126 MiB"))
    assert until in line
    with shown(chromium, tmp_path, page) as tab:
        tab_named(tab, "blocks")
        settled(tab)
        # THEN the row of the call site says it, and a search finds its blocks
        owner = columns(tab, "blocks").index("owner")
        first = rows(tab, "blocks")[0]
        assert "train.py:5 forward" in first[3]
        assert first[owner] == f"{until} …"  # of most of its bytes
        tab.page.fill("#blocks input[type=search]", '"until forward() released"')
        settled(tab)
        assert {row[owner] for row in rows(tab, "blocks")} == {until}
        # AND so does the panel of a block
        tab.page.click("#blocks .table-body [data-index='0']")
        settled(tab)
        tab.page.click("#blocks .table-body [data-index='1']")
        settled(tab)
        holder = tab.page.locator("#detail dt", has_text="Holder").locator("+ dd")
        assert holder.inner_text() == until


def all_blocks(tab: Tab) -> None:
    """Show the blocks of all moments, each on a row."""
    tab_named(tab, "blocks")
    tab.page.uncheck("text=Group by call site")
    tab.page.select_option("#blocks select >> nth=0", "all")
    settled(tab)


def test_tables_sort_filter_and_search(chromium: Any, tmp_path: Path) -> None:
    snapshot = training()
    with shown(chromium, tmp_path, page_of(open_file(snapshot))) as tab:
        all_blocks(tab)
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
        assert history.is_known
        blocks = history.blocks
        for text, expected in (
            ("layer7", int((blocks.requested_bytes == 7000).sum())),
            ("cache.py", 30),
            ("cache.py size>=75KiB", int((blocks.size_bytes >= 75 * 1024).sum())),
            ("nothing_of_this", 0),
        ):
            tab.page.fill("#blocks input[type=search]", f"state:all {text}")
            settled(tab)
            status = tab.page.inner_text("#blocks .filter [role=status]")
            assert status.startswith(f"{expected:,} of {len(blocks):,} blocks"), text
        # A search by address
        address = f"0x{int(blocks.address[5]):x}"
        tab.page.fill("#blocks input[type=search]", address)
        settled(tab)
        expected = int((blocks.address == blocks.address[5]).sum())
        assert tab.page.inner_text("#blocks .filter [role=status]").startswith(f"{expected} of ")
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
    assert history.is_known
    blocks, events = history.blocks, len(snapshot.traces[0])
    with shown(chromium, tmp_path, page_of(open_file(snapshot))) as tab:
        # WHEN a range is dragged over the timeline
        box = tab.page.locator("#timeline .over").bounding_box()
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
        count = int(kept.sum())
        # AND the table shows these blocks, by call site
        assert any("remember" in cell for row in rows(tab, "blocks") for cell in row)
        status = tab.page.inner_text("#blocks .filter [role=status]")
        assert status.startswith(f"{count:,} of {len(blocks):,} blocks")
        assert ", allocated and not released after event " in status
