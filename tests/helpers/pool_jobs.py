"""Jobs for the processes of a pool, which import them by name."""

import os
import signal
import time
from pathlib import Path

from pytracer.atomic_file import open_output
from pytracer.fleet.schema import ArrowTables
from pytracer.fleet.sources import Source
from pytracer.fleet.summary import collect_file


def timed(seconds: float) -> tuple[float, float, int]:
    """Return when the job began and ended, and its process."""
    begin = time.monotonic()
    time.sleep(seconds)
    return begin, time.monotonic(), os.getpid()


def kill_if_negative(number: int) -> int:
    if number < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def large(mark: str) -> bytes:
    """Return a result that takes many writes to send."""
    Path(mark).touch()
    return bytes(500_000_000)


def write_slowly(mark: str) -> None:
    with open_output(Path(f"{mark}.output")):
        Path(mark).touch()
        time.sleep(600)


def divide(number: int) -> float:
    return 1 / number


def killed_by_rank_1(source: Source) -> ArrowTables:
    if "rank1_" in source.name:
        os.kill(os.getpid(), signal.SIGKILL)
    return collect_file(source)
