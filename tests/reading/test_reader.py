"""Tests of loading: a snapshot becomes columns; other files are refused without running code."""

import gzip
import os
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import processes
import pyarrow
import pytest
import reference_reader
from snapshot_equality import assert_same

from pytracer.analysis.frame_text import call_site_text
from pytracer.errors import PytracerError
from pytracer.reading import files, load
from pytracer.reading.metadata import FileMetadata
from pytracer.reading.snapshot import ALLOCATED, INACTIVE, NO_TIME, PENDING_FREE, Frame

MAIN = {"filename": "train.py", "name": "main", "line": 7}
STEP = {"filename": "train.py", "name": "step", "line": 12}
STACK = [STEP, MAIN]
BLOCKS = [
    {
        "address": 512,
        "size": 512,
        "requested_size": 500,
        "state": "active_allocated",
        "frames": STACK,
    },
    {
        "address": 1024,
        "size": 512,
        "requested_size": 1,
        "state": "active_pending_free",
        "frames": [],
    },
    {"address": 1536, "size": 2048, "requested_size": 0, "state": "inactive", "frames": []},
]
SEGMENT = {
    "device": 0,
    "address": 512,
    "total_size": 3072,
    "stream": 5,
    "segment_type": "small",
    "segment_pool_id": (0, 3),
    "is_expandable": True,
    "frames": STACK,
    "blocks": BLOCKS,
}
EVENT = {
    "action": "alloc",
    "addr": 512,
    "size": 500,
    "stream": 5,
    "time_us": 1_700_000_000_000_000,
    "pool_id": (0, 3),
    "frames": STACK,
    "compile_context": "N/A",
    "user_metadata": "forward",
}
FREE = {**EVENT, "action": "free_requested", "addr": 4096}
FREE["allocation"] = {"frames": [MAIN], "forward_frames": ['  File "a.py", line 3, in f\n']}
SNAPSHOT: dict[str, Any] = {
    "segments": [SEGMENT],
    "device_traces": [
        [EVENT, {**EVENT, "action": "oom", "device_free": 77} | {"addr": 77}],
        [],
        [dict(EVENT), FREE, FREE | {"allocation": {"birth_step": 3}}],
    ],
    "allocator_settings": {"expandable_segments": True},
    "external_annotations": [{"name": "x", "stage": "START", "device": 0, "time_us": 3}],
    "pytracer": {"format_version": [1, 3], "rank": None, "metadata": {"rate": 0.5, "big": 2**64}},
}
PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)


def text(value: str) -> bytes:
    """Return the pickle opcode BINUNICODE with a text."""
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


class Bomb:
    """An object that makes a folder when pickle.load reads it."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_snapshot_becomes_columns(tmp_path: Path, protocol: int) -> None:
    # GIVEN a snapshot in a file
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(SNAPSHOT, protocol=protocol))
    # WHEN it is loaded
    snapshot = load(path)
    # THEN its columns have the snapshot's contents
    assert_same(snapshot, reference_reader.convert(SNAPSHOT))
    assert [len(each) for each in snapshot.traces] == [2, 0, 3]
    assert [each.missing.event.tolist() for each in snapshot.traces] == [[], [], [1, 2]]
    trace = snapshot.traces[0]
    assert [snapshot.actions[action] for action in trace.action] == ["alloc", "oom"]
    assert trace.address.tolist() == [512, 77]
    assert snapshot.stacks.frames(trace.stack[0]) == (Frame(**STEP), Frame(**MAIN))
    assert snapshot.pools[trace.pool[0]].tolist() == [0, 3]
    assert snapshot.strings[trace.user_metadata[0]] == "forward"
    assert snapshot.blocks.state.tolist() == [ALLOCATED, PENDING_FREE, INACTIVE]
    assert snapshot.segments.is_expandable.tolist() == [True]
    assert snapshot.metadata.as_written == SNAPSHOT["pytracer"]
    assert snapshot.has_times(0)
    assert not snapshot.has_times(1)
    # AND its bytes can be loaded, and its name can be a string
    assert_same(load(path.read_bytes()), snapshot)
    assert_same(load(str(path)), snapshot)


def test_missing_keys_have_defaults() -> None:
    # GIVEN the keys that snapshots of all versions have
    blocks = [{"size": 512, "state": "active_allocated"}, {"size": 512, "state": "inactive"}]
    segment = {"address": 4096, "total_size": 1024, "blocks": blocks}
    event = {"action": "alloc", "addr": 4096, "size": 100}
    snapshot = load(pickle.dumps({"segments": [segment], "device_traces": [[event]]}))
    # THEN times are marked as missing, addresses follow from the sizes, and the rest is empty
    assert snapshot.traces[0].time_us.tolist() == [NO_TIME]
    assert not snapshot.has_times(0)
    assert snapshot.blocks.address.tolist() == [4096, 4608]
    assert snapshot.blocks.requested_bytes.tolist() == [512, 512]
    assert snapshot.traces[0].stack.tolist() == [0]
    assert len(snapshot.stacks.frames(0)) == 0
    assert snapshot.metadata == FileMetadata()
    assert snapshot.allocator_settings == {}


def test_holders_of_blocks() -> None:
    # GIVEN a file with the Python object that keeps one of its blocks
    blocks = [{**BLOCKS[0], "holder": "losses[41] of main()"}, *BLOCKS[1:]]
    content = {**SNAPSHOT, "segments": [{**SEGMENT, "blocks": blocks}]}
    snapshot = load(pickle.dumps(content))
    # THEN the other blocks have none
    assert_same(snapshot, reference_reader.convert(content))
    holders = [snapshot.strings[holder] for holder in snapshot.blocks.holder]
    assert holders == ["losses[41] of main()", "", ""]
    assert not snapshot.unknown_keys
    # AND a holder that is no text is refused
    blocks[0] |= {"holder": 3}
    with pytest.raises(PytracerError, match="a block's holder has a wrong type"):
        load(pickle.dumps(content))


def test_lists_and_histories_of_old_versions() -> None:
    # GIVEN the format before torch 2.0: a list of segments, whose blocks have a history
    history = [{"addr": 4096, "real_size": 100, "frames": STACK}]
    blocks = [{"size": 512, "state": "active_allocated", "history": history}]
    segment = {"address": 4096, "total_size": 512, "blocks": blocks}
    snapshot = load(pickle.dumps([segment]))
    # THEN the latest entry of the history gives the requested size and the stack
    assert snapshot.blocks.requested_bytes.tolist() == [100]
    assert snapshot.stacks.frames(snapshot.blocks.stack[0]) == (Frame(**STEP), Frame(**MAIN))
    assert snapshot.traces == ()


def test_unknown_keys_and_actions_are_listed() -> None:
    event = {**EVENT, "action": "teleport", "colour": 1}
    frames = [{**MAIN, "fx_node": "x"}]
    content = {"segments": [], "device_traces": [[{**event, "frames": frames}]]}
    snapshot = load(pickle.dumps({**content, "disks": [1], "host_segments": []}))
    assert snapshot.unknown_keys == ("event.colour", "frame.fx_node", "snapshot.disks")
    assert snapshot.host_device is None
    assert snapshot.actions[snapshot.traces[0].action[0]] == "teleport"


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("has_events", [False, True])
def test_pinned_host_memory_is_the_last_device(is_first: bool, has_events: bool) -> None:
    # GIVEN a file of torch 2.15, in which the lists of pinned memory come last or first
    segment = {**SEGMENT, "device": -1, "blocks": [dict(BLOCKS[0])]}
    event = {**EVENT, "action": "alloc", "addr": 77}
    host = {"host_segments": [segment], "host_traces": [event] if has_events else []}
    content = {**host, **SNAPSHOT} if is_first else {**SNAPSHOT, **host}
    snapshot = load(pickle.dumps(content))
    # THEN it is one more device
    assert snapshot.host_device == len(SNAPSHOT["device_traces"])
    assert (snapshot.segments.device == snapshot.host_device).sum() == 1
    assert_same(snapshot, reference_reader.convert(content))


def test_events_of_pinned_memory_that_are_a_devices_are_an_error() -> None:
    content = {**SNAPSHOT, "host_traces": SNAPSHOT["device_traces"][0]}
    with pytest.raises(PytracerError, match="events of host_traces are a device's too"):
        load(pickle.dumps(content))


def test_users_values_are_not_rows() -> None:
    # GIVEN metadata that look like frames and blocks
    values = [{"filename": "a", "name": "b", "line": "c"}, {"state": "done", "size": 3}]
    deep = {
        "values": values,
        "same": values,
        "none": None,
        "whole": [2**63, -(2**63) - 1, 2**127 - 1],
        3: (True, -(2**70), 1e300),
    }
    about = {"metadata": deep}
    # THEN they are returned unchanged
    assert load(pickle.dumps({**SNAPSHOT, "pytracer": about})).metadata.as_written == about


NUMBERS = [
    *(0, 255, 256, 65536, -1, 2**31, 2**47, 2**62, -(2**63), 2**63 - 1, 2**63, 2**64 - 1, 2**64),
    *(-(2**63) - 1, 2**127, -(2**127), 2**200, -(2**3000), float("nan"), float("inf"), 1e30, None),
]


def numbers_in(value: Any, *path: Any) -> list[tuple[Any, ...]]:
    """Return where the numbers of a snapshot are."""
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [found for key, item in items for found in numbers_in(item, *path, key)]
    return [path] if type(value) is int else []


def replaced(value: Any, path: tuple[Any, ...], number: Any) -> Any:
    """Return a copy of a snapshot with another number at a place."""
    if not path:
        return number
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], number)
    return tuple(copy) if isinstance(value, tuple) else copy


def test_a_number_may_be_any() -> None:
    # GIVEN a snapshot, and each of its numbers in turn as no recorder means it
    meant = {key: SNAPSHOT[key] for key in ("segments", "device_traces")}
    places = numbers_in(meant)
    assert {path[-1] for path in places} >= {"line", "addr", "stream", "device", "time_us", "size"}
    for path in places:
        for number in NUMBERS:
            content = replaced(meant, path, number)
            # WHEN it is loaded, THEN that number is unknown, and all others are as they were
            assert_same(load(pickle.dumps(content)), reference_reader.convert(content))


@pytest.mark.parametrize("line", [2**64 - 1, -1, 2**31, 2**200, None])
def test_an_unknown_line(line: int | None) -> None:
    # GIVEN the frame of a code object without a line number, as torch writes those of Dynamo
    event = {**EVENT, "frames": [{**STEP, "line": line}, MAIN]}
    event["forward_frames"] = [f'  File "a.py", line {line}, in f\n'] if line != -1 else []
    data = pickle.dumps({"segments": [], "device_traces": [[event]]})
    # WHEN it is loaded, THEN the frame is there, without its line
    stacks = load(data).stacks
    step = Frame("train.py", "step", 0)
    assert stacks.frames(len(stacks) - 1) == (step, Frame("train.py", "main", 7))
    assert call_site_text(step) == "train.py step"
    assert line == -1 or stacks.frames(stacks.forward[-1]) == (Frame("a.py", "f", 0),)


def test_other_numbers_may_be_any() -> None:
    # GIVEN numbers of any size in the values that the reader passes on
    values = {"x": [2**63, -(2**127), 2**127 - 1, 2**200], 2**62: 1, -(2**63): 2}
    content = {**SNAPSHOT, "pytracer": values}
    # WHEN they are loaded, THEN they are as they were; more than 128 bits are unknown
    expected = {**values, "x": [*values["x"][:3], None]}
    assert load(pickle.dumps(content)).metadata.as_written == expected


@pytest.mark.parametrize("seed", range(20))
def test_random_snapshots(seed: int) -> None:
    """Load random snapshots with batches of any size, and with shared and separate stacks."""
    rng = random.Random(seed)
    frames = [{"filename": f"é{i}\udcff", "name": "f" * i, "line": i} for i in range(40)]
    stacks = [rng.choices(frames, k=rng.randrange(6)) for _ in range(30)]
    number = lambda: rng.choice(NUMBERS)  # noqa: E731
    traces = [
        [
            {
                "action": rng.choice(["alloc", "free_completed", "new"]),
                "addr": number(),
                "size": number(),
                "stream": number(),
                "time_us": number(),
                "frames": list(stack) if rng.random() < 0.5 else stack,
                "pool_id": (0, rng.randrange(3)),
                "compile_context": "",
                "user_metadata": rng.choice(["", "x", "y"]),
            }
            for stack in rng.choices(stacks, k=rng.choice([0, 1, 2, 999, 1000, 1001, 2500]))
        ]
        for _ in range(rng.randrange(4))
    ]
    content = {
        "segments": [dict(SEGMENT) for _ in range(rng.randrange(4))],
        "device_traces": traces,
    }
    for segment in content["segments"]:
        segment["blocks"] = [dict(block) for block in rng.choices(BLOCKS, k=rng.randrange(4))]
    data = pickle.dumps(content, protocol=rng.choice(PROTOCOLS))
    assert_same(load(data), reference_reader.convert(content))


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_compressed_file(tmp_path: Path, compression: str) -> None:
    # GIVEN a compressed file with any name
    data = pickle.dumps(SNAPSHOT)
    path = tmp_path / "snapshot.pickle"
    with pyarrow.CompressedOutputStream(path, compression) as out:
        out.write(data)
    compressed = path.read_bytes()
    # THEN it is read
    assert_same(load(path), load(data))
    # AND a truncated file is refused, with its name
    path.write_bytes(compressed[: len(compressed) // 2])
    with pytest.raises(PytracerError, match=r"snapshot\.pickle"):
        load(path)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_code_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    # GIVEN a snapshot with a value that runs a function when unpickled
    path, target = tmp_path / "bomb.pickle", tmp_path / "boom"
    path.write_bytes(pickle.dumps(SNAPSHOT | {"x": Bomb(target)}, protocol=protocol))
    # WHEN it is loaded, THEN the error names the function, which was not called
    with pytest.raises(
        PytracerError, match=r"bomb\.pickle is refused: it asks for posix\.mkdir at b"
    ):
        load(path)
    assert not target.exists()
    # AND pickle.loads would have called it
    pickle.loads(path.read_bytes())
    assert target.exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"\x80\x04\x8c\x01aQ.", "refused: it asks for an external", id="persistent"),
        pytest.param(
            b"\x80\x02cos\nsystem\nX\x01\x00\x00\x00a\x85R.", r"os\.system at byte 2", id="GLOBAL"
        ),
        pytest.param(b"\x80\x02(ios\nsystem\n.", r"for os\.system at byte 3", id="INST"),
        pytest.param(
            b"\x80\x04\x8c\x02os\x8c\x06system\x93.", r"os\.system at byte 14", id="STACK_GLOBAL"
        ),
        pytest.param(
            b"\x80\x02c\x1b[2J\nx\n.", r"for \?\[2J\.x", id="a name that controls the terminal"
        ),
        pytest.param(b"\x80\x04}R.", r"a call \(REDUCE\) at byte 3", id="REDUCE"),
        pytest.param(b"\x80\x04\x82\x01.", "an extension", id="EXT1"),
        pytest.param(pickle.dumps({1}, protocol=4), "a set", id="a set"),
        pytest.param(pickle.dumps(b"x", protocol=4), "bytes", id="bytes"),
        pytest.param(b"", "cut short: the file is empty at byte 0", id="empty"),
        pytest.param(
            pickle.dumps(SNAPSHOT, protocol=2)[:-30], "cut short: .* at byte", id="truncated"
        ),
        pytest.param(
            pickle.dumps(SNAPSHOT, protocol=4)[:-30], "cut short: .* at byte", id="truncated 4"
        ),
        pytest.param(pickle.dumps(SNAPSHOT, protocol=0), "protocol 0 or 1", id="protocol 0"),
        pytest.param(pickle.dumps(SNAPSHOT, protocol=1), "protocol 0 or 1", id="protocol 1"),
        pytest.param(b"\x80\x09.", "pickle protocol 9 at byte 0", id="protocol 9"),
        pytest.param(b"import torch\n", "is not a memory snapshot: give a file that", id="text"),
        pytest.param(b"\x7fELF" + bytes(99), "is not a memory snapshot: give", id="binary"),
        pytest.param(b"PK\x03\x04" + bytes(99), "a zip file, such as a checkpoint", id="zip"),
        pytest.param(b"\x1f\x8bxxxxxxxx", "damaged", id="no gzip"),
        pytest.param(gzip.compress(pickle.dumps(SNAPSHOT))[:-20], "cut short", id="half a gzip"),
        pytest.param(b"\x28\xb5\x2f\xfdxxxxxx", "damaged", id="no zstd"),
        pytest.param(pickle.dumps([1]), "not a memory snapshot", id="a list"),
        pytest.param(pickle.dumps(3), "not a memory snapshot", id="a number"),
        pytest.param(pickle.dumps({"segments": []}), "not a memory snapshot", id="half a snapshot"),
        pytest.param(pickle.dumps({"segments": 3, "device_traces": []}), "not a mem", id="no list"),
        pytest.param(
            pickle.dumps({**SNAPSHOT, "device_traces": [[{**EVENT, "size": "x"}]]}),
            "an event's size has a wrong type at byte",
            id="a size that is text",
        ),
        pytest.param(
            pickle.dumps({**SNAPSHOT, "device_traces": [[{**EVENT, "frames": [3]}]]}),
            "a list of frames",
            id="frames that are none",
        ),
        pytest.param(
            pickle.dumps({**SNAPSHOT, "device_traces": [[EVENT, 3]]}),
            "a device's events",
            id="no event",
        ),
        pytest.param(pickle.dumps({**SNAPSHOT, "pytracer": 3}), "pytracer is a int", id="about"),
        pytest.param(
            b"\x80\x04\x8d" + bytes([255] * 8) + b"x.", "too long", id="text of 2^64 bytes"
        ),
        pytest.param(
            b"\x80\x04\x8b\xff\xff\xff\x7f.", "an integer of 2147483647 bytes", id="LONG4"
        ),
        pytest.param(b"\x80\x04]r\xff\xff\xff\xff.", "memo numbers are left out", id="LONG_BINPUT"),
        pytest.param(b"\x80\x04" + b"(" * 20_000, "nested too deeply", id="marks"),
        pytest.param(b"\x80\x04" + b"]" * 5 + b"a" * 5 + b".", "is missing", id="too few values"),
        pytest.param(b"\x80\x04N]a.", "is appended to a value", id="no list to append to"),
        pytest.param(b"\x80\x04}(NNNu.", "a key without a value at byte 7", id="an odd dict"),
        pytest.param(b"\x80\x04\x8c\x01\xff.", "a text is not UTF-8 at byte 2", id="no UTF-8"),
        pytest.param(b"\x80\x04h\x07.", "what is referred to is not there", id="BINGET"),
        pytest.param(b"\x80\x04]\x8c.", "cut short", id="cut in a length"),
        pytest.param(b"\x80\x04\xee.", "no such opcode as 238 at byte 2", id="an opcode"),
    ],
)
def test_errors_name_the_kind_of_other_files(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "file.pickle"
    path.write_bytes(data)
    with pytest.raises(PytracerError, match=rf"file\.pickle .*{message}"):
        load(path)


def endless() -> list[Any]:
    values: list[Any] = []
    values.append(values)
    return values


def nested(times: int, count: int) -> list[Any]:
    """Return nested lists, in which each list is contained `each` times in the next."""
    values: list[Any] = []
    for _ in range(times):
        values = [values] * count
    return values


@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    ("odd", "message"),
    [
        pytest.param(lambda: {"x": endless()}, "nested too deeply", id="a list in itself"),
        pytest.param(lambda: {"x": nested(200, 1)}, "nested too deeply", id="200 lists"),
        pytest.param(lambda: {"x": nested(90, 2)}, "to each other too often", id="2^90 lists"),
        pytest.param(lambda: {((), ()): 1}, "a key that is no", id="what may take long to hash"),
        pytest.param(
            lambda: {i * (2**61 - 1): i for i in range(10_000)}, "a key that is no", id="one hash"
        ),
        pytest.param(lambda: {1.5: 1}, "a key that is no text and no number", id="a float"),
    ],
)
def test_values_that_would_take_too_long(odd: Callable[[], Any], message: str) -> None:
    # GIVEN values of a few bytes that would take too long to visit, THEN they are refused
    with pytest.raises(PytracerError, match=message):
        load(pickle.dumps({**SNAPSHOT, "pytracer": odd()}))


@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    "content",
    [
        pytest.param({**SNAPSHOT, "device_traces": [[]] * 200_000}, id="traces"),
        pytest.param({**SNAPSHOT, "device_traces": [[EVENT]] * 200_000}, id="one trace"),
        pytest.param({"segments": [SEGMENT] * 2, "device_traces": []}, id="a segment twice"),
        pytest.param({**SNAPSHOT, "device_traces": [[EVENT] * 2]}, id="an event twice"),
    ],
)
def test_repeated_lists_and_rows_are_refused(content: Any) -> None:
    with pytest.raises(PytracerError, match=r"more devices than|in another list too"):
        load(pickle.dumps(content))


def test_all_items_of_a_list_at_once() -> None:
    # GIVEN a list that is not written in batches, as by C++ picklers
    items = 50_000
    begin = b"}(" + text("action") + text("alloc") + text("addr") + b"M"
    events = b"".join(begin + i.to_bytes(2, "little") + b"u" for i in range(items))
    lists = text("segments") + b"]" + text("device_traces") + b"](](" + events + b"ee"
    # THEN it is read
    (trace,) = load(b"\x80\x02}(" + lists + b"u.").traces
    assert trace.address.tolist() == list(range(items))


def test_keys_may_be_any_text() -> None:
    events = [{**EVENT, "\ud800": 1}]
    snapshot = load(pickle.dumps({"segments": [], "device_traces": [events]}))
    assert snapshot.unknown_keys == ("event.\ud800",)


def test_rows_do_not_change_after_they_were_used() -> None:
    # GIVEN a pickle that adds a frame to a stack that an event already has
    frame = b"}(" + b"".join(map(text, ["filename", "a.py", "name", "f", "line"])) + b"K\x07u"
    event = b"}(" + text("action") + text("alloc") + text("addr") + b"K\x01" + text("frames")
    data = b"\x80\x02]" + event + b"]q\x00" + frame + b"auah\x00" + frame + b"a."
    with pytest.raises(PytracerError, match="changed after it was used at byte"):
        load(data)


def test_the_reader_needs_neither_torch_nor_the_recorder(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["torch"] = sys.modules["pytracer._core"] = None
import pytracer.commands.main
from pytracer.reading import load
"""
    done = processes.run(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(path.write_bytes, pickle.dumps(SNAPSHOT))
        assert_same(load(path), reference_reader.convert(SNAPSHOT))


def test_a_pipe_that_nobody_writes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PIPE_PATIENCE_S", 0.1)
    os.mkfifo(path := tmp_path / "pipe")
    with pytest.raises(PytracerError, match="no program writes to this pipe"):
        load(path)


@pytest.mark.parametrize("place", ["link.pickle", "folder/a.pickle", "pipe"])
def test_no_link_is_followed_for_an_agent(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a file, a link to it, a link to its folder, and a pipe
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(SNAPSHOT))
    (tmp_path / "link.pickle").symlink_to("a.pickle")
    (tmp_path / "folder").symlink_to(".")
    os.mkfifo(tmp_path / "pipe")
    # WHEN the agents' server reads THEN only the file is read, and found
    monkeypatch.setenv(files.FOLLOWS_NO_LINKS, "1")
    load(tmp_path / "a.pickle")
    assert files.find([tmp_path]) == [tmp_path / "a.pickle"]
    with pytest.raises(PytracerError, match="cannot read"):
        load(tmp_path / place)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PytracerError, match=r"cannot read .*nothing\.pickle: No such file"):
        load(tmp_path / "nothing.pickle")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PytracerError, match=r"cannot read .*: Is a directory"):
        load(tmp_path)
