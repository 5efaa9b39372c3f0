"""Tests of exports, compared with a simple computation from the same events."""

import os
import random
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import reference_reader
from pyarrow.parquet import read_table
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis.history import replay
from pytracer.atomic_file import open_output, remove_unfinished
from pytracer.commands.export import unique_names
from pytracer.errors import PytracerError
from pytracer.export import parquet
from pytracer.export.collapsed_stacks import collapse_stacks, lines
from pytracer.export.parquet import write_tables
from pytracer.reading.snapshot import NO_TIME, Snapshot

GOLDEN = Path(__file__).parents[1] / "golden"
STACK = (("/a/ops.py", "relu", 3), ("/a/train.py", "step", 9))


def random_program(seed: int, count: int = 200) -> Program:
    """Return a program with blocks older than the trace, phases, steps, and blocks that stay."""
    rng = random.Random(seed)
    program = Program()
    alive = [program.alloc(700, *STACK, events=False) for _ in range(3)]
    for _ in range(count):
        if alive and rng.random() < 0.45:
            program.free(alive.pop(rng.randrange(len(alive))), phase=rng.choice(["", "p"]))
        else:
            frames = [("/a/ops.py", rng.choice("fg"), rng.randrange(3)), STACK[1]]
            requested = rng.randrange(1, 9000)
            alive.append(program.alloc(requested, *frames, phase=rng.choice(["", "p", "q"])))
    program.metadata = file_metadata(
        devices=[{"index": 0, "is_cpu": False, "steps": [[4, 10], [5, 100]]}], rank=3
    )
    return program


def test_texts_that_would_exhaust_the_memory(tmp_path: Path) -> None:
    # GIVEN small files with a long name in one stack, or in many frames
    name = "n" * 20_000
    stacks, frames = Program(), Program()
    stacks.alloc(700, *[("/a/ops.py", name, 3)] * 1000)
    for line in range(1000):
        frames.alloc(700, ("/a/ops.py", name, line))
    for program, what in ((stacks, "stacks"), (frames, "frames")):
        snapshot = program.snapshot()
        # WHEN they are exported, THEN they are refused
        with pytest.raises(PytracerError, match=f"written as text, its {what} would take 19.* MiB"):
            collapse_stacks(snapshot)
        with pytest.raises(PytracerError, match=f"written as text, its {what} would take 19.* MiB"):
            tables(snapshot, tmp_path)


# --- tables --------------------------------------------------------------------------------------


def tables(snapshot: Snapshot, folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of both tables as Python dictionaries."""
    write_tables(snapshot, "name", folder)
    paths = [folder / table / "name.parquet" for table in ("events", "blocks")]
    return tuple(read_table(path).to_pylist() for path in paths)


@pytest.mark.parametrize("rows", [7, 1 << 17])
def test_tables_of_random_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    # GIVEN more events than a row group has
    monkeypatch.setattr(parquet, "ROWS", rows)
    program = random_program(rows)
    # WHEN they are exported
    events, blocks = tables(program.snapshot(), tmp_path)

    # THEN each event is a row, in order
    def steps_of(index: int) -> int | None:
        return None if index < 10 else 4 if index < 100 else 5

    def text(frames: list[dict[str, Any]]) -> str | None:
        return "\n".join("{filename}:{line} {name}".format(**f) for f in frames) or None

    for index, (row, event) in enumerate(zip(events, program.events, strict=True)):
        expected = {
            **{"snapshot": "name", "rank": 3, "host": "n1", "pid": 7, "backend": "cuda"},
            **{
                "device": 0,
                "event": index,
                "step": steps_of(index),
                "phase": event["user_metadata"],
            },
            **{"action": event["action"], "address": event["addr"], "size_bytes": event["size"]},
            **{"stream": 0, "pool": "0.0", "compile_context": ""},
            "stack": text(event["frames"]),
            "site": text(event["frames"][:1]),
        }
        assert {name: row[name] for name in expected} == expected
        assert row["time"].timestamp() == pytest.approx(event["time_us"] / 1e6, abs=1e-6)
        assert row["time"].utcoffset().total_seconds() == 0

    # AND the bytes after the event are those of the blocks that are then alive
    requested = 3 * 700
    for row in events:
        requested += {"alloc": 1, "free_completed": -1}.get(row["action"], 0) * row["size_bytes"]
        assert row["requested_bytes"] == requested
    final = program.content()["segments"]
    assert events[-1]["reserved_bytes"] == sum(segment["total_size"] for segment in final)
    assert events[-1]["allocated_bytes"] == sum(
        block["size"] for s in final for block in s["blocks"] if block["state"] != "inactive"
    )

    # AND each block is a row, from its allocation to its free
    allocs = {e["addr"]: i for i, e in enumerate(program.events) if e["action"] == "alloc"}
    frees = defaultdict(dict)
    for i, event in enumerate(program.events):
        frees[event["action"]][event["addr"]] = i
    assert len(blocks) == len(allocs) + 3
    for block in blocks:
        alloc, free = allocs.get(block["address"]), frees["free_completed"].get(block["address"])
        assert (block["alloc_event"], block["free_event"]) == (alloc, free)
        assert block["free_requested_event"] == frees["free_requested"].get(block["address"])
        for name, index in (("alloc", alloc), ("free", free)):
            assert block[f"{name}_time"] == (None if index is None else events[index]["time"])
        same = ("phase", "step", "site", "stack", "stream", "pool")
        if alloc is None:  # older than the trace: only its stack is known, if it is in the file
            assert block["requested_bytes"] == 700
            assert {block[name] for name in ("phase", "step", "pool")} == {None}
            assert (block["stack"] is None) == (free is not None)
        else:
            assert [block[name] for name in same] == [events[alloc][name] for name in same]
            assert block["size_bytes"] == -(-events[alloc]["size_bytes"] // 512) * 512


def test_tables_of_golden_files(tmp_path: Path) -> None:
    # GIVEN files of all kinds: without times, without traces, of several devices
    for path in sorted(GOLDEN.rglob("*.pickle")):
        snapshot = reference_reader.read(path)
        # WHEN they are exported, THEN they have a row for each event and each block
        events, blocks = tables(replace(snapshot, path="x.step6.pickle"), tmp_path)
        assert len(events) == sum(map(len, snapshot.traces))
        counts = [len(replay(snapshot, d).blocks) for d in range(len(snapshot.traces))]
        assert len(blocks) == sum(counts)
        known = [time_us != NO_TIME for trace in snapshot.traces for time_us in trace.time_us]
        assert [row["time"] is not None for row in events] == known
        # AND dictionaries have each text once, because pandas reads no others
        for table in ("events", "blocks"):
            for column in read_table(tmp_path / table / "name.parquet").columns:
                for chunk in column.chunks if hasattr(column.type, "index_type") else []:
                    assert len(set(chunk.dictionary.to_pylist())) == len(chunk.dictionary)
        if not snapshot.metadata.is_pytracers:
            assert {row["step"] for row in events} <= {6}
            assert {(row["rank"], row["host"], row["pid"]) for row in events} <= {
                (None, None, None)
            }


def test_a_trace_that_contradicts_its_state_has_only_events(tmp_path: Path) -> None:
    program = Program()
    program.alloc(1024, *STACK)
    program.events.append({**program.events[-1], "action": "free_completed"})
    snapshot = program.snapshot("x.pickle")
    # WHEN it is exported, THEN without blocks, and with a note
    [note] = write_tables(snapshot, "name", tmp_path)
    assert note.startswith("x.pickle: blocks and the usage after each event are left out: ")
    events, blocks = tables(snapshot, tmp_path)
    assert (len(events), blocks) == (3, [])
    assert {row["allocated_bytes"] for row in events} == {None}


def test_tables_need_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(PytracerError, match="pip install pyarrow") as error:
        write_tables(Program().snapshot(), "n", tmp_path)
    assert "\n" not in str(error.value)


def test_devices_of_several_kinds(tmp_path: Path) -> None:
    # GIVEN a file of an accelerator with an arbitrary name, and of the CPU
    accelerator, cpu = Program(0), Program(1)
    for program in (accelerator, cpu):
        program.alloc(512, *STACK)
    content, cpu_content = accelerator.content(), cpu.content()
    content["segments"] += cpu_content["segments"]
    content["device_traces"].append(cpu.events)
    content["pytracer"] = file_metadata(
        backends=['%d"', "cpu"],
        devices=[{"index": 0, "is_cpu": False}, {"index": 1, "is_cpu": True}],
    )
    # THEN tables have their names
    for rows in tables(reference_reader.convert(content), tmp_path):
        assert {(row["device"], row["backend"]) for row in rows} == {(0, '%d"'), (1, "cpu")}


def test_texts_that_are_not_unicode(tmp_path: Path) -> None:
    # GIVEN file names with lone surrogates, which differ only in these
    program = Program()
    for name in ("/\udce9.py", "/\udcea.py"):
        program.alloc(512, (name, "f", 1))
    # WHEN they are exported, THEN the surrogates are removed, and each text occurs once
    _, blocks = tables(program.snapshot(), tmp_path)
    assert [block["site"] for block in blocks] == ["/?.py:1 f"] * 2


def test_an_unknown_value_is_left_out(tmp_path: Path) -> None:
    # GIVEN an allocator with unknown rules, and a block older than the trace that is freed in it
    program = Program()
    program.alloc(1 << 20, *STACK, events=False)
    older = program.alloc(700, *STACK, events=False)
    program.alloc(1 << 20, *STACK)  # in another segment
    program.free(older)
    program.alloc(700, *STACK)
    content = program.content()
    *_, last, rest = content["segments"][1]["blocks"]
    last["size"] += 512
    rest["address"] += 512
    rest["size"] -= 512
    snapshot = reference_reader.convert(content)
    assert replay(snapshot).exact_from == 4
    # THEN tables have no inexact values, and no size of that block
    events, blocks = tables(snapshot, tmp_path)
    assert [row["active_bytes"] is None for row in events] == [True] * 3 + [False] * 2
    assert None not in [row["requested_bytes"] for row in events]
    assert [block["size_bytes"] is None for block in blocks] == [False, True, False, False]


# --- collapsed stacks ----------------------------------------------------------------------------


def alive(program: Program, event_count: int) -> Counter[str]:
    """Return the live bytes by stack after `event_count` events, by a simple computation."""
    found: Counter[str] = Counter()
    by_address: dict[int, tuple[str, int]] = {}
    for event in program.events[:event_count]:
        if event["action"] == "alloc":
            frames = reversed(event["frames"])
            stack = ";".join("{name} ({filename}:{line})".format(**frame) for frame in frames)
            by_address[event["addr"]] = stack, -(-event["size"] // 512) * 512
        elif event["action"] == "free_completed":
            del by_address[event["addr"]]
    for stack, size in by_address.values():
        found[stack] += size
    return found


def test_collapsed_stacks_of_random_programs() -> None:
    # GIVEN a program whose memory runs out twice
    rng, program, blocks = random.Random(3), Program(), []
    for turn in range(150):
        frames = [("/a/ops.py", rng.choice("fg"), rng.randrange(3)), STACK[1]]
        blocks.append(program.alloc(rng.randrange(1, 9000), *frames))
        if rng.random() < 0.6:
            program.free(blocks.pop(rng.randrange(len(blocks))))
        if turn in (40, 90):
            program.out_of_memory(1 << 30, 5)
    snapshot = program.snapshot()
    # WHEN the live bytes are exported, THEN they equal the simple computation
    count = len(program.events)
    peak = max(range(count + 1), key=lambda n: alive(program, n).total())
    oom = max(i for i, event in enumerate(program.events) if event["action"] == "oom")
    assert collapse_stacks(snapshot) == alive(program, peak)
    assert collapse_stacks(snapshot, "end") == alive(program, count)
    assert collapse_stacks(snapshot, "oom") == alive(program, oom)
    assert len({str(collapse_stacks(snapshot, at)) for at in ("peak", "end", "oom")}) == 3


def test_lines_of_collapsed_stacks() -> None:
    # GIVEN names with characters that have a meaning in the format, and a block without a stack
    program = Program()
    program.alloc(512, ("<a;b>\n.py", "f g", 1), ("/t.py", "step", 2))
    program.alloc(1024)
    # THEN the lines are well-formed
    assert list(lines(collapse_stacks(program.snapshot(), roots=["x;y"]))) == [
        "x:y;(no stack) 1024\n",
        "x:y;step (/t.py:2);f g (<a:b>�.py:1) 512\n",
    ]
    # AND several devices are distinguished
    several = reference_reader.read(GOLDEN / "native/cuda-2.15.0.pickle")
    assert {stack.split(";")[0] for stack in collapse_stacks(several)} == {"device 0", "device 1"}
    # AND a device is distinguished only from other used devices
    content = program.content()
    content["device_traces"].append([{"action": "snapshot"}])
    assert collapse_stacks(reference_reader.convert(content)) == collapse_stacks(program.snapshot())
    # AND a file without an out-of-memory is refused with a message
    with pytest.raises(PytracerError, match=r"made\.pickle has no out-of-memory error"):
        collapse_stacks(program.snapshot(), "oom")


# --- files ---------------------------------------------------------------------------------------


def test_files_are_complete_or_missing(tmp_path: Path) -> None:
    # GIVEN an existing file
    path = tmp_path / "new" / "x.json"
    with open_output(path, makes_folder=True) as file:
        file.write(b"old")
    # WHEN writing its replacement fails, THEN the old file is unchanged, and no other file is left
    with pytest.raises(TypeError), open_output(path) as file:
        file.writelines([b"half", None])
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]
    # WHEN writing succeeds, THEN the new file replaces the old one
    with open_output(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    # AND a file that cannot be written raises an error with a message
    with (
        pytest.raises(PytracerError, match=r"cannot write .*x\.json"),
        open_output(path / "x.json", makes_folder=True),
    ):
        pass


def test_a_file_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a file, and a record of the calls of fsync
    path = tmp_path / "x.json"
    synced: list[int] = []

    def fsync(fd: int) -> None:
        assert not path.exists()
        synced.append(os.fstat(fd).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    # WHEN the file is written
    with open_output(path) as file:
        file.write(b"new")
    # THEN it was on the disk before it was renamed
    assert synced == [3]
    assert path.read_bytes() == b"new"


def test_unfinished_files_can_be_removed(tmp_path: Path) -> None:
    # GIVEN a process that is about to end while it writes files
    with open_output(tmp_path / "done"):
        pass
    writing = open_output(tmp_path / "x.json")
    writing.__enter__()
    assert len(list(tmp_path.iterdir())) == 2
    # WHEN unfinished files are removed, THEN finished files are kept
    remove_unfinished()
    assert [path.name for path in tmp_path.iterdir()] == ["done"]
    assert not writing.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)


def test_names_of_outputs() -> None:
    names_of = [
        "/r/step1/m_rank0.pickle",
        "/r/step2/m_rank0.pickle.gz",
        "/r/x.pickle",
        "/r/x.pickle.zst",
    ]
    assert unique_names([Path(name) for name in names_of]) == [
        "step1.m_rank0",
        "step2.m_rank0",
        "x",
        "x_2",
    ]
    assert unique_names([Path("a/b.pickle")]) == ["b"]
