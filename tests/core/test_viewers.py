"""Test the checkers: they accept a good snapshot, and name each fault of a bad one."""

import copy
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import viewed_pickles
import viewers
from viewed_values import ViewerError

Snapshot = dict[str, Any]

MODEL = {"filename": "/home/me/model.py", "name": "forward", "line": 12}
MAIN = {"filename": "/home/me/train.py", "name": "<module>", "line": 3}
STACK = [MODEL, MAIN]
MIB = 2**20


def make_event(action: str, addr: int, size: int, time_us: int = 1_700_000_000_000_000) -> Snapshot:
    return {
        "action": action,
        "device_free" if action == "oom" else "addr": addr,
        "size": size,
        "stream": 0,
        "time_us": time_us,
        "pool_id": (0, 0),
        "frames": STACK,
        "compile_context": "N/A",
        "user_metadata": "",
    }


def make_block(address: int, size: int, requested_size: int, state: str) -> Snapshot:
    return {
        "address": address,
        "size": size,
        "requested_size": requested_size,
        "state": state,
        "frames": STACK if state != "inactive" else [],
    }


def make_segment(device: int, blocks: list[Snapshot]) -> Snapshot:
    allocated = [b for b in blocks if b["state"] == "active_allocated"]
    active = [b for b in blocks if b["state"] != "inactive"]
    return {
        "device": device,
        "address": blocks[0]["address"],
        "total_size": sum(b["size"] for b in blocks),
        "allocated_size": sum(b["size"] for b in allocated),
        "active_size": sum(b["size"] for b in active),
        "requested_size": sum(b["requested_size"] for b in active),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": STACK,
        "blocks": blocks,
    }


def make_snapshot() -> Snapshot:
    """Return a snapshot of two devices: the CPU recorder's and a caching allocator's."""
    cpu = [
        # The first events are lost: the block at 500 was allocated before them and is freed here.
        make_event("free_requested", 500, 50),
        make_event("free_completed", 500, 50),
        make_event("segment_free", 500, 50),
        make_event("segment_alloc", 1000, 100),
        make_event("alloc", 1000, 100),
        make_event("segment_alloc", 3000, 64),
        make_event("alloc", 3000, 64),
        make_event("free_requested", 1000, 100),
        make_event("free_completed", 1000, 100),
        make_event("segment_free", 1000, 100),
        # The address is reused for a larger block.
        make_event("segment_alloc", 1000, 200),
        make_event("alloc", 1000, 200),
    ]
    base = 0x7F00_0000_0000
    cuda = [
        make_event("segment_map", base, 2 * MIB),
        make_event("alloc", base, 1000),
        make_event("alloc", base + 1024, 500),
        make_event("alloc", base + MIB + MIB // 2, 100),
        make_event("oom", 4 * MIB, 2**40),
        make_event("free_requested", base + MIB + MIB // 2, 100),
        make_event("free_completed", base + MIB + MIB // 2, 100),
        make_event("segment_unmap", base + MIB, MIB),
        make_event("free_requested", base + 1024, 500),
        make_event("snapshot", 0, 0),
    ]
    blocks = [
        make_block(base, 1024, 1000, "active_allocated"),
        make_block(base + 1024, 512, 500, "active_pending_free"),
        make_block(base + 1536, MIB - 1536, 0, "inactive"),
    ]
    return {
        "segments": [
            make_segment(0, [make_block(1000, 200, 200, "active_allocated")]),
            make_segment(0, [make_block(3000, 64, 64, "active_allocated")]),
            make_segment(0, [make_block(9000, 8, 8, "active_allocated")]),
            make_segment(1, blocks),
        ],
        "device_traces": [cpu, cuda],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""},
        "external_annotations": [],
        "pytracer": {"format": [1, 0]},
    }


def test_a_good_snapshot_passes() -> None:
    viewers.check_snapshot(make_snapshot())


def test_an_empty_snapshot_passes() -> None:
    snapshot = make_snapshot() | {"segments": [], "device_traces": [[], []]}
    viewers.check_snapshot(snapshot)


def _segment(key: str, value: object) -> Callable[[Snapshot], None]:
    return lambda s: s["segments"][0].__setitem__(key, value)


def _block(key: str, value: object) -> Callable[[Snapshot], None]:
    return lambda s: s["segments"][3]["blocks"][1].__setitem__(key, value)


def _event(key: str, value: object) -> Callable[[Snapshot], None]:
    return lambda s: s["device_traces"][0][-1].__setitem__(key, value)


def _frame(key: str, value: object) -> Callable[[Snapshot], None]:
    return lambda s: s["segments"][0]["frames"][0].__setitem__(key, value)


def _append(*event: Any) -> Callable[[Snapshot], None]:
    return lambda s: s["device_traces"][0].append(make_event(*event))


def _insert(position: int, *event: Any) -> Callable[[Snapshot], None]:
    return lambda s: s["device_traces"][0].insert(position, make_event(*event))


def _drop(device: int, position: int) -> Callable[[Snapshot], None]:
    return lambda s: s["device_traces"][device].pop(position)


def _share_block(snapshot: Snapshot) -> None:
    snapshot["device_traces"][0] += [make_event("snapshot", 0, 0)] * 2


def _resize_segment(snapshot: Snapshot) -> None:
    snapshot["device_traces"][0][-2]["size"] = 150


def _move_device(snapshot: Snapshot) -> None:
    snapshot["segments"][3]["device"] = 2


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda s: s.pop("segments"), "missing {'segments'}", id="top key missing"),
        pytest.param(lambda s: s.update(mine=1), "unknown {'mine'}", id="top key unknown"),
        pytest.param(lambda s: s["segments"][0].pop("stream"), "missing", id="segment key missing"),
        pytest.param(_segment("colour", 1), "unknown {'colour'}", id="segment key unknown"),
        pytest.param(_segment("is_expandable", 0), "not bool", id="integer for bool"),
        pytest.param(_segment("stream", False), "not int", id="bool for integer"),
        pytest.param(_segment("segment_type", "medium"), "segment_type", id="segment type"),
        pytest.param(_segment("segment_pool_id", (0,)), "pool id", id="half a pool id"),
        pytest.param(_segment("blocks", []), "no blocks", id="no blocks"),
        pytest.param(_segment("total_size", 201), "total_size 201", id="total_size"),
        pytest.param(_segment("allocated_size", 0), "allocated_size 0", id="allocated_size"),
        pytest.param(_segment("active_size", 0), "active_size 0", id="active_size"),
        pytest.param(_segment("requested_size", 0), "requested_size 0", id="requested_size"),
        pytest.param(_move_device, "no trace for device 2", id="device without trace"),
        pytest.param(_block("address", 5), "at 5, not", id="gap between blocks"),
        pytest.param(_block("size", 0), "size 0", id="empty block"),
        pytest.param(_block("requested_size", 513), "requested_size 513", id="request too large"),
        pytest.param(_block("requested_size", 0), "requested_size 0", id="request of nothing"),
        pytest.param(_block("state", "active_awaiting_free"), "state", id="state"),
        pytest.param(_block("frames", None), "not list", id="frames are none"),
        pytest.param(_frame("line", "12"), "line is '12'", id="line is a string"),
        pytest.param(_frame("column", 1), "unknown {'column'}", id="frame key"),
        pytest.param(_event("category", "x"), "unknown {'category'}", id="event key unknown"),
        pytest.param(_event("size", 10.0), "size is 10.0", id="size is a float"),
        pytest.param(_event("action", "allocate"), "no viewer knows", id="action"),
        pytest.param(_event("action", "oom"), "device_free", id="oom without device_free"),
        pytest.param(_event("pool_id", (0, None)), "pool id", id="pool id of event"),
        pytest.param(_event("addr", 2**53), "not exact", id="address beyond doubles"),
        pytest.param(_event("time_us", -1), "time_us", id="time before the epoch"),
        pytest.param(_share_block, "share an object", id="shared event"),
        pytest.param(_append("free_requested", 7777, 8), "there is no block", id="unknown free"),
        pytest.param(_append("free_completed", 7777, 8), "outside any", id="free outside segments"),
        pytest.param(_append("alloc", 7777, 8), "there is no block", id="live block not listed"),
        pytest.param(_append("free_requested", 1000, 200), "not pending", id="state after free"),
        pytest.param(
            _append("alloc", 3000, 65), "65 bytes, but the block has 64", id="size of alloc"
        ),
        pytest.param(_append("free_completed", 1000, 8), "overlaps", id="freed but listed"),
        pytest.param(_append("free_completed", 1000, 0), "size 0", id="free of unknown size"),
        pytest.param(_append("segment_free", 950, 60), "overlaps", id="segment freed but listed"),
        pytest.param(_resize_segment, "the segment is 1000\\+200", id="size of segment"),
        pytest.param(_append("segment_alloc", 990, 20), "exceeds segment", id="half outside"),
        pytest.param(_append("segment_alloc", 7777, 8), "outside any", id="segment not listed"),
        pytest.param(_insert(12, "segment_alloc", 3000, 64), "the block at 3000", id="block first"),
        pytest.param(_drop(0, 7), "pending free after it", id="free_requested lost"),
        pytest.param(_drop(0, 8), "there is no block", id="free_completed lost"),
        pytest.param(_drop(0, 9), "outside any segment", id="segment_free lost"),
        pytest.param(_drop(1, 7), "outside any segment", id="segment_unmap lost"),
    ],
)
def test_a_bad_snapshot_is_refused(damage: Callable[[Snapshot], object], message: str) -> None:
    # GIVEN a good snapshot
    snapshot = copy.deepcopy(make_snapshot())
    # WHEN one value in it is wrong
    damage(snapshot)
    # THEN the error names the fault
    with pytest.raises(ViewerError, match=message):
        viewers.check_snapshot(snapshot)


def test_segments_may_not_overlap() -> None:
    snapshot = make_snapshot()
    snapshot["segments"].append(make_segment(0, [make_block(1100, 8, 8, "inactive")]))
    with pytest.raises(ViewerError, match="overlaps"):
        viewers.check_snapshot(snapshot)


# --- the pickle ---------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_opcodes_restore_the_value(protocol: int) -> None:
    # GIVEN values of every kind a snapshot may hold
    value = {
        **make_snapshot(),
        "numbers": [0, 255, 256, 65536, -1, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 1.5],
        "constants": [True, False, None],
        "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
        "text": ["", "é" * 300, "x" * 70_000],
        "many": list(range(3000)),
    }
    # WHEN their pickle is read in the way the web page reads it
    pickled = viewed_pickles.check_opcodes(pickle.dumps(value, protocol=protocol))
    # THEN the result is the same
    assert pickled.root == value


def test_opcodes_count_repeated_values() -> None:
    # GIVEN a snapshot with shared frames, and one with copies
    shared = make_snapshot()
    copied = make_snapshot()
    copied["device_traces"][0][0]["frames"] = copy.deepcopy(STACK)
    # WHEN both are read
    once, twice = (
        viewed_pickles.check_opcodes(pickle.dumps(s, protocol=4)) for s in (shared, copied)
    )
    # THEN only the copies are counted as repeated
    model = ("/home/me/model.py", "forward", 12)
    main = ("/home/me/train.py", "<module>", 3)
    assert once.repeated() == []
    assert once.strings["frames"] == once.frames[model] == once.stacks[(model, main)] == 1
    assert twice.repeated() == [model, main, (model, main)]


def test_a_string_written_twice_is_counted() -> None:
    pickled = viewed_pickles.check_opcodes(b"\x80\x04]" + b"\x8c\x01aa" * 2 + b".")
    assert pickled.strings == {"a": 2}
    assert pickled.repeated() == ["a"]


def _long1(value: int, size: int) -> bytes:
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(pickle.dumps([1], protocol=5), "protocol 5", id="protocol 5"),
        pytest.param(pickle.dumps([1], protocol=0), "does not know", id="protocol 0"),
        pytest.param(
            b"\x80\x04" + pickle.dumps(b"x", protocol=4)[2:], "SHORT_BINBYTES", id="bytes"
        ),
        pytest.param(pickle.dumps({1, 2}, protocol=4), "EMPTY_SET", id="a set"),
        pytest.param(pickle.dumps(len, protocol=4), "STACK_GLOBAL", id="a name to import"),
        pytest.param(pickle.dumps([2**63], protocol=4), "64 signed bits", id="integer too large"),
        pytest.param(b"\x80\x04" + _long1(5, 9) + b".", "64 signed bits", id="integer in 9 bytes"),
        pytest.param(b"\x80\x04h\x00.", "memo has no entry 0", id="reference to nothing"),
        pytest.param(b"\x80\x04]q\x00h\x01.", "memo has no entry 1", id="wrong reference"),
        pytest.param(
            b"\x80\x04]q\x07]\x94a.", "another index than CPython", id="memo put, counted"
        ),
        pytest.param(b"\x80\x04]\x94]q\x07a.", "BINPUT after MEMOIZE", id="memo counted, put"),
        pytest.param(pickle.dumps({1: 2}, protocol=4), "not a string", id="integer key"),
        pytest.param(pickle.dumps([1], protocol=4) + b"x", "1 bytes follow", id="trailing bytes"),
        pytest.param(
            pickle.dumps(list(range(9)), protocol=2)[:-9], "not a complete", id="truncated"
        ),
        pytest.param(b"", "not a complete", id="empty"),
        pytest.param(b"\x80\x04K\x01K\x02.", "2 values, not one", id="two values"),
        pytest.param(b"\x80\x04](" + b"K\x00" * 70_000 + b"e.", "in one batch", id="huge batch"),
        pytest.param(
            b"\x80\x04\x95" + struct.pack("<Q", 2) + b"]M\x00\x01a.",
            "crosses the end",
            id="frame too short",
        ),
        pytest.param(
            b"\x80\x04\x95" + struct.pack("<Q", 99) + b"].", "longer than the file", id="long frame"
        ),
    ],
)
def test_a_bad_pickle_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ViewerError, match=message):
        viewed_pickles.check_opcodes(data)


# --- the viewer that comes with torch -----------------------------------------------------------


@pytest.fixture
def snapshot_file(tmp_path: Path) -> Path:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(make_snapshot(), protocol=4))
    return path


@pytest.mark.parametrize(
    ("command", "options", "expected"),
    [
        ("stats", (), "total_allocated: 1.2KiB"),
        ("trace", (), "Device 1 ----------------\n10 entries"),
        ("trace_plot", (), "Active Memory Timeline"),
        ("trace_plot", ("--filter_freed",), "Active Memory Timeline"),
        ("segment_plot", (), "Allocator State History"),
        ("memory", (), "stream_0;active_allocated;train.py:3:<module>;model.py:12:forward 1000\n"),
        ("segments", (), "seg_3000;active_allocated;train.py:3:<module>;model.py:12:forward 64\n"),
    ],
)
def test_commands_of_memory_viz(
    snapshot_file: Path, command: str, options: tuple[str, ...], expected: str
) -> None:
    # GIVEN a file with a good snapshot
    output = None if command in {"stats", "trace"} else snapshot_file.with_name("out")
    # WHEN torch's own viewer reads it
    text = viewers.run_memory_viz(snapshot_file, command, *options, output=output)
    # THEN the output shows the content
    assert expected in text


def test_a_failing_command_is_reported(tmp_path: Path) -> None:
    # GIVEN a file that is not a snapshot
    path = tmp_path / "nothing.pickle"
    path.write_bytes(pickle.dumps({}))
    # WHEN the viewer fails, THEN the error has the viewer's own message
    with pytest.raises(ViewerError, match=r"stats failed:(.|\n)*KeyError: 'segments'"):
        viewers.run_memory_viz(path, "stats")
