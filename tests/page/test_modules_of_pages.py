"""Does a page show the modules of a model, with figures that a person can check?"""

from pathlib import Path
from typing import Any

import pytest
from shown_pages import defects, settled, shown, tab_named
from synthetic_snapshots import Program, file_metadata

from pytracer.page.open_file import open_file
from pytracer.page.page import page_of

LAYERS = 12
TIMES, DASH = "\N{MULTIPLICATION SIGN}", "\N{EN DASH}"
WEIGHTS = 300 * 400  # of a layer: values of 4 bytes


def model() -> Program:
    """Return a model of equal layers, its optimizer's states, a head, and a block of no module."""
    program = Program()
    program.metadata = file_metadata()
    for layer in range(LAYERS):
        for category, rule, prefix in (
            ("parameter", "module", ""),
            ("optimizer_state", "optimizer", "exp_avg of "),
        ):
            block = program.alloc(4 * WEIGHTS, ("model.py", "__init__", 3))
            program.own(block, category, rule, f"{prefix}layers.{layer}.attn.weight")
    program.own(program.alloc(1000, ("model.py", "head", 4)), "parameter", "module", "head.weight")
    program.alloc(500 * 1024, ("data.py", "load", 5))
    return program


@pytest.mark.slow
def test_equal_layers_are_one_box(web: Path, chromium: Any, tmp_path: Path) -> None:
    with shown(chromium, tmp_path, page_of(open_file(model().snapshot()))) as tab:
        tab_named(tab, "modules")
        settled(tab)
        # THEN the layers are one box, with what each of them requested
        titles = tab.run(
            "() => [...document.querySelectorAll('#modules .flame-box')].map(b => b.title)"
        )
        (layers,) = [title for title in titles if title.startswith(f"0{DASH}11 (12 {TIMES}): ")]
        each = 2 * 4 * WEIGHTS
        assert layers.endswith(f" Requested: 12 {TIMES} {each:,} bytes in 24 blocks")
        (parameter,) = [title for title in titles if title.startswith(f"parameter (12 {TIMES})")]
        assert parameter.endswith(
            f" Requested: 12 {TIMES} {4 * WEIGHTS:,} bytes in 12 blocks, "
            f"each {WEIGHTS:,} values of 4 bytes, or {2 * WEIGHTS:,} of 2 bytes"
        )
        assert any(title.startswith("(no module): 500 KiB") for title in titles)
        # WHEN a box is clicked, THEN its figures are shown as text
        tab.page.locator("#modules .flame-box", has_text="parameter").first.click()
        settled(tab)
        assert f"{WEIGHTS:,} values of 4 bytes" in tab.page.inner_text("#modules > p")
        assert defects(tab, web) == []
    # AND a file without modules has no tab for them
    program = Program()
    program.metadata = file_metadata()
    program.alloc(5000, ("data.py", "load", 5))
    with shown(chromium, tmp_path, page_of(open_file(program.snapshot())), "tab=modules") as tab:
        assert tab.page.locator("#tab-modules").count() == 0
