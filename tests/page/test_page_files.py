"""A page begins with what went wrong, and has the files that it has room for."""

import pickle
import re
from pathlib import Path

import pytest
from page_decoder import page_file, page_json
from synthetic_snapshots import Program
from view_command import CUDA, GOLDEN, MIB, OURS, html_of, small, view

from pytracer.analysis.diff.compare import compare_snapshots
from pytracer.analysis.history import replay
from pytracer.commands import view as command
from pytracer.page.open_file import open_file, summarised
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Snapshot

# The verdict


# Several files


def test_a_directory(tmp_path: Path) -> None:
    # GIVEN files of ranks, of which rank 1 had the highest peak, and a file that is damaged
    for rank in range(3):
        program = small()
        program.metadata["rank"] = rank
        if rank == 1:
            program.alloc(2 * MIB, ("train.py", "more", 9))
        program.write(tmp_path / "run" / f"torch_memory_rank{rank}_pid{rank}.pickle")
    (tmp_path / "run" / "broken.pickle").write_bytes(b"nothing")
    # WHEN the directory is viewed
    result = view(tmp_path / "run")
    # THEN the page is next to it, and the broken file is an error
    assert result.exit_code == 1
    assert "broken.pickle" in result.stderr
    html = (tmp_path / "run.html").read_bytes()
    assert "3 files" in result.output
    # AND it begins with rank 1, and has all of them with curves
    content = page_json(html)
    assert [file["rank"] for file in content["files"]] == [1, 0, 2]
    # AND it says which file the verdict is about, and why
    assert content["verdict"]["heading"] == "NO PROBLEM FOUND (cuda:0, rank 1)"
    name = "run/torch_memory_rank1_pid1.pickle"
    assert content["left_out"] == [f"{name} is shown first of 3 files: it holds the most memory."]
    for index, file in enumerate(content["files"]):
        decoded = page_file(html, index)
        assert decoded["path"].endswith(file["name"])
        snapshot = load(decoded["path"])
        usage = replay(snapshot).usage
        assert file["peak_bytes"] == max(file["curve"]["allocated"])
        assert file["peak_bytes"] == usage.allocated_bytes.max()
        assert file["peak_reserved_bytes"] == usage.reserved_bytes.max()
        assert file["curve"]["reserved"] == usage.reserved_bytes.tolist()


def test_files_beyond_the_bound_of_events_have_curves_only(tmp_path: Path) -> None:
    # GIVEN three files of the same size
    for rank in range(3):
        program = small()
        program.metadata["rank"] = rank
        program.write(tmp_path / f"torch_memory_rank{rank}_pid{rank}.pickle")
    events = len(small().events)
    # WHEN the page has room for two of them
    result = view(tmp_path, "-o", tmp_path / "page.html", "--max-events", 2 * events + 1)
    # THEN the third has its curve only, and a sentence says how to see it
    assert "2 of 3 files in full" in result.output
    content = page_json((tmp_path / "page.html").read_bytes())
    assert [file["data"] is None for file in content["files"]] == [False, False, True]
    assert content["files"][2]["curve"]["allocated"]
    _, sentence = content["left_out"]
    assert sentence.startswith("For 1 file, the page shows only usage")
    assert re.search(r"pytracer view \S+rank2_pid2\.pickle", sentence)


def test_a_file_that_is_deleted_meanwhile_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN three files, of which the last is deleted after it was read for its usage
    for rank in range(3):
        program = small()
        program.metadata["rank"] = rank
        program.write(tmp_path / f"torch_memory_rank{rank}_pid{rank}.pickle")
    deleted = tmp_path / "torch_memory_rank2_pid2.pickle"

    def load_once(path: Path) -> Snapshot:
        deleted.unlink(missing_ok=True)
        return load(path)

    monkeypatch.setattr(command, "load", load_once)
    monkeypatch.setattr(
        command,
        "in_parallel",
        lambda read, paths, *_: [summarised(open_file(load(p))) for p in paths],
    )
    # WHEN the directory is viewed
    result = view(tmp_path, "-o", tmp_path / "page.html")
    # THEN it is an error that names the file, and the page has the others, and its usage
    assert result.exit_code == 1
    assert "rank2_pid2.pickle" in result.stderr
    content = page_json((tmp_path / "page.html").read_bytes())
    assert [file["data"] is None for file in content["files"]] == [False, False, True]


def test_blocks_count_as_events_in_a_directory(tmp_path: Path) -> None:
    # GIVEN two files without events
    for name in ("a", "b"):
        (tmp_path / f"{name}.pickle").write_bytes(
            (GOLDEN / "native/cuda-1.13.1.pickle").read_bytes()
        )
    blocks = sum(
        device["blocks"]["count"]
        for device in page_file(html_of(load(tmp_path / "a.pickle")))["devices"]
    )
    # THEN a page has the blocks of the second one if there is room for them
    for room, shown in ((2 * blocks, "2 files"), (2 * blocks - 1, "1 of 2 files in full")):
        result = view(tmp_path, "-o", tmp_path / "page.html", "--max-events", room)
        assert shown in result.output


def test_an_out_of_memory_comes_first(tmp_path: Path) -> None:
    (tmp_path / "a.pickle").write_bytes(OURS.read_bytes())
    (tmp_path / "b.pickle").write_bytes(CUDA.read_bytes())
    assert view(tmp_path, "-o", tmp_path / "page.html").exit_code == 0
    content = page_json((tmp_path / "page.html").read_bytes())
    assert [file["name"] for file in content["files"]] == ["b.pickle", "a.pickle"]
    assert [file["ooms"] for file in content["files"]] == [2, 0]


def test_the_device_that_ran_out_of_memory_comes_first() -> None:
    # GIVEN a file of two devices, of which the second ran out of memory
    content = pickle.loads(CUDA.read_bytes())
    events = content["device_traces"][0]
    events[:] = [event for event in events if event["action"] != "oom"]
    # THEN it is the first one of the page
    html = html_of(load(pickle.dumps(content)))
    assert [device["name"] for device in page_file(html)["devices"]] == ["device 1", "device 0"]
    assert page_json(html)["verdict"]["heading"].endswith(" (device 1)")


def test_a_long_curve_keeps_its_peak() -> None:
    # GIVEN more events than a curve has points, and a short peak
    program = Program()
    for i in range(400):
        program.free(program.alloc(MIB if i == 123 else 1000, ("train.py", "work", 1)))
    (file,) = page_json(html_of(program.snapshot()))["files"]
    # THEN the curve has the peak, at its place
    allocated = file["curve"]["allocated"]
    assert len(allocated) == len(file["curve"]["reserved"]) == 300
    assert max(allocated) == file["peak_bytes"] == MIB
    usage = replay(program.snapshot()).usage.allocated_bytes
    assert allocated.index(MIB) == 300 * int(usage.argmax()) // len(usage)


def test_the_difference_to_a_baseline(tmp_path: Path) -> None:
    # GIVEN a run that holds more at one line than its baseline
    small().write(tmp_path / "before.pickle")
    program = small()
    program.alloc(5 * MIB // 4, ("train.py", "new", 9))
    program.write(tmp_path / "after.pickle")
    # WHEN both are viewed
    arguments = ("--baseline", tmp_path / "before.pickle", "-o", tmp_path / "page.html")
    result = view(tmp_path / "after.pickle", *arguments)
    assert result.exit_code == 0, result.output
    # THEN the page has both, and the difference by site that `diff` reports
    html = (tmp_path / "page.html").read_bytes()
    content = page_json(html)
    assert [file["name"] for file in content["files"]] == ["after.pickle", "before.pickle"]
    assert len(page_file(html, 1)["devices"]) == 1
    found = compare_snapshots(load(tmp_path / "before.pickle"), load(tmp_path / "after.pickle"))
    changes = [change for change in found.devices[0].changes["line"] if change.is_change]
    rows = content["difference"]["rows"]
    assert rows[0] == {
        "name": "train.py:9 new",
        "before_bytes": 0,
        "after_bytes": 5 * MIB // 4,
        "share": "new",
    }
    assert [(row["before_bytes"], row["after_bytes"]) for row in rows] == [
        (change.before_bytes, change.after_bytes) for change in changes
    ]
    assert content["difference"]["sentence"].startswith("cuda:0: +")
    # AND it opens on the difference: the first line, and the first command
    verdict = content["verdict"]
    assert verdict["heading"].startswith("cuda:0: +")
    assert verdict["lines"][0].startswith("after.pickle: NO PROBLEM FOUND (cuda:0")
    paths = [str(tmp_path / name) for name in ("before.pickle", "after.pickle")]
    assert verdict["commands"][0] == f"pytracer diff {paths[0]} {paths[1]}"
    # AND a baseline of a directory is refused
    assert view(tmp_path, "--baseline", tmp_path / "before.pickle").exit_code == 2
