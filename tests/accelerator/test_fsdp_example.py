"""Test examples/fsdp_gathers.py as a program: which model runs out of memory, and why."""

import pickle
from pathlib import Path

import processes
import pytest
import simulated

from pytracer.analysis import explain
from pytracer.analysis.report import stats
from pytracer.reading import load
from pytracer.recommendation import recommend

EXAMPLE = Path(__file__).parents[2] / "examples" / "fsdp_gathers.py"
CAPACITY_BYTES = 39 << 30
LOGITS_BYTES = 7_500 * 128_256 * 4

pytestmark = pytest.mark.slow


@pytest.fixture
def cuda(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "npu":
        pytest.skip("the sequence lengths are chosen for CUDA's kernels")
    if not simulated.active():
        pytest.skip("tests/hardware.py runs the example on a real device")


def run_example(
    folder: Path, shape: str, *options: str, expandable: bool, device_mib: int = 80 << 10
) -> processes.Done:
    """Run the example traced, on a simulated device of this size."""
    env = processes.installed(
        folder,
        PYTRACER="1",
        PYTRACER_OUTPUT=str(folder / "snapshot.pickle"),
        PYTORCH_CUDA_ALLOC_CONF=f"expandable_segments:{expandable}",
        PYTORCH_NPU_ALLOC_CONF=f"expandable_segments:{expandable}",
        SIMULATED_CAPACITY_MB=str(device_mib),
    )
    return processes.run_python(EXAMPLE, shape, *options, cwd=folder, env=env)


def free_bytes(segments: list[dict[str, int]]) -> int:
    return sum(segment["total_size"] - segment["allocated_size"] for segment in segments)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("device_mib", [39 << 10, pytest.param(80 << 10, marks=pytest.mark.long)])
def test_3b_runs_out_of_memory_by_fragmentation(device_mib: int, tmp_path: Path) -> None:
    # WHEN the smaller model trains without expandable segments, on a device of 39 GiB, or on a
    # larger one of which the program allows itself 39 GiB
    done = run_example(tmp_path, "3b", expandable=False, device_mib=device_mib)
    # THEN it ends in its second step with the allocator's own error
    assert done.returncode == 1
    assert done.stdout.startswith("step 1:")
    assert "step 2" not in done.stdout
    assert "out of memory" in done.stderr
    # AND a simulation of the trace shows that expandable segments would have been enough
    (path,) = tmp_path.glob("*.oom-*.pickle")
    found = recommend(path, settings=["expandable_segments:True"])
    assert found.kind == "change"
    assert [tried.ooms for tried in found.tried] == [0, 1]
    # AND this is the first verdict; on the larger device, the limit is to blame as well
    explanation, *_ = explain(load(path))  # and of pinned memory
    limit = ["limit"] if device_mib > CAPACITY_BYTES >> 20 else []
    assert [verdict.kind for verdict in explanation.verdicts] == ["fragmented", *limit]
    # AND the segments had more free memory than the request, but no block was large enough
    (oom,) = stats(load(path)).devices[0].ooms
    assert oom.sample is not None
    assert oom.fits_in_free_blocks
    assert oom.sample.reserved_bytes - oom.sample.allocated_bytes > oom.requested_bytes
    assert oom.sample.largest_free_bytes < oom.requested_bytes / 50
    # AND nearly all of it is in segments with one live block each, which cannot be released
    segments = pickle.loads(path.read_bytes())["segments"]
    shared = [segment for segment in segments if len(segment["blocks"]) == 2]
    assert free_bytes(shared) > 0.9 * free_bytes(segments)


@pytest.mark.long
@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    ("shape", "expandable"),
    [("3b", True), ("8b", True), ("8b", False)],
)
def test_other_models_and_settings_fit(shape: str, expandable: bool, tmp_path: Path) -> None:
    # WHEN the smaller model trains with expandable segments, or the larger one with any segments
    done = run_example(tmp_path, shape, expandable=expandable)
    # THEN all steps complete without an error, and the trace has all of them
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step ") == 6
    (path,) = tmp_path.glob("*.pickle")
    report = stats(load(path)).devices[0]
    assert report.ooms == []
    assert report.lost.overwritten == 0
    assert (report.end.segments == 0) == expandable
    # AND a simulation of the trace predicts the result of the other setting: 3b fails, and where
    found = recommend(path, settings=[f"expandable_segments:{not expandable}"])
    assert found.capacity_bytes == CAPACITY_BYTES
    assert found.deviation.equal == found.deviation.requests > 10_000
    (other,) = (tried for tried in found.tried if tried.name in found.settings)
    assert other.ooms == (shape == "3b")
    if shape == "3b":
        assert other.failed_bytes == LOGITS_BYTES


@pytest.mark.usefixtures("simulated_device")
def test_it_runs_with_a_larger_capacity(backend: str, tmp_path: Path) -> None:
    # WHEN the capacity is larger, as an NPU needs
    done = run_example(tmp_path, "3b", "--capacity=56", expandable=False)
    # THEN all steps complete, on this device
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step ") == 6
    (path,) = tmp_path.glob("*.pickle")
    assert load(path).metadata.backends == (backend,)


@pytest.mark.usefixtures("simulated_device")
def test_a_device_that_is_too_small_is_refused(tmp_path: Path) -> None:
    # WHEN the device has less memory than the example needs
    done = run_example(tmp_path, "3b", expandable=True, device_mib=16 << 10)
    # THEN the example refuses to run, because its result would be misleading
    assert done.returncode == 1
    assert "\nThe device has 16.0 GiB, less than 39.0." in "\n" + done.stderr
