"""Compare the names of memory with the truth, by address, in programs of truth_programs.py.

Each program runs under the default options to its end, and out of memory in its first and in a
later step. `pytest -s` prints the figures of names.md.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest

from pytracer.analysis.blocks import held_at
from pytracer.analysis.device_data import device_data
from pytracer.analysis.holder_names import tells_where
from pytracer.reading import load
from pytracer.reading.snapshot import OOM

PROGRAM = Path(__file__).parent / "truth_programs.py"
TABLE = Path(__file__).with_name("names.md")
CAPACITY_MIB = 40_000

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("simulated_device")]

SHORT = ("gpt",)  # the program of `make test`

PROGRAMS = tuple(re.findall(r"^def ([a-z]\w*)\(\) -> None:", PROGRAM.read_text(), re.M))[:-1]
PARAMETERS = [
    pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in PROGRAMS
]

LIMITS = [(0, 0.4), (0, 0.9), (2, 0.3), (2, 0.6), (2, 0.95)]
"""The steps from which memory is limited, and to which part of what the step needs."""

OWN = ("parameter", "buffer", "gradient", "optimizer_state")
OWN_AT_EXIT = ("parameter", "buffer", "optimizer_state")
"""Without gradients, which the last step has dropped."""

NOT_KEPT = (*OWN, "temporary", "workspace", "communication")
"""The categories that are wrong for what a variable of the program keeps."""


@dataclass(frozen=True)
class Found:
    """What a file says of the memory at the out-of-memory error, or at the peak."""

    place: str  # "exit", or where memory ran out
    unknown: float  # the part without a category, from 0 to 1
    nameless: float  # the part of which the file does not tell who keeps or kept it, either
    wrong: list[str]  # what the file says of blocks, and what is true
    left: list[str]  # the bytes, rules and call sites of blocks without a category


def run(folder: Path, name: str, *limit: object) -> dict[str, Any]:
    folder.mkdir()
    env = processes.environment(SIMULATED_CAPACITY_MB=str(CAPACITY_MIB), PYTRACER="1")
    done = processes.run_python(PROGRAM, name, *limit, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    reported: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return reported


def looks(folder: Path, name: str) -> Iterator[Found]:
    """Run a program with each limit, and compare its files with the truth."""
    normal = run(folder / "exit", name)
    (path,) = (folder / "exit").rglob("*.pickle")
    yield compared(path, normal["truth"], is_oom=False)
    for step, part in LIMITS:
        begin, peak = normal["sizes"][min(step, len(normal["sizes"]) - 1)]
        limited = folder / f"{step}_{part}"
        reported = run(limited, name, step, int(begin + part * (peak - begin)))
        paths = sorted(limited.rglob("*.pickle"))
        if any("oom" in path.name for path in paths):
            yield compared(paths[-1], reported["truth"], is_oom=True)


def compared(path: Path, truth: dict[str, dict[str, list[int]]], *, is_oom: bool) -> Found:
    snapshot = load(path)
    data = device_data(snapshot, 0)
    lives = data.history.blocks
    categories = data.block_categories
    assert categories is not None
    peak = None if is_oom else int(data.history.usage.allocated_bytes.argmax())
    held = held_at(data, len(data.trace) if peak is None else peak)
    names = [kind[0] for kind in categories.kinds]
    # An address has the block that was allocated there last: nothing is allocated after the truth
    # was noted.
    last = {int(address): row for row, address in enumerate(lives.address.tolist())}
    true: dict[int, tuple[str, str]] = {}
    for role, variables in truth.items():
        for variable, addresses in variables.items():
            for address in addresses:
                true.setdefault(last.get(address, -1), (role, variable))
    unknown = nameless = 0
    wrong = []
    left: Counter[str] = Counter()
    (texts, text), kept_by = held.column("released"), held["kept_by"]
    for place, row in enumerate(held.rows.tolist()):
        said, size = names[categories.kind[row]], int(lives.size_bytes[row])
        holder = texts[text[place]] or snapshot.strings[int(kept_by[place])]
        if said == "unknown":
            unknown += size
            nameless += size * (not tells_where(holder or None))
            rule = categories.kinds[categories.kind[row]][1]
            frames = snapshot.stacks.frames(int(lives.stack[row]))
            at = [f"{Path(each.filename).name}:{each.line}" for each in frames[:6]]
            left[f"{rule} {holder!r} {' '.join(at)}"] += size
        role, variable = true.get(row, ("", ""))
        if is_wrong(said, role, holder, is_oom=is_oom):
            truth_text = f"{role} {variable}" if role else "none of these"
            wrong.append(f"{size} bytes are {said} ({holder}), in truth {truth_text}")
    total = int(np.sum(held["size_bytes"]))
    place = _place(data) if is_oom else "exit"
    return Found(
        place,
        unknown / total,
        nameless / total,
        wrong,
        [f"{size} {text}" for text, size in left.most_common(4)],
    )


def is_wrong(said: str, role: str, holder: str, *, is_oom: bool) -> bool:
    """Return whether a category or a holder is not true of a block with a role."""
    if not role:
        return said in (OWN if is_oom else OWN_AT_EXIT)
    if role != "kept":
        return said not in (role, "unknown")
    # Of an object that several variables keep, the file names one.
    is_named = is_oom or said != "unknown" or holder.endswith("() returned")
    return said in NOT_KEPT or not is_named


def _place(data: Any) -> str:
    """Return where memory ran out."""
    stacks = data.trace.stack[data.trace.action == OOM]
    if not len(stacks):
        return "?"
    return ("outside", "forward", "optimizer", "backward")[data.stack_places.place[int(stacks[-1])]]


def table() -> dict[str, tuple[float, float]]:
    """Return the rows of the page: the most unknown and nameless parts of each program."""
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([\d.]+) % \| ([\d.]+) % \|$", TABLE.read_text(), re.M)
    return {name: (float(unknown) / 100, float(nameless) / 100) for name, unknown, nameless in rows}


def test_the_page_has_each_program() -> None:
    assert tuple(table()) == PROGRAMS


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_names_are_true(name: str, tmp_path: Path) -> None:
    found = list(looks(tmp_path, name))
    print()
    for each in found:
        print(
            f"{name} {each.place}: {each.unknown:.1%}, {each.nameless:.1%}", *each.left, sep="\n  "
        )
    assert [text for each in found for text in each.wrong] == []
    # AND no more is unknown than the page says
    places = {each.place for each in found}
    assert "exit" in places
    assert len(places) > 1
    unknown, nameless = table()[name]
    assert max(each.nameless for each in found) <= nameless + 0.005
    assert max(each.unknown for each in found) <= unknown + 0.03
