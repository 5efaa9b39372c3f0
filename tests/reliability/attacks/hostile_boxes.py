"""Boxes with changed bytes, and with descriptions that ask for what is not allowed.

Each case takes the box of a killed process. In half of the cases bytes of its tables are changed.
In the other half its description has other paths, numbers of any size, codes for the terminal, and
values of other types, or is not JSON. `pytracer show` and `pytracer live` read it.
"""

import changed_boxes
from attack import Budget, Found
from changed_boxes import Box
from sweep import note, sweep

PROMISE = (
    "A snapshot is written below the folder of the box, or nothing; within "
    f"{changed_boxes.MOST_S:g} s of processor time and {changed_boxes.MOST_BYTES >> 20} MiB; never "
    "a crash, a hang, or a control character. A box that cannot be read is tried once."
)
DEVICE = "cpu"
SECONDS = 20


def attack(budget: Budget) -> Found:
    template = Box.of_killed_process(budget.folder)
    (folder := budget.folder / "read").mkdir()

    def run(number: int) -> Found:
        done = changed_boxes.attack(template, folder, f"{budget.seed} {number}")
        case = Found(failures=[done.problem] if done.problem else [])
        note(case, done.has_snapshot, done.seconds, done.extra_bytes)
        return case

    return sweep(run, "changed boxes", budget)
