"""Recordings of a program at chosen sizes of its data, on a simulated allocator, without torch."""

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from simulated_recordings import MIB, Recorded

from pytracer.analysis.requests import ALLOCATE, FREE

DEVICE_BYTES = 2**34

CATEGORIES = {"parameter": "parameter", "state": "optimizer_state"}
"""By line, what blocks at the end are for."""

Requests = Iterator[tuple[str, str, int]]
"""Pairs of a line and the name of a block with its bytes, or ("step", "", 0) after a step."""


def training(
    batch: int,
    length: int | list[int],  # of each step
    steps: int = 3,
    buffer_from: int = 2**40,
    states: int = 2,
) -> Requests:
    """Train: attention needs the square of the length, and many rows a buffer more."""
    for i in range(4):
        yield "parameter", f"p{i}", 3 * MIB + i
    for step, columns in enumerate(length if isinstance(length, list) else [length] * steps):
        rows = batch * columns
        for i in range(4):
            yield "mixed", f"m{i}", 64 * rows * 4
            yield "attention", f"a{i}", 4 * batch * columns**2 * 4
        yield "logits", "l", 1000 * batch * (columns - 1) * 4
        if rows >= buffer_from:
            yield "buffer", "b", 4096 * rows
            yield "free", "b", 0
        yield "free", "l", 0
        for i in reversed(range(4)):
            yield "gradient", f"g{i}", 3 * MIB + i
            yield "free", f"a{i}", 0
            yield "free", f"m{i}", 0
        for i in range(4 if step == 0 else 0):
            yield "state", f"s{i}", states * (3 * MIB + i)
        for i in range(4):
            yield "update", "u", 3 * MIB + i
            yield "free", "u", 0
        for i in range(4):
            yield "free", f"g{i}", 0
        yield "step", "", 0


def routed(batch: int, length: int | list[int], steps: int = 3) -> Requests:
    """Train experts, which get as many tokens as the values of each step decide.

    A gradient of the weights has the stack of those of the tokens, and always one size.
    """
    yield "parameter", "p", 3 * MIB
    for step, columns in enumerate(length if isinstance(length, list) else [length] * steps):
        rows = batch * columns
        for i in range(4):
            tokens = rows // 4 + (rows // 32) * ((i + step + batch) % 3 - 1)
            yield "expert", f"e{i}", 4096 * tokens
        yield "expert", "w", 16 * MIB
        yield "free", "w", 0
        for i in range(4):
            yield "free", f"e{i}", 0
        yield "step", "", 0


def write(
    path: Path,
    program: Callable[..., Requests],
    device_bytes: int | None = DEVICE_BYTES,
    settings: str = "",
    **sizes: int | list[int],
) -> Recorded:
    """Write the snapshot of a program that has run at some sizes, which are in the metadata."""
    rows: list[tuple[int, int, int, int, int]] = []
    lines: list[str] = []
    begins, blocks = [0], {}
    for line, name, size_bytes in program(**sizes):
        if line == "step":
            begins.append(len(rows))
        elif line == "free":
            rows.append((FREE, blocks.pop(name), 0, 0, 0))
        else:
            blocks[name] = len(lines)
            rows.append((ALLOCATE, len(lines), size_bytes, 0, 0))
            lines.append(line)
    run = Recorded(rows, settings, device_bytes)
    # A request has several events: where its first one is, steps begin.
    first_events, allocated = [], iter(lines)
    for number, event in enumerate(run.events):
        if event["action"] in ("alloc", "free_requested", "oom"):
            first_events.append(number)
        name = next(allocated) if event["action"] in ("alloc", "oom") else "free"
        frame = {"filename": f"/{path.stem}/train/model.py", "name": name, "line": len(name)}
        event["frames"] = [frame]
        if name == "input":  # a DataLoader makes it
            made = "/torch/utils/data/_utils/fetch.py"
            event["frames"].insert(0, {"filename": made, "name": "fetch", "line": 1})
    content: dict[str, Any] = run.content()
    content["pytracer"]["devices"][0] |= {
        "total_bytes": device_bytes,
        "steps": [
            [step, first_events[first] if first < len(first_events) else len(run.events)]
            for step, first in enumerate(begins, 1)
        ],
    }
    line_at = {
        event["addr"]: event["frames"][-1]["name"] for event in run.events if "addr" in event
    }
    for segment in content["segments"]:
        for block in segment["blocks"]:
            if category := CATEGORIES.get(line_at.get(block.get("address"), "")):
                block |= {"category": category, "category_rule": "module"}
    content["pytracer"] |= {"metadata": sizes, "context": "all"}
    path.write_bytes(pickle.dumps(content))
    return run
