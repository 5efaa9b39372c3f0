"""Check that PyTorch's own viewers accept a memory snapshot.

The checks follow `torch/utils/viz/MemoryViz.js` (the memory_viz page) and
`torch/cuda/_memory_viz.py` as of torch 2.13. Every check raises `ViewerError` with the place and
the value at which a viewer would fail.
"""

import bisect
import importlib.util
import os
import pickletools
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FrameKey = tuple[str, str, int]  # filename, name, line

SAFE_INTEGER = 2**53  # the page's numbers are doubles, which are exact up to here
MAX_BATCH = 65_535  # the page appends a batch in one call; JavaScript engines limit its arguments

# Of events and blocks that an autograd node allocated; torch writes the first one too.
BACKWARD_TYPES = {
    "forward_frames": list,
    "forward_exact": bool,
    "forward_phase": str,
    "autograd_node": str,
}
TOP_KEYS = {"segments", "device_traces", "allocator_settings", "external_annotations"}
OPTIONAL_TOP_KEYS = {"pytracer", "host_segments", "host_traces"}
SEGMENT_TYPES = {
    "device": int,
    "address": int,
    "total_size": int,
    "allocated_size": int,
    "active_size": int,
    "requested_size": int,
    "stream": int,
    "segment_type": str,
    "segment_pool_id": tuple,
    "is_expandable": bool,
    "frames": list,
    "blocks": list,
}
BLOCK_TYPES = {"address": int, "size": int, "requested_size": int, "state": str, "frames": list}
CATEGORY_TYPES = {"category": str, "category_rule": str}  # pytracer's own, as the next
OWNER_TYPES = {"owner": str, "owners": int}
HOLDER_TYPES = {"holder": str}
EVENT_TYPES = {
    "action": str,
    "addr": int,
    "size": int,
    "stream": int,
    "time_us": int,
    "pool_id": tuple,
    "frames": list,
    "compile_context": str,
    "user_metadata": str,
}
OOM_TYPES = {("device_free" if key == "addr" else key): kind for key, kind in EVENT_TYPES.items()}
FRAME_TYPES = {"filename": str, "name": str, "line": int}
ANNOTATION_TYPES = {"name": str, "stage": str, "device": int, "time_us": int}
ALLOCATED, PENDING, INACTIVE = "active_allocated", "active_pending_free", "inactive"


class ViewerError(AssertionError):
    """A viewer would reject this snapshot, misread it, or crash."""


def _require(condition: object, message: str) -> None:
    if not condition:
        raise ViewerError(message)


# --- the pickle ---------------------------------------------------------------------------------


@dataclass
class Pickled:
    """The contents of a pickle, and how many times each part is written out."""

    root: Any = None
    opcodes: Counter[str] = field(default_factory=Counter)
    strings: Counter[str] = field(default_factory=Counter)
    frames: Counter[FrameKey] = field(default_factory=Counter)
    stacks: Counter[tuple[FrameKey, ...]] = field(default_factory=Counter)

    def repeated(self) -> list[object]:
        """Return the strings, frames and stacks that are written more than once."""
        parts = (self.strings, self.frames, self.stacks)
        return [part for counts in parts for part, count in counts.items() if count > 1]


def check_opcodes(data: bytes) -> Pickled:
    """Interpret a pickle as the memory_viz page does; raise where the page cannot read it."""
    result = Pickled()
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    dicts: list[dict[Any, Any]] = []
    lists: list[list[Any]] = []
    frame_end = 0

    def above_mark() -> list[Any]:
        _require(marks, f"{where}: no MARK")
        mark = marks.pop()
        items = stack[mark:]
        del stack[mark:]
        _require(len(items) <= MAX_BATCH, f"{where}: {len(items)} items in one batch")
        return items

    def set_items(target: Any, items: list[Any]) -> None:
        _require(
            isinstance(target, dict) and len(items) % 2 == 0,
            f"{where}: not keys and values of a dict",
        )
        for key, value in zip(items[::2], items[1::2], strict=True):
            _require(isinstance(key, str), f"{where}: the key {key!r} is not a string")
            target[key] = value

    for name, argument, start, end in _operations(data):
        where = f"{name} at byte {start}"
        result.opcodes[name] += 1
        if start >= frame_end:
            frame_end = 0
        if frame_end:
            _require(name != "FRAME" and end <= frame_end, f"{where} crosses the end of its frame")
        match name:
            case "PROTO":
                _require(start == 0 and 2 <= argument <= 4, f"{where}: protocol {argument}")
            case "FRAME":
                frame_end = end + argument
                _require(frame_end <= len(data), f"{where} is longer than the file")
            case "MARK":
                marks.append(len(stack))
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "BININT" | "BININT1" | "BININT2" | "BINFLOAT":
                stack.append(argument)
            case "LONG1":
                # The page turns more than 8 bytes into a BigInt, which does not mix with numbers.
                _require(end - start <= 2 + 8, f"{where}: {argument} does not fit 64 signed bits")
                stack.append(argument)
            case "SHORT_BINUNICODE" | "BINUNICODE":
                result.strings[argument] += 1
                stack.append(argument)
            case "EMPTY_DICT" | "DICT":
                dicts.append({})
                if name == "DICT":
                    set_items(dicts[-1], above_mark())
                stack.append(dicts[-1])
            case "EMPTY_LIST" | "LIST":
                lists.append(above_mark() if name == "LIST" else [])
                stack.append(lists[-1])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE":
                stack.append(tuple(above_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(name[-1])
                _require(len(stack) >= count, f"{where}: the stack is too short for the tuple")
                stack[-count:] = [tuple(stack[-count:])]
            case "APPEND" | "APPENDS":
                items = above_mark() if name == "APPENDS" else [stack.pop()]
                _require(
                    stack and isinstance(stack[-1], list), f"{where}: the target is not a list"
                )
                stack[-1].extend(items)
            case "SETITEM" | "SETITEMS":
                items = above_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
                _require(stack, f"{where}: the target is missing")
                set_items(stack[-1], items)
            case "MEMOIZE":
                # MEMOIZE uses the next index: the page counts MEMOIZE opcodes, CPython counts
                # the memo's entries. The two agree only without BINPUT.
                _require(
                    "BINPUT" not in result.opcodes and "LONG_BINPUT" not in result.opcodes,
                    f"{where}: MEMOIZE after BINPUT: the page uses another index than CPython",
                )
                memo[len(memo)] = stack[-1]
            case "BINPUT" | "LONG_BINPUT":
                _require("MEMOIZE" not in result.opcodes, f"{where}: BINPUT after MEMOIZE")
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                _require(argument in memo, f"{where}: the memo has no entry {argument}")
                stack.append(memo[argument])
            case "STOP":
                _require(end == len(data), f"{where}: {len(data) - end} bytes follow")
                _require(len(stack) == 1 and not marks, f"{where}: {len(stack)} values, not one")
                result.root = stack.pop()
            case _:
                raise ViewerError(f"{where}: the page does not know this opcode")

    for frame in dicts:
        if frame.keys() == FRAME_TYPES.keys():
            result.frames[_frame_key(frame)] += 1
    for items in lists:
        if items and all(isinstance(i, dict) and i.keys() == FRAME_TYPES.keys() for i in items):
            result.stacks[tuple(_frame_key(frame) for frame in items)] += 1
    return result


def _operations(data: bytes) -> Iterator[tuple[str, Any, int, int]]:
    """Yield the name, argument, first byte and end byte of every operation up to STOP."""
    previous: tuple[str, Any, int] | None = None
    try:
        for opcode, argument, position in pickletools.genops(data):
            assert position is not None
            if previous is not None:
                yield (*previous, position)
            previous = (opcode.name, argument, position)
    except ValueError as error:
        raise ViewerError(f"not a complete pickle: {error}") from error
    assert previous is not None
    yield (*previous, previous[2] + 1)  # STOP is one byte


def _frame_key(frame: dict[str, Any]) -> FrameKey:
    return frame["filename"], frame["name"], frame["line"]


# --- the snapshot -------------------------------------------------------------------------------


def check_snapshot(snapshot: dict[str, Any]) -> None:
    """Check keys, types and sums, and replay each trace backward as the state history does."""
    _require(isinstance(snapshot, dict), f"the snapshot is a {type(snapshot).__name__}")
    missing, extra = TOP_KEYS - snapshot.keys(), snapshot.keys() - TOP_KEYS - OPTIONAL_TOP_KEYS
    _require(not missing and not extra, f"top: missing {missing}, unknown {extra}")
    segments, traces = snapshot["segments"], snapshot["device_traces"]
    _require(isinstance(segments, list), "segments is not a list")
    _require(isinstance(traces, list), "device_traces is not a list")
    _require(isinstance(snapshot["allocator_settings"], dict), "allocator_settings is not a dict")
    _check_annotations(snapshot["external_annotations"])

    for number, segment in enumerate(segments):
        _check_segment(segment, f"segment {number}")
        device = segment["device"]
        _require(0 <= device < len(traces), f"segment {number}: no trace for device {device}")
    for device, trace in enumerate(traces):
        _require(isinstance(trace, list), f"trace of device {device} is not a list")
        for number, event in enumerate(trace):
            _check_event(event, f"device {device} event {number}")
    blocks = [block for segment in segments for block in segment["blocks"]]
    holders = [*segments, *blocks, *(event for trace in traces for event in trace)]
    _check_frames(holders)
    _check_unshared(holders)
    for device, trace in enumerate(traces):
        memory = _Memory(device, segments)
        for number in reversed(range(len(trace))):
            memory.undo(
                trace[number], f"device {device} event {number} ({trace[number]['action']})"
            )


def annotated(snapshot: dict[str, Any], device: int) -> list[str]:
    """Return each event's annotation as mosaic's annotation profile does: the latest open one."""
    waiting, open_, found = list(snapshot["external_annotations"]), [""], []
    for event in snapshot["device_traces"][device]:
        while waiting and waiting[0]["time_us"] <= event["time_us"]:
            annotation = waiting.pop(0)
            if annotation["stage"] == "START":
                open_.append(annotation["name"])
            else:
                last = len(open_) - 1 - open_[::-1].index(annotation["name"])
                del open_[last]
        found.append(open_[-1])
    return found


def _check_annotations(annotations: Any) -> None:
    _require(isinstance(annotations, list), "external_annotations is not a list")
    open_: Counter[str] = Counter()
    last_us = 0
    for number, annotation in enumerate(annotations):
        where = f"annotation {number}"
        _check_types(annotation, ANNOTATION_TYPES, where)
        _require(annotation["time_us"] >= last_us, f"{where}: earlier than the previous annotation")
        last_us = annotation["time_us"]
        _require(annotation["stage"] in {"START", "END"}, f"{where}: {annotation['stage']!r}")
        open_[annotation["name"]] += 1 if annotation["stage"] == "START" else -1
        _require(open_[annotation["name"]] >= 0, f"{where}: an END without its START")


def _check_segment(segment: Any, where: str) -> None:
    _check_types(segment, SEGMENT_TYPES, where)
    _check_pool(segment["segment_pool_id"], where)
    kind = segment["segment_type"]
    _require(kind in {"small", "large"}, f"{where}: segment_type {kind!r}")
    _require(segment["blocks"], f"{where}: no blocks")

    address = segment["address"]
    for number, block in enumerate(segment["blocks"]):
        inside = f"{where} block {number}"
        types = BLOCK_TYPES | (CATEGORY_TYPES if "category" in block else {})
        types |= HOLDER_TYPES if "holder" in block else {}
        _check_types(block, types | (OWNER_TYPES if "owner" in block else {}), inside)
        _check_range(block["address"], block["size"], inside)
        _require(block["address"] == address, f"{inside}: at {block['address']}, not {address}")
        state, requested = block["state"], block["requested_size"]
        _require(state in {ALLOCATED, PENDING, INACTIVE}, f"{inside}: state {state!r}")
        # A freed block keeps its last requested size, in torch's own files too. After a split the
        # requested size can exceed the block's size.
        _require(
            requested >= 0 if state == INACTIVE else 1 <= requested <= block["size"],
            f"{inside}: requested_size {requested} of {block['size']}",
        )
        address += block["size"]

    def total(key: str, *states: str) -> int:
        return sum(block[key] for block in segment["blocks"] if block["state"] in states)

    sums = {
        "total_size": total("size", ALLOCATED, PENDING, INACTIVE),
        "allocated_size": total("size", ALLOCATED),
        "active_size": total("size", ALLOCATED, PENDING),
        "requested_size": total("requested_size", ALLOCATED, PENDING),
    }
    for key, expected in sums.items():
        _require(segment[key] == expected, f"{where}: {key} {segment[key]}, blocks: {expected}")


def _check_event(event: Any, where: str) -> None:
    _require(isinstance(event, dict), f"{where} is a {type(event).__name__}")
    action = event.get("action")
    _check_types(event, OOM_TYPES if action == "oom" else EVENT_TYPES, where)
    _check_pool(event["pool_id"], where)
    _require(event["size"] >= 0, f"{where}: size {event['size']}")
    _require(event["time_us"] >= 0, f"{where}: time_us {event['time_us']}")


def _check_types(value: Any, types: dict[str, type], where: str) -> None:
    _require(isinstance(value, dict), f"{where} is not a dict")
    if "frames" in types:
        types = {**types, **{key: BACKWARD_TYPES[key] for key in BACKWARD_TYPES if key in value}}
    if value.keys() != types.keys():
        missing, extra = types.keys() - value.keys(), value.keys() - types.keys()
        raise ViewerError(f"{where}: missing {missing}, unknown {extra}")
    for key, kind in types.items():
        if type(value[key]) is not kind:  # not `isinstance`, because a bool is not an int here
            raise ViewerError(f"{where}: {key} is {value[key]!r}, not {kind.__name__}")


def _check_range(address: int, size: int, where: str) -> None:
    _require(size > 0, f"{where}: size {size}: the page cannot draw an empty range")
    _require(
        0 <= address < SAFE_INTEGER - size,
        f"{where}: address {address} is not exact in the page's arithmetic",
    )


def _check_pool(pool: tuple[Any, ...], where: str) -> None:
    good = len(pool) == 2 and all(type(part) is int for part in pool)
    _require(good, f"{where}: pool id {pool!r}, not a pair of integers")


def _check_frames(holders: list[dict[str, Any]]) -> None:
    shared = {id(holder["frames"]): (holder["frames"], holder) for holder in holders}
    for frames, holder in shared.values():
        for number, frame in enumerate(frames):
            _check_types(frame, FRAME_TYPES, f"frame {number} of {holder.get('action', 'a block')}")


def _check_unshared(holders: list[dict[str, Any]]) -> None:
    """Check that no two entries share an object: the page writes into segments, blocks, events."""
    count, distinct = len(holders), len({id(holder) for holder in holders})
    _require(count == distinct, f"{count - distinct} entries share an object with another entry")


@dataclass
class _Range:
    size: int
    stream: int = 0
    pending: bool = False


class _Ranges:
    """Disjoint address ranges, looked up by any address in them."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: dict[int, _Range] = {}

    def add(self, address: int, item: _Range, where: str) -> None:
        clash = self.overlapping(address, item.size)
        _require(clash is None, f"{where}: {address}+{item.size} overlaps the range at {clash}")
        bisect.insort(self._starts, address)
        self._ranges[address] = item

    def get(self, address: int) -> _Range | None:
        return self._ranges.get(address)

    def remove(self, address: int) -> None:
        del self._ranges[address]
        del self._starts[bisect.bisect_left(self._starts, address)]

    def overlapping(self, address: int, size: int) -> int | None:
        """Return the start of a range that overlaps these bytes, or None."""
        following = bisect.bisect_left(self._starts, address + size)
        if following == 0:
            return None
        start = self._starts[following - 1]
        return start if start + self._ranges[start].size > address else None


class _Memory:
    """The segments and blocks of one device, as the trace's events are undone from the last."""

    def __init__(self, device: int, segments: list[dict[str, Any]]) -> None:
        self._segments = _Ranges()
        self._blocks = _Ranges()
        for number, segment in enumerate(segments):
            if segment["device"] != device:
                continue
            where = f"segment {number}"
            self._segments.add(
                segment["address"], _Range(segment["total_size"], segment["stream"]), where
            )
            for block in segment["blocks"]:
                if block["state"] != INACTIVE:
                    # Events have the requested size, not the rounded size.
                    size, pending = block["requested_size"], block["state"] == PENDING
                    self._blocks.add(block["address"], _Range(size, pending=pending), where)

    def undo(self, event: dict[str, Any], where: str) -> None:
        action = event["action"]
        if action in {"snapshot", "oom", "annotate", "workspace_snapshot"}:
            return
        address, size = event["addr"], event["size"]
        _check_range(address, size, where)
        match action:
            case "alloc":
                block = self._block(address, size, where)
                _require(not block.pending, f"{where}: {address} is pending free after it")
                self._blocks.remove(address)
            case "free_requested":
                block = self._block(address, size, where)
                _require(block.pending, f"{where}: {address} is not pending free after it")
                block.pending = False
            case "free_completed":
                self._enclosing_segment(address, size, where)
                self._blocks.add(address, _Range(size, pending=True), where)
            case "segment_free" | "segment_unmap":
                self._segments.add(address, _Range(size, event["stream"]), where)
                if action == "segment_unmap":
                    self._merge(address)
            case "segment_alloc" | "segment_map":
                start = self._enclosing_segment(address, size, where)
                used = self._blocks.overlapping(address, size)
                _require(used is None, f"{where}: before it the block at {used} has no segment")
                exact = action == "segment_alloc"
                self._cut(start, address, size, must_match=exact, where=where)
            case _:
                raise ViewerError(f"{where}: no viewer knows this action")

    def _block(self, address: int, size: int, where: str) -> _Range:
        block = self._blocks.get(address)
        if block is None:
            raise ViewerError(f"{where}: there is no block at {address}")
        _require(block.size == size, f"{where}: {size} bytes, but the block has {block.size}")
        return block

    def _enclosing_segment(self, address: int, size: int, where: str) -> int:
        start = self._segments.overlapping(address, size)
        segment = None if start is None else self._segments.get(start)
        if start is None or segment is None:
            raise ViewerError(f"{where}: {address} is outside any segment")
        inside = start <= address and address + size <= start + segment.size
        _require(inside, f"{where}: {address}+{size} exceeds segment {start}+{segment.size}")
        return start

    def _cut(self, start: int, address: int, size: int, *, must_match: bool, where: str) -> None:
        segment = self._segments.get(start)
        assert segment is not None
        end, segment_end = address + size, start + segment.size
        exact = start == address and end == segment_end
        _require(exact or not must_match, f"{where}: the segment is {start}+{segment.size}")
        self._segments.remove(start)
        if start < address:
            self._segments.add(start, _Range(address - start, segment.stream), where)
        if end < segment_end:
            self._segments.add(end, _Range(segment_end - end, segment.stream), where)

    def _merge(self, address: int) -> None:
        """Merge the segment at `address` with adjacent segments of its stream."""
        segment = self._segments.get(address)
        assert segment is not None
        before = self._segments.overlapping(address - 1, 1)
        after = address + segment.size
        for left, right in ((address, after), (before, address)):
            lower = None if left is None else self._segments.get(left)
            upper = self._segments.get(right)
            if left is not None and lower and upper and lower.stream == upper.stream:
                self._segments.remove(right)
                lower.size += upper.size


# --- the viewer that comes with torch -----------------------------------------------------------


def run_memory_viz(
    path: Path, command: str, *options: str, output: Path | None = None, timeout: float = 900
) -> str:
    """Run torch's `_memory_viz.py` on a snapshot and return its output.

    Args:
        path: The snapshot.
        command: `stats` or `trace`, which print; `trace_plot` or `segment_plot`, which write an
            HTML file; `memory` or `segments`, which write the input of flamegraph.pl. (The
            commands `compare` and `trace_plot -s` are broken in torch 2.13 itself.)
        options: Further options of the command, such as `--filter_freed`.
        output: The output file of the commands that write one.
        timeout: The time limit in seconds.
    """
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    script = Path(spec.origin).parent / "cuda" / "_memory_viz.py"
    arguments = [sys.executable, str(script), command, str(path), *options]
    environment = dict(os.environ)
    if output is not None:
        arguments += ["-o", str(output)]
        if command in {"memory", "segments"}:
            environment["HOME"] = str(_home_with_flamegraph(output.parent))
    done = subprocess.run(
        arguments, capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )
    _require(done.returncode == 0, f"{command} failed:\n{done.stderr}")
    text = done.stdout if output is None else output.read_text()
    _require(text.strip(), f"{command} has no output")
    return text


def _home_with_flamegraph(folder: Path) -> Path:
    """Make a home folder whose flamegraph.pl copies its input, so that none is downloaded."""
    script = folder / "home" / ".cache" / "flamegraph.pl"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text("#!/bin/sh\nexec cat\n")
    script.chmod(0o755)
    return folder / "home"
