"""Frames in code that inductor generated are followed by the lines of the model."""

import linecache
import pickle
from pathlib import Path
from typing import Any

import processes
import pytest
from cpu_events import allocs
from torch._inductor.codecache import PyCodeCache

import pytracer
from pytracer.analysis.call_sites import call_sites, frame_at
from pytracer.analysis.frame_text import call_site_text
from pytracer.reading.reader import load

PROGRAM = """
import sys
import pytracer
import torch
with pytracer.Tracer(device="cpu") as tracer:
    kept = torch.ones(1000)
    tracer.snapshot()
assert "torch._inductor.codecache" not in sys.modules
"""


def places(event: dict[str, Any]) -> list[tuple[str, int, str]]:
    return [(frame["filename"], frame["line"], frame["name"]) for frame in event["frames"]]


def texts_of_call_sites(path: Path) -> list[str]:
    """Return the call site of each distinct stack of a file."""
    stacks = load(path).stacks
    numbers = [int(number) for number in call_sites(stacks)]
    return [call_site_text(frame_at(stacks, number)) for number in numbers]


def test_the_models_frames_follow_the_generated_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN generated code, of which torch knows the origin of lines 3 and 4
    path = str(tmp_path / "generated.py")
    trace = (
        'File "model.py", line 30, in forward\n    x\nFile "layers.py", line 7, in gelu\n    y\n'
    )
    monkeypatch.setitem(PyCodeCache.linemaps, path, ([1, 3, 5], ["", trace, ""]))
    source = "import torch\ndef call():\n    a = torch.ones(11)\n    b = torch.ones(12)\n" + (
        "    return torch.ones(13), a, b\n"
    )
    names: dict[str, Any] = {}
    exec(compile(source, path, "exec"), names)
    # WHEN it allocates
    with pytracer.Tracer(device="cpu") as tracer:
        names["call"]()
        first, second, third = (e for e in allocs(tracer) if e["size"] in (44, 48, 52))
    # THEN its frames stay, and those of the model are around them, innermost first
    model = [("layers.py", 7, "gelu"), ("model.py", 30, "forward")]
    assert places(first)[:3] == [(path, 3, "call"), *model]
    assert places(second)[:3] == [(path, 4, "call"), *model]
    assert places(third)[0] == (path, 5, "call")
    assert not {place[0] for place in places(third)} & {"model.py", "layers.py"}
    # AND the frames around the generated code follow
    assert places(first)[3:] == places(third)[1:]
    assert places(first)[3][2] == "test_the_models_frames_follow_the_generated_one"


def test_the_models_line_is_the_call_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "torchinductor_me" / "ab" / "generated.py")
    trace = 'File "model.py", line 30, in forward\n    x\n'
    monkeypatch.setitem(PyCodeCache.linemaps, path, ([1], [trace]))
    names: dict[str, Any] = {}
    exec(compile("import torch\ndef call(): return torch.ones(4321)\n", path, "exec"), names)
    with pytracer.Tracer(device="cpu") as tracer:
        kept = names["call"]()
        tracer.dump(tmp_path / "file.pickle")
    assert "model.py:30 forward" in texts_of_call_sites(tmp_path / "file.pickle")
    del kept


def test_a_failure_of_torch_leaves_the_frames_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a torch that keeps its table in another way
    path = str(tmp_path / "generated.py")
    monkeypatch.setitem(PyCodeCache.linemaps, path, 5)
    names: dict[str, Any] = {}
    exec(compile("import torch\ndef call(): return torch.ones(11)\n", path, "exec"), names)
    with pytracer.Tracer(device="cpu") as tracer:
        names["call"]()
        (event,) = (e for e in allocs(tracer) if e["size"] == 44)
    # THEN the snapshot has the frames that ran
    assert places(event)[0] == (path, 2, "call")


def test_inductor_is_not_imported(tmp_path: Path) -> None:
    done = processes.run(PROGRAM, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


COMPILED = """
import pytracer
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 96)
        self.second = torch.nn.Linear(96, 64)

    def forward(self, x):
        y = self.first(x)  # one
        y = torch.softmax(y, dim=-1).sin()  # two
        return self.second(y).exp().sum()  # three

model = torch.compile(Model(), backend="inductor")
for _ in range(2):
    model(torch.ones(50, 64)).backward()
with pytracer.Tracer(device="cpu") as tracer:
    model(torch.ones(50, 64)).backward()
    tracer.dump("compiled.pickle")
"""


@pytest.mark.slow
@pytest.mark.long
def test_compiled_models_have_their_own_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a model that inductor compiles, recorded forward and backward
    folder = tmp_path / "torchinductor_cache"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    done = processes.run(COMPILED, cwd=tmp_path, new=True)
    assert done.returncode == 0, done.stderr
    trace = pickle.loads((tmp_path / "compiled.pickle").read_bytes())["device_traces"][-1]
    generated = [
        places(event)
        for event in trace
        if event["action"] == "alloc" and event["frames"][0]["filename"].startswith(str(folder))
    ]
    # THEN each allocation of generated code has a line of the model's forward, in backward too
    program = str(tmp_path / "program.py")
    lines = [linecache.getline(program, found[1][1]).strip() for found in generated]
    assert [(found[1][0], found[1][2]) for found in generated] == (
        [(program, "forward")] * len(generated)
    )
    assert {line.split("#")[-1].strip() for line in lines} == {"one", "two", "three"}
    is_backward = ["_backward_impl" in [name for _, _, name in found] for found in generated]
    in_backward = {line for line, is_in in zip(lines, is_backward, strict=True) if is_in}
    assert len(in_backward) == 3
