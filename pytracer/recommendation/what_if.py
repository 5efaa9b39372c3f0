"""What if the program allocated less: requests without some allocations, or with other sizes."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pytracer.analysis.block_categories import block_categories
from pytracer.analysis.requests import ALLOCATE, FAIL, REQUEST_COLUMNS, Recording, block_order
from pytracer.errors import ConfigError
from pytracer.reading.snapshot import Column, Snapshot, Stacks
from pytracer.recommendation.search import needed_bytes
from pytracer.text import did_you_mean, number, size

MOST_BYTES = 2**44
"""The most memory that a changed program may need at one moment: more than any device has."""

CATEGORY = "category:"  # the beginning of the name of a category, as in "category:optimizer_state"


def change_requests(
    snapshot: Snapshot, recording: Recording, without: Sequence[str], scale: Sequence[str]
) -> tuple[Recording, list[str]]:
    """Return a recording with changed requests, and a sentence about each change.

    Args:
        without: Whose allocations to leave out. "model.py:12" are the allocations that this line
            made or called, "model.py" those of the file, and "category:optimizer_state" those
            of a category (see `CategoryUsage`).
        scale: The same with a factor for the requested bytes, as in "model.py:12=0.5".

    Returns:
        The recording itself and [] if nothing is to be changed.

    Raises:
        ConfigError: A change is malformed, matches no allocation, or needs too much memory.
    """
    changes = [(what, 0.0) for what in without] + [_parsed(text) for text in scale]
    if not changes:
        return recording, []
    requests, notes = recording.requests, []
    asks = np.isin(requests.kind, (ALLOCATE, FAIL))
    factor = np.ones(len(requests))
    for what, times in changes:
        is_chosen = _chosen(snapshot, recording, what) & asks
        count, total = np.count_nonzero(is_chosen), int(requests.size_bytes[is_chosen].sum())
        if count == 0:
            categories = block_categories(snapshot, recording.device, recording.history)
            names = categories.categories()[0] if what.startswith(CATEGORY) else ()
            raise ConfigError(
                f'"{what}" matches no allocation of {snapshot.path}: give FILE:LINE or FILE '
                "of a call site or its caller (pytracer show --by line lists them), or "
                f"{CATEGORY}NAME of a category that the file has"
                f"{did_you_mean(what.removeprefix(CATEGORY), names, CATEGORY)}"
            )
        factor[is_chosen] *= times
        how = "without" if times == 0 else f"with {times:g} times the bytes of"
        notes.append(
            f"Estimate {how} {number(int(count), 'allocation')} of {what}, "
            f"{size(total)} in all. A changed program may allocate in another order."
        )
    scaled = np.clip(np.rint(requests.size_bytes * factor), 1, MOST_BYTES + 1).astype(np.int64)
    size_bytes = np.where(asks, scaled, requests.size_bytes)
    gone = asks & (factor == 0)
    is_kept = ~gone & ~(np.isin(requests.block, requests.block[gone]) & (requests.block >= 0))
    columns = {name: getattr(requests, name)[is_kept] for name in (*REQUEST_COLUMNS, "event")}
    columns["size_bytes"] = size_bytes[is_kept]
    if not np.any(np.isin(columns["kind"], (ALLOCATE, FAIL))):
        raise ConfigError("no allocation is left: leave out fewer call sites")
    changed = replace(requests, **columns, start=None)
    if needed_bytes(changed) > MOST_BYTES:
        raise ConfigError(
            f"the scaled program needs more than {size(MOST_BYTES)} at one moment, which is more "
            "than any device has: give a smaller factor"
        )
    return replace(recording, requests=changed), notes


def _parsed(text: str) -> tuple[str, float]:
    what, _, factor = text.rpartition("=")
    if not what or not re.fullmatch(r"\d{1,6}(\.\d+)?", factor) or float(factor) == 0:
        raise ConfigError(
            f'"{text}": give a call site or a category and a factor greater than 0, as in '
            "model.py:12=0.5"
        )
    return what, float(factor)


def _chosen(snapshot: Snapshot, recording: Recording, what: str) -> Column:
    requests, lives = recording.requests, recording.history.blocks
    order = block_order(lives)
    if what.startswith(CATEGORY):
        found_categories = block_categories(snapshot, recording.device, recording.history)
        names, index = found_categories.categories()
        is_meant = np.array([name == what.removeprefix(CATEGORY) for name in names])[index]
        is_failed = np.zeros(len(requests), bool)
    else:
        is_stack = _matching_stacks(snapshot.stacks, what)
        is_meant = is_stack[lives.stack]
        is_failed = is_stack[recording.trace.stack[np.maximum(requests.event, 0)]]
    by_block = is_meant[order]
    of_block = np.where(requests.block < 0, False, by_block[np.maximum(requests.block, 0)])
    found: Column = np.where(requests.kind == FAIL, is_failed, of_block)
    return found


def _matching_stacks(stacks: Stacks, what: str) -> Column:
    """Return for each stack whether a frame, or one of its forward call, is in a file or line."""
    file, _, line = what.rpartition(":")
    if not file or not line.isdecimal():
        file, line = what, ""
    end = file.replace("\\", "/").lstrip("/")
    is_file = np.zeros(len(stacks.strings), bool)
    for text in np.unique(stacks.filename).tolist():
        path = "/" + stacks.strings[text].replace("\\", "/").lstrip("/")
        is_file[text] = bool(end) and path.endswith("/" + end)
    is_frame = is_file[stacks.filename]
    if line:
        is_frame = is_frame & (stacks.line == int(line[:18]))
    before = np.append(0, np.cumsum(is_frame[stacks.frame]))
    is_stack = before[stacks.offsets[1:]] > before[stacks.offsets[:-1]]
    found: Column = is_stack | is_stack[stacks.forward]
    return found
