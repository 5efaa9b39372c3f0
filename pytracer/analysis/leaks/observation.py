"""What is searched for leaks: the blocks of one device over consecutive slots."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pytracer.analysis.call_sites import is_programs_frame
from pytracer.analysis.holder_names import holder_names, main_holder
from pytracer.analysis.leaks.growth import Lives
from pytracer.analysis.program_files import ProgramFiles
from pytracer.reading.metadata import KeptMemory
from pytracer.reading.snapshot import Column, Frame


@dataclass(frozen=True, eq=False)
class Observation:
    """What was observed on one device.

    Attributes:
        lives: The blocks that outlived a slot.
        site: int64, for each stack a number that identifies its call site.
        frames: Returns the frames of a stack, from the call site outwards; () for an empty stack.
        files: The program's source files.
        is_owned: bool, whether a model or an optimizer has the block at the end. Gradients and
            states of an optimizer that are made late are no leak: the parameters bound them.
        is_of_model: bool, whether the block is a parameter or a buffer at the end.
        is_workspace: bool, whether cuBLAS has the block, which the end of a program does not free.
        slots: The number of slots.
        position: float64, the position of each slot: its step, or its time in seconds.
        has_steps: Whether the slots are steps.
        begins_late: Whether the steps before the first slot are missing.
        doubt: Why no growth can certainly be a leak; "" if one can.
        events_from: The first step of which all releases are known; 0: they are of all slots. Of
            blocks that were released in an earlier step, nothing is.
        volume_bytes: int64, the requested bytes of all allocations in each slot; None if unknown.
        later: The blocks that were born after the last slot and are alive at the end of the file;
            None if there are none.
        later_is_of_model: bool, whether each of them is a parameter or a buffer.
        older_death, older_bytes: int64, the slot of the release and the size of each block that is
            older than the first slot, whose stack is unknown.
        kept_before: What objects kept at an earlier step.
        strings: The texts by the numbers of `Lives.phase` and `Lives.holder`.
    """

    lives: Lives
    site: Column
    frames: Callable[[int], tuple[Frame, ...]]
    files: ProgramFiles
    is_owned: Column
    is_of_model: Column
    is_workspace: Column
    slots: int
    position: Column
    has_steps: bool
    begins_late: bool
    doubt: str
    events_from: int = 0
    volume_bytes: Column | None = None
    later: Lives | None = None
    later_is_of_model: Column = field(default_factory=lambda: np.zeros(0, bool))
    older_death: Column = field(default_factory=lambda: np.zeros(0, np.int64))
    older_bytes: Column = field(default_factory=lambda: np.zeros(0, np.int64))
    kept_before: Sequence[KeptMemory] = ()
    strings: Sequence[str] = ("",)

    def keeper_before(self, frames: Sequence[Frame]) -> tuple[str | None, int | None]:
        """Return what kept most memory of a call site at an earlier step, and the bytes of it.

        Args:
            frames: The call site and its callers in the program, as of `Growth`.
        """
        rows = []
        for row in self.kept_before:
            site, *callers = (Frame(*frame) for frame in row.frames)
            path = [site, *(each for each in callers if is_programs_frame(each, self.files))]
            shared = min(len(path), len(frames))
            if frames and path[:shared] == [*frames[:shared]]:
                rows.append(row)
        texts = [row.holder for row in rows]
        sizes = np.array([row.size_bytes for row in rows], np.int64)
        name = main_holder(texts, np.arange(len(rows)), sizes)
        names, group = holder_names(texts, np.arange(len(rows)))
        if name is None:
            return None, None
        return name, int(sizes[group == names.index(name)].sum())
