"""Test who holds memory at a moment, against a synthetic program whose state is known."""

import json
import pickle
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import commands
import pytest
from commands import cells
from hypothesis import given
from hypothesis import strategies as st
from synthetic_program import CALL_SITES, STACKS, operations, run
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis import who_holds
from pytracer.analysis.groups import Group
from pytracer.analysis.holder_names import folded
from pytracer.errors import PytracerError
from pytracer.reading import load

GOLDEN = Path(__file__).parents[1] / "golden"
CUDA = GOLDEN / "snapshot-1.4-cuda.pickle"
# The model has one stream and one pool. The screens and test_modules.py have the others.
OF_TRACE = ["line", "caller", "stack", "phase", "step", "age"]
# The program's frames that call the call site of each stack.
CALLERS = [(), (STACKS[1][2],), (), (STACKS[3][1],), ()]

invoke = partial(commands.invoke, "show")


def key(group: Group, by: str) -> Any:
    return tuple(group.frames) if by in ("line", "caller", "stack") else getattr(group, by)


@given(operations, st.integers(0, 200), st.sampled_from(OF_TRACE), st.integers(0, 2))
def test_groups_equal_the_model(
    program: list[tuple[str, int, int]], event: int, by: str, depth: int
) -> None:
    # GIVEN a program, and the blocks that it held after an event
    model = run(program)
    if not model.trace:
        return
    event %= len(model.trace)
    snapshot = model.snapshot()

    def step_at(index: int) -> int | None:
        begun = [step for step, first in model.boundaries if first <= index]
        return begun[-1] if begun else None

    sizes: Counter[Any] = Counter()
    counts: Counter[Any] = Counter()
    for block in model.moments[event + 1].values():
        site, callers = CALL_SITES[block.stack], CALLERS[block.stack]
        step, now = step_at(block.event), step_at(event)
        expected = {
            "line": () if site is None else (site, *callers[:depth]),
            "caller": callers[: depth + 1],
            "stack": STACKS[block.stack],
            "phase": block.phase,
            "step": step,
            "age": None if step is None or now is None else now - step,
        }[by]
        sizes[expected] += block.size
        counts[expected] += 1
    # WHEN the blocks are grouped
    (held,) = who_holds(snapshot, 1, at=str(event), by=by, depth=depth)
    # THEN the groups are those of the model, the largest first
    assert {key(group, by): group.size_bytes for group in held.groups} == sizes
    assert {key(group, by): group.count for group in held.groups} == counts
    assert [group.size_bytes for group in held.groups] == sorted(sizes.values(), reverse=True)
    assert held.active_bytes == sum(sizes.values())


def test_the_end_without_a_history() -> None:
    # GIVEN a file without events
    program = Program()
    program.alloc(1000, ("train.py", "load", 1), events=False)
    snapshot = program.snapshot()
    # THEN its end has call sites, but no phases, steps or ages
    (held,) = who_holds(snapshot)
    assert held.moment.name == "end"
    assert held.groups[0].frames
    for by in ("phase", "step", "age"):
        with pytest.raises(PytracerError, match="only the state at the end"):
            who_holds(snapshot, by=by)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--at", "later"], "is not a moment"),
        (["--at", "oom", "--device", "0"], "has no out-of-memory error"),
        (["--at", "1000000"], "has no event 1,000,000"),
    ],
)
def test_moments_that_do_not_exist(arguments: list[str], message: str) -> None:
    result = invoke(CUDA, *arguments)
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("holder", "expected"),
    [
        ("losses[41] of main()", "losses[…] of main()"),
        ("self.cache['k']['a]b'] of Trainer.step()", "self.cache[…][…] of Trainer.step()"),
        ("""x["it's ["].y[-1] of class train.X""", "x[…].y[…] of class train.X"),
        (r"x['\\'] of f()", "x[…] of f()"),
        ("no Python tensor", "no Python tensor"),
        ("x[1 of f()", "x[1 of f()"),
    ],
)
def test_items_are_folded(holder: str, expected: str) -> None:
    assert folded(holder) == expected


def test_items_that_holders_share_are_shown() -> None:
    program = Program()
    for item in range(3):
        address = program.alloc(1000, ("train.py", "main", 1))
        program.hold(address, f"kept['val'][{item}] of main()")
    (held,) = who_holds(program.snapshot(), by="holder")
    assert [group.holder for group in held.groups] == ["kept['val'][…] of main()"]


def test_holders() -> None:
    # GIVEN blocks that items of a list keep, a block of one item, a freed one, and others
    program = Program()
    for item in range(3):
        program.hold(program.alloc(1024, ("a.py", "f", 1)), f"losses[{item}] of main()")
    program.hold(program.alloc(512, ("a.py", "f", 2)), "cache['k'] of main()")
    freed = program.alloc(2048, ("a.py", "f", 1))
    program.hold(freed, "freed of main()")
    program.alloc(1024, ("a.py", "f", 2))
    program.free(freed)
    snapshot = program.snapshot()
    # THEN the items of the list are one group, and one item keeps its name
    (end,) = who_holds(snapshot, at="end", by="holder")
    assert [(group.holder, group.size_bytes, group.count) for group in end.groups] == [
        ("losses[…] of main()", 3072, 3),
        (None, 1024, 1),
        ("cache['k'] of main()", 512, 1),
    ]
    # AND at an earlier moment, blocks that still exist at the end have theirs
    (peak,) = who_holds(snapshot, at="peak", by="holder")
    assert [(group.holder, group.size_bytes) for group in peak.groups] == [
        (None, 3072),
        ("losses[…] of main()", 3072),
        ("cache['k'] of main()", 512),
    ]


def test_the_command_by_holder(tmp_path: Path) -> None:
    program = Program()
    program.hold(program.alloc(1024, ("a.py", "f", 1)), "x[1] of main()")
    program.alloc(512, ("a.py", "f", 1))
    rows = cells(invoke(program.write(tmp_path / "a.pickle"), "--by", "holder").output)
    assert [row[-1] for row in rows[-2:]] == ["x[1] of main()", "(not known)"]
    # AND a file of a recorder that does not search for holders is no answer
    result = invoke(CUDA, "--by", "holder")
    assert result.exit_code == 1
    assert "does not say which Python objects keep memory" in " ".join(result.stderr.split())


def test_streams_and_pools() -> None:
    # GIVEN blocks on two streams, one of them in a pool of its own, and one older than the trace
    program = Program()
    program.alloc(1000, ("train.py", "load", 1), events=False)
    program.alloc(3000, ("train.py", "step", 2))
    program.alloc(2_096_000, ("train.py", "capture", 3))
    content = program.content()
    for event in content["device_traces"][0][-2:]:
        event |= {"stream": 0x40, "pool_id": (1, 7)}
    content["segments"][-1] |= {"stream": 0x40, "segment_pool_id": (1, 7)}
    snapshot = load(pickle.dumps(content))
    expected = {"stream": {0: 4096, 0x40: 2_096_128}, "pool": {(0, 0): 4096, (1, 7): 2_096_128}}
    # THEN both are told apart, with and without the trace
    for without_trace in (False, True):
        if without_trace:
            snapshot = load(pickle.dumps({**content, "device_traces": [[]]}))
        for by, groups in expected.items():
            (held,) = who_holds(snapshot, at="end", by=by)
            assert {getattr(group, by): group.size_bytes for group in held.groups} == groups


def test_steps_and_modules_that_are_alike_have_one_row(tmp_path: Path) -> None:
    program, steps = Program(), []
    for step in range(1, 8):
        steps.append([step, len(program.events)])
        program.alloc(5000 if step == 5 else 1000, ("train.py", "keep", 1))
    program.metadata = file_metadata(current_step=8)
    program.metadata["devices"][0]["steps"] = steps
    path = program.write(tmp_path / "a.pickle")
    rows = cells(invoke(path, "--at", "end", "--by", "step").output)
    each = "\N{MULTIPLICATION SIGN}, 1 KiB each)"
    assert [row[-1] for row in rows] == ["5", f"1 to 4 (4 {each}", f"6 to 7 (2 {each}"]


def test_a_file_without_devices_says_why(tmp_path: Path) -> None:
    path = Program().write(tmp_path / "a.pickle")
    result = invoke(path, "--by", "line")
    assert result.exit_code == 0
    assert "the file has no events and no segments: no recorded device was used" in (
        " ".join(result.stdout.split())
    )
    (error,) = json.loads(invoke(path, "--by", "line", "--json").stdout)["errors"]
    assert error.startswith(f"{path}: the file has no events")


@pytest.mark.parametrize("question", ["--by=line", "--fragmentation"])
def test_devices_and_files_without_the_moment_are_named(tmp_path: Path, question: str) -> None:
    # GIVEN a file in which one of two devices ran out of memory, and a file in which none did
    program = Program(device=1)
    program.alloc(1000, ("train.py", "step", 2))
    healthy = program.write(tmp_path / "healthy.pickle")
    program.out_of_memory(3000, 0)
    content = program.content()
    other = Program()
    other.alloc(500, ("train.py", "step", 3))
    content["device_traces"][0] = other.events
    content["segments"] += other.content()["segments"]
    path = tmp_path / "oom.pickle"
    path.write_bytes(pickle.dumps(content))
    # WHEN the out-of-memory is asked for
    result = invoke(tmp_path, question, "--at", "oom")
    # THEN it is shown where there is one, and the others are named
    assert result.exit_code == 0
    assert "device 1 when memory ran out" in result.stdout
    lines = [line for line in result.stdout.splitlines() if "has no out-of-memory error" in line]
    assert lines == [
        f"{healthy} has no out-of-memory error of device 1.",
        f"{path} has no out-of-memory error of device 0.",
    ]
    document = json.loads(invoke(tmp_path, question, "--at", "oom", "--json").stdout)
    assert [[held["name"] for held in file] for file in document["files"]] == [["device 1"]]
    assert [f"{error}." for error in document["errors"]] == lines
    # AND without any, the question has no answer
    assert invoke(healthy, question, "--at", "oom").exit_code == 1
