"""Does the answer about an out-of-memory reach the log and the exception?"""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pytracer.tracing import oom_answer


def text_of(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def test_the_note_of_an_exception(tmp_path: Path) -> None:
    # GIVEN the note of an out-of-memory without an answer
    message = "CUDA out of memory. Tried to allocate 2.00 MiB."
    oom_answer.leave_note(tmp_path / "x.pickle", None)
    # WHEN the program raises another exception of the type, and torch one, twice
    others, first, second = map(torch.OutOfMemoryError, ("mine", message, message))
    # THEN the first of torch's has the note
    note = "pytracer: memory ran out; `pytracer show` says why\n  file: "
    assert text_of(first) == f"{message}\n{note}{tmp_path / 'x.pickle'}"
    assert [text_of(others), text_of(second)] == ["mine", message]
    # AND nothing has a note that was forgotten
    oom_answer.leave_note(tmp_path / "x.pickle", None)
    oom_answer.forget_note()
    assert text_of(torch.OutOfMemoryError(message)) == message


def test_each_line_names_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_one_of_several, name in ((True, "rank 3: "), (False, "")):
        rank = SimpleNamespace(rank=3, is_one_of_several=is_one_of_several)
        monkeypatch.setattr(oom_answer.ranks, "current", lambda rank=rank: rank)
        logged: list[str] = []
        monkeypatch.setattr(oom_answer, "report_once", lambda text, _, to=logged: to.append(text))
        oom_answer.report("why: a\ndo: b")
        assert logged == [f"{name}why: a\n{name}do: b"]
