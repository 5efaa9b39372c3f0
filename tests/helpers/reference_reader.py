"""A reference reader of snapshots: short and slow. `load` is compared with it.

The reader unpickles files with Python's own pickle, so it is for trusted files only.
"""

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np

from pytracer.reading.metadata import file_metadata
from pytracer.reading.snapshot import (
    ACTIONS,
    ALLOCATED,
    INACTIVE,
    NO_TIME,
    PENDING_FREE,
    Allocations,
    Blocks,
    Segments,
    Snapshot,
    Stacks,
    Trace,
)

STATES = {"active_allocated": ALLOCATED, "inactive": INACTIVE}


def meant(value: Any, most: int = 2**62 - 1, least: int = 0, unknown: int = 0) -> int:
    """Return a number of a file; `unknown` if it is none that its key can mean.

    64 bits may have a sign or not.
    """
    if value is None or (isinstance(value, float) and not abs(value) < 2**62):
        return unknown
    number = int(value)
    if 2**63 <= number < 2**64:
        number -= 2**64
    return number if least <= number <= most else unknown


MOST = 2**63 - 1  # of 64 bits with a sign


def any_number(value: Any) -> int:
    return meant(value, MOST, -MOST - 1)


class Numbers(dict[Any, int]):
    """A dictionary that numbers its keys in the order of their first use."""

    def __missing__(self, key: Any) -> int:
        self[key] = len(self)
        return self[key]


def read(path: str | Path) -> Snapshot:
    return convert(pickle.loads(Path(path).read_bytes()), str(path))


def convert(content: Any, path: str = "") -> Snapshot:
    """Turn the result of `torch.cuda.memory._snapshot()` or `Tracer.snapshot()` into columns."""
    top = {"segments": content, "device_traces": []} if isinstance(content, list) else content
    strings, frames, stacks, pools = (
        Numbers({"": 0}),
        Numbers(),
        Numbers({((), 0, 0, 0, False): 0}),
        Numbers({(0, 0): 0}),
    )
    actions = Numbers({name: value for value, name in enumerate(ACTIONS)})

    def plain(found: list[dict[str, Any]]) -> Any:
        return tuple(frames[f["filename"], f["name"], meant(f["line"], 2**31 - 1)] for f in found)

    def stack(row: dict[str, Any], default: list[dict[str, Any]] | None = None) -> int:
        numbers = plain(row.get("frames", default or []))
        texts, node = row.get("forward_frames") or [], row.get("autograd_node", "")
        forward = 0
        matches = [re.match(r'  File "(.*)", line (\d+), in (.*)', text) for text in texts]
        if found := [match for match in reversed(matches) if match]:
            forward = stacks[tuple(frames[m[1], m[3], int(m[2])] for m in found), 0, 0, 0, False]
        is_exact = bool(forward) and row.get("forward_exact", True)
        phase = strings[row.get("forward_phase", "")]
        return stacks[numbers, forward, strings[node], phase, is_exact]

    has_host = bool(top.get("host_traces") or top.get("host_segments"))
    host_device = len(top["device_traces"]) if has_host else None
    traces: list[Trace] = []
    for events in [*top["device_traces"], *([top.get("host_traces", [])] if has_host else [])]:
        rows = [
            (
                actions[e["action"]],
                meant(e["device_free"]) if "device_free" in e else any_number(e.get("addr", 0)),
                meant(e.get("size", 0), MOST),
                any_number(e.get("stream", 0)),
                meant(e.get("time_us"), MOST, unknown=NO_TIME),
                stack(e),
                pools[tuple(map(any_number, e.get("pool_id", (0, 0))))],
                strings[e.get("compile_context", "")],
                strings[e.get("user_metadata", "")],
            )
            for e in events
        ]
        missing = [
            (event, stack(e["allocation"]), meant(e["allocation"].get("birth_step", 0), MOST))
            for event, e in enumerate(events)
            if "allocation" in e
        ]
        traces.append(
            Trace(
                *columns(rows, "u1 i8 i8 i8 i8 u4 u4 u4 u4"),
                missing=Allocations(*columns(missing, "i8 u4 i8")),
            )
        )

    segments, blocks = [], []
    in_order = [name for name in top if name in ("segments", "host_segments")]
    for list_name, s in [(name, s) for name in in_order for s in top[name]]:
        segments.append(
            (
                meant(s.get("device", 0), 255, unknown=-1)
                if list_name == "segments"
                else host_device,
                any_number(s["address"]),
                meant(s["total_size"]),
                any_number(s.get("stream", 0)),
                strings[s.get("segment_type", "")],
                pools[tuple(map(any_number, s.get("segment_pool_id", (0, 0))))],
                s.get("is_expandable", False),
                stack(s),
                len(blocks),
            )
        )
        address = any_number(s["address"])
        for b in s["blocks"]:
            history, size = b.get("history") or [{}], meant(b["size"])
            begin = meant(b.get("address"), MOST, unknown=-1)
            address = address if begin < 0 else begin
            requested = meant(b.get("requested_size", history[0].get("real_size")), unknown=-1)
            blocks.append(
                (
                    len(segments) - 1,
                    address,
                    size,
                    size if requested < 0 else requested,
                    STATES.get(b["state"], PENDING_FREE),
                    stack(b, history[0].get("frames", [])),
                    strings[b.get("category", "")],
                    strings[b.get("category_rule", "")],
                    strings[b.get("owner", "")],
                    strings[b.get("holder", "")],
                    meant(b.get("owners", 0), MOST),
                    meant(b.get("birth_step", 0), MOST),
                )
            )
            address = min(address + size, MOST)

    names = columns([(strings[f], strings[n], line) for f, n, line in frames], "u4 u4 i8")
    texts = list(strings)
    return Snapshot(
        path=path,
        traces=tuple(traces),
        segments=Segments(*columns(segments, "i8 i8 i8 i8 u4 u4 ?1 u4 i8")),
        blocks=Blocks(*columns(blocks, "i8 i8 i8 i8 u1 u4 u4 u4 u4 u4 i8 i8")),
        stacks=Stacks(
            np.cumsum([0] + [len(numbers) for numbers, *_ in stacks], dtype=np.int64),
            np.array([frame for numbers, *_ in stacks for frame in numbers], np.uint32),
            *names,
            *columns([backward for _, *backward in stacks], "u4 u4 u4 ?1"),
            texts,
            tuple(top.get("pytracer", {}).get("torch_folders", ())),
        ),
        strings=texts,
        pools=np.array(list(pools), np.int64),
        actions=tuple(actions),
        allocator_settings=top.get("allocator_settings", {}),
        external_annotations=top.get("external_annotations", []),
        metadata=file_metadata(top.get("pytracer", {})),
        unknown_keys=(),
        host_device=host_device,
    )


def columns(rows: list[tuple[Any, ...]], types: str) -> list[np.ndarray]:
    kinds = [kind.replace("?1", "?") for kind in types.split()]
    values = list(zip(*rows, strict=True)) if rows else [()] * len(kinds)
    return [np.array(column, kind) for column, kind in zip(values, kinds, strict=True)]
