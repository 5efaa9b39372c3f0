"""The answer says whether settings help, or why the simulation cannot tell."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from allocator_workloads import constant, content, pinned_segments, varying_lengths, write
from commands import invoke
from needed_memory import JOINED
from reference_history import MIB

from pytracer.analysis.requests import extract_recording
from pytracer.reading import load
from pytracer.recommendation import recommend
from pytracer.simulator import deviation
from pytracer.text import size

OOM_CAPACITY = 1650 * MIB


def write_oom(
    path: Path, *, free_bytes: int = 50 * MIB, events: int | None = None, rank: int = 0
) -> Path:
    """Write a recording that ends by a failed allocation of 700 MiB, with 1,600 MiB reserved.

    Args:
        path: The file.
        free_bytes: What the device reported as free.
        events: How many of the last events the file has; None: all.
        rank: The rank in the metadata.
    """
    made = content(pinned_segments, rank=rank)
    trace = made["device_traces"][0]
    del trace[-2:]  # the last allocation and its segment
    made["segments"] = [each for each in made["segments"] if each["total_size"] < 700 * MIB]
    assert sum(segment["total_size"] for segment in made["segments"]) == 1600 * MIB
    oom = {"action": "oom", "device_free": free_bytes, "size": 700 * MIB, "stream": 0}
    trace.append({**oom, "pool_id": (0, 0), "time_us": 1, "frames": []})
    made["device_traces"] = [trace[-events:] if events else trace]
    path.write_bytes(pickle.dumps(made))
    return path


def write_changed(path: Path, rank: int = 0) -> Path:
    """Write a recording with settings that it was not made with, which lead to another peak."""
    made = content(varying_lengths, 8 << 30, rank)
    made["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:21"
    path.write_bytes(pickle.dumps(made))
    return path


@pytest.mark.parametrize("events", [None, 12])
def test_a_failed_request_must_fit(tmp_path: Path, events: int | None) -> None:
    # GIVEN a recording that ends by an allocation that failed in a fragmented device, and whose
    # ring may have lost the first events
    path = write_oom(tmp_path / "oom.pickle", events=events)
    # WHEN settings are recommended
    found = recommend(path)
    # THEN the simulation of the recording's own settings equals the recording
    assert found.deviation is not None
    assert found.deviation.requests == found.deviation.equal >= 10
    assert found.deviation.peak_bytes == 0
    # AND settings are found that let the failed allocation find memory
    assert found.capacity_bytes == OOM_CAPACITY
    assert found.kind == "change"
    assert "would have fitted" in found.answer
    assert found.needed_bytes == (20 * 45 + 700) * MIB
    assert not found.own.fits
    # AND what was free then, and not at the peak, is the reason
    assert found.own.waste_at_oom_bytes == (1600 - 20 * 45) * MIB
    assert "with 700 MiB reserved but not allocated at that moment." in found.why
    assert any("after the one that failed are unknown" in n for n in found.notes)
    # AND with a capacity that the failed allocation does not fit into, none is recommended
    assert recommend(path, capacity_bytes=1500 * MIB).kind == "too large"


@pytest.mark.parametrize("settings", [(), (JOINED,), (JOINED, "max_split_size_mb:64")])
def test_settings_that_do_not_reproduce_the_recording(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    # GIVEN recordings whose simulation differs from them: one of another peak, and one whose failed
    # allocation finds memory, because its limit was not that of the file
    changed = write_changed(tmp_path / "changed.pickle")
    peak = extract_recording(load(changed)).history.usage.reserved_bytes.max()
    oom = write_oom(tmp_path / "oom.pickle", free_bytes=800 * MIB)
    subjects = "which setting is best", f"whether {JOINED} helps", "which of the settings helps"
    for path, figures in (
        (changed, f"the recording reserved {size(int(peak))}."),
        (oom, "of 1 allocation that failed in the recording, 1 succeeded in the simulation"),
    ):
        # WHEN settings are searched or compared
        found = recommend(path, settings=settings)
        # THEN none is said to help, and the figures say why
        assert (found.kind, found.recommended, found.command) == ("can't tell", None, "")
        assert found.answer.startswith(f"Can't tell {subjects[len(settings)]}, because ")
        assert figures in found.answer


def test_a_setting_that_saves_less_than_the_error_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN settings that save something at the peak
    path = write(tmp_path / "recorded.pickle", varying_lengths, 64 << 30)
    found = recommend(path)
    assert found.kind == "change"
    assert found.recommended is not None
    saved = found.own.peak_reserved_bytes - found.recommended.peak_reserved_bytes
    for bar, kind in (saved - 1, "change"), (saved, "can't tell"):
        # WHEN the simulation differs from the recording by as much
        bars = replace(found.deviation, peak_bytes=-bar)
        monkeypatch.setattr(deviation, "deviation_of", lambda *_, bars=bars: bars)
        # THEN they are not said to help, nor that nothing does
        answer = recommend(path)
        assert answer.kind == kind
        assert (f"the error bar is {size(bar)}" in answer.answer) == (kind == "can't tell")


def test_a_given_capacity_is_the_limit_that_the_file_does_not_show(tmp_path: Path) -> None:
    # GIVEN a recording whose failed allocation would have fitted into what the device reported
    path = write_oom(tmp_path / "oom.pickle", free_bytes=800 * MIB)
    found = recommend(path)
    assert found.kind == "can't tell"
    assert "give --capacity" in found.why
    # WHEN the limit is given, with which the allocation fails
    found = recommend(path, capacity_bytes=OOM_CAPACITY)
    # THEN there is an answer
    assert found.kind == "change"
    # AND with a larger one, there is none
    assert recommend(path, capacity_bytes=OOM_CAPACITY + 800 * MIB).kind == "can't tell"


def test_the_notes_say_how_the_simulations_start(tmp_path: Path) -> None:
    # GIVEN a recording whose ring has lost most events
    made = content(varying_lengths, 8 << 30)
    events = made["device_traces"][0]
    first = next(i for i in range(len(events) - 150, 0, -1) if events[i]["action"] == "alloc")
    made["device_traces"][0] = events[first:]
    path = tmp_path / "changed.pickle"
    path.write_bytes(pickle.dumps(made))
    # WHEN settings are recommended
    found = recommend(path)
    # THEN the simulation of its own settings equals the recording
    assert found.deviation is not None
    assert found.deviation.requests == found.deviation.equal > 50
    # AND the notes name the simulations that start with the recorded memory, and the others
    kept, other = (note for note in found.notes if "starts " in note)
    assert kept.startswith("The simulation of own settings (defaults) starts at the first")
    assert found.recommended is not None
    assert "expandable_segments:True" in found.recommended.name
    assert other.startswith(f"The simulation of {found.recommended.name} starts with an empty")


def test_a_rank_that_ran_out_for_an_unknown_reason(tmp_path: Path) -> None:
    # GIVEN a rank whose settings fit, with little to spare, and one that ran out of memory, which
    # its simulation does not
    write(tmp_path / "rank0.pickle", constant, 641 * MIB, rank=0)
    assert recommend(tmp_path / "rank0.pickle").kind == "keep"
    write_oom(tmp_path / "rank1.pickle", free_bytes=800 * MIB, rank=1)
    # THEN the settings of the job are not said to be right
    found = recommend(tmp_path)
    assert (found.rank, found.kind) == (1, "can't tell")
    first, second = sorted(found.ranks, key=lambda rank: rank.rank or 0)
    assert first.why_unknown is None
    assert second.why_unknown is not None
    assert second.why_unknown in found.answer


def test_a_rank_that_cannot_tell_whether_the_settings_of_the_job_help(tmp_path: Path) -> None:
    # GIVEN a rank that needs other settings, and one whose simulation differs from the recording
    write_oom(tmp_path / "rank0.pickle", rank=0)
    write_changed(tmp_path / "rank1.pickle", rank=1)
    # THEN the settings are recommended because of the first, and nothing is said of the second
    done = invoke("recommend", tmp_path)
    (found,) = json.loads(invoke("recommend", tmp_path, "--json").stdout)["recommendations"]
    assert (found["rank"], found["kind"]) == (0, "change")
    first, second = sorted(found["ranks"], key=lambda rank: rank["rank"])
    assert (first["why_unknown"], second["recommended"]) == (None, None)
    line = next(line for line in done.stdout.splitlines() if line.startswith("rank 1: "))
    assert line.endswith(f"Can't tell about other settings, because {second['why_unknown']}")
    # AND of roles with equal ranks, the lines name the files
    path = write_changed(tmp_path / "rank1.pickle", rank=0)
    lines = invoke("recommend", tmp_path).stdout.splitlines()
    assert any(line.startswith(f"{path}: own settings: ") for line in lines)
    assert not any(line.startswith("rank 0: ") for line in lines)
