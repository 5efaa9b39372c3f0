"""A pickle as the memory_viz page reads it, which knows a part of the opcodes."""

import pickletools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from viewed_values import FRAME_TYPES, ViewerError, require

FrameKey = tuple[str, str, int]  # filename, name, line

MAX_BATCH = 65_535  # the page appends a batch in one call; JavaScript engines limit its arguments


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
        require(marks, f"{where}: no MARK")
        mark = marks.pop()
        items = stack[mark:]
        del stack[mark:]
        require(len(items) <= MAX_BATCH, f"{where}: {len(items)} items in one batch")
        return items

    def set_items(target: Any, items: list[Any]) -> None:
        require(
            isinstance(target, dict) and len(items) % 2 == 0,
            f"{where}: not keys and values of a dict",
        )
        for key, value in zip(items[::2], items[1::2], strict=True):
            require(isinstance(key, str), f"{where}: the key {key!r} is not a string")
            target[key] = value

    for name, argument, start, end in _operations(data):
        where = f"{name} at byte {start}"
        result.opcodes[name] += 1
        if start >= frame_end:
            frame_end = 0
        if frame_end:
            require(name != "FRAME" and end <= frame_end, f"{where} crosses the end of its frame")
        match name:
            case "PROTO":
                require(start == 0 and 2 <= argument <= 4, f"{where}: protocol {argument}")
            case "FRAME":
                frame_end = end + argument
                require(frame_end <= len(data), f"{where} is longer than the file")
            case "MARK":
                marks.append(len(stack))
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "BININT" | "BININT1" | "BININT2" | "BINFLOAT":
                stack.append(argument)
            case "LONG1":
                # The page turns more than 8 bytes into a BigInt, which does not mix with numbers.
                require(end - start <= 2 + 8, f"{where}: {argument} does not fit 64 signed bits")
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
                require(len(stack) >= count, f"{where}: the stack is too short for the tuple")
                stack[-count:] = [tuple(stack[-count:])]
            case "APPEND" | "APPENDS":
                items = above_mark() if name == "APPENDS" else [stack.pop()]
                require(stack and isinstance(stack[-1], list), f"{where}: the target is not a list")
                stack[-1].extend(items)
            case "SETITEM" | "SETITEMS":
                items = above_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
                require(stack, f"{where}: the target is missing")
                set_items(stack[-1], items)
            case "MEMOIZE":
                # MEMOIZE uses the next index: the page counts MEMOIZE opcodes, CPython counts
                # the memo's entries. The two agree only without BINPUT.
                require(
                    "BINPUT" not in result.opcodes and "LONG_BINPUT" not in result.opcodes,
                    f"{where}: MEMOIZE after BINPUT: the page uses another index than CPython",
                )
                memo[len(memo)] = stack[-1]
            case "BINPUT" | "LONG_BINPUT":
                require("MEMOIZE" not in result.opcodes, f"{where}: BINPUT after MEMOIZE")
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                require(argument in memo, f"{where}: the memo has no entry {argument}")
                stack.append(memo[argument])
            case "STOP":
                require(end == len(data), f"{where}: {len(data) - end} bytes follow")
                require(len(stack) == 1 and not marks, f"{where}: {len(stack)} values, not one")
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
