"""No setting of a finer grid is better than what is recommended."""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from allocator_workloads import WORKLOADS, constant, nearly_equal, pinned_segments, write
from needed_memory import fits, least_device, peak_bytes
from reference_allocator import Allocator
from reference_history import MIB

from pytracer.analysis.requests import extract_recording
from pytracer.reading import load
from pytracer.recommendation import recommend, recommend_sweep, search
from pytracer.recommendation.search import needed_bytes
from pytracer.variables import format_settings


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


RECORDINGS = Path(__file__).parents[1] / "screens/recordings"


class LastFirst(ThreadPoolExecutor):
    """Threads of which the last is the fastest."""

    def map(self, function: Any, items: Any) -> Any:
        return reversed([function(item) for item in reversed([*items])])


def test_the_answer_does_not_depend_on_the_speed_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a recording that ran out of memory
    path = RECORDINGS / "oom/varying_lengths.pickle.gz"
    found = recommend(path)
    # WHEN the simulations end in another order
    monkeypatch.setattr(search, "ThreadPoolExecutor", LastFirst)
    # THEN all figures are the same
    assert recommend(path) == found


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


def test_needed_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "recorded.pickle", nearly_equal)
    recording = extract_recording(load(path))
    assert needed_bytes(recording.requests) == recording.history.usage.requested_bytes.max()


def test_settings_that_are_right(tmp_path: Path) -> None:
    path = write(tmp_path / "recorded.pickle", constant, 2 << 30)
    found = recommend(path)
    assert (found.kind, found.command, found.recommended) == ("keep", "", None)
    assert found.answer.startswith("Your settings are right: ")
    assert found.deviation.peak_bytes == 0


def test_several_capacities(tmp_path: Path) -> None:
    path = write(tmp_path / "recorded.pickle", pinned_segments)
    few, more, most = recommend_sweep(path, [1 << 30, 1800 * MIB, 8 << 30])
    assert (few.kind, more.kind) == ("too large", "change")
    assert most.own.fits


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
    assert found.notes[0].startswith("The worst of 2 files counts: rank 1")
    assert any("broken.pickle" in note for note in found.notes)
