"""`pytracer view` and a tracer write a page, and replace no other file."""

import re
from pathlib import Path

import pytest
import torch
from page_decoder import page_file, page_json
from view_command import OURS, view

import pytracer
from pytracer.errors import PytracerError


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
