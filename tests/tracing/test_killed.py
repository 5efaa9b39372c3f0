"""Test that a process killed during a dump leaves no partial file under a snapshot's name."""

import pickle
import random
import re
import time
from pathlib import Path

import pytest
import torch
from amount import amount
from processes import start

from pytracer import Tracer
from pytracer.boxes import places

RUNS = amount(5, 15)
PAIRS = 60_000  # large enough for dumps of some tens of milliseconds

# The program dumps repeatedly to few names, so that files are replaced too. It starts fast without
# torch.
PROGRAM = f"""
import itertools, time
from pathlib import Path
from pytracer import _core
from pytracer.atomic_file import open_atomically

session = _core.Session([_core.CPU_DEVICE], 2 * {PAIRS}, 1, 2**20, 0)
session.start()
_core.testing.record_pairs({PAIRS}, 64)
for number in itertools.count():
    begin = time.monotonic()
    with open_atomically(Path("%d.pickle" % (number % 2))) as file:
        session.view().write(file.fileno(), b"", {{}}, {{}})
    if number == 0:
        print(time.monotonic() - begin, flush=True)
"""


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    delays = random.Random(7)
    left_over = set()
    for _ in range(RUNS):
        # GIVEN a process that dumps all the time
        with start(PROGRAM, cwd=tmp_path) as process:
            assert process.stdout is not None
            seconds = float(process.stdout.readline())
            # WHEN it is killed at a random moment
            time.sleep(delays.uniform(0, 3 * seconds))
        # THEN every snapshot can be read to its end
        snapshots = list(tmp_path.glob("*.pickle"))
        assert 1 <= len(snapshots) <= 2
        for path in snapshots:
            (trace,) = pickle.loads(path.read_bytes())["device_traces"]
            assert len(trace) == 5 * PAIRS
            path.unlink()
        # AND the only other file has a name that does not look like a snapshot's
        others = {path.name for path in tmp_path.iterdir()} - {"program.py", places.FOLDER}
        new = others - left_over
        assert len(new) <= 1
        assert all(re.fullmatch(rf"\.pytracer-{process.pid}-\w+\.tmp", name) for name in new)
        left_over |= new
    assert len(left_over) > RUNS / 3, "too few of the processes were killed during a dump"
    # AND the left-over file does not disturb a later tracer
    with Tracer(tmp_path / "0.pickle", device="cpu"):
        kept = torch.empty(1)
    assert kept.numel() == len(pickle.loads((tmp_path / "0.pickle").read_bytes())["segments"])
    names = {path.name for path in tmp_path.iterdir()} - {places.FOLDER}
    assert names == {*left_over, "program.py", "0.pickle"}
