"""A file that lacks events, is empty or is hostile has a page all the same."""

import pickle
from pathlib import Path

import pytest
from page_decoder import page_file, page_json
from synthetic_snapshots import Program, file_metadata
from view_command import CUDA, GOLDEN, html_of, small, view

from pytracer.page import parts, tables
from pytracer.page.open_file import open_file
from pytracer.page.page import page_of
from pytracer.reading.reader import load


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
    assert "does not give the final state" in device["contradiction"]
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
    assert "lacks the smallest blocks that are older than the events: 50," in left_out
    assert "Long texts are cut." in left_out
    # AND the largest of the older blocks are kept
    older = device["blocks"]["alloc_event"] < 0
    assert device["blocks"]["requested_bytes"][older].min() > 512 + 40
