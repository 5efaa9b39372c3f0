"""Compare what the simulator says of other settings with the program under these settings."""

import json
from pathlib import Path
from typing import Any

import processes
import pytest
import simulated

from pytracer.recommendation import recommend

PROGRAMS = Path(__file__).with_name("recorded_programs.py")
LARGE_BYTES = 16 << 30
SETTINGS = {
    "cuda": (
        "",
        "expandable_segments:True",
        "max_split_size_mb:64",
        "roundup_power2_divisions:4",
        "expandable_segments:True,roundup_power2_divisions:8",
    ),
    "npu": ("", "expandable_segments:True", "max_split_size_mb:64"),
}
TIGHT = {"varying_lengths": (1.228, 1.14), "transformer": (1.2, 1.07), "reinforcement": (1.2, 1.05)}
"""The capacities as multiples of what the program allocates; some settings fit, others do not."""
OWN = "expandable_segments:False"  # the defaults, under which the program is recorded
SHORTEST = "varying_lengths"

pytestmark = pytest.mark.skipif(
    not simulated.active(), reason="needs a device of a chosen capacity"
)


def run_program(
    folder: Path, backend: str, name: str, runs: list[tuple[str, int]]
) -> list[dict[str, Any]]:
    """Run a program under settings and capacities; the first run writes recorded.pickle."""
    done = processes.run_python(PROGRAMS, backend, name, folder, json.dumps(runs), cwd=folder)
    assert done.returncode == 0, done.stderr
    figures: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return figures


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == SHORTEST else pytest.mark.long) for name in TIGHT],
)
def test_the_simulator_equals_the_program(backend: str, tmp_path: Path, name: str) -> None:
    # GIVEN a recording with more memory than needed, and the program itself under other settings,
    # on devices where only some settings fit
    (own,) = run_program(tmp_path, backend, name, [("", LARGE_BYTES)])
    path = tmp_path / "recorded.pickle"
    capacities = [LARGE_BYTES, *(int(own["allocated"] * factor) for factor in TIGHT[name])]
    runs = [(text, capacity) for capacity in capacities for text in SETTINGS[backend]]
    (tmp_path / "others").mkdir()
    programs = run_program(tmp_path / "others", backend, name, runs)
    outcomes = set()
    for (settings, capacity), program in zip(runs, programs, strict=True):
        # WHEN the recording is simulated under the same settings and capacity
        done = recommend(path, settings=[settings or OWN], capacity_bytes=capacity)
        assert done.deviation.equal == done.deviation.requests > 300
        (tried,) = (tried for tried in done.tried if tried.name == (settings or OWN))
        # THEN it runs out of memory where the program does, and reserves the same
        simulated_figures = {
            "oom": tried.ooms == 1,
            "reserved": tried.peak_reserved_bytes,
            "retries": tried.retries,
        }
        assert simulated_figures.items() <= program.items(), (settings, capacity)
        outcomes.add((program["oom"], program["retries"] > 0))
    # AND the settings differ
    assert {(False, False), (True, True)} <= outcomes
