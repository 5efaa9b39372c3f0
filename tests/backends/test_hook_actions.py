"""Test that a hook mislabels no event of an allocator whose list of actions changed."""

import subprocess
from pathlib import Path

import pytest
import tools

CSRC = Path(__file__).parents[2] / "csrc"
KNOWN = (
    "ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, "
    "SEGMENT_UNMAP, SNAPSHOT, OOM"
)
PROGRAM = """
#include "hooks/trace_entry.h"
struct Entry {{ enum Action {{ {actions} }}; }};
constexpr auto actions = known_actions<Entry>();
static_assert({more});
"""


def compiled(actions: str, tmp_path: Path, more: str = "true") -> subprocess.CompletedProcess[str]:
    """Compile the translation of the actions of an allocator."""
    compiler = tools.program("g++", "clang++")
    source = tmp_path / "actions.cpp"
    each = (f"actions[Entry::{name}] == PYTRACER_{name}" for name in KNOWN.split(", "))
    source.write_text(PROGRAM.format(actions=actions, more=" && ".join([more, *each])))
    command = [compiler, "-std=c++17", "-fsyntax-only", f"-I{CSRC}", str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("actions", "more"),
    [
        (KNOWN, "true"),
        (f"{KNOWN}, ANNOTATE", "actions[Entry::ANNOTATE] == PYTRACER_ANNOTATE"),
        (f"{KNOWN}, WORKSPACE_SNAPSHOT", "actions.size() == 10"),
        (f"{KNOWN}, UNKNOWN", "actions.size() == 9"),  # its events are left out
        (KNOWN.replace("ALLOC, FREE", "FREE_BEFORE = 9, ALLOC = 0, FREE", 1), "true"),
    ],
)
def test_known_actions_are_translated_by_name(actions: str, more: str, tmp_path: Path) -> None:
    done = compiled(actions, tmp_path, more)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("before", ["ALLOC", "SEGMENT_FREE", "OOM"])
def test_an_inserted_action_does_not_compile(before: str, tmp_path: Path) -> None:
    # GIVEN a release that has a new action among the known ones
    actions = ", ".join(
        f"INSERTED, {name}" if name == before else name for name in KNOWN.split(", ")
    )
    # THEN its hook does not compile, and the error says why
    done = compiled(actions, tmp_path)
    assert done.returncode != 0
    assert "comes after an action that this pytracer does not know" in done.stderr


def test_a_removed_action_does_not_compile(tmp_path: Path) -> None:
    done = compiled(KNOWN.replace(", SEGMENT_MAP", ""), tmp_path)
    assert done.returncode != 0
    assert "SEGMENT_MAP" in done.stderr
