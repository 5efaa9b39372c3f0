"""Does a file that is written when main() has returned say what kept the memory?"""

from pathlib import Path
from typing import Any

import pytest
import torch
from processes import installed, run

import pytracer
from pytracer.analysis import explain
from pytracer.analysis.answer_words import answer_of
from pytracer.reading import load
from pytracer.tracing import kept_at_steps

PROGRAM = """
from collections import deque
import torch
from pytracer.owners import holders
holders.MAX_SECONDS = 30.0  # on a busy machine, too

def main():
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = {}
    for step in range(60):
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        {} = torch.ones(1 << 18)

main()
"""
APPEND = "kept += [None]; kept[-1]"


@pytest.mark.parametrize(
    ("kept", "target", "leak"),
    [
        ("[]", APPEND, "kept by `kept[…]` of main()"),
        ("deque(maxlen=300)", APPEND, "none in steps 1 to 60"),
        ("[None] * 80", "kept[step]", "none in steps 1 to 60"),
    ],
)
def test_the_default_answer(tmp_path: Path, kept: str, target: str, leak: str) -> None:
    run(PROGRAM.format(kept, target), cwd=tmp_path, env=installed(tmp_path, PYTRACER="1"))
    (path,) = tmp_path.glob("outputs/profile/exit/*.pickle")
    answer = answer_of(explain(load(path))[0])
    assert leak in " ".join(answer.texts("from", "leak"))


def test_only_memory_that_grows_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    kept: list[torch.Tensor] = []

    def look(_recording: Any) -> tuple[list[list[Any]], int]:
        looks.append(len(kept))
        return [], 0

    monkeypatch.setattr(kept_at_steps, "_kept", look)
    with pytracer.Tracer(device="cpu") as tracer:
        for step in range(1, 200):
            if 40 < step < 100:
                kept.append(torch.zeros(9))
            tracer.step()
    # Step 64 begins when 63 have ended, and step 128 when there are 59.
    assert looks == [23, 59]


def test_a_failure_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kept_at_steps, "_kept", lambda _recording: 1 / 0)
    kept = []
    with pytracer.Tracer(device="cpu") as tracer:
        for _ in range(70):
            kept.append(torch.zeros(9))
            tracer.step()
    (message,) = caplog.messages
    assert message.startswith("cannot name the objects that hold memory: ZeroDivisionError")
