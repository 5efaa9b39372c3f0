"""Snapshots have the source of the program's lines, so that any machine can show it."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import invoke

import pytracer
from pytracer.tracing import source_lines

PROGRAM = """
def make(torch, count):
    return torch.ones(count)  # a block of count floats

def layer(torch):
    return torch.nn.Linear(300, 300)

def train(torch):
    kept = make(torch, 10_000)
    return kept, layer(torch)
"""
OLD_S = 10**9

Lines = dict[str, list[list[Any]]]


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_lines, "_known", {})


def program(path: Path, source: str = PROGRAM, changed_s: int = OLD_S) -> Callable[..., object]:
    """Write and compile a program whose file was changed at a time; return its function."""
    path.write_text(source)
    os.utime(path, (changed_s, changed_s))
    names: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), names)
    function: Callable[..., object] = names["train"]
    return function


def recorded(path: Path, *functions: Callable[..., object], **options: Any) -> Lines:
    """Return the lines that a file has of programs in its folder."""
    with pytracer.Tracer(path, device="cpu", **options):
        kept = [function(torch) for function in functions]
    del kept
    lines: Lines = pickle.loads(path.read_bytes())["pytracer"]["source_lines"]
    return {name: of_file for name, of_file in lines.items() if str(path.parent) in name}


def numbered(source: str, *numbers: int) -> list[list[Any]]:
    return [[number, source.splitlines()[number - 1].strip()] for number in numbers]


def test_a_file_has_the_lines_of_the_program_alone(tmp_path: Path) -> None:
    # GIVEN a program that allocates by itself, and in a module of torch
    path = tmp_path / "train.py"
    # WHEN a snapshot is written THEN it has each of its lines that is in a stack, and none of torch
    train = program(path)
    assert recorded(tmp_path / "a.pickle", train) == {str(path): numbered(PROGRAM, 3, 6, 9, 10)}
    # AND `show` has the source on a machine without the program
    path.unlink()
    output = invoke("show", tmp_path / "a.pickle").output
    assert "3: return torch.ones(count)  # a block of count floats" in output
    # AND the option leaves it out
    with pytracer.Tracer(device="cpu", source_lines=False) as tracer:
        kept = train(torch)
        assert "source_lines" not in tracer.snapshot()["pytracer"]
    del kept


def test_what_was_changed_or_is_no_file_is_left_out(tmp_path: Path) -> None:
    # GIVEN a program that was edited after the start, a FIFO, and one whose file is shorter now
    edited = program(tmp_path / "edited.py", changed_s=2 * OLD_S + 10**8)
    piped = program(tmp_path / "piped.py")
    (tmp_path / "piped.py").unlink()
    os.mkfifo(tmp_path / "piped.py")
    cut = program(tmp_path / "cut.py")
    program(
        tmp_path / "cut.py", "\n".join(PROGRAM.splitlines()[:3]).replace("def make", "def train")
    )
    # WHEN a snapshot is written THEN it has only the line that is there
    found = recorded(tmp_path / "a.pickle", edited, piped, cut)
    assert found == {str(tmp_path / "cut.py"): numbered(PROGRAM, 3)}


class Stacks:
    """A view whose stacks have the lines 3, 6, 9 and 10 of files."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def lines_in(self, _: None, most: int) -> set[tuple[str, int]]:
        return {(str(path), line) for path in self.paths for line in (3, 6, 9, 10)}


def test_the_amount_and_the_time_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / f"{name}.py" for name in "abc"]
    for path in paths:
        program(path)
    of_file = numbered(PROGRAM, 3, 6, 9, 10)
    characters = sum(len(text) for _, text in of_file)

    def found(**bounds: float) -> Lines:
        source_lines._known.clear()
        with monkeypatch.context() as context:
            for name, bound in bounds.items():
                context.setattr(source_lines, name, bound)
            view: Any = Stacks(paths)
            lines = source_lines.source_lines(view, {}, [])
            return {name: [list(line) for line in lines[name]] for name in lines}

    def of_files(count: int) -> Lines:
        return {str(path): of_file for path in paths[:count]}

    assert found() == of_files(3)
    assert found(MOST_FILES=2) == of_files(2)
    assert found(MOST_LINES=4) == of_files(1)
    assert found(MOST_CHARACTERS=2 * characters) == of_files(2)
    assert found(MOST_SECONDS=-1) == {}
    assert found(MOST_OF_A_LINE=6)[str(paths[0])][0] == [3, "return"]


def test_a_failure_leaves_the_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> list[str]:
        raise MemoryError

    monkeypatch.setattr(source_lines, "read_source", failing)
    assert recorded(tmp_path / "a.pickle", program(tmp_path / "train.py")) == {}
