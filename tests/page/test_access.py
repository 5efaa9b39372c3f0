"""Can a page be used safely, by the keyboard, in a notebook, and on paper?"""

import re
from pathlib import Path
from typing import Any

import browser
import pytest
from page_decoder import page_json
from shown_pages import (
    CUDA,
    IS_READY,
    MIB,
    TABS,
    defects,
    of_file,
    page_of_files,
    page_of_two_files,
    settled,
    shown,
    tab_named,
    training,
)
from synthetic_snapshots import Program, file_metadata

from pytracer.page.difference import difference_of
from pytracer.page.open_file import open_file
from pytracer.page.page import page_of
from pytracer.reading.reader import load

pytestmark = pytest.mark.slow


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
    more = {"title": names[1], "left_out": names, "difference": difference_of(first, other)}
    # WHEN all views are shown, by each colouring
    with shown(chromium, tmp_path, page_of_files(first, other, **more)) as tab:
        for colour in ("category", "site", "phase", "step", "age"):
            tab.run("colour => window.pytracerSelection.update({colour, block: 0})", colour)
            settled(tab)
            for view in (*TABS, "ranks", "difference"):
                tab_named(tab, view)
        tab_named(tab, "blocks")
        box = tab.page.locator("#timeline .over").bounding_box()
        tab.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.9)
        settled(tab)
        # THEN nothing of it ran, and the names are texts
        assert tab.run("() => window.hacked") is None
        assert tab.run("() => document.querySelectorAll('img, svg[onload]').length") == 0
        assert names[0] in tab.page.inner_text("aside")
        tab.page.click("#verdict button[aria-expanded]")
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
        frame.locator("#blocks .table-body [data-index='0']").wait_for()
        settled(tab)
        assert [p for p in tab.problems if "about:srcdoc" not in p] == []


# The text of a notebook of each theme, the background of the page, and the colour of a canvas: that
# of the frame around the interval in the minimap.
TEXT = {"light": "#333", "dark": "color(srgb .9 .9 .9)"}
PAGE = {"light": "rgb(246, 247, 249)", "dark": "rgb(15, 19, 24)"}
FRAME = {"light": [17, 17, 17, 255], "dark": [255, 255, 255, 255]}
SHOWN = """() => {
    const inside = document.querySelector("iframe").contentWindow;
    const map = inside.document.querySelector(".minimap");
    const pixel = map?.getContext("2d").getImageData(map.width / 2, 0, 1, 1).data;
    return [inside.getComputedStyle(inside.document.body).backgroundColor, [...pixel ?? []]];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_notebook_has_its_theme(scheme: str, chromium: Any, tmp_path: Path) -> None:
    # GIVEN notebooks of both themes, which the browser does not know
    for theme, other in (("light", "dark"), ("dark", "light")):
        path = tmp_path / f"{theme}.html"
        page = of_file(CUDA)._repr_html_()
        path.write_text(
            f'<!doctype html><body style="color: {TEXT[theme]}"><div>{page}</div></body>'
        )
        with browser.opened(chromium, path, color_scheme=scheme) as tab:
            tab.page.frame_locator("iframe").locator("#tab-blocks").wait_for()
            settled(tab)
            # THEN the page has the notebook's theme, and its canvases too
            assert tab.run(SHOWN) == [PAGE[theme], FRAME[theme]]
            # WHEN the notebook's theme changes, THEN so does the page's
            tab.run("text => { document.body.style.color = text; }", TEXT[other])
            settled(tab)
            settled(tab)
            assert tab.run(SHOWN) == [PAGE[other], FRAME[other]]


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
        for key in ("Enter", "ArrowDown", "Enter"):  # opens the call site
            tab.page.keyboard.press(key)
        tab.wait("() => window.pytracerSelection.state.block !== null")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_defect(scheme: str, web: Path, chromium: Any, tmp_path: Path) -> None:
    difference = difference_of(open_file(load(CUDA)), open_file(training()))
    page = page_of_two_files(left_out=["Something was left out."], difference=difference)
    with shown(chromium, tmp_path, page, color_scheme=scheme) as tab:
        for view in (*TABS, "ranks", "difference"):
            tab_named(tab, view)
            tab.run("() => window.pytracerSelection.update({block: 1})")
            settled(tab)
            assert defects(tab, web) == [], view


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
