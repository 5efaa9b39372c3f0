"""Compare predictions with the same programs at the sizes that were predicted."""

import json
from pathlib import Path
from typing import Any

import processes
import pytest

import pytracer
from pytracer.fitting import Fit
from pytracer.fitting.program import Peak
from pytracer.rehearsal import simulated

PROGRAM = Path(__file__).parent / "fit_programs.py"
RECORDED = [(2, 64), (4, 64), (4, 192)]
TARGETS = [(8, 128), (6, 256), (16, 128), (5, 192)]
SHORT = "llama"
LONG = (
    *("gpt", "flash", "lora", "checkpointing", "accumulation", "foreach", "fused"),
    *("convolutions", "generation", "reinforcement", "sharded"),
)
CAPACITY_MIB = 512

pytestmark = pytest.mark.skipif(
    not simulated.active(), reason="a kernel of a real device may take other buffers"
)

PROGRAMS = [SHORT, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)]


def run(folder: Path, backend: str, *arguments: object, **more: str) -> dict[str, Any]:
    """Run a program of fit_programs.py, and return its peaks."""
    done = processes.run_python(
        *(PROGRAM, backend, *arguments), cwd=folder, env=processes.environment(**more)
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def recordings(folder: Path, backend: str, name: str) -> list[Path]:
    found = []
    for batch, length in RECORDED:
        path = folder / f"{batch}-{length}.pickle"
        run(folder, backend, name, f"batch={batch},length={length}", path)
        found += folder.glob(f"{path.stem}.*")  # a name with the rank, where there are ranks
    return found


@pytest.fixture(scope="module", params=PROGRAMS)
def recorded(
    request: pytest.FixtureRequest, backend: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[Path]]:
    """Return a program, and its recordings."""
    name: str = request.param
    return name, recordings(tmp_path_factory.mktemp(name), backend, name)


def peaks(found: Fit) -> dict[str, list[int]]:
    def pair(peak: Peak | None) -> list[int]:
        assert peak is not None
        return [peak.allocated_bytes, peak.reserved_bytes]

    return {"first": pair(found.target.first), "steady": pair(found.target.steady)}


def assert_bounds_hold(found: Fit, truth: dict[str, Any]) -> None:
    for i, name in enumerate(("allocated_bytes", "reserved_bytes")):
        peak = max(truth["first"][i], truth["steady"][i])
        assert getattr(found.least, name) <= peak <= getattr(found.most, name), found.target.sizes


@pytest.mark.slow
def test_predictions_are_the_peaks_of_the_program(
    backend: str, recorded: tuple[str, list[Path]], tmp_path: Path
) -> None:
    name, paths = recorded
    for batch, length in TARGETS[:1] if name == SHORT else TARGETS:
        found = pytracer.fit(*paths, at={"batch": batch, "length": length})
        truth = run(tmp_path, backend, name, f"batch={batch},length={length}")
        assert peaks(found) == truth
        assert_bounds_hold(found, truth)
        # CUDA's reductions take buffers from some size on, and up to some size, and torch 2.15 a
        # workspace for each image.
        assert found.is_exact or name in ("convolutions", "reinforcement")
        assert not any(file.unmatched for file in found.files)


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt", "flash", "llama", "lora", "checkpointing"])
def test_one_recording_whose_lengths_vary(backend: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "one.pickle"
    run(tmp_path, backend, name, "batch=4,length=64/128/96/160", path)
    for length in (192, 256):
        found = pytracer.fit(path, at={"batch": 4, "length": length})
        truth = run(tmp_path, backend, name, f"batch=4,length={length}")
        assert peaks(found) == truth
        assert found.is_exact


@pytest.mark.slow
def test_the_largest_batch_runs_and_the_next_does_not(
    backend: str, recorded: tuple[str, list[Path]], tmp_path: Path
) -> None:
    name, paths = recorded
    found = pytracer.fit(
        *paths, at={"batch": 8, "length": 128}, device_memory_bytes=CAPACITY_MIB << 20
    )
    largest = next(each for each in found.largest if each.variable == "batch")
    assert largest.value is not None
    assert largest.failed is not None
    for batch, ran_out in ((largest.value, False), (largest.value + 1, True)):
        sizes = f"batch={batch},length=128"
        done = run(tmp_path, backend, name, sizes, SIMULATED_CAPACITY_MB=str(CAPACITY_MIB))
        assert ("failed" in done) == ran_out, done


@pytest.mark.long
def test_bounds_hold_for_requests_that_depend_on_values(backend: str, tmp_path: Path) -> None:
    paths = recordings(tmp_path, backend, "experts")
    for batch, length in TARGETS:
        found = pytracer.fit(*paths, at={"batch": batch, "length": length})
        truth = run(tmp_path, backend, "experts", f"batch={batch},length={length}")
        assert not found.is_exact
        assert found.varying > 0
        assert "fit_programs.py" in found.notes[0]
        assert_bounds_hold(found, truth)
