"""Measure the page of `pytracer view` for 1 M events: writing it, and using it in Chromium.

The snapshots are those of bench/reading.py, of pytracer's and of torch's own recorder. Writing: the
seconds and the peak memory of the command, in a process of its own, and the size of the page.
Using, in headless Chromium with the network off: the seconds from opening the file to the first
paint and to the drawn timeline; how many frames a second are drawn while the moment moves by itself
for some seconds, on the memory map, and how long the slowest twentieth of these frames takes at
least; and the memory of the tab's process. Needs playwright and Chromium. A headless Chromium draws
on the processor: a graphics card draws faster.

With `--memory-viz FOLDER`, PyTorch's page is measured with the same files: the seconds from opening
the page to its drawn "Active Memory Timeline", and to the list of its "Allocator State History",
how long one step of that history takes by an arrow key, and the memory of the tab. The folder has
one file `memory_viz.js`: torch/utils/viz/MemoryViz.js with the modules that it imports, bundled by
`esbuild --bundle --format=iife --global-name=MemoryViz`, with its imports of d3 from node_modules.
"""

import argparse
import base64
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import arguments, in_own_process, new_table, save, start, summary
from reading import measure_command

EVENTS = 1_000_000
KINDS = ("pytracer", "torch")
SCRUB_S = 4
WAIT_S = 300
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
SCRUB = """seconds => new Promise(done => {
    const selection = window.pytracerSelection;
    const last = window.pytracerModel.device.events.count;
    const begin = performance.now();
    const times = [];
    let before = null;
    const next = now => {
        const share = (now - begin) / (1000 * seconds);
        if (before !== null) times.push(now - before);
        before = now;
        if (share >= 1) {
            times.sort((a, b) => a - b);
            return done([times.length / seconds, times[Math.floor(0.95 * times.length)] / 1000]);
        }
        selection.update({entry: Math.round(last * share), tab: "map"});
        requestAnimationFrame(next);
    };
    requestAnimationFrame(next);
})"""
STEPS_OF_MEMORY_VIZ = """steps => new Promise(done => {
    const rows = [...document.querySelectorAll("pre")];
    const press = new MouseEvent("mousedown", {bubbles: true});
    rows[Math.floor(rows.length / 2)].dispatchEvent(press);
    const times = [];
    let before = null;
    const next = now => {
        if (before !== null) times.push(now - before);
        before = now;
        if (times.length === steps) {
            times.sort((a, b) => a - b);
            return done(times[Math.floor(steps / 2)] / 1000);
        }
        const key = new KeyboardEvent("keydown", {key: "ArrowDown", bubbles: true});
        document.body.dispatchEvent(key);
        requestAnimationFrame(next);
    };
    requestAnimationFrame(next);
})"""
PAINTED = """() => {
    const [paint] = performance.getEntriesByName("first-contentful-paint");
    return paint ? paint.startTime / 1000 : null;
}"""
STEPS = 10
VIEWS_OF_MEMORY_VIZ = (
    (
        "Active Memory Timeline",
        "() => document.querySelectorAll('svg polygon, svg path').length > 10",
        "timeline",
    ),
    ("Allocator State History", "() => document.querySelectorAll('pre').length > 10", "history"),
)
DRAWN = """() => [...document.querySelectorAll("#timeline canvas")].some(canvas => canvas.width > 0
    && canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some(v => v))"""


def worker(kind: str, path: str) -> dict[str, float]:
    import reading

    (reading.write_pytracer if kind == "pytracer" else reading.write_torch)(Path(path), EVENTS)
    return {}


def written(snapshot: Path, page: Path) -> dict[str, float]:
    """Write a page once."""
    found = measure_command(
        [sys.executable, "-m", "pytracer", "view", str(snapshot), "-o", str(page)], 600
    )
    assert found is not None
    return {"write_s": found["seconds"], "write_peak_bytes": found["peak_bytes"]}


def used(browser: Any, page: Path) -> dict[str, float]:
    """Open a page once and move through it."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(1000 * WAIT_S)
    tab = context.new_page()
    begin = time.perf_counter()
    tab.goto(page.as_uri())
    wait(tab, "() => window.pytracerModel !== undefined")
    wait(tab, DRAWN)
    drawn_s = time.perf_counter() - begin
    wait(tab, PAINTED)
    tab.evaluate("() => window.pytracerSelection.update({tab: 'map'})")
    frames, slow_frame_s = tab.evaluate(SCRUB, SCRUB_S)
    found = {
        "first_paint_s": tab.evaluate(PAINTED),
        "timeline_s": drawn_s,
        "frames_per_s": frames,
        "slow_frame_s": slow_frame_s,
        "tab_bytes": renderer_bytes(browser),
    }
    context.close()
    return found


def wait(tab: Any, condition: str) -> None:
    """Wait until a condition holds: playwright's own waiting needs `eval`, which pages forbid."""
    end = time.perf_counter() + WAIT_S
    while not tab.evaluate(condition):
        if time.perf_counter() > end:
            raise TimeoutError(f"not within {WAIT_S} s: {condition}")
        time.sleep(0.02)


def renderer_bytes(browser: Any) -> int:
    """Return the resident memory of the largest process that shows a page."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    sizes = []
    for process in processes:
        status = Path(f"/proc/{process['id']}/status")
        if process["type"] == "renderer" and status.is_file():
            sizes.append(int(status.read_text().partition("VmRSS:")[2].split()[0]) * 1024)
    return max(sizes)


def used_memory_viz(
    playwright: Any, chromium: str, snapshot: Path, folder: Path
) -> dict[str, float]:
    """Open a file once in each of two views of PyTorch's page.

    Each view has a browser of its own, as `used` has.
    """
    content = json.dumps(
        [{"name": snapshot.name, "base64": base64.b64encode(snapshot.read_bytes()).decode()}]
    )
    found: dict[str, float] = {}
    for view, condition, key in VIEWS_OF_MEMORY_VIZ:
        html = snapshot.with_name("memory_viz.html")
        html.write_text(
            f"<!doctype html><body><script>{(folder / 'memory_viz.js').read_text()}</script>"
            f"<script>MemoryViz.add_local_files({content}, {view!r})</script></body>"
        )
        browser = launched(playwright, chromium)
        context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
        context.set_default_timeout(1000 * WAIT_S)
        tab = context.new_page()
        begin = time.perf_counter()
        tab.goto(html.as_uri())
        wait(tab, condition)
        found[f"{key}_s"] = time.perf_counter() - begin
        if key == "history":
            found["history_step_s"] = tab.evaluate(STEPS_OF_MEMORY_VIZ, STEPS)
        found[f"{key}_tab_bytes"] = renderer_bytes(browser)
        browser.close()
        html.unlink()
    return found


def launched(playwright: Any, chromium: str) -> Any:
    """Start a browser: each figure needs its own, because a browser keeps what it has compiled."""
    return playwright.chromium.launch(
        executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
    )


def main() -> None:
    from playwright.sync_api import sync_playwright

    more = argparse.ArgumentParser(add_help=False)
    more.add_argument("--memory-viz", type=Path, help="the folder of PyTorch's page")
    options = arguments(__doc__, "view.json", rounds=3, parents=[more])
    chromium = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if chromium is None:
        sys.exit("Chromium is not installed: apt-get install chromium")
    figures = []
    columns = ["file", "MB", "page MB", "write s", "peak MB", "first paint s", "timeline s"]
    columns += ["frames/s", "slow frame ms", "tab MB"]
    table = new_table(f"Pages of {EVENTS:,} events (medians)", columns)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as name:
        snapshot, page = Path(name, "snapshot.pickle"), Path(name, "page.html")
        for kind in KINDS:
            in_own_process(__file__, kind, snapshot)
            rounds: list[dict[str, float]] = []
            viz: list[dict[str, float]] = []
            for _ in range(options.rounds):
                figure = written(snapshot, page)
                browser = launched(playwright, chromium)
                rounds.append({**figure, **used(browser, page)})
                browser.close()
                if options.memory_viz is not None:
                    viz.append(used_memory_viz(playwright, chromium, snapshot, options.memory_viz))
            found = {key: summary([each[key] for each in rounds]) for key in rounds[0]}
            sizes = {"snapshot_bytes": snapshot.stat().st_size, "page_bytes": page.stat().st_size}
            figure = {"kind": kind, "events": EVENTS, **sizes, **found}
            if viz:
                figure["memory_viz"] = {k: summary([e[k] for e in viz]) for k in viz[0]}
            figures.append(figure)
            middle = {key: value["median"] for key, value in found.items()}
            table.add_row(
                kind,
                *(f"{value / 1e6:.1f}" for value in sizes.values()),
                f"{middle['write_s']:.2f}",
                f"{middle['write_peak_bytes'] / 1e6:.0f}",
                f"{middle['first_paint_s']:.2f}",
                f"{middle['timeline_s']:.2f}",
                f"{middle['frames_per_s']:.0f}",
                f"{1000 * middle['slow_frame_s']:.0f}",
                f"{middle['tab_bytes'] / 1e6:.0f}",
            )
    save(options, figures, table)


if __name__ == "__main__":
    start(main, worker)
