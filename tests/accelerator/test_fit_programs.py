"""Compare estimates with the same programs at the sizes that were estimated."""

import json
from pathlib import Path
from typing import Any

import processes
import pytest
import simulated

import pytracer
from pytracer.fitting import Fit

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


def assert_near(found: Fit, truth: dict[str, Any], error: float) -> None:
    """Check that the estimated peaks are those of a program, up to a share."""
    for i, name in enumerate(("allocated_bytes", "reserved_bytes")):
        peak = max(truth["first"][i], truth["steady"][i])
        assert getattr(found.target.peak, name) == pytest.approx(peak, rel=error), found.target


@pytest.mark.slow
def test_estimates_are_the_peaks_of_the_program(
    backend: str, recorded: tuple[str, list[Path]], tmp_path: Path
) -> None:
    name, paths = recorded
    for batch, length in TARGETS[:1] if name == SHORT else TARGETS:
        found = pytracer.fit(*paths, at={"batch": batch, "length": length})
        truth = run(tmp_path, backend, name, f"batch={batch},length={length}")
        assert_near(found, truth, 0.03 if name in ("convolutions", "reinforcement") else 0)


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt", "flash", "llama", "lora", "checkpointing"])
def test_one_recording_whose_lengths_vary(backend: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "one.pickle"
    run(tmp_path, backend, name, "batch=4,length=64/128/96/160", path)
    for length in (192, 256):
        found = pytracer.fit(path, at={"batch": 4, "length": length})
        truth = run(tmp_path, backend, name, f"batch=4,length={length}")
        assert_near(found, truth, 0.06)


@pytest.mark.slow
def test_the_largest_batch_runs_and_a_larger_one_does_not(
    backend: str, recorded: tuple[str, list[Path]], tmp_path: Path
) -> None:
    name, paths = recorded
    found = pytracer.fit(
        *paths, at={"batch": 8, "length": 128}, device_memory_bytes=CAPACITY_MIB << 20
    )
    largest = found.largest["batch"]
    assert largest
    for batch, ran_out in ((largest, False), (round(largest * 1.2) + 1, True)):
        sizes = f"batch={batch},length=128"
        done = run(tmp_path, backend, name, sizes, SIMULATED_CAPACITY_MB=str(CAPACITY_MIB))
        assert ("failed" in done) == ran_out, done


@pytest.mark.long
def test_requests_that_depend_on_values(backend: str, tmp_path: Path) -> None:
    paths = recordings(tmp_path, backend, "experts")
    for batch, length in TARGETS:
        found = pytracer.fit(*paths, at={"batch": batch, "length": length})
        truth = run(tmp_path, backend, "experts", f"batch={batch},length={length}")
        assert_near(found, truth, 0.3)
