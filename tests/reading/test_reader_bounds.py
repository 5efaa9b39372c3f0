"""Tests of the bounds of reading: its memory, its time, and its delay of signals."""

import gzip
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzz_values
import processes
import pytest

from pytracer.errors import PytracerError
from pytracer.reading import load
from pytracer.reading.snapshot import Snapshot

EVENT = {"action": "alloc", "addr": 4096, "size": 512}
SNAPSHOT: dict[str, Any] = {"segments": [], "device_traces": [], "pytracer": {"rank": 3}}

SPARE = 16 << 20  # the memory that reading may take in addition to a multiple of the file's size
SLACK = 24 << 20  # the memory that decompressors, numpy and the allocator take


def with_value(value: bytes, padding: int = 0) -> bytes:
    """Return a snapshot with a pickled value in `pytracer`, and `padding` bytes without effect."""
    content = {"segments": [], "device_traces": [], "pytracer": None}
    begin, end = pickle.dumps(content, 2).removesuffix(b".").split(b"N")
    return begin + b"N0" * (padding // 2) + b"}X\x01\x00\x00\x00x" + value + b"s" + end + b"."


def references(value: bytes, count: int) -> bytes:
    """Return a pickled list of a value and references to it."""
    memo = (1000).to_bytes(4, "little")
    return b"](" + value + b"r" + memo + (b"j" + memo) * count + b"e"


TEXT = b"X" + (20_000).to_bytes(4, "little") + b"x" * 20_000
GZIP_BOMBS: dict[str, Callable[[], bytes]] = {
    "tuples of one": lambda: with_value(b"](" + b"N\x85" * 5_000_000 + b"e"),
    "long integers": lambda: with_value(references(b"\x8a\x10" + b"\x07" * 16, 2_000_000)),
    "real numbers": lambda: with_value(references(b"G" + b"\x07" * 8, 2_000_000)),
    "dicts": lambda: with_value(references(b"}K\x01K\x01s", 1_000_000)),
    "lists of lists": lambda: with_value(references(references(b"]", 1000), 1000), 5_000_000),
    "events": lambda: (
        b"\x80\x04](" + b"}(\x8c\x06action\x94\x8c\x05alloc\x94\x8c\x04addr\x94K\x01u"
        b"}(h\x00h\x01h\x02K\x01u" * 800_000
    ),
}


def peak_of_loading(path: Path, cwd: Path) -> tuple[int, str]:
    """Load a file in a process; return the growth of its peak memory and the error's message."""
    program = f"""
import resource, sys
sys.path.insert(0, {str(Path(fuzz_values.__file__).parent)!r})
from fuzz_values import peak_of
resource.setrlimit(resource.RLIMIT_AS, ({4 << 30}, {4 << 30}))
from pytracer.errors import PytracerError
from pytracer.reading import load

def loaded():
    try:
        load({str(path)!r})
    except PytracerError as error:
        return str(error)
    return ""

peak, error = peak_of(loaded)
print(peak, error)
"""
    done = processes.run(program, cwd=cwd)
    assert done.returncode == 0, done.stderr
    peak, _, error = done.stdout.partition(" ")
    return int(peak), error


def test_a_text_is_one_object() -> None:
    # GIVEN a file with 60 references to a text of 20 KB
    snapshot = load(with_value(references(TEXT, 60)))
    # THEN all of them are one object, which is also in the file's list of texts
    values = snapshot.metadata.as_written["x"]
    assert len(values) == 61
    assert {id(value) for value in values} == {id(values[0])}
    assert any(value is values[0] for value in snapshot.strings)


def test_references_to_a_text_are_limited() -> None:
    # GIVEN a file of 140 KB for which a report would write 400 MB
    data = with_value(references(TEXT, 20_000))
    # WHEN it is loaded, THEN it is refused
    with pytest.raises(PytracerError, match="values refer to long texts too often"):
        load(data)


@pytest.mark.parametrize("device", [256, -2, 2**40])
def test_an_impossible_device(device: int) -> None:
    # GIVEN a segment of a device with an impossible index
    segment = {"device": device, "address": 4096, "total_size": 512, "blocks": []}
    data = pickle.dumps({**SNAPSHOT, "segments": [segment]}, 4)
    # WHEN it is loaded, THEN its device is unknown
    assert load(data).segments.device.tolist() == [-1]
    assert load(data).device_name(-1) == "unknown device"


@pytest.mark.parametrize("name", GZIP_BOMBS)
def test_memory_is_bounded_by_the_compressed_file(tmp_path: Path, name: str) -> None:
    # GIVEN a few KB that expand to millions of values
    data = gzip.compress(GZIP_BOMBS[name](), compresslevel=9)
    (path := tmp_path / "bomb.pickle").write_bytes(data)
    # WHEN they are loaded
    peak, error = peak_of_loading(path, tmp_path)
    # THEN they are refused before reading takes more memory than their size allows
    assert "bomb.pickle is refused: reading it takes more than" in error
    assert "over 300 times the file's size" in error
    assert error.endswith("; decompress it yourself if you trust it\n")
    assert peak < SPARE + 300 * len(data) + SLACK


BOMBS = {
    "lists": b"\x80\x04(" + b"]" * 10_000_000,
    "remembered lists": b"\x80\x04" + b"]\x940" * 4_000_000,
    "tuples": b"\x80\x04" + b")0" * 6_000_000,
    "a list in lists": b"\x80\x04]\x94" + b"]h\x00a0" * 2_000_000,
    "lists of one": b"\x80\x04]" + b"]Naa" * 2_000_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_memory_is_bounded_by_what_was_read(tmp_path: Path, name: str) -> None:
    # GIVEN a file that creates as many objects as possible
    (path := tmp_path / "bomb.pickle").write_bytes(BOMBS[name])
    # WHEN it is loaded in a process with a memory limit
    peak, error = peak_of_loading(path, tmp_path)
    # THEN it is refused, and reading took at most a multiple of the file's size
    assert "bomb.pickle" in error
    assert peak < SPARE + 20 * len(BOMBS[name]) + SLACK


def test_extreme_compression_is_refused(tmp_path: Path) -> None:
    # GIVEN 40 MB without effect that gzip compresses to little
    path = tmp_path / "bomb.pickle"
    path.write_bytes(gzip.compress(b"\x80\x04" + b"N0" * 20_000_000))
    # THEN the file is refused
    with pytest.raises(PytracerError, match=r"grows more than 200-fold"):
        load(path)


def test_extreme_valid_files_are_read() -> None:
    # GIVEN the valid files with the most memory for their size (150,000 annotations) and the best
    # compression
    stages = [{"stage": "START", "device": 0}, {"stage": "END", "device": 0}]
    annotations = [
        {"name": f"ProfilerStep#{i // 2}", "time_us": 10**15 + 1000 * i, **stages[i % 2]}
        for i in range(150_000)
    ]
    content = {**SNAPSHOT, "external_annotations": annotations}
    data = pickle.dumps(content, 4)
    # THEN both are read
    assert load(data).external_annotations == annotations
    assert load(gzip.compress(data, 9)).external_annotations == annotations


@pytest.mark.timeout(300)
def test_an_unknown_key_is_stored_once() -> None:
    # GIVEN 300,000 events with the same unknown key of 3 MB
    key = b"X" + (3_000_000).to_bytes(4, "little") + b"k" * 3_000_000 + b"\x94"
    known = b"\x8c\x06action\x94\x8c\x05alloc\x94\x8c\x04addr\x94"
    events = b"}(h\x01h\x02h\x03K\x01h\x00Nu" * 300_000
    data = (
        b"\x80\x04"
        + key
        + b"0"
        + known
        + b"000}(\x8c\x08segments]\x8c\x0ddevice_traces]]("
        + (events + b"eau.")
    )
    # WHEN the file is read, THEN the report has the key, and reading does not take minutes
    snapshot = load(data)
    assert snapshot.unknown_keys == ("event." + "k" * 3_000_000,)
    assert len(snapshot.traces[0]) == 300_000


def traces(*same: list[Any]) -> bytes:
    return pickle.dumps({**SNAPSHOT, "device_traces": list(same)})


def test_devices_do_not_share_events() -> None:
    # GIVEN a file whose two devices share one list of events, as up to 256 devices could
    events = [EVENT, {**EVENT, "addr": 1}]
    with pytest.raises(PytracerError, match="events of a device are another device's too"):
        load(traces(events, events))
    # AND equal but separate lists are read, with empty traces between them
    found: Snapshot = load(traces([], [dict(EVENT)], [], [dict(EVENT)], []))
    assert [len(trace) for trace in found.traces] == [0, 1, 0, 1, 0]


def test_a_dict_of_many_keys_is_not_a_row() -> None:
    # GIVEN metadata with an event's keys and a hundred other keys
    many = {**EVENT, **{f"key {i}": i for i in range(100)}}
    loaded = load(pickle.dumps({**SNAPSHOT, "pytracer": {"x": [many]}}))
    assert loaded.metadata.as_written == {"x": [many]}
    # THEN it is not an event, neither in the metadata nor in a trace
    with pytest.raises(PytracerError, match="list of a device's events has a wrong type"):
        load(traces([many]))


def test_a_compressed_pipe(tmp_path: Path) -> None:
    # GIVEN a pipe, which has no file position
    os.mkfifo(path := tmp_path / "pipe")
    data = gzip.compress(pickle.dumps(SNAPSHOT))
    with processes.start(f"open({str(path)!r}, 'wb').write({data!r})", cwd=tmp_path):
        # THEN it is read
        assert load(path).metadata.as_written == SNAPSHOT["pytracer"]


LATENCY = """
import signal, sys, threading, time
import numpy as np
from pytracer.reading import _reader, load

path = sys.argv[1]
NUMBER = 4_000_000

def replay():
    address = np.repeat(np.arange(0, 1000, dtype=np.int64) * 512, 2)
    trace = np.tile(np.array([0, 2], np.uint8), NUMBER // 2)
    addresses = np.resize(address, NUMBER)
    sizes = np.full(NUMBER, 512, np.int64)
    none, no = np.zeros(0, np.int64), np.zeros(0, bool)
    state = dict(
        segment_address=np.zeros(1, np.int64), segment_size=np.full(1, 1000 * 512),
        is_expandable=np.zeros(1, bool), block_address=none, block_size=none, requested=none,
        is_pending=no,
    )
    rules = dict(
        has_pools=True, are_known=True, may_expand=False, aligns=False, padding_bytes=0,
        is_padding_known=True, max_split_bytes=2**62, divisions=[0] * 16,
    )
    _reader.replay(trace, addresses, sizes, state, rules)

def load_in_thread():
    thread = threading.Thread(target=load, args=[path])
    thread.start()
    while thread.is_alive():
        thread.join(0.01)

work = {"load": lambda: load(path), "load in a thread": load_in_thread, "replay": replay}
last = longest = 0.0

def handle(*_):
    global last, longest
    now = time.process_time()
    longest = max(longest, now - last)
    last = now

signal.signal(signal.SIGPROF, handle)
begin = last = time.process_time()
signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)
work[sys.argv[2]]()
signal.setitimer(signal.ITIMER_PROF, 0)
handle()
print(longest, last - begin)
"""


@pytest.mark.parametrize("work", ["load", "load in a thread", "replay"])
def test_signals_are_handled_during_reading(tmp_path: Path, work: str) -> None:
    # GIVEN a file that becomes 20 million values, or a trace of 4 million events
    path = tmp_path / "values.pickle"
    nones = b"](" + b"N" * 1000 + b"e"
    path.write_bytes(with_value(references(references(nones, 1000), 20), 22_000_000))
    # WHEN it is read by a process that a timer signals
    done = processes.run(LATENCY, path, work, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # THEN Python handles the signal repeatedly, measured by the process's own time
    longest_s, all_s = map(float, done.stdout.split())
    assert all_s > 0.1
    assert longest_s < min(1.0, all_s / 2)


def test_interrupted(tmp_path: Path) -> None:
    # GIVEN a program that is interrupted while it loads a file
    path = tmp_path / "values.pickle"
    nones = b"](" + b"N" * 1000 + b"e"
    path.write_bytes(with_value(references(references(nones, 1000), 20), 22_000_000))
    program = f"""
import signal
from pytracer.reading import load
signal.signal(signal.SIGPROF, signal.default_int_handler)
signal.setitimer(signal.ITIMER_PROF, 0.05)
try:
    load({str(path)!r})
except KeyboardInterrupt:
    print("interrupted")
"""
    # THEN loading raises KeyboardInterrupt
    assert processes.run(program, cwd=tmp_path).stdout == "interrupted\n"


def test_python_values_of_any_file(tmp_path: Path) -> None:
    # GIVEN generated and mutated files, whose values refer to each other, some compressed
    count = int(os.environ.get("FUZZ_FILES", 1000)) // 2
    seed = os.urandom(4).hex() if "FUZZ_FILES" in os.environ else "0"
    # WHEN they are loaded, each within the bounds for its size
    done = processes.run_python(fuzz_values.__file__, count, seed, cwd=tmp_path, timeout=6000)
    # THEN each gives a result or an error, and there are many of both
    assert done.returncode == 0, done.stderr
    read, refused = map(int, done.stdout.split())
    assert read + refused == count
    assert min(read, refused) > count // 10
