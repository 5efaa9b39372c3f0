"""Does `pytracer show --all` say what a file has lost, and which figures are bounds?"""

import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import cells
from show_command import CUDA, GOLDEN, MIB, invoke, write_content
from synthetic_program import run as run_program
from synthetic_snapshots import inexact

from pytracer.analysis import device_data
from pytracer.analysis.history import replay
from pytracer.analysis.report import stats
from pytracer.reading import load
from pytracer.text import size

pytestmark = pytest.mark.usefixtures("narrow_terminal")


def test_losses_are_reported(tmp_path: Path) -> None:
    # GIVEN a file with a loss of every kind
    content = run_program([("alloc", 10, 0), ("alloc", 5, 0), ("free", 0, 0)]).content(lost=3)
    lost = {"unknown_frees": 11, "live_dropped": 12, "labels_dropped": 13}
    content["pytracer"]["devices"][0] |= lost
    content["pytracer"] |= {
        "stacks": {"dropped": 14, "truncated": 15},
        "phases": {"names_dropped": 16, "complete": False},
        "untraced": "cuda: no hook",
        "waiting": True,
        "window": {"first": 1, "last": 1, "complete": False},
    }
    # WHEN the report is printed, THEN it has a sentence on each loss
    output = invoke(write_content(tmp_path, content), "--device", 1).output
    output = re.sub(r"\s+", " ", output)
    for sentence in (
        "The ring overwrote its first 3 events",
        "10 B requested earlier were still held at the first event.",
        "Frees of unknown blocks: 11.",
        "Blocks that did not fit into the table of live blocks: 12.",
        "Pools and labels that did not fit into their table: 13.",
        "Events without a stack, because the stack table was full: 14.",
        "Stacks that stack_depth shortened: 15.",
        "Phases that did not fit into their table: 16.",
        "The times of the first phases are unknown",
        "Not recorded: cuda: no hook",
        "No events were recorded",
        "step 1, cut short by the end of the program",
    ):
        assert sentence in output


def test_it_may_be_unknown_whether_a_ring_lost_events(tmp_path: Path) -> None:
    # GIVEN a file of torch's own recorder, and one of pytracer
    sentence = "The file does not say whether the ring overwrote"
    content = run_program([("alloc", 10, 0)]).content()
    assert sentence not in invoke(write_content(tmp_path, content)).output
    del content["pytracer"]
    # WHEN the report is printed, THEN only the file of torch's recorder has the sentence
    assert sentence in invoke(write_content(tmp_path, content), "--device", 1).output
    # AND a file without events has lost none
    content["device_traces"] = [[], []]
    assert sentence not in invoke(write_content(tmp_path, content)).output


def test_bounds_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN files in which no level is exact before the last event
    def replayed(*arguments: Any) -> Any:
        history = replay(*arguments)
        return inexact(history, len(history.usage.reserved_bytes) - 1)

    monkeypatch.setattr(device_data, "replay", replayed)
    for name in ("a.pickle", "b.pickle"):
        shutil.copy(GOLDEN / "native/cuda-2.15.0.pickle", tmp_path / name)
    report = stats(load(tmp_path / "a.pickle"))
    content = pickle.loads(CUDA.read_bytes())
    events = len(content["device_traces"][0])
    content["pytracer"]["devices"][0]["steps"] = [[1, 0], [2, events // 2]]

    # WHEN one is shown, THEN uncertain levels of the peak are bounds, and known levels are exact
    output = invoke(tmp_path / "a.pickle", "--device", 0).output
    rows = {row[0]: row[1:] for row in reversed(cells(output))}  # the first table's
    (peak,) = (device.peak_allocated for device in report.devices if device.device == 0)
    assert peak is not None
    reserved = size(peak.reserved_bytes)
    assert rows["allocated"][0] == "≥ 73.04 MiB"
    assert rows["reserved"][0] == reserved
    assert rows["reserved - allocated"][0] == f"≤ {size(peak.fragmentation_bytes)}"
    assert rows["segments"][0] == str(peak.segments)
    assert rows["Σ free² / (Σ free)²"][0] == "-"
    # AND the overview has the same bounds, and unknown losses
    shown = next(
        row for row in cells(invoke(tmp_path, "--device", 0).output) if row[0].startswith("a.pick")
    )
    assert shown[1:] == [
        "≥ 73.04 MiB",
        *(row[0] for row in (rows["reserved"][1:], rows["reserved - allocated"])),
        "1",
        "unknown",
    ]
    # AND the tables of steps and phases have bounds
    rows = {row[0]: row[1:] for row in cells(invoke(write_content(tmp_path, content)).output)}
    assert all("≥" in cell for cell in rows["1"][:2])
    # AND the failed request is larger than even the upper bound
    assert ["fits if joined", "no"] in cells(output)
    text = re.sub(r"\s+", " ", output)
    assert (
        f"Up to event {report.devices[0].events - 1:,}, the allocated sizes of some blocks" in text
    )
    assert "The peak is at least 73.04 MiB." in text


def test_a_step_whose_older_blocks_have_known_bounds(tmp_path: Path) -> None:
    # GIVEN complete files of steps, in which an older block of 3 MiB is freed
    for name, size_bytes in (("a", 2 * MIB), ("b", 20 * MIB)):
        (tmp_path / f"{name}.pickle").write_bytes(pickle.dumps(older_block(size_bytes), protocol=4))
    # WHEN they are shown, THEN no loss is reported, and the peak has bounds
    output = invoke(tmp_path / "a.pickle").output
    assert ["allocated", "≥ 3 MiB", "≥ 3 MiB", "2 MiB"] in cells(output)
    assert "The peak is at least 3 MiB." in output
    # AND an exact peak is reported as exact
    output = invoke(tmp_path / "b.pickle").output
    assert ["allocated", "20 MiB", "≥ 3 MiB", "20 MiB"] in cells(output)
    assert "The peak is exact." in output
    rows = [row[1:] for row in cells(invoke(tmp_path).output) if "pickle" in row[0]]
    assert rows == [["≥ 3 MiB", "40 MiB", "≤ 37 MiB", "0", "no"]] + [
        ["20 MiB", "40 MiB", "20 MiB", "0", "no"]
    ]


def older_block(size_bytes: int) -> dict[str, Any]:
    """Return a file with a 40 MiB segment: an older block is freed and a new one allocated."""
    frames = [{"filename": "train.py", "name": "step", "line": 3}]
    first, second = 1 << 30, (1 << 30) + 20 * MIB
    events = [
        {"action": action, "addr": address, "size": count, "stream": 0, "frames": frames}
        for action, address, count in (
            ("free_requested", first, 3 * MIB),
            ("free_completed", first, 3 * MIB),
            ("alloc", second, size_bytes),
        )
    ]
    blocks = [
        {"address": first, "size": 20 * MIB, "state": "inactive"},
        {
            **{"address": second, "size": size_bytes, "requested_size": size_bytes},
            "state": "active_allocated",
        },
    ]
    if rest := 20 * MIB - size_bytes:
        blocks.append({"address": second + size_bytes, "size": rest, "state": "inactive"})
    segment = {"device": 0, "address": first, "total_size": 40 * MIB, "blocks": blocks}
    device = {"index": 0, "is_cpu": False, "overwritten": 0, "steps": [[7, 0]]}
    metadata = {"backends": ["cuda"], "devices": [device], "window": {"first": 7, "last": 7}}
    return {"segments": [segment], "device_traces": [events], "pytracer": metadata}


def test_a_contradiction_is_reported(tmp_path: Path) -> None:
    # GIVEN a trace that contradicts the segments
    content = run_program([("alloc", 10, 0), ("alloc", 20, 1)]).content()
    content["segments"].pop(0)
    # WHEN the report is printed, THEN it has the state at the end, and why the levels are unknown
    output = invoke(write_content(tmp_path, content), "--device", 1).output
    assert "Only the state at the end is known:" in output
    assert ["allocated", "20 B"] in cells(output)
    assert "Memory held at the end" in output
    assert "at the peak" not in output
    # AND the verdict is that the file does not show it
    assert output.startswith("CAN'T TELL whether there was a problem")


def test_no_times_and_no_events(tmp_path: Path) -> None:
    # GIVEN a file without times
    content = run_program([("alloc", 10, 0)]).content()
    for event in content["device_traces"][1]:
        del event["time_us"]
    # WHEN it is shown, THEN the report says that times are unknown
    path = write_content(tmp_path, content)
    assert "cpu: 2 events of 1 allocation or free, at unknown times" in invoke(path).output
    # AND a file without events is described as such
    content["device_traces"] = [[], []]
    assert (
        "cpu: no events, only the state at the end"
        in invoke(write_content(tmp_path, content)).output
    )
    # AND so is an empty file
    empty = write_content(tmp_path, {"segments": [], "device_traces": []})
    assert "The file has no events and no segments" in invoke(empty).output


def test_the_reason_of_a_snapshot_is_reported(tmp_path: Path) -> None:
    # GIVEN a file of an out-of-memory, and one with malformed values
    content = run_program([("alloc", 10, 0)]).content()
    content["pytracer"] |= {"version": "1.0", "rank": 3, "written_ns": 1_700_000_000 * 10**9}
    content["pytracer"]["oom"] = {"requested_bytes": 2 << 30, "free_bytes": 1 << 30}
    output = re.sub(r"\s+", " ", invoke(write_content(tmp_path, content)).output)
    # WHEN they are shown, THEN the reason is reported, and malformed values are left out
    assert "by pytracer 1.0, rank 3, 2023-11-14 22:13:20.000000 UTC" in output
    assert "out of memory: 2 GiB requested, 1 GiB free" in output
    content["pytracer"] |= {"written_ns": "now", "oom": {"requested_bytes": None}}
    assert "by pytracer 1.0, rank 3\n" in invoke(write_content(tmp_path, content)).output
