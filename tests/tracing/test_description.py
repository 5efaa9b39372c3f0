"""Tests of the texts that describe a tracer: `repr`, `dir(pytracer)`, the line about the file."""

import pickle
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes import HANG_S, environment

import pytracer
from pytracer import ACTIONS, ConfigError, Tracer, _core
from pytracer.tracing import description
from pytracer.tracing.device_recording import DeviceRecording
from pytracer.tracing.options import Options

BYTE = torch.uint8


@pytest.fixture(autouse=True)
def nothing_reported_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "_reporting_pid", None)


def work() -> None:
    """Allocate 10,000 bytes that are kept, and blocks of 3,000 and 4,000 bytes that overlap."""
    kept = torch.empty(10_000, dtype=BYTE)
    first = torch.empty(3_000, dtype=BYTE)
    second = torch.empty(4_000, dtype=BYTE)
    del first, second, kept


def test_repr() -> None:
    tracer = Tracer.__new__(Tracer)
    with pytest.raises(ConfigError):
        tracer.__init__(stack_depth=-1)  # type: ignore[misc]
    assert repr(tracer) == "<pytracer.Tracer, not recording>"
    with Tracer(device="cpu") as tracer:
        assert repr(tracer) == "<pytracer.Tracer, recording>"
    assert repr(tracer) == "<pytracer.Tracer, not recording>"


def test_dir_shows_the_public_names() -> None:
    assert dir(pytracer) == sorted(pytracer.__all__)
    for name in dir(pytracer):
        assert getattr(pytracer, name) is not None


def test_the_line_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a program in a folder
    monkeypatch.chdir(tmp_path)
    # WHEN a tracer writes its file
    with Tracer("out/x.pickle", device="cpu"):
        work()
    # THEN a line names the file and the recorded peak
    counts = "6 allocations and frees, peak 16.6 KiB allocated on the CPU"
    line = f"pytracer: wrote out/x.pickle: {counts}\n"
    assert capsys.readouterr() == ("", line)
    # AND a second tracer writes no line
    with Tracer("out/y.pickle", device="cpu"):
        work()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("leaks", [False, True])
def test_the_line_tells_of_a_leak(
    leaks: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a program that keeps a tensor of each step, or only the latest one
    kept: list[torch.Tensor] = []
    with Tracer(tmp_path / "x.pickle", device="cpu") as tracer:
        for _ in range(40):
            kept = [*(kept if leaks else ()), torch.empty(2**20, dtype=torch.uint8)]
            tracer.step()
    # THEN the line about the file says so, and what tells more
    told = "; LEAK: 1 MiB a step since step 1 (cpu): `pytracer show` names what keeps it\n"
    line = capsys.readouterr().err
    assert (line.endswith(told), "LEAK" in line) == (leaks, leaks)


def test_the_line_is_one_piece(tmp_path: Path) -> None:
    # GIVEN a stderr that keeps each write apart, without a buffer
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    program = 'import pytracer\nwith pytracer.Tracer("x.pickle", device="cpu"): pass\n'
    # WHEN a tracer ends
    with reader, writer:
        env = environment(PYTHONUNBUFFERED="1")
        command = [sys.executable, "-c", program]
        subprocess.run(command, cwd=tmp_path, env=env, stderr=writer, check=True, timeout=HANG_S)
        # THEN the line and its newline are one write, so that lines of other processes cannot split
        # it
        assert re.fullmatch(rb"pytracer: wrote x\.pickle: .*\n", reader.recv(10_000))


def test_a_peak_that_is_a_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Tracer(tmp_path / "x.pickle", device="cpu", trace_alloc_max_entries=2):
        work()
    err = capsys.readouterr().err
    assert (
        "x.pickle: 2 allocations and frees (4 older ones were overwritten), peak at least " in err
    )


def test_a_peak_after_clear(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Tracer(tmp_path / "x.pickle", device="cpu") as tracer:
        work()
        kept = torch.empty(1024, dtype=BYTE)
        tracer.clear()
        second = torch.empty(1024, dtype=BYTE)
        del second
    err = capsys.readouterr().err
    assert ": 2 allocations and frees, peak at least 2 KiB allocated on the CPU\n" in err
    # AND the peak of a large recording is not computed
    monkeypatch.setattr(description, "_reporting_pid", None)
    monkeypatch.setattr(description, "MAX_SUMMED_EVENTS", 5)
    with Tracer(tmp_path / "y.pickle", device="cpu"):
        work()
    assert capsys.readouterr().err.endswith("y.pickle: 6 allocations and frees\n")
    del kept


def test_no_line_for_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Tracer(device="cpu") as tracer:
        work()
        tracer.dump(tmp_path / "y.pickle")
    assert len([*tmp_path.iterdir()]) == 1
    assert capsys.readouterr() == ("", "")


def test_no_line_if_nobody_can_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with Tracer(tmp_path / "x.pickle", device="cpu") as tracer:
        work()
    assert tracer.stats()["failures"] == 0
    assert (tmp_path / "x.pickle").exists()
    assert capsys.readouterr() == ("", "")


def test_the_line_has_no_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Tracer(tmp_path / "x\x1b[31m.pickle", device="cpu"):
        work()
    assert "x�[31m.pickle: 6 allocations" in capsys.readouterr().err


def test_the_line_after_an_exception(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), Tracer(tmp_path / "x.pickle", device="cpu"):
        raise KeyError
    assert capsys.readouterr().err.endswith("x.pickle: 0 allocations and frees\n")


@pytest.mark.parametrize(
    ("indices", "counts", "peak"),
    [
        ({"cpu": [-1]}, "3 allocations and frees", "peak 10 B allocated on the CPU"),
        ({"cuda": [0]}, "3 events", None),
        (
            {"cuda": [0], "cpu": [-1]},
            "3 events and 3 allocations and frees on the CPU",
            "peak 10 B allocated on the CPU",
        ),
    ],
)
def test_counts_and_the_cpus_peak(
    indices: dict[str, list[int]], counts: str, peak: str | None
) -> None:
    # GIVEN a recording of accelerators, of the CPU, or of both
    devices = [index for group in indices.values() for index in group]
    recording = DeviceRecording(Options.checked({"device": "cpu"}))
    recording.indices = indices
    recording.session = session = recording.new_session()
    session.start()
    alloc, free = ACTIONS.index("alloc"), ACTIONS.index("free_completed")
    for device, sizes in {-1: (10, 5), 0: (1000,)}.items():
        for address, size in enumerate(sizes if device in devices else ()):
            _core.testing.record(alloc, 4096 * (address + 1), size, device)
            if address == 0 and device == 0:
                _core.testing.record_free(4096, size, device)
            elif address == 0:
                _core.testing.record(free, 4096, size, device)
    session.stop()
    # THEN the line counts the events as the file does, and gives the peak of the CPU
    view = session.view()
    trace = pickle.loads(view.to_bytes({}, {}))["device_traces"][0]
    assert description._events(recording, view) == counts
    assert counts.startswith(f"{len(trace)} events") or devices == [-1]
    assert description._cpu_peak(recording, is_cleared=False) == peak


def test_the_line_at_exit(tmp_path: Path) -> None:
    # GIVEN a program whose tracer writes at the end of the process
    program = """
import os, sys
import torch
from pytracer import Tracer
tracer = Tracer("x.pickle", device="cpu").start()
kept = torch.empty(2**20, dtype=torch.uint8)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    # THEN the line is printed after the file was written
    expected = r"pytracer: wrote x\.pickle: 1 allocation or free, peak 1 MiB allocated on the CPU\n"
    assert re.fullmatch(expected, done.stderr)
    assert (tmp_path / "x.pickle").exists()
