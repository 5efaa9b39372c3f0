"""The search for leaks in several files: dumps of one process, files of steps, many ranks."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from pytracer.analysis.call_sites import ProgramFiles, call_sites, common_files, program_files
from pytracer.analysis.device_data import chosen_devices, device_data, why_empty
from pytracer.analysis.leaks.groups import search
from pytracer.analysis.leaks.growth import LEAST_SLOTS, Lives, Observation
from pytracer.analysis.leaks.one_file import judged, leaks_on_device, stack_frames, unknown
from pytracer.analysis.leaks.results import DeviceLeaks, LeakReport, Verdict, in_order
from pytracer.reading.files import parse_place
from pytracer.reading.snapshot import Column, Frame, Snapshot

_NO_DEVICE = "no device"  # the name in the result for a process of whose files none has a device

_RANK = re.compile(r"rank[_-]?(\d+)")
"""Ranks in the names that programs give to files of torch's own recorder."""

MOST_BLOCKS = 250_000
"""The ends of files with more live blocks of a device are not compared: each takes 24 bytes."""


@dataclass(frozen=True, eq=False)
class Ends:
    """The blocks that are alive at the end of a file: columns of equal length, by `block`."""

    block: Column  # int64, a number that is the same in other files if address, size and stack are
    size_bytes: Column  # int64
    stack: Column  # int64, the key of the block's stack in `FileLeaks.stacks`


@dataclass(frozen=True, eq=False)
class FileLeaks:
    """What one file shows: the part of a search that needs the file's content."""

    path: str
    process: tuple[object, ...]  # a key that is the same for the files of one process
    written_ns: int | None  # when the file was written; None if unknown
    step: int | None  # the step in which the file was written; None if unknown
    devices: list[DeviceLeaks]  # the result for each used device, from the file's trace alone
    # The blocks alive at the end, by the device's name; {} if there are no other files. Without the
    # devices that have more than `MOST_BLOCKS`.
    alive: dict[str, Ends]
    # The frames of the blocks' stacks, from the call site outwards, by their hash.
    stacks: dict[int, tuple[Frame, ...]]
    program_files: ProgramFiles


def examine(snapshot: Snapshot, device: int | None = None, *, is_only: bool = False) -> FileLeaks:
    """Return what one file shows; `is_only`: it will not be compared with others.

    Raises:
        PytracerError: The snapshot has no such device.
    """
    devices = chosen_devices(snapshot, device)
    metadata = snapshot.metadata
    # Containers of one host may have equal process ids.
    process: tuple[object, ...] = (metadata.host, metadata.pid, metadata.role, metadata.rank)
    if metadata.pid is None:
        who = parse_place(Path(snapshot.path)).who
        process = (who, *_RANK.findall(snapshot.path.lower()))
    stacks: dict[int, tuple[Frame, ...]] = {}
    alive = {
        snapshot.device_name(index): _alive(snapshot, index, stacks)
        for index in ([] if is_only else devices)
        if len(snapshot.blocks_in_use(index)) <= MOST_BLOCKS
    }
    return FileLeaks(
        path=snapshot.path,
        process=process,
        written_ns=metadata.written_ns,
        step=metadata.current_step,
        devices=[leaks_on_device(device_data(snapshot, index)) for index in devices]
        or [replace(unknown(snapshot, -1, why_empty(metadata)), device=_NO_DEVICE)],
        alive=alive,
        stacks=stacks,
        program_files=program_files(snapshot.stacks),
    )


def find_leaks(*snapshots: Snapshot, device: int | None = None) -> LeakReport:
    """Search snapshots for leaks.

    Args:
        snapshots: The files of one run, as returned by `load`: of one process or of many ranks,
            at one time or at several.
        device: The index of the only device to search; None for every used device.

    Raises:
        PytracerError: A snapshot has no such device.
    """
    is_only = len(snapshots) == 1
    return combine(examine(snapshot, device, is_only=is_only) for snapshot in snapshots)


def combine(files: Iterable[FileLeaks]) -> LeakReport:
    """Return the result of all files, from what each of them shows."""
    by_process: dict[tuple[object, ...], list[FileLeaks]] = {}
    for file in files:
        by_process.setdefault(file.process, []).append(file)
    devices = []
    for process in by_process.values():
        if all(file.written_ns is not None for file in process):
            process = sorted(process, key=lambda file: file.written_ns or 0)
        names = dict.fromkeys(device.device for file in process for device in file.devices)
        if len(names) > 1:
            names.pop(_NO_DEVICE, None)
        devices += [_of_process(process, name) for name in names]
    devices.sort(key=lambda device: device.rank if device.rank is not None else -1)
    verdicts = {device.verdict for device in devices}
    verdict: Verdict = "leak" if "leak" in verdicts else "unknown"
    return LeakReport("none" if verdicts == {"none"} else verdict, devices)


def _of_process(files: Sequence[FileLeaks], name: str) -> DeviceLeaks:
    """Return the result for one device of one process: from its traces, or from all ends.

    A trace with a leak comes before longer ones without: they may be of earlier steps, or of
    another process, if the files do not name theirs. Of several traces with leaks, the last one
    decides, because a leak may begin late. It gets the leaks of the other traces.
    """
    having = [file for file in files if any(d.device == name for d in file.devices)]
    found = [next(d for d in file.devices if d.device == name) for file in having]
    leaking = [device for device in found if device.verdict == "leak"]
    if leaking:
        return _with_leaks_of(leaking[-1], leaking[-2::-1])
    longest = max(reversed(found), key=lambda device: (device.unit == "step", device.observed))
    if len(having) < 2 or name == _NO_DEVICE:
        return longest
    if large := [file.path for file in having if name not in file.alive]:
        reason = f"{large[0]} has more than {MOST_BLOCKS:,} blocks, too many to compare files"
        return longest if longest.verdict == "none" else replace(longest, reason=reason)
    compared = _compare_ends(having, found, name)
    if compared is None or (longest.verdict == "none" and compared.verdict != "leak"):
        return longest
    return compared


def _with_leaks_of(device: DeviceLeaks, others: Iterable[DeviceLeaks]) -> DeviceLeaks:
    """Return the result with the leaks of other call sites in other traces of the process."""
    growths, known = list(device.growths), {growth.frames[:1] for growth in device.growths}
    for other in others:
        if other.unit == device.unit:
            growths += (
                growth
                for growth in other.growths
                if growth.verdict == "leak" and growth.frames[:1] not in known
            )
            known |= {growth.frames[:1] for growth in other.growths}
    return device.with_growths(in_order(growths))


def _compare_ends(
    files: Sequence[FileLeaks], found: Sequence[DeviceLeaks], name: str
) -> DeviceLeaks | None:
    """Search for blocks that stay from file to file; None if the files are of several programs."""
    ends = [file.alive[name] for file in files]
    if any(
        len(before.block) and len(after.block) and not np.isin(before.block, after.block).any()
        for before, after in pairwise(ends)
    ):
        return None
    steps = [file.step for file in files]
    known = [step for step in steps if step is not None]
    has_steps = len(known) == len(steps) and all(a < b for a, b in pairwise(known))
    slots = len(ends) - 1
    few = ""
    if slots < LEAST_SLOTS:
        few = (
            f"{slots + 1} files are too few to compare their final states: {LEAST_SLOTS + 1} are "
            f"needed, or one file with {LEAST_SLOTS} complete steps"
        )
    stacks = {key: frames for file in files for key, frames in file.stacks.items()}
    paths = list(stacks.values())
    sites: dict[Frame | None, int] = {}
    site = [sites.setdefault(path[0] if path else None, len(sites)) for path in paths]
    lives = _lives(ends, {key: number for number, key in enumerate(stacks)})
    none = np.zeros(len(lives), bool)
    seen = Observation(
        lives=lives,
        site=np.array(site, np.int64),
        frames=paths.__getitem__,
        files=common_files(file.program_files for file in files),
        is_owned=none,
        is_of_model=none,
        is_workspace=none,
        slots=slots,
        position=np.array(known[1:] if has_steps else range(2, slots + 2), np.float64),
        has_steps=has_steps,
        begins_late=True,
        doubt=few,
    )
    growths, releases = search(seen)
    totals = np.array([int(end.size_bytes.sum()) for end in ends], np.int64)
    verdict, reason = judged(growths, releases, seen, totals[1:])
    return replace(
        found[-1],
        verdict=verdict,
        reason=reason,
        files=len(files),
        unit="step" if has_steps else "file",
        first=known[0] if has_steps else None,
        last=known[-1] if has_steps else None,
        observed=slots,
        begin_bytes=int(totals[0]),
        end_bytes=int(totals[-1]),
        releases=releases,
    ).with_growths(growths)


def _lives(ends: Sequence[Ends], numbers: Mapping[int, int]) -> Lives:
    """Return the blocks of all files, born and gone between two files or after the last one.

    Args:
        numbers: The number of each stack, by its key.
    """
    file = np.repeat(np.arange(len(ends)), [len(end.block) for end in ends])
    block, size_bytes, stack = (
        np.concatenate([getattr(end, name) for end in ends])
        for name in ("block", "size_bytes", "stack")
    )
    order = np.lexsort((file, block))
    block, file = block[order], file[order]
    # A life is a run of consecutive files that have the block.
    stays = (block[1:] == block[:-1]) & (file[1:] == file[:-1] + 1)
    first = np.flatnonzero(np.append(True, ~stays)[: len(block)])
    last = np.flatnonzero(np.append(~stays, True)[: len(block)])
    keys, which = np.unique(stack[order[first]], return_inverse=True)
    return Lives(
        birth=file[first] - 1,
        death=file[last],
        size_bytes=size_bytes[order[first]],
        requested_bytes=size_bytes[order[first]],
        stack=np.array([numbers[key] for key in keys.tolist()], np.int64)[which],
        phase=np.zeros(len(first), np.int64),
        is_freed_later=np.zeros(len(first), bool),
        is_freed_early=np.zeros(len(first), bool),
        holder=np.zeros(len(first), np.int64),
        has_event=np.ones(len(first), bool),
        birth_step=np.zeros(len(first), np.int64),
    )


def _alive(snapshot: Snapshot, device: int, stacks: dict[int, tuple[Frame, ...]]) -> Ends:
    """Return the blocks alive at the end of a file, and add the frames of their stacks."""
    blocks, rows = snapshot.blocks, snapshot.blocks_in_use(device)
    frames = stack_frames(snapshot, call_sites(snapshot.stacks))
    present, which = np.unique(blocks.stack[rows], return_inverse=True)
    keys = [hash(frames(stack)) for stack in present.tolist()]
    stacks |= zip(keys, map(frames, present.tolist()), strict=True)
    stack, size_bytes = np.array(keys, np.int64)[which], blocks.size_bytes[rows]
    columns = (column.tolist() for column in (blocks.address[rows], size_bytes, stack))
    number = np.array([hash(block) for block in zip(*columns, strict=True)], np.int64)
    number, first = np.unique(number, return_index=True)
    return Ends(number, size_bytes[first], stack[first])
