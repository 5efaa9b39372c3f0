"""Do the commands still say the same about each recording? `make screens` writes the texts anew."""

import difflib
from collections.abc import Iterator
from pathlib import Path

import pytest
from screens import screens as module
from screens.screens import RECORDINGS, TEXTS, Screen

SHOWN = 200
"""So many lines of a difference are printed."""


@pytest.fixture(scope="module", autouse=True)
def folder() -> Iterator[Path]:
    with module.folder_of_commands() as folder:
        yield folder


@pytest.fixture(scope="module")
def screens(folder: Path) -> dict[str, Screen]:
    return {screen.name: screen for screen in module.screens(folder)}


NAMES = sorted(str(path.relative_to(TEXTS).with_suffix("")) for path in TEXTS.rglob("*.txt"))


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_print_this(name: str, screens: dict[str, Screen]) -> None:
    before = (TEXTS / f"{name}.txt").read_text()
    now = module.text_of(screens[name])
    if now != before:
        lines = before.splitlines(), now.splitlines()
        change = [*difflib.unified_diff(*lines, f"{name}.txt", "now", n=1, lineterm="")]
        shown = "\n".join(change[:SHOWN])
        pytest.fail(f"The answers changed, in {len(change)} lines:\n{shown}", pytrace=False)


def test_each_recording_has_a_text(screens: dict[str, Screen]) -> None:
    assert sorted(screens) == NAMES
    assert sum(path.stat().st_size for path in RECORDINGS.rglob("*.gz")) <= 10 * 2**20
