"""Do PyTorch's own viewers, MemoryViz.js and _memory_viz.py of torch 2.13, accept a snapshot?"""

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from viewed_traces import Memory
from viewed_values import (
    ALLOCATED,
    ALLOCATION_TYPES,
    ANNOTATION_TYPES,
    BLOCK_TYPES,
    CATEGORY_TYPES,
    EVENT_TYPES,
    FRAME_TYPES,
    INACTIVE,
    OOM_TYPES,
    OPTIONAL_TYPES,
    OWNER_TYPES,
    PENDING,
    SEGMENT_TYPES,
    check_range,
    check_types,
    require,
)

TOP_KEYS = {"segments", "device_traces", "allocator_settings", "external_annotations"}
OPTIONAL_TOP_KEYS = {"pytracer", "host_segments", "host_traces"}


def check_snapshot(snapshot: dict[str, Any]) -> None:
    """Check keys, types and sums, and replay each trace backward as the state history does."""
    require(isinstance(snapshot, dict), f"the snapshot is a {type(snapshot).__name__}")
    missing, extra = TOP_KEYS - snapshot.keys(), snapshot.keys() - TOP_KEYS - OPTIONAL_TOP_KEYS
    require(not missing and not extra, f"top: missing {missing}, unknown {extra}")
    segments, traces = snapshot["segments"], snapshot["device_traces"]
    require(isinstance(segments, list), "segments is not a list")
    require(isinstance(traces, list), "device_traces is not a list")
    require(isinstance(snapshot["allocator_settings"], dict), "allocator_settings is not a dict")
    _check_annotations(snapshot["external_annotations"])

    for number, segment in enumerate(segments):
        _check_segment(segment, f"segment {number}")
        device = segment["device"]
        require(0 <= device < len(traces), f"segment {number}: no trace for device {device}")
    for device, trace in enumerate(traces):
        require(isinstance(trace, list), f"trace of device {device} is not a list")
        for number, event in enumerate(trace):
            _check_event(event, f"device {device} event {number}")
    blocks = [block for segment in segments for block in segment["blocks"]]
    holders = [*segments, *blocks, *(event for trace in traces for event in trace)]
    told = [event.get("allocation", {}) for trace in traces for event in trace]
    _check_frames([*holders, *(allocation for allocation in told if "frames" in allocation)])
    _check_unshared(holders)
    for device, trace in enumerate(traces):
        memory = Memory(device, segments)
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
    require(isinstance(annotations, list), "external_annotations is not a list")
    open_: Counter[str] = Counter()
    last_us = 0
    for number, annotation in enumerate(annotations):
        where = f"annotation {number}"
        check_types(annotation, ANNOTATION_TYPES, where)
        require(annotation["time_us"] >= last_us, f"{where}: earlier than the previous annotation")
        last_us = annotation["time_us"]
        require(annotation["stage"] in {"START", "END"}, f"{where}: {annotation['stage']!r}")
        open_[annotation["name"]] += 1 if annotation["stage"] == "START" else -1
        require(open_[annotation["name"]] >= 0, f"{where}: an END without its START")


def _check_segment(segment: Any, where: str) -> None:
    check_types(segment, SEGMENT_TYPES, where)
    _check_pool(segment["segment_pool_id"], where)
    kind = segment["segment_type"]
    require(kind in {"small", "large"}, f"{where}: segment_type {kind!r}")
    require(segment["blocks"], f"{where}: no blocks")

    address = segment["address"]
    for number, block in enumerate(segment["blocks"]):
        inside = f"{where} block {number}"
        types = BLOCK_TYPES | (CATEGORY_TYPES if "category" in block else {})
        types |= {key: kind for key, kind in OPTIONAL_TYPES.items() if key in block}
        check_types(block, types | (OWNER_TYPES if "owner" in block else {}), inside)
        check_range(block["address"], block["size"], inside)
        require(block["address"] == address, f"{inside}: at {block['address']}, not {address}")
        state, requested = block["state"], block["requested_size"]
        require(state in {ALLOCATED, PENDING, INACTIVE}, f"{inside}: state {state!r}")
        # A freed block keeps its last requested size, in torch's own files too. After a split the
        # requested size can exceed the block's size.
        require(
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
        require(segment[key] == expected, f"{where}: {key} {segment[key]}, blocks: {expected}")


def _check_event(event: Any, where: str) -> None:
    require(isinstance(event, dict), f"{where} is a {type(event).__name__}")
    action = event.get("action")
    types = OOM_TYPES if action == "oom" else EVENT_TYPES
    if action in {"free_requested", "free_completed"} and "allocation" in event:
        types = types | {"allocation": dict}
        told = event["allocation"]
        require(told, f"{where}: an empty allocation")
        known = {key: kind for key, kind in ALLOCATION_TYPES.items() if key in told}
        check_types(told, known, where)
    check_types(event, types, where)
    _check_pool(event["pool_id"], where)
    require(event["size"] >= 0, f"{where}: size {event['size']}")
    require(event["time_us"] >= 0, f"{where}: time_us {event['time_us']}")


def _check_pool(pool: tuple[Any, ...], where: str) -> None:
    good = len(pool) == 2 and all(type(part) is int for part in pool)
    require(good, f"{where}: pool id {pool!r}, not a pair of integers")


def _check_frames(holders: list[dict[str, Any]]) -> None:
    shared = {id(holder["frames"]): (holder["frames"], holder) for holder in holders}
    for frames, holder in shared.values():
        for number, frame in enumerate(frames):
            check_types(frame, FRAME_TYPES, f"frame {number} of {holder.get('action', 'a block')}")


def _check_unshared(holders: list[dict[str, Any]]) -> None:
    """Check that no two entries share an object: the page writes into segments, blocks, events."""
    count, distinct = len(holders), len({id(holder) for holder in holders})
    require(count == distinct, f"{count - distinct} entries share an object with another entry")


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
    require(done.returncode == 0, f"{command} failed:\n{done.stderr}")
    text = done.stdout if output is None else output.read_text()
    require(text.strip(), f"{command} has no output")
    return text


def _home_with_flamegraph(folder: Path) -> Path:
    """Make a home folder whose flamegraph.pl copies its input, so that none is downloaded."""
    script = folder / "home" / ".cache" / "flamegraph.pl"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text("#!/bin/sh\nexec cat\n")
    script.chmod(0o755)
    return folder / "home"
