"""`pytracer view` as a function, and small files and pages for it."""

from functools import partial
from pathlib import Path

import commands
from synthetic_snapshots import Program, file_metadata

from pytracer.page.open_file import open_file
from pytracer.page.page import page_of
from pytracer.reading.snapshot import Snapshot

GOLDEN = Path(__file__).parents[1] / "golden"
CUDA = GOLDEN / "native" / "cuda-2.15.0.pickle"
OURS = GOLDEN / "snapshot-1.5-cuda.pickle"
MIB = 2**20

view = partial(commands.invoke, "view")


def html_of(snapshot: Snapshot) -> bytes:
    return page_of(open_file(snapshot)).html()


def small(name: str = "train.py") -> Program:
    program = Program()
    program.metadata = file_metadata()
    for line in range(3):
        program.free(program.alloc(MIB, (name, "step", line)))
        program.alloc(1000, (name, "keep", line))
    return program
