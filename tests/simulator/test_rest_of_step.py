"""Test that the rest of a step is simulated as the program goes on under another setting."""

import random
from pathlib import Path

from simulated_recordings import MIB
from sized_programs import Requests, training, write

from pytracer.analysis import explain
from pytracer.analysis.device_data import device_data
from pytracer.analysis.ooms import out_of_memories
from pytracer.reading import load
from pytracer.reading.snapshot import ALLOC
from pytracer.simulator.trials import try_settings


def leaking(batch: int, length: list[int]) -> Requests:
    """Train, and keep some memory of each step."""
    kept = 0
    for line, name, size_bytes in training(batch, length):
        if line == "step":
            yield "keep", f"k{kept}", 4 << 20
            kept += 1
        yield line, name, size_bytes


def place(path: Path) -> tuple[int, int]:
    """Return how many allocations came before an out-of-memory, and its step."""
    data = device_data(load(path), 0)
    (oom,) = out_of_memories(data)
    return int((data.trace.action[: oom.event] == ALLOC).sum()), oom.step or 0


def test_what_is_simulated_happens(tmp_path: Path) -> None:
    path, other, seen = tmp_path / "1.pickle", tmp_path / "2.pickle", set()
    for seed in range(10):
        # GIVEN a training that runs out of memory, with steps of equal lengths or of others
        chosen = random.Random(seed)
        lengths = chosen.choices(range(64, 400), k=10) if seed % 2 else [256] * 10
        peak = write(path, leaking, batch=4, length=lengths).peak_allocated_bytes
        room = int(peak * chosen.uniform(0.8, 1.15)) // MIB * MIB
        if not write(path, leaking, room, batch=4, length=lengths).ran_out:
            continue
        failed, step = place(path)
        (explanation,) = explain(load(path), try_settings=try_settings)
        advised = " ".join(suggestion.command for suggestion in explanation.suggestions)
        simulation = try_settings(device_data(load(path), 0))
        assert simulation is not None
        for trial in simulation.trials:
            # WHEN it runs with a setting
            done = write(other, leaking, room, trial.settings, batch=4, length=lengths)
            later, its_step = place(other) if done.ran_out else (2**30, 2**30)
            # THEN the allocation and the rest of the step fit, if that was simulated
            assert trial.fits == (later > failed), (seed, trial)
            if trial.like:
                assert trial.is_proven == (its_step > step), (seed, trial, later - failed)
                assert trial.is_proven or f"={trial.settings}" not in advised
                seen.add((trial.fits, trial.is_proven))
            # AND steps that are alike end after as many further allocations
            if trial.fits and trial.again and seed % 2 == 0 and trial.like:
                assert trial.later == later - failed, (seed, trial)
    assert seen >= {(True, True), (True, False), (False, False)}
