"""Test `pytracer recommend`: the answers, and that no setting of a finer grid is better."""

import itertools
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from allocator_workloads import (
    WORKLOADS,
    constant,
    content,
    nearly_equal,
    phases,
    pinned_segments,
    varying_lengths,
    write,
)
from commands import cells, invoke
from reference_allocator import Allocator

from pytracer.analysis.requests import Recording, extract_recording
from pytracer.analysis.suggestions import command_of
from pytracer.errors import ConfigError, PytracerError
from pytracer.experiments.replay import replay
from pytracer.reading import load
from pytracer.recommendation import recommend, recommend_sweep
from pytracer.recommendation.search import needed_bytes
from pytracer.settings.keys import format_settings
from pytracer.simulator.rules import rules_of
from pytracer.simulator.simulate import simulate

MIB = 1 << 20
GOLDEN = Path(__file__).parents[1] / "golden"


def fine_grid() -> Iterator[str]:
    """Yield settings, about four times as many as a recommendation tries."""
    for joined, split, divisions, segment in itertools.product(
        (None, "True"),
        (None, "21", "32", "48", "64", "96", "128", "192", "256", "512"),
        (None, "2", "4", "8", "16"),
        (None, "40"),
    ):
        choice = {
            "expandable_segments": joined,
            "max_split_size_mb": split,
            "roundup_power2_divisions": divisions,
            "large_segment_size_mb": segment,
        }
        yield format_settings({key: value for key, value in choice.items() if value})


def fits(recording: Recording, settings: str, memory_bytes: int) -> bool:
    rules = rules_of(settings, recording.backend, recording.torch_version)
    done = simulate(recording.requests, rules, limit_bytes=None, device_bytes=memory_bytes)
    return done.ooms == 0


def peak_bytes(recording: Recording, settings: str) -> int:
    rules = rules_of(settings, recording.backend, recording.torch_version)
    done = simulate(recording.requests, rules, limit_bytes=None, device_bytes=None)
    return int(done.peak_reserved_bytes)


def least_device(recording: Recording, settings: str) -> int:
    """Return the least memory, to 2 MiB, with which every allocation finds memory."""
    low, high = 0, peak_bytes(recording, settings)
    while high - low > 2 * MIB:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(recording, settings, middle) else (middle, high)
    return high


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_no_setting_of_a_finer_grid_is_better(
    tmp_path: Path, workload: Callable[[Allocator], None]
) -> None:
    # GIVEN a recording with memory to spare
    path = write(tmp_path / "recorded.pickle", workload, 64 << 30)
    recording = extract_recording(load(path))
    # WHEN settings are recommended
    found = recommend(path)
    # THEN the peak is at most 2 % higher than with the best of a finer grid
    assert found.kind in ("change", "keep")
    best = found.recommended or found.own
    least = min(peak_bytes(recording, settings) for settings in fine_grid())
    assert best.peak_reserved_bytes <= least * (1.01 if found.kind == "change" else 1.02)
    assert len(found.tried) >= 30


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_no_setting_needs_a_smaller_device(
    tmp_path: Path, workload: Callable[[Allocator], None]
) -> None:
    # GIVEN a recording, and a device on which its own settings do not fit
    path = write(tmp_path / "recorded.pickle", workload)
    recording = extract_recording(load(path))
    capacity = least_device(recording, "") - 4 * MIB
    # WHEN settings are recommended for it
    found = recommend(path, capacity_bytes=capacity)
    assert not found.own.fits
    best = min(least_device(recording, settings) for settings in fine_grid())
    if best > capacity:
        # THEN no setting is recommended if there is none
        assert found.kind in ("no setting", "too large")
        assert found.recommended is None
        return
    # OR the recommended settings need at most 1 % more than the best of a finer grid
    assert found.kind == "change"
    assert found.recommended is not None
    least = found.recommended.smallest_device_bytes
    assert least is not None
    assert least <= best * 1.012
    assert fits(recording, found.recommended.settings, least)
    assert least <= capacity


def test_the_peak_itself_is_too_high(tmp_path: Path) -> None:
    # GIVEN a program that holds 640 MiB, and a device with less
    path = write(tmp_path / "recorded.pickle", constant)
    found = recommend(path, capacity_bytes=600 * MIB)
    # THEN the answer is that no setting helps
    assert (found.kind, found.command, found.needed_bytes) == ("too large", "", 640 * MIB)
    assert found.answer == (
        "No setting helps: the program needs 640 MiB at one moment, and the allocator can reserve "
        "600 MiB."
    )


def test_settings_that_are_right(tmp_path: Path) -> None:
    path = write(tmp_path / "recorded.pickle", constant, 2 << 30)
    found = recommend(path)
    assert (found.kind, found.command, found.recommended) == ("keep", "", None)
    assert found.answer.startswith("Your settings are right: ")
    assert found.deviation is not None
    assert found.deviation.peak_bytes == 0


def test_a_failed_request_must_fit(tmp_path: Path) -> None:
    # GIVEN a recording that ends by an allocation that failed in a fragmented device
    made = content(lambda allocator: (pinned_segments(allocator), None)[1])
    events = made["device_traces"][0]
    # The last allocation and its segment did not take place.
    del events[-2:]
    made["segments"] = [each for each in made["segments"] if each["total_size"] < 700 * MIB]
    reserved = sum(segment["total_size"] for segment in made["segments"])
    capacity = reserved + 50 * MIB
    oom = {"action": "oom", "device_free": 50 * MIB, "size": 700 * MIB, "stream": 0}
    events.append({**oom, "pool_id": (0, 0), "time_us": 1, "frames": []})
    path = tmp_path / "oom.pickle"
    path.write_bytes(pickle.dumps(made))
    # WHEN settings are recommended
    found = recommend(path)
    # THEN they let the failed allocation find memory
    assert found.capacity_bytes == capacity
    assert found.kind == "change"
    assert "would have fitted" in found.answer
    assert found.needed_bytes == (20 * 45 + 700) * MIB
    assert not found.own.fits
    assert any("what the program would have allocated next is unknown" in n for n in found.notes)
    # AND with a capacity that the failed allocation does not fit into, none is recommended
    assert recommend(path, capacity_bytes=1500 * MIB).kind == "too large"


def test_an_incomplete_recording_cannot_tell(tmp_path: Path) -> None:
    # GIVEN a recording whose simulation differs from it: most events are lost
    made = content(varying_lengths, 8 << 30)
    made["device_traces"][0] = made["device_traces"][0][-150:]
    path = tmp_path / "late.pickle"
    path.write_bytes(pickle.dumps(made))
    found = recommend(path)
    # THEN the answer is that it is unknown, or carries the error bar
    assert found.deviation is not None
    if abs(found.deviation.peak_share) > 0.05:
        assert found.kind == "can't tell"
        assert found.recommended is None
    assert any("older than the trace" in note for note in found.notes)


def test_the_worst_rank_decides(tmp_path: Path) -> None:
    # GIVEN two ranks, of which rank 1 does not fit
    write(tmp_path / "rank0.pickle", constant, 4 << 30, rank=0)
    write(tmp_path / "rank1.pickle", pinned_segments, 4 << 30, rank=1)
    (tmp_path / "broken.pickle").write_bytes(b"\x80\x04")
    # WHEN settings are recommended for the job
    found = recommend(tmp_path, capacity_bytes=2000 * MIB)
    # THEN rank 1 is named, and both ranks are judged
    assert (found.rank, found.kind) == (1, "change")
    assert [rank.own.fits for rank in sorted(found.ranks, key=lambda r: r.rank or 0)] == [
        True,
        False,
    ]
    assert all(rank.recommended and rank.recommended.fits for rank in found.ranks)
    assert found.notes[0].startswith("The worst of 2 files decides: rank 1")
    assert any("broken.pickle" in note for note in found.notes)


def test_several_capacities(tmp_path: Path) -> None:
    path = write(tmp_path / "recorded.pickle", pinned_segments)
    few, more, most = recommend_sweep(path, [1 << 30, 1800 * MIB, 8 << 30])
    assert (few.kind, more.kind) == ("too large", "change")
    assert most.own.fits


def test_without_a_category() -> None:
    # GIVEN a file whose blocks have categories
    path = GOLDEN / "snapshot-1.5-cuda.pickle"
    snapshot = load(path)
    is_first = snapshot.segments.device[snapshot.blocks.segment] == 0
    categories = [snapshot.strings[text] for text in snapshot.blocks.category.tolist()]
    sizes = snapshot.blocks.requested_bytes.tolist()
    for name in ("parameter", "gradient"):
        rows = [i for i, found in enumerate(categories) if found == name and is_first[i]]
        assert rows
        # WHEN a category is left out
        found = recommend(path, without=[f"category:{name}"])
        # THEN its blocks are
        text = f"{len(rows)} allocations of category:{name}, {sum(sizes[i] for i in rows)} B in all"
        assert found.notes[0].startswith(f"Estimate without {text}")


def test_what_if(tmp_path: Path) -> None:
    # GIVEN a program with two call sites
    made = content(constant, 4 << 30)
    allocs = [event for event in made["device_traces"][0] if event["action"] == "alloc"]
    for i, event in enumerate(allocs):
        line = 1 if i % 2 else 2
        event["frames"] = [{"filename": "/home/me/model.py", "name": "forward", "line": line}]
    path = tmp_path / "recorded.pickle"
    path.write_bytes(pickle.dumps(made))
    # WHEN one of them allocates nothing, or all allocate half
    half = recommend(path, without=["me/model.py:1"])
    scaled = recommend(path, scale=["model.py=0.5"])
    # THEN the program needs half
    for found in (half, scaled):
        assert found.is_estimate
        assert found.needed_bytes == 320 * MIB
        assert found.notes[0].startswith("Estimate with")
    # AND so does a replay, whose deviation is still that of the recording
    done = replay(path, [], without=["model.py:2"])
    assert done.is_estimate
    assert done.replayed[0].setting.outcomes[0].peak_allocated_bytes == 320 * MIB
    assert done.deviation is not None
    assert done.deviation.equal == done.deviation.requests
    # AND a call site that does not exist is an error
    for wrong in ("model.py:3", "odel.py", "category:optimizer_state"):
        with pytest.raises(ConfigError, match="matches no allocation"):
            recommend(path, without=[wrong])
    with pytest.raises(ConfigError, match="no allocation is left"):
        recommend(path, without=["model.py"])
    for malformed in ("model.py", "model.py=", "model.py=-1", "=2", "model.py=0"):
        with pytest.raises(ConfigError, match="factor greater than 0"):
            recommend(path, scale=[malformed])


@pytest.mark.parametrize(
    ("version", "own", "line"),
    [
        ("2.8.0", "", "export PYTORCH_CUDA_ALLOC_CONF=a:1"),
        ("2.9.1", "b:1", "export PYTORCH_ALLOC_CONF=a:1"),
        ("2.12.1", "", "export PYTORCH_ALLOC_CONF=a:1"),
        ("2.15.0", "b:1", "export PYTORCH_CUDA_ALLOC_CONF=a:1"),
        (None, "", "export PYTORCH_CUDA_ALLOC_CONF=a:1"),
    ],
)
def test_the_line_names_the_variable_that_counts(version: str | None, own: str, line: str) -> None:
    assert command_of("a:1", "cuda", version, own) == line
    assert command_of("a:1", "npu", version, own) == "export PYTORCH_NPU_ALLOC_CONF=a:1"


def test_the_command(tmp_path: Path) -> None:
    # GIVEN a recording that does not fit
    path = write(tmp_path / "recorded.pickle", pinned_segments)
    done = invoke("recommend", path, "--capacity", "1800MiB")
    # THEN the first lines are the answer and the line to paste
    assert done.exit_code == 0, done.stderr
    first, second = done.stdout.splitlines()[:2]
    assert first.startswith("Use expandable_segments:True: ")
    assert second == "  export PYTORCH_ALLOC_CONF=expandable_segments:True"
    # AND the table has the recommended and the own settings first
    rows = cells(done.stdout)
    assert rows[0][:2] == ["expandable_segments:True", "no"]
    assert rows[1][:2] == ["own settings", "yes"]
    # AND JSON has the same answer
    report = json.loads(invoke("recommend", path, "--capacity", "1800MiB", "--json").stdout)[
        "recommendations"
    ][0]
    assert report["answer"] == first
    assert len(report["tried"]) >= 30


def test_files_that_cannot_be_simulated(tmp_path: Path) -> None:
    # GIVEN a file that is cut short, one of the CPU, an empty directory, and no file
    whole = (GOLDEN / "snapshot-1.5-cuda.pickle").read_bytes()
    (tmp_path / "half.pickle").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty").mkdir()
    for path, reason in (
        (tmp_path / "half.pickle", "half.pickle"),
        (GOLDEN / "snapshot-1.5-cpu.pickle", "no events of an accelerator"),
        (tmp_path / "empty", "no snapshots"),
        (tmp_path / "none.pickle", "does not exist"),
    ):
        # THEN the error names the reason in one line
        done = invoke("recommend", path)
        assert done.exit_code == 1
        assert reason in done.stderr
        assert len(done.stderr.splitlines()) == 1
    done = invoke("recommend", GOLDEN / "snapshot-1.5-cuda.pickle", "--capacity", "much")
    assert done.exit_code == 2


def test_unknown_settings_of_the_recording(tmp_path: Path) -> None:
    # GIVEN a recording under settings that no allocator has
    made = content(phases, 8 << 30)
    made["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "max_splt_size_mb:64"
    path = tmp_path / "recorded.pickle"
    path.write_bytes(pickle.dumps(made))
    # THEN the error names them
    with pytest.raises(PytracerError, match=r"own settings cannot be simulated.*max_splt_size_mb"):
        recommend(path)


def test_needed_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "recorded.pickle", nearly_equal)
    recording = extract_recording(load(path))
    assert needed_bytes(recording.requests) == recording.history.usage.requested_bytes.max()
