"""Test pages and `pytracer view`: what is in them, their bounds, and files that are not regular."""

import pickle
import re
from functools import partial
from pathlib import Path

import commands
import pytest
import torch
from page_decoder import page_file, page_json
from synthetic_snapshots import Program, file_metadata

import pytracer
from pytracer.analysis.diff.compare import compare_snapshots
from pytracer.analysis.history import replay
from pytracer.commands import view as command
from pytracer.errors import PytracerError
from pytracer.page import page as page_module
from pytracer.page import parts, tables
from pytracer.page.open_file import open_file, summarised
from pytracer.page.page import page_of
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Snapshot

GOLDEN = Path(__file__).parents[1] / "golden"
CUDA = GOLDEN / "native" / "cuda-2.15.0.pickle"
OURS = GOLDEN / "snapshot-1.5-cuda.pickle"
MIB = 2**20

view = partial(commands.invoke, "view")


def html_of(snapshot: Snapshot) -> bytes:
    return page_of(open_file(snapshot)).html()


def small(name: str = "train.py") -> Program:
    program = Program()
    program.metadata = file_metadata()
    for line in range(3):
        program.free(program.alloc(MIB, (name, "step", line)))
        program.alloc(1000, (name, "keep", line))
    return program


# The command


def test_the_page_is_next_to_the_snapshot(tmp_path: Path) -> None:
    # GIVEN a snapshot
    path = tmp_path / "a snapshot.pickle.gz"
    path.write_bytes(OURS.read_bytes())
    # WHEN it is viewed
    result = view(path)
    # THEN a page of its name is next to it, and one line says so, with the size
    assert result.exit_code == 0, result.output
    page = tmp_path / "a snapshot.html"
    (line,) = result.output.splitlines()
    assert re.fullmatch(rf"wrote {re.escape(str(page))}: [\d.]+ KiB, 1 file", line)
    content = page_json(page.read_bytes())
    assert content["title"] == "a snapshot.pickle.gz"
    assert content["pytracer"] == pytracer.__version__
    # AND a second page replaces the first one
    assert view(path).exit_code == 0
    assert {p.name for p in tmp_path.iterdir()} == {path.name, page.name}


def test_a_file_that_is_no_page_is_not_overwritten(tmp_path: Path) -> None:
    for name, text in (("mine.html", "<html>mine</html>"), ("empty.html", "")):
        path = tmp_path / name
        path.write_text(text)
        result = view(OURS, "-o", path)
        assert result.exit_code == 1
        assert f"{path} exists and is not a page of pytracer: give another name" in result.stderr
        assert path.read_text() == text


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    result = view(OURS, "-o", tmp_path / "no" / "page.html")
    assert result.exit_code == 1
    assert re.search(r"Error: cannot write \S+/no/page\.html: No such file", result.stderr)


def test_a_failure_leaves_the_earlier_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a page, and a disk that is full
    path = tmp_path / "page.html"
    assert view(OURS, "-o", path).exit_code == 0
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pytracer.atomic_file.os.fsync", full)
    # WHEN another page is written there
    result = view(CUDA, "-o", path)
    # THEN the first one is still there, and nothing else
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_the_browser_opens_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_page(address: str) -> bool:
        opened.append(address)
        return len(opened) == 1

    monkeypatch.setattr("webbrowser.open", open_page)
    path = tmp_path / "a b.html"
    assert view(OURS, "-o", path, "--open").exit_code == 0
    assert opened == [f"file://{tmp_path}/a%20b.html"]
    assert "no browser was found: open " in view(OURS, "-o", path, "--open").stderr


# The verdict


def test_an_out_of_memory_has_the_answer_of_show(tmp_path: Path) -> None:
    # GIVEN a file with an out-of-memory
    assert view(CUDA, "-o", tmp_path / "page.html").exit_code == 0
    verdict = page_json((tmp_path / "page.html").read_bytes())["verdict"]
    answer = pytracer.show(CUDA)
    # THEN the page begins with the verdict of `show`, and has its lines and its commands
    assert verdict["heading"] == f"{answer.verdict} ({answer.where})"
    assert [line.partition(": ")[0] for line in verdict["lines"]] == [
        line.role.capitalize()
        for line in answer.lines
        if not line.is_command and line.role != "others"
    ]
    assert verdict["commands"] == [line.text for line in answer.lines if line.is_command]


def test_a_leak_is_the_first_line() -> None:
    # GIVEN a program that keeps memory in each step
    program = Program()
    program.metadata = file_metadata(current_step=41)
    steps = []
    for step in range(1, 41):
        steps.append((step, len(program.events)))
        program.free(program.alloc(2000, ("train.py", "work", 1)))
        program.alloc(100_000, ("train.py", "remember", 7))
    program.metadata["devices"][0]["steps"] = steps
    # THEN the page says it, then how much there was
    verdict = page_json(html_of(program.snapshot()))["verdict"]
    assert verdict["heading"].startswith("LEAK: ")
    assert verdict["lines"][0].startswith("From: train.py:7 remember")
    assert any(line.startswith("Peak: ") for line in verdict["lines"])
    assert verdict["commands"][0].endswith(" --leaks")
    assert verdict["is_leak"]


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
    # AND the verdict names the file that it is about
    heading = content["verdict"]["heading"]
    assert heading == "run/torch_memory_rank1_pid1.pickle: NO PROBLEM FOUND (cuda:0, rank 1)"
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
    assert [file["data"] for file in content["files"]] == [
        "pytracer-data-0",
        "pytracer-data-1",
        None,
    ]
    assert content["files"][2]["curve"]["allocated"]
    (sentence,) = content["left_out"]
    assert sentence.startswith("Of 1 file, the page has the usage only")
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
    assert [file["data"] for file in content["files"]] == [
        "pytracer-data-0",
        "pytracer-data-1",
        None,
    ]


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
    changes = [change for change in found.devices[0].sites if change.is_change]
    rows = content["difference"]["rows"]
    assert rows[0] == {"site": "train.py:9 new", "before_bytes": 0, "after_bytes": 5 * MIB // 4}
    assert [(row["before_bytes"], row["after_bytes"]) for row in rows] == [
        (change.before_bytes, change.after_bytes) for change in changes
    ]
    assert content["difference"]["sentence"].startswith("cuda:0: +")
    # AND it opens on the difference: the first line, and the first command
    verdict = content["verdict"]
    assert verdict["heading"].startswith("Compared with the baseline: cuda:0: +")
    assert verdict["lines"][0].startswith("after.pickle: NO PROBLEM FOUND (cuda:0")
    paths = [str(tmp_path / name) for name in ("before.pickle", "after.pickle")]
    assert verdict["commands"][0] == f"pytracer diff {paths[0]} {paths[1]}"
    # AND a baseline of a directory is refused
    assert view(tmp_path, "--baseline", tmp_path / "before.pickle").exit_code == 2


# Files that are not regular


def test_a_contradiction_has_events_and_the_state_at_the_end(tmp_path: Path) -> None:
    # GIVEN a file that lacks an event
    content = pickle.loads(CUDA.read_bytes())
    events = content["device_traces"][1]
    missing = next(i for i, event in enumerate(events) if event["action"] == "free_completed")
    del events[missing]
    path = tmp_path / "cut.pickle"
    path.write_bytes(pickle.dumps(content))
    # WHEN it is viewed
    file = page_file(html_of(load(path)))
    by_name = {device["name"]: device for device in file["devices"]}
    # THEN the device has its events, without blocks, and the reason
    device = by_name["device 1"]
    assert "does not lead to the final state" in device["contradiction"]
    assert device["events"]["count"] == len(events)
    assert device["blocks"]["count"] == 0
    assert device["events"]["row"].tolist() == list(range(len(events)))
    base = int(device["address_base"], 16)
    first = next(event for event in events if event["action"] == "alloc")
    row = events.index(first)
    assert int(device["others"]["address"][row]) + base == first["addr"]
    assert device["others"]["size_bytes"][row] == first["size"]
    # AND the state at the end is shown on its own
    state = by_name["device 1, at the end"]
    assert state["events"]["count"] == 0
    assert state["contradiction"] is None
    active = [
        block["size"]
        for segment in content["segments"]
        for block in segment["blocks"]
        if segment["device"] == 1 and block["state"] != "inactive"
    ]
    assert sorted(state["blocks"]["size_bytes"].tolist()) == sorted(active)
    assert (state["blocks"]["free_event"] == 0).all()
    pending = {
        block["address"]
        for segment in content["segments"]
        for block in segment["blocks"]
        if segment["device"] == 1 and block["state"] == "active_pending_free"
    }
    assert pending
    begin = int(state["address_base"], 16)
    is_pending = state["blocks"]["free_requested_event"] < 0
    assert {int(at) + begin for at in state["blocks"]["address"][is_pending]} == pending
    # AND the other device is complete
    assert by_name["device 0"]["contradiction"] is None


@pytest.mark.parametrize("name", ["native/cuda-1.13.1", "native/cuda-2.15.0-state"])
def test_a_file_without_a_trace_shows_its_state(name: str) -> None:
    snapshot = load(GOLDEN / f"{name}.pickle")
    for device in page_file(html_of(snapshot))["devices"]:
        assert device["segments"]["count"] > 0
        assert device["blocks"]["count"] > 0


def test_an_empty_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "empty.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    result = view(path)
    assert result.exit_code == 0
    html = (tmp_path / "empty.html").read_bytes()
    heading = page_json(html)["verdict"]["heading"]
    assert heading.startswith("The file has no events and no segments: ")
    assert page_file(html)["devices"] == []


def test_no_files() -> None:
    assert view("no/such/file.pickle").exit_code == 1


NAMES = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--",
    "<!-- pytracer:data -->",
    "\"'`$&\\0\\1",
    "\u2028\ud800\x1b[2J",
)


def test_names_cannot_end_their_element(tmp_path: Path) -> None:
    # GIVEN a file whose names, phases and path look like HTML
    program = Program()
    program.metadata = file_metadata()
    for name in NAMES:
        program.alloc(1000, (f"{name}.py", name, 1), phase=name)
    program.annotate(NAMES[0], "START")
    program.annotate(NAMES[0], "END")
    path = tmp_path / "<img src=x onerror=alert(1)>.pickle"
    program.write(path)
    # WHEN it is viewed
    page = page_of(open_file(load(path)))
    # THEN the page has as many elements as that of another file
    html = page.html()
    other = html_of(small().snapshot())
    assert html.lower().count(b"<script") == other.lower().count(b"<script")
    assert html.lower().count(b"<img") == other.lower().count(b"<img") == 0
    assert html.count(b"<!--") == other.count(b"<!--")
    # AND all names are there
    file = page_file(html)
    assert {name.encode("utf-8", "replace") for name in NAMES} <= {
        text.encode("utf-8", "replace") for text in file["strings"]
    }
    assert {*NAMES} <= {*file["phases"]}
    assert page_json(html)["title"] == path.name
    # AND in a notebook they cannot end the attribute
    frame = page._repr_html_()
    assert frame.count('"') == 6
    assert "<script" not in frame


def test_a_hostile_snapshot_makes_no_large_page(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN small bounds, and a file with long names, deep stacks, many devices, phases and spans
    monkeypatch.setattr(tables, "MOST_TEXT", 20_000)
    monkeypatch.setattr(tables, "MOST_STACK_FRAMES", 500)
    monkeypatch.setattr(tables, "MOST_NAMES", 50)
    monkeypatch.setattr(parts, "MOST_OLDER", 10)
    program = Program()
    program.metadata = file_metadata()
    for i in range(60):
        program.alloc(512 + i, ("x" * 100_000, f"f{i}", i), events=False)
    for i in range(300):
        frames = [(f"{i}" + "y" * 1000, f"f{i}", depth) for depth in range(50)]
        program.alloc(1000, *frames, phase=f"{i}" + "p" * 10_000)
        program.annotate(f"{i}" + "q" * 10_000, "START")
    content = program.content()
    mark = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": []}
    content["device_traces"] += [[dict(mark)] for _ in range(100)]
    snapshot = load(pickle.dumps(content))
    # WHEN it is viewed
    html = html_of(snapshot)
    # THEN the page is small, and says what it lacks
    file = page_file(html)
    texts = [*file["strings"], *file["phases"], *file["sites"]]
    assert sum(map(len, texts)) < 20_000 + len(texts)
    assert file["stacks"]["count"] < 25
    assert len(file["stacks"]["frame"]) <= 500
    assert len(file["phases"]) == 50
    (device,) = file["devices"]
    assert (device["blocks"]["alloc_event"] < 0).sum() == 10
    left_out = " ".join(page_json(html)["left_out"])
    assert "call stacks are shown as empty" in left_out
    assert "50 blocks that are older than the events are left out" in left_out
    assert "Long texts are cut." in left_out
    # AND the largest of the older blocks are kept
    older = device["blocks"]["alloc_event"] < 0
    assert device["blocks"]["requested_bytes"][older].min() > 512 + 40


def test_the_page_has_one_place_for_the_data() -> None:
    assert page_module._template().count(b"<!-- pytracer:data -->") == 1


# A running tracer


def test_the_page_of_a_running_tracer(tmp_path: Path) -> None:
    # GIVEN a tracer, and a block of this line
    with pytracer.Tracer(device="cpu") as tracer:
        held = torch.empty(1_000_000, dtype=torch.uint8)
        # WHEN its page is made
        page = tracer.view()
        # THEN it has the block, and no command for a file
        (device,) = page_file(page.html())["devices"]
        assert held.numel() in device["blocks"]["requested_bytes"].tolist()
        verdict = page_json(page.html())["verdict"]
        assert verdict["heading"] == "NO PROBLEM FOUND (cpu)"
        assert verdict["lines"][0] == "Peak: 976.6 KiB"
        assert verdict["commands"] == []
        # AND a notebook shows it, and it can be saved
        assert page._repr_html_().startswith('<iframe title="')
        page.save(tmp_path / "page.html")
        assert page_json((tmp_path / "page.html").read_bytes())["verdict"] == verdict
        with pytest.raises(PytracerError, match="cannot write"):
            page.save(tmp_path / "no" / "page.html")
        # AND fewer events can be asked for
        (_, remedy) = page_json(tracer.view(max_events=1).html())["left_out"]
        assert re.search(r"tracer\.view\(max_events=\d+\)$", remedy)
        for count in (0, -1):
            with pytest.raises(PytracerError, match=rf"max_events is {count}: give at least 1"):
                tracer.view(max_events=count)
    assert view(OURS, "--max-events", 0).exit_code == 2


def test_the_template_is_in_the_package() -> None:
    # The wheel has what is in the package's folder (pyproject.toml).
    assert Path(page_module.__file__).with_name("template.html").is_file()
