"""Does a page with a baseline show the difference over time and by line?"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shown_pages import GOLDEN, MIB, page_of_files, settled, shown
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis.diff.compare import compare_snapshots
from pytracer.page.difference import difference_of
from pytracer.page.open_file import OpenFile, open_file
from pytracer.reading.reader import load
from pytracer.text import size

STEPS = 20


def run(*, more_from: int | None = None, has_steps: bool = True) -> OpenFile:
    """Return a training that allocates 4 MiB in each step; from a step on, 3 MiB more."""
    program = Program()
    program.metadata = file_metadata(current_step=STEPS + 1)
    steps = []
    for step in range(1, STEPS + 1):
        steps.append((step, len(program.events)))
        sizes = [MIB] * 4 + [MIB] * 3 * (more_from is not None and step >= more_from)
        inner = [program.alloc(size, ("model.py", "forward", i)) for i, size in enumerate(sizes)]
        for address in inner[1:] if step == STEPS else inner:
            program.free(address)
    if has_steps:
        program.metadata["devices"][0]["steps"] = steps
    return open_file(program.snapshot())


def test_the_curves_are_of_the_same_steps() -> None:
    # GIVEN a run that holds more from step 11 on: it has more events in each of these
    difference = difference_of(run(more_from=11), run())
    curves = difference["curves"]
    # THEN the curves are equal before, and differ by the 3 MiB at each step's peak after
    before, after = np.array(curves["before"]), np.array(curves["after"])
    parts = len(before) // STEPS
    peaks = (after - before).reshape(STEPS, parts)
    assert not peaks[:10].any()
    assert (after.reshape(STEPS, parts).max(1)[10:] == 7 * MIB).all()
    assert (before.reshape(STEPS, parts).max(1) == 4 * MIB).all()
    assert curves["ends"] == ["step 1", "step 20"]
    assert curves["largest"]["where"] == "in step 11"
    assert curves["largest"]["bytes"] == peaks.max()


def test_without_steps_the_curves_are_of_all_events() -> None:
    curves = difference_of(run(has_steps=False), run(more_from=11))["curves"]
    assert curves["ends"] == ["first event", "last event"]
    assert len(curves["before"]) == len(curves["after"])
    assert max(curves["before"]) == 7 * MIB
    assert max(curves["after"]) == 4 * MIB
    assert curves["largest"]["where"].endswith("% of the events")


@pytest.mark.slow
def test_the_page_shows_the_difference(chromium: Any, tmp_path: Path) -> None:
    files = [run(more_from=11), run()]
    page = page_of_files(*files, difference=difference_of(*files))
    with shown(chromium, tmp_path, page) as tab:
        settled(tab)
        # THEN one picture has both curves, and what lies between them is in the right half
        between = tab.page.locator("polygon.difference-more").bounding_box()
        picture = tab.page.locator("#difference svg").bounding_box()
        assert picture["width"] > 600
        assert between["height"] > 0.3 * picture["height"]
        assert tab.page.locator("polyline.difference-before").count() == 1
        caption = tab.page.inner_text("#difference figcaption")
        assert "up to 7 MiB" in caption
        assert "in step 11" in caption
        # AND the table has the change as a percentage or a factor, and wide bars
        cells = tab.page.locator("#difference tbody tr").all_inner_texts()
        assert "new" in cells[0].split("\t")
        bar = tab.page.locator(".difference-bar").first.bounding_box()
        assert bar["width"] > 0.3 * tab.page.locator("#difference table").bounding_box()["width"]
    # AND a change that has a baseline has its factor
    grown = replace(page, difference=difference_of(files[1], run(more_from=1)))
    assert {row["share"] for row in grown.difference["rows"]} >= {"gone"}


@pytest.mark.slow
def test_the_page_names_the_modules_that_grew(chromium: Any, tmp_path: Path) -> None:
    files = [open_file(load(GOLDEN / f"snapshot-{n}-cuda.pickle")) for n in ("1.12", "1.7")]
    (device,) = compare_snapshots(files[1].snapshot, files[0].snapshot).devices[:1]
    with shown(chromium, tmp_path, page_of_files(*files, difference=difference_of(*files))) as tab:
        settled(tab)
        # THEN the second table has the modules that changed, as the analysis has them
        found = tab.page.locator("#difference table").nth(1).locator("tbody tr").all_inner_texts()
    assert any(change.name == "backward of 0" for change in device.changes["module"])
    assert [row.split("\t")[:2] + row.split("\t")[-1:] for row in found] == [
        [size(change.before_bytes), size(change.after_bytes), change.name or "(unknown)"]
        for change in device.changes["module"]
        if change.is_change
    ]
