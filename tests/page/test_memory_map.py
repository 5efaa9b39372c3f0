"""Does the memory map show streams, pools and free memory as they are?"""

import re
from pathlib import Path
from typing import Any

import pytest
from shown_pages import CUDA, GOLDEN, KEEP_TEXTS, MIB, of_file, settled, shown, state
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis.layout import layout_at
from pytracer.page.open_file import open_file
from pytracer.page.page import page_of
from pytracer.reading.reader import load
from pytracer.text import size

pytestmark = pytest.mark.slow

TEXTS_OF_MAP = """() => [...window.texts].filter(([canvas]) => canvas.closest("#map"))
    .flatMap(([, texts]) => texts.map(({text}) => text))"""


def test_streams_and_pools_have_rows(chromium: Any, tmp_path: Path) -> None:
    # GIVEN a file with two streams and a private pool, when memory ran out
    opened = open_file(load(CUDA))
    size_of_window = {"width": 1280, "height": 720}
    with shown(chromium, tmp_path, of_file(CUDA), viewport=size_of_window) as tab:
        tab.run(KEEP_TEXTS)
        tab.run("() => window.pytracerSelection.refresh()")
        settled(tab)
        data = opened.devices[0]
        layout = layout_at(opened.snapshot, data.device, data.history, state(tab)["entry"])
        # THEN the map has a row for each, with what is reserved and what of it is free
        expected: dict[str, tuple[int, int]] = {}
        for segment in layout.segments:
            pool = tuple(opened.snapshot.pools[segment.pool].tolist())
            name = f"stream {segment.stream}"
            name += f", private pool {pool[0]},{pool[1]}" if pool != (0, 0) else ""
            address, end = segment.address, segment.address + segment.size_bytes
            inside = (layout.block_address >= address) & (layout.block_address < end)
            free = segment.size_bytes - int(layout.block_bytes[inside].sum())
            before = expected.get(name, (0, 0))
            expected[name] = before[0] + segment.size_bytes, before[1] + free
        assert len(expected) == 3
        texts = tab.run(TEXTS_OF_MAP)
        begin = texts.index("Streams and pools")
        shown_rows = dict(zip(texts[begin + 1 :: 2], texts[begin + 2 :: 2], strict=False))
        for name, (reserved, free) in expected.items():
            assert shown_rows[name] == f"{size(reserved)}, {size(free) if free else 'nothing'} free"
        # AND a row names its parts, and a click on it shows its segments
        box = tab.page.locator("#map .map-box").bounding_box()
        tab.page.mouse.move(box["x"] + 50, box["y"] + 30)
        settled(tab)
        text = tab.page.inner_text("#map .tooltip")
        assert re.match(r"stream \d+: [\d.]+ MiB in \d segments?\n[\d.]+ MiB in use\n", text)
        tab.page.mouse.click(box["x"] + 50, box["y"] + 30)
        settled(tab)
        assert tab.run("() => document.querySelector('.map-box').scrollTop") > 50


def test_free_memory_looks_as_in_the_legend(chromium: Any, tmp_path: Path) -> None:
    # GIVEN a segment whose only block was freed
    program = Program()
    program.metadata = file_metadata()
    program.alloc(2 * MIB, ("train.py", "keep", 1))
    program.free(program.alloc(2 * MIB, ("train.py", "work", 2)))
    with shown(chromium, tmp_path, page_of(open_file(program.snapshot()))) as tab:
        tab.run(
            """() => window.pytracerSelection.update(
            {entry: window.pytracerModel.device.events.count, tab: "map"})"""
        )
        settled(tab)
        # THEN its upper edge is dashed, as that of the sample: it has the colours of both
        colours = """([selector, y]) => {
            const canvas = [...document.querySelectorAll(selector)].at(-1);
            const {data} = canvas.getContext("2d").getImageData(0, y, 240, 1);
            return [...new Uint32Array(data.buffer)];
        }"""
        sample = set(tab.run(colours, ["#map .map-legend canvas", 0])[2:26])
        edge = tab.run(colours, ["#map .map-box canvas", 22])  # below the heading
        dark, light = min(sample), max(sample)
        assert {dark, light} <= set(edge[150:230])
        # AND the segment in use, left of it, has a solid one
        assert set(edge[5:100]) == {dark}


def test_no_text_leaves_the_map_of_a_phone(chromium: Any, tmp_path: Path) -> None:
    # GIVEN streams whose names are long, and a private pool
    page = of_file(GOLDEN / "native" / "npu-2.14.0.pickle")
    with shown(chromium, tmp_path, page, viewport={"width": 390, "height": 844}) as tab:
        tab.run(KEEP_TEXTS)
        tab.run("() => window.pytracerSelection.refresh()")
        settled(tab)
        found = tab.run(
            """() => [...window.texts].filter(([canvas]) => canvas.closest("#map"))
            .flatMap(([{width}, texts]) => texts.map(({text, right}) => [text, right, width]))"""
        )
        assert any("…" in text for text, _, _ in found)
        for text, right, width in found:
            assert right <= width + 1, text
