"""Which objects keep the memory of which lines, as seen at a few steps.

A file that is written when the program's functions have returned could not tell what kept the
memory that they had.
"""

from typing import Any

import numpy as np

from pytracer.log import harmless
from pytracer.tracing.device_recording import DeviceRecording

_FIRST = 16
_MOST_LINES, _MOST_FRAMES = 32, 16
_LEAST_BLOCKS, _MORE = 2, 1.01  # so many more than at half as many steps, or so much more memory
_MOST_BLOCKS = 20_000  # a look takes about 20 microseconds for each


class KeptAtSteps:
    """What kept memory at the last of steps 16, 32, 64, ... at which there were more blocks.

    Attributes:
        seen: What a file has about it (docs/reference/snapshot-format.md); [] if nothing was seen.
        unsearched: For how many tensors there was no time then, or no room.
        may_leak: Whether there were more blocks at the last of these steps.
    """

    def __init__(self, recording: DeviceRecording) -> None:
        self.seen: list[list[Any]] = []
        self.unsearched = 0
        self.may_leak = False
        self._recording = recording
        self._blocks = self._bytes = 0

    def look(self, step: int) -> bool:
        """Look for holders, if memory may leak; return whether it may. Never raises."""
        if 2 * step < _FIRST or step & (step - 1):
            return False
        with harmless("cannot name the objects that hold memory: {error}", "kept"):
            devices = self._recording.session.stats()["devices"]
            blocks = sum(device["live_blocks"] for device in devices)
            held = sum(device["live_block_bytes"] for device in devices)
            is_more = blocks >= self._blocks + _LEAST_BLOCKS or held > self._bytes * _MORE
            self._blocks, self._bytes = blocks, held
            self.may_leak = is_more and step >= _FIRST
            if not self.may_leak or blocks > _MOST_BLOCKS:
                return False
            self.seen, self.unsearched = _kept(self._recording)
        return True


def _kept(recording: DeviceRecording) -> tuple[list[list[Any]], int]:
    """Return devices, bytes and frames of the largest call sites, and what keeps them.

    The second value is for how many tensors there was no time, or no room.
    """
    from pytracer.analysis.call_sites import call_sites, texts_matching
    from pytracer.analysis.holder_names import main_holder, tells_where
    from pytracer.analysis.leaks.one_file import stack_frames
    from pytracer.reading.reader import load

    snapshot = load(recording.view(history=False).to_bytes({}, {}))
    found: list[list[Any]] = []
    blocks, frames = snapshot.blocks, stack_frames(snapshot, call_sites(snapshot.stacks))
    for device in snapshot.metadata.devices:
        rows = snapshot.blocks_in_use(device)
        rows = rows[~texts_matching("workspace".__eq__, snapshot.strings, blocks.category[rows])]
        holder = np.where(blocks.holder[rows] > 0, blocks.holder[rows], blocks.owner[rows])
        for number in np.unique(blocks.stack[rows[holder > 0]]).tolist():
            of_stack = blocks.stack[rows] == number
            size_bytes = blocks.size_bytes[rows[of_stack]]
            name = main_holder(snapshot.strings, holder[of_stack], size_bytes)
            path = [list(frame) for frame in frames(number)[:_MOST_FRAMES]]
            if tells_where(name) and path:
                found.append([device, int(size_bytes.sum()), name, path])
    largest = sorted(found, key=lambda row: row[1], reverse=True)[:_MOST_LINES]
    return largest, snapshot.metadata.tensors.unsearched or 0
