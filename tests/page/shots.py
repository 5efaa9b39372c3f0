"""Take pictures of pages for people to look at: `make shots`.

Seven files in three sizes of the window and both themes, into build/shots: each file with the view
that its page opens with, and in the middle size with all of its views.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import browser
from shown_pages import GOLDEN, of_file, page_of_files, settled, shown, tab_named, training
from test_difference_of_pages import run

from pytracer.page.difference import difference_of
from pytracer.page.open_file import compared, open_file, summarised, verdict_of
from pytracer.page.page import Page, page_of

FOLDER = Path(__file__).parents[2] / "build" / "shots"
SIZES = ((1280, 720), (2560, 1440), (390, 844))
THEMES = ("light", "dark")


def pages() -> Iterator[tuple[str, Page]]:
    """Yield the name and the page of each file."""
    for name in ("cuda-2.15.0", "cuda-2.15.0-ring", "npu-2.14.0"):
        yield name, of_file(GOLDEN / "native" / f"{name}.pickle")
    for name in ("snapshot-1.12-cuda", "snapshot-1.12-cpu"):
        yield name, of_file(GOLDEN / f"{name}.pickle")
    yield "leak", page_of(open_file(training()))
    files = [run(more_from=11), run()]
    summaries, difference = [summarised(file) for file in files], difference_of(*files)
    verdict = compared(verdict_of(files[0].file), summaries, difference)
    yield "two files", page_of_files(*files, verdict=verdict, difference=difference)


def main() -> None:
    """Write the pages, and take the pictures."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    with browser.driver() as running, browser.started(running) as started:
        for name, page in pages():
            for width, height in SIZES:
                for theme in THEMES:
                    size = {"width": width, "height": height}
                    with shown(started, FOLDER, page, viewport=size, color_scheme=theme) as tab:
                        settled(tab)
                        path = FOLDER / f"{name} {width} {theme}.png"
                        tab.page.screenshot(path=path)
                        if (width, theme) != (SIZES[0][0], "light"):
                            continue
                        for view in tab.page.locator("[role=tab]").all():
                            tab_named(tab, str(view.get_attribute("id"))[4:])
                            settled(tab)
                            tab.page.screenshot(path=path.with_stem(f"{name}, {view.inner_text()}"))
    print(f"The pictures are in {FOLDER}.")


if __name__ == "__main__":
    main()
