"""Pages that Chromium shows, and what a test reads from them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
from browser import Tab
from synthetic_snapshots import Program, file_metadata

from pytracer.page.file_data import file_data
from pytracer.page.open_file import OpenFile, open_file, summarised, verdict_of
from pytracer.page.page import Page, page_of
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Snapshot

GOLDEN = Path(__file__).parents[1] / "golden"
CUDA = GOLDEN / "native" / "cuda-2.15.0.pickle"
TABS = ("map", "blocks", "events", "flame")
MIB = 2**20
IS_READY = "() => window.pytracerModel !== undefined"

# Keeps, for each canvas, the texts that were written since it was cleared, with the pixels of the
# page that their letters have.
KEEP_TEXTS = """() => {
    const texts = (window.texts = new Map());
    const {clearRect, fillText} = CanvasRenderingContext2D.prototype;
    Object.assign(CanvasRenderingContext2D.prototype, {
        clearRect(...box) {
            texts.set(this.canvas, []);
            clearRect.apply(this, box);
        },
        fillText(text, x, y) {
            const found = this.measureText(text);
            const {a, e, f} = this.getTransform();
            texts.get(this.canvas)?.push({text, left: e + a * (x - found.actualBoundingBoxLeft),
                right: e + a * (x + found.actualBoundingBoxRight),
                top: f + a * (y - found.actualBoundingBoxAscent),
                bottom: f + a * (y + found.actualBoundingBoxDescent)});
            fillText.call(this, text, x, y);
        },
    });
}"""
TEXTS = """() => [...window.texts].filter(([canvas]) => canvas.closest("#timeline"))
    .flatMap(([canvas, texts]) => {
        const area = canvas.getBoundingClientRect();
        return texts.map(one => ({text: one.text,
            box: [one.left + area.left, one.top + area.top, one.right + area.left,
                one.bottom + area.top],
            area: [area.left, area.top, area.right, area.bottom]}));
    })"""


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


def rows(tab: Tab, panel: str) -> list[list[str]]:
    """Return the texts of the rows of a table that exist now, from the top."""
    found: list[list[str]] = tab.run(
        """panel => [...document.querySelectorAll(`#${panel} .table-body [data-row]`)]
        .sort((a, b) => a.dataset.index - b.dataset.index)
        .map(row => [...row.children].map(cell => cell.textContent))""",
        panel,
    )
    return found


def page_of_files(*files: OpenFile, **more: Any) -> Page:
    content: dict[str, Any] = {
        "title": "two",
        "verdict": verdict_of(files[0].file),
        "files": [summarised(file) for file in files],
        "data": {i: file_data(f.snapshot, f.devices, 10**6)[0] for i, f in enumerate(files)},
        "left_out": [],
    }
    return Page(**content | more)


def page_of_two_files(**more: Any) -> Page:
    return page_of_files(open_file(load(CUDA)), open_file(training()), **more)


def settled(tab: Tab, after_ms: int = 400) -> None:
    """Wait until the tables are filtered, the address is written, and all views are drawn.

    The page's own clock decides, which a slow machine delays as it delays the page's timers. What
    is drawn at once is drawn after no time.
    """
    tab.run(
        """after => new Promise(done => setTimeout(
        () => requestAnimationFrame(() => requestAnimationFrame(done)), after))""",
        after_ms,
    )


def defects(tab: Tab, web: Path) -> list[Any]:
    """Return the serious defects that axe finds in the page as it is."""
    tab.run((web / "node_modules/axe-core/axe.min.js").read_text())
    found: list[Any] = tab.run(
        """async () => (await axe.run()).violations
        .filter(each => ["serious", "critical"].includes(each.impact))
        .map(each => [each.id, each.nodes.slice(0, 3).map(node => node.html.slice(0, 200)
            + " " + node.failureSummary)])"""
    )
    return found
