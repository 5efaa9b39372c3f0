"""Is the window used: what is above the fold, and are labels readable?"""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from shown_pages import (
    CUDA,
    GOLDEN,
    KEEP_TEXTS,
    TABS,
    TEXTS,
    of_file,
    rows,
    settled,
    shown,
    state,
    tab_named,
    training,
)

from pytracer.page.open_file import open_file
from pytracer.page.page import page_of

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "firefox")
WINDOWS = ((1280, 720), (1920, 1080), (2560, 1440))
# The first thing that each view shows.
FIRST = {
    "map": ".map-box canvas",
    "blocks": ".table-body .table-row",
    "events": ".table-body .table-row",
    "flame": ".flame-box[aria-level='3']",
}


def box(tab: Any, selector: str) -> dict[str, float]:
    found: dict[str, float] = tab.page.locator(selector).first.bounding_box()
    return found


# Firefox has some of the cases, because each takes seconds.
@pytest.mark.parametrize(
    ("each_browser", "window"),
    [*(("chromium", window) for window in WINDOWS), ("firefox", WINDOWS[0])],
    indirect=["each_browser"],
)
def test_the_open_tab_is_above_the_fold(
    window: tuple[int, int], each_browser: Any, tmp_path: Path
) -> None:
    # GIVEN a page with a long verdict
    width, height = window
    size = {"width": width, "height": height}
    with shown(each_browser, tmp_path, of_file(CUDA), viewport=size) as tab:
        assert tab.page.locator("#verdict li").count() > 3
        assert box(tab, "#verdict")["height"] < 110
        assert height / 3 < box(tab, "#timeline .plot")["height"] <= height / 2
        for view in TABS:
            # WHEN a tab is opened, THEN its content is in the window, down to the lower edge
            tab_named(tab, view)
            settled(tab)
            first, panel = box(tab, f"#{view} {FIRST[view]}"), box(tab, f"#{view}")
            assert first["y"] + min(first["height"], 100) <= height, view
            assert height - 20 < panel["y"] + panel["height"] <= height, view
            assert panel["height"] > 0.3 * height, view
            assert tab.run("() => document.documentElement.scrollHeight") == height


@pytest.mark.parametrize("path", [CUDA, GOLDEN / "snapshot-1.12-cuda.pickle"])
def test_the_verdict_opens_on_a_click(path: Path, chromium: Any, tmp_path: Path) -> None:
    page = of_file(path)
    with shown(chromium, tmp_path, page, viewport={"width": 1280, "height": 720}) as tab:
        # GIVEN the two lines: the heading, and what to do
        lines = tab.page.locator("#verdict li:visible")
        assert lines.all_inner_texts() == [
            next(
                (line for line in page.verdict.lines if line.startswith("Do: ")),
                page.verdict.lines[0],
            )
        ]
        # WHEN the verdict is clicked, THEN all of it is shown; the button hides it again
        tab.page.click("#verdict h1")
        assert lines.all_inner_texts() == page.verdict.lines
        assert tab.page.locator("#verdict code:visible").count() == len(page.verdict.commands)
        tab.page.click("#verdict button[aria-expanded=true]")
        assert lines.count() == 1


def test_names_in_the_verdict_show_what_they_name(chromium: Any, tmp_path: Path) -> None:
    page = of_file(CUDA)
    with shown(chromium, tmp_path, page, viewport={"width": 1280, "height": 720}) as tab:
        device = "window.pytracerModel.device"
        tab.page.click("#verdict h1")
        # WHEN a call site of the verdict is clicked, THEN the table has its blocks
        site = tab.page.locator("#verdict .link", has_text="train.py:").first
        name = site.inner_text()
        site.click()
        settled(tab)
        assert state(tab)["tab"] == "blocks"
        names = tab.run("() => window.pytracerModel.file.sites")
        assert name in names
        assert {row[3] for row in rows(tab, "blocks")} == {name}
        # WHEN its first word is, THEN the moment is that of the error
        tab.run("() => window.pytracerSelection.update({entry: 1})")
        tab.page.click("#verdict .link:has-text('Asked')")
        oom = tab.run(f"() => {device}.marks.find(mark => mark.kind === 'oom').event")
        assert state(tab)["entry"] == oom + 1
        # AND the verdict is still open
        assert tab.page.locator("#verdict li:visible").count() == len(page.verdict.lines)


def test_the_verdict_is_copied_as_markdown(chromium: Any, tmp_path: Path) -> None:
    page = of_file(CUDA)
    page = replace(page, verdict=replace(page.verdict, lines=["Lines: <b> of a_b", "Do: *this*"]))
    with shown(chromium, tmp_path, page) as tab:
        tab.run(
            "() => void (navigator.clipboard.writeText = async text => { window.copied = text; })"
        )
        tab.page.click("#verdict h1")
        tab.page.click("text=Copy as Markdown")
        heading, _, *lines = tab.run("() => window.copied").split("\n")
        assert heading == f"**{page.verdict.heading}**"
        assert lines[:3] == ["- Lines: \\<b\\> of a\\_b", "- Do: \\*this\\*", ""]
        assert lines[3:] == [f"    {command}" for command in page.verdict.commands]


@pytest.mark.parametrize("each_browser", BROWSERS, indirect=True)
def test_a_phone_scrolls_down_only(each_browser: Any, tmp_path: Path) -> None:
    size = {"width": 390, "height": 844}
    with shown(each_browser, tmp_path, of_file(CUDA), viewport=size) as tab:
        for view in TABS:
            tab_named(tab, view)
            settled(tab)
            scrolled, seen = tab.run(
                "() => ['scrollWidth', 'clientWidth'].map(each => document.documentElement[each])"
            )
            assert scrolled == seen <= 390
            assert box(tab, f"#{view} {FIRST[view]}")["y"] < 844, view


# Labels of the timeline


@pytest.mark.parametrize(
    ("each_browser", "name"),
    [
        *(("chromium", name) for name in ("oom", "ring", "steps", "cpu", "npu", "leak")),
        ("firefox", "oom"),
    ],
    indirect=["each_browser"],
)
def test_no_label_covers_another_one(name: str, each_browser: Any, tmp_path: Path) -> None:
    # GIVEN pages with and without steps, phases, an out-of-memory and a limit
    page = page_of(open_file(training()))
    if name != "leak":
        files = {
            "oom": "native/cuda-2.15.0",
            "ring": "native/cuda-2.15.0-ring",
            "steps": "snapshot-1.12-cuda",
            "cpu": "snapshot-1.12-cpu",
            "npu": "native/npu-2.14.0",
        }
        page = of_file(GOLDEN / f"{files[name]}.pickle")
    with shown(each_browser, tmp_path, page) as tab:
        tab.run(KEEP_TEXTS)
        for width, height in (*WINDOWS, (390, 844)):
            tab.page.set_viewport_size({"width": width, "height": height})
            for share, axis in ((0.5, "events"), (0.5, "time"), (0, "time"), (0, "events")):
                # WHEN the timeline is drawn, from its beginning and zoomed to its end
                tab.run(
                    """([share, axis]) => {
                    const last = window.pytracerModel.device.events.count;
                    const zoom = share ? [Math.floor(share * last), last] : null;
                    window.pytracerSelection.update({zoom, axis});
                }""",
                    [share, axis],
                )
                settled(tab, 0)
                found = tab.run(TEXTS)
                # THEN it has its labels, each inside its picture and none over another one
                names = " ".join(one["text"] for one in found)
                assert "event " in names
                assert "End" in names
                if name == "oom":
                    assert "Out of memory" in names
                    # It was known until the error, which is less than a pixel of the time.
                    assert share or axis == "time" or "limit" in names
                for one in found:
                    (left, top, right, bottom), area = one["box"], one["area"]
                    assert left >= area[0] - 1, one
                    assert right <= area[2] + 1, one
                    assert top >= area[1] - 1, one
                    assert bottom <= area[3] + 1, one
                for one, other in combinations(found, 2):
                    (left, top, right, bottom), box = one["box"], other["box"]
                    is_beside = right <= box[0] or box[2] <= left
                    assert is_beside or bottom <= box[1] or box[3] <= top, (one, other)
