"""Test `pytracer recommend`: the answers, and that no setting of a finer grid is better."""

import itertools
import json
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
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

from pytracer.analysis.advice import command_of
from pytracer.analysis.requests import Recording, extract_recording
from pytracer.errors import ConfigError, PytracerError
from pytracer.reading import load
from pytracer.recommendation import recommend, recommend_sweep
from pytracer.recommendation.search import needed_bytes
from pytracer.simulator import deviation
from pytracer.simulator.rules import rules_of
from pytracer.simulator.simulate import simulate
from pytracer.text import size
from pytracer.variables import format_settings

MIB = 1 << 20
JOINED = "expandable_segments:True"
OOM_CAPACITY = 1650 * MIB
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
    assert found.deviation.peak_bytes == 0


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
    assert any("what the program would have allocated next is unknown" in n for n in found.notes)
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
        (changed, f"the recording {size(int(peak))}."),
        (oom, "of 1 allocation that failed in the recording, 1 found memory in the simulation"),
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
    kept, other = (note for note in found.notes if "older than the trace" in note)
    assert kept.startswith("The simulation of own settings (defaults) starts with the segments")
    assert found.recommended is not None
    assert "expandable_segments:True" in found.recommended.name
    assert other.startswith(f"The simulation of {found.recommended.name} starts with an empty")


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
    # AND a similar name is named
    with pytest.raises(ConfigError, match=r"did you mean category:parameter\?"):
        recommend(path, without=["category:parameters"])


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
        # AND the deviation is still that of the recording
        assert found.deviation.equal == found.deviation.requests == len(allocs) * 2
    # AND a call site that does not exist is an error
    for wrong in ("model.py:3", "odel.py", "category:optimizer_state"):
        with pytest.raises(ConfigError, match="matches no allocation"):
            recommend(path, without=[wrong])
    with pytest.raises(ConfigError, match="no allocation is left"):
        recommend(path, without=["model.py"])
    for malformed in ("model.py", "model.py=", "model.py=-1", "=2", "model.py=0"):
        with pytest.raises(ConfigError, match="factor greater than 0"):
            recommend(path, scale=[malformed])
    # AND so is a program that is larger than any device, also in a file without a limit
    unlimited = content(constant) | {"device_traces": made["device_traces"]}
    path.write_bytes(pickle.dumps(unlimited))
    for huge in (["model.py=999999"], ["model.py=999999"] * 2):
        with pytest.raises(ConfigError, match="needs more than 16 TiB at one moment"):
            recommend(path, scale=huge)
    assert recommend(path, scale=["model.py=20000"]).needed_bytes == 20_000 * 640 * MIB


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


def test_given_settings(tmp_path: Path) -> None:
    # GIVEN a recording that does not fit, and settings of which one would help
    path = write(tmp_path / "recorded.pickle", pinned_segments)
    recording = extract_recording(load(path))
    given = ["max_split_size_mb:1024", "max_split_size_mb:512", JOINED]
    # WHEN they are compared
    found = recommend(path, settings=given, capacity_bytes=1800 * MIB)
    # THEN these and the own settings are simulated, and no others, each with its smallest device
    assert found.settings == given
    assert sorted(tried.name for tried in found.tried) == sorted([*given, found.own.name])
    assert found.recommended is not None
    assert found.recommended.name == JOINED
    for tried in found.tried:
        assert tried.fits == fits(recording, tried.settings, 1800 * MIB)
        assert tried.smallest_device_bytes is not None
        assert abs(tried.smallest_device_bytes - least_device(recording, tried.settings)) < 6 * MIB
    # AND the table has a row for each
    options = [word for text in given for word in ("--set", text)]
    done = invoke("recommend", path, "--capacity", "1800MiB", *options)
    assert done.exit_code == 0, done.stderr
    names = [row[0] for row in cells(done.stdout)]
    assert sorted(names) == sorted([*given, "own settings"])
    assert names[:2] == [JOINED, "own settings"]
    # AND a note has the event at which each of the others ended
    for tried in found.tried[1:]:
        assert tried.failed_event is not None
        note = f"{tried.name}: out of memory at event {tried.failed_event}, for 700 MiB."
        assert (note in done.stdout.splitlines()) == (tried.name in given)
    # AND without the one that helps, the answer is that none does
    for settings, begin in (given[:1], given[0]), (given[:2], "None of the 2 given settings"):
        found = recommend(path, settings=settings, capacity_bytes=1800 * MIB)
        assert found.kind == "no setting"
        assert re.match(f"{begin} (does not fit|fits) into 1.758 GiB, although ", found.answer)


def test_given_settings_that_do_not_help(tmp_path: Path) -> None:
    # GIVEN a recording that needs no other settings
    path = write(tmp_path / "recorded.pickle", constant, 700 * MIB)
    # THEN a sentence says so of one, and of several
    saves = "more than 2 % of the 640 MiB reserved"
    for settings, clause in (
        ([JOINED], f"{JOINED} does not save {saves}"),
        ([JOINED, "max_split_size_mb:512"], f"none of the 2 given settings saves {saves}"),
    ):
        found = recommend(path, settings=settings)
        assert found.kind == "keep"
        assert found.answer == f"Keep your settings: {clause}."

    # AND of a setting that needs more
    def ten_blocks(allocator: Allocator) -> None:
        for _ in range(10):
            allocator.malloc(65 * MIB)

    blocks = write(tmp_path / "blocks.pickle", ten_blocks, 700 * MIB)
    found = recommend(blocks, settings=["roundup_power2_divisions:2"])
    assert found.answer == "Keep your settings: roundup_power2_divisions:2 does not fit."
    # AND of a setting that has no effect
    notes = recommend(path, settings=["garbage_collection_threshold:0.6"]).notes
    assert notes[0].endswith("no effect without a memory fraction, and the recording has none.")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("expandable_segments", "key:value"),
        ("expandable_segment:True", 'no setting "expandable_segment"'),
        ("", "give NAME:VALUE"),
        ("current", '"current"'),
        ("backend:cudaMallocAsync", "is not simulated"),
    ],
)
def test_given_settings_that_are_wrong(settings: str, reason: str) -> None:
    done = invoke("recommend", GOLDEN / "snapshot-1.5-cuda.pickle", "--set", settings)
    assert (done.exit_code, done.stdout) == (1, "")
    assert reason in done.stderr


def test_a_text_is_no_list_of_settings() -> None:
    with pytest.raises(ConfigError, match="give a list"):
        recommend(GOLDEN / "snapshot-1.5-cuda.pickle", settings=JOINED)


@pytest.mark.parametrize("capacity", ["80GiBs", "-1", "0", "much", "1e9"])
def test_an_invalid_capacity(capacity: str) -> None:
    done = invoke("recommend", GOLDEN / "snapshot-1.5-cuda.pickle", f"--capacity={capacity}")
    assert done.exit_code == 2
    assert f"'{capacity}' is not a size: give one such as 80GiB" in done.stderr


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
    done = invoke("recommend", GOLDEN / "snapshot-1.5-cpu.pickle", "--device", "0")
    assert "whose allocator has no cache" in done.stderr


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
