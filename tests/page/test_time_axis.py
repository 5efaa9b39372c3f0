"""Does the timeline show the time that things took?"""

from pathlib import Path
from typing import Any

import pytest
from shown_pages import KEEP_TEXTS, TEXTS, settled, shown, state
from synthetic_snapshots import Program, file_metadata

from pytracer.page.open_file import open_file
from pytracer.page.page import page_of

pytestmark = pytest.mark.slow


def waiting() -> Program:
    """Return a program that allocates 100 blocks at once, waits 9 s, and allocates 20 in 1 s."""
    program = Program()
    program.metadata = file_metadata(current_step=2)
    steps = [(1, 0)]
    for _ in range(100):
        program.alloc(10_000, ("train.py", "load", 1))
    program.annotate("waiting", "START")
    program.advance(4_000_000)
    program.annotate("idle", "START")  # without any event
    program.advance(2_000_000)
    program.annotate("idle", "END")
    program.advance(3_000_000)
    program.annotate("waiting", "END")
    steps.append((2, len(program.events)))
    for _ in range(20):
        program.advance(50_000)
        program.alloc(10_000, ("train.py", "train", 2))
    program.metadata["devices"][0]["steps"] = steps
    return program


def lanes(tab: Any) -> dict[str, float]:
    """Return where the name of each lane begins, as a part of the timeline's width."""
    settled(tab)
    left, right = (
        tab.run("() => document.querySelector('.lanes').getBoundingClientRect()")[side]
        for side in ("left", "right")
    )
    return {
        one["text"]: round((one["box"][0] - left) / (right - left), 2)
        for one in tab.run(TEXTS)
        if one["text"].startswith(("step", "waiting", "idle"))
    }


def test_the_axis_switches_between_events_and_time(chromium: Any, tmp_path: Path) -> None:
    snapshot = waiting().snapshot()
    with shown(chromium, tmp_path, page_of(open_file(snapshot))) as tab:
        tab.run(KEEP_TEXTS)
        # GIVEN the axis of events, on which no event happened while the program waited
        tab.run("() => window.pytracerSelection.refresh()")
        tab.page.set_viewport_size({"width": 1300, "height": 900})
        found = lanes(tab)
        assert abs(found["waiting"] - found["step 2"]) < 0.02
        assert found["step 1"] < 0.02
        assert found["step 2"] > 0.7
        # WHEN the axis is time, THEN steps and phases are where they were in time
        tab.page.select_option("#timeline select >> nth=1", "time")
        found = lanes(tab)
        assert found.keys() == {"step 1", "step 2", "waiting", "idle"}
        assert found["idle"] == pytest.approx(0.4, abs=0.02)
        assert max(found["step 1"], found["waiting"]) < 0.02
        assert found["step 2"] == pytest.approx(0.9, abs=0.02)
        names = {one["text"].partition(" ·")[0] for one in tab.run(TEXTS)}
        assert {"2 s", "4 s", "6 s", "8 s"} <= names or {"5 s"} <= names, names
        # AND the moment in the middle is the one before the program waited
        box = tab.page.locator("#timeline .over").bounding_box()
        tab.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] - 5)
        settled(tab)
        actions = [event["action"] for event in waiting().events]
        before = [i for i, action in enumerate(actions) if action == "alloc"][99]
        assert state(tab)["entry"] == before + 1
        # AND the address keeps the axis
        assert "axis=time" in tab.page.url
        # WHEN the wheel zooms at the end, THEN the last second has the width
        tab.page.mouse.move(box["x"] + 0.97 * box["width"], box["y"] + 20)
        for _ in range(10):
            tab.page.mouse.wheel(0, -200)
            settled(tab)
        first, last = state(tab)["zoom"]
        assert before < first < last
        assert "waiting" not in lanes(tab)
