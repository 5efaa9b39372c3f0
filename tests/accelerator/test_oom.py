"""Test out-of-memory: a snapshot is written before the exception, which remains torch's."""

import gc
import logging
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from files_left import files
from thread_failures import failures_of

import pytracer
from pytracer import ACTIONS
from pytracer.backends import devices
from pytracer.reading import load, reader
from pytracer.tracing import oom_answer

HUGE = 1 << 50
MIB = 1 << 20


@pytest.fixture
def ask_for_too_much(backend: str, device: ModuleType) -> Callable[[], str]:
    """Return a function that runs out of memory and returns torch's message."""

    def ask() -> str:
        with pytest.raises(torch.OutOfMemoryError) as raised:
            torch.empty(HUGE, dtype=torch.uint8, device=backend)
        return str(raised.value)

    return ask


@pytest.fixture(autouse=True)
def empty_device(device: ModuleType) -> None:
    gc.collect()
    device.empty_cache()


def observe(backend: str, observer: Callable[..., None]) -> None:
    """Attach an observer as a user's program does; it stays for the rest of the process."""
    devices.attach_oom_observer(backend, observer)


def test_the_snapshot_is_written_before_the_exception(
    backend: str,
    ask_for_too_much: Callable[[], str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN torch's message without a tracer, and a traced program on rank 5 with a live block
    untraced = ask_for_too_much()
    monkeypatch.setenv("RANK", "5")
    seen: list[Any] = []
    with pytracer.Tracer(tmp_path, device=backend, ranks=[5]) as tracer:
        observe(backend, lambda *event: seen.append((event, list(tmp_path.glob("oom_*/*")))))
        held = torch.empty(3_000_000, dtype=torch.uint8, device=backend)
        # WHEN memory runs out
        with caplog.at_level(logging.WARNING, "pytracer"):
            message = ask_for_too_much()
        (event, files), *_ = seen
    # THEN the exception is torch's own, apart from the amounts
    amount = re.compile(r"\d[\d.]* \w+")
    assert amount.sub("", message) == amount.sub("", untraced)
    # AND the snapshot is at verl's path, and the user's observer, which is called later, found it
    (path,) = files
    assert re.fullmatch(r"oom_\d{8}-\d{6}-\d{6}", path.parent.name)
    assert re.fullmatch(r"torch_memory_oom_rank5_pid\d+\.pickle", path.name)
    assert str(path) in caplog.text
    # AND it describes the out-of-memory
    snapshot = pickle.loads(path.read_bytes())
    index, requested, total, free = event
    reported = snapshot["pytracer"]["oom"]
    reported.pop("evaluating")  # of the models of all tests in this process
    assert reported == {
        "device": index,
        "requested_bytes": requested,
        "total_bytes": total,
        "free_bytes": free,
        "library_error": None,
    }
    assert requested >= HUGE > total >= free
    oom = snapshot["device_traces"][index][-1]
    assert oom["action"] == "oom"
    assert oom["size"] >= HUGE
    assert oom["device_free"] <= total
    assert oom["frames"][0]["filename"] == __file__
    assert "addr" not in oom
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert held.data_ptr() in {block["address"] for block in blocks}
    memory = snapshot["pytracer"]["devices"][index]
    assert memory["reserved_bytes"] >= held.numel()
    assert memory["total_bytes"] >= memory["free_bytes"] > 0
    # AND the recording continues
    assert tracer.stats()["oom_snapshots"] == 1
    assert (tmp_path / "exit").is_dir()


def test_the_answer_is_in_the_exception(backend: str, tmp_path: Path) -> None:
    def failure(raise_it: Callable[[], object]) -> torch.OutOfMemoryError:
        with pytest.raises(torch.OutOfMemoryError) as raised:
            raise_it()
        return raised.value

    def ask() -> object:
        return torch.empty(HUGE, dtype=torch.uint8, device=backend)

    def make() -> object:
        raise torch.OutOfMemoryError("the program's own: no room")

    with pytracer.Tracer(tmp_path, device=backend, max_oom_snapshots=1):
        # WHEN memory runs out, THEN the exception has the answer and the file behind torch's text
        error = failure(ask)
        (path,) = tmp_path.glob("oom_*/*")
        verdict, *more = text_behind(error).splitlines()
        assert verdict.startswith("pytracer: OUT OF MEMORY: ")
        assert [line.split(":")[0].strip() for line in more] == ["why", "held", "do", "file"]
        assert more[-1].endswith(f"file: {path}")
        # AND it survives on its way to another process
        assert text_behind(pickle.loads(pickle.dumps(error))) == text_behind(error)
        # AND later exceptions, whose files replace the last, name the file
        assert text_behind(failure(ask)).splitlines()[-1].startswith("  file: ")
        # AND an exception of the program's own has nothing, also after torch's was not raised
        oom_answer.leave_note(path, None)
        assert text_behind(failure(make)) == ""
        oom_answer.forget_note()
    # AND one without a tracer has nothing
    assert text_behind(failure(ask)) == ""


def text_behind(error: BaseException) -> str:
    """Return the notes of an exception."""
    return "\n".join(getattr(error, "__notes__", []))


def test_the_number_of_snapshots_is_limited(
    backend: str, ask_for_too_much: Callable[[], str], tmp_path: Path
) -> None:
    # GIVEN a tracer that wants two files, one that wants none, one without an output, and one with
    # the default
    paths: list[str] = []
    folder = pytracer.Tracer(tmp_path / "folder", device=backend, on_snapshot=paths.append)
    two = pytracer.Tracer(tmp_path / "two.pickle", device=backend, max_oom_snapshots=2)
    none = pytracer.Tracer(tmp_path / "none.pickle", device=backend, max_oom_snapshots=0)
    nowhere = pytracer.Tracer(device=backend)
    with two, none, nowhere, folder:
        # WHEN memory runs out six times
        for _ in range(6):
            ask_for_too_much()
        # THEN the first and the last are written, next to the output file
        names = sorted(path.name for path in tmp_path.glob("[!.]*"))
        assert [re.sub(r"\d", "0", name) for name in names] == [
            *("folder", *["two.oom-00000000-000000-000000.pickle"] * 2)
        ]
        # AND by default the first two and the last
        kept = sorted(map(str, tmp_path.glob("folder/oom_*/*")))
        assert kept == [paths[0], paths[1], paths[5]]
        assert folder.stats()["oom_snapshots"] == 6
        # AND all tracers have recorded all six
        for tracer in (two, none, nowhere, folder):
            actions = [ACTIONS[number] for number in tracer.events()["action"]]
            assert actions.count("oom") == 6
    # WHEN the tracers have stopped
    ask_for_too_much()
    # THEN no further file is written
    assert len(list(tmp_path.glob("*.oom-*"))) == 2


def test_out_of_memory_in_a_backward(backend: str, device: ModuleType, tmp_path: Path) -> None:
    # GIVEN an operation whose backward, on autograd's own thread, requests too much memory
    leaf = torch.ones(1, device=backend, requires_grad=True)
    with pytracer.Tracer(tmp_path, device=backend):
        output = leaf.expand(HUGE)[:1].sum()
        # WHEN the backward runs, THEN the exception is torch's, with the answer behind its text,
        # and the snapshot exists
        with pytest.raises(torch.OutOfMemoryError) as raised:
            output.backward()
        assert text_behind(raised.value).startswith("pytracer: OUT OF MEMORY: ")
        (path,) = tmp_path.glob("oom_*/*")
    assert pickle.loads(path.read_bytes())["pytracer"]["oom"]["requested_bytes"] >= HUGE


def test_a_dump_that_fails(
    backend: str,
    ask_for_too_much: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # GIVEN an out-of-memory inside the dump of an out-of-memory
    inner: list[BaseException] = []

    def memory(*_: object) -> dict[str, int | None]:
        try:
            torch.empty(HUGE, dtype=torch.uint8, device=backend)
        except torch.OutOfMemoryError as error:
            inner.append(error)
            raise
        raise AssertionError

    monkeypatch.setattr(devices, "memory", memory)
    with pytracer.Tracer(tmp_path / "x.pickle", device=backend) as tracer:
        torch.empty(1000, device=backend)
        # WHEN memory runs out
        with caplog.at_level(logging.WARNING, "pytracer"):
            message = ask_for_too_much()
        # THEN it does not recurse, the exception is torch's, and the failure is counted and logged
        assert len(inner) == 1
        assert "out of memory" in message
        assert tracer.stats()["failures"] == 1
        assert "was not written" in caplog.text
        monkeypatch.undo()
    # AND no partial file is left
    assert files(tmp_path) == ["x.pickle"]


def test_the_log_explains_the_out_of_memory(
    backend: str,
    device: ModuleType,
    ask_for_too_much: Callable[[], str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a block of this line
    taken: list[int] = []
    explain = oom_answer.explain

    def observed(path: Path, index: int) -> None:
        taken.append(device.memory_stats(0)["allocation.all.allocated"])
        explain(path, index)
        taken.append(device.memory_stats(0)["allocation.all.allocated"])

    monkeypatch.setattr(oom_answer, "explain", observed)
    with pytracer.Tracer(tmp_path / "x.pickle", device=backend):
        held = torch.empty(3 * MIB, dtype=torch.uint8, device=backend)
        # WHEN memory runs out
        with caplog.at_level(logging.WARNING, "pytracer"):
            message = ask_for_too_much()
    # THEN the log names the file, and then what happened, why, who holds memory and what to try
    (path,) = tmp_path.glob("x.oom-*")
    wrote, verdict, *more = caplog.messages
    assert f"wrote {path}" in wrote
    assert verdict.startswith(f"OUT OF MEMORY: the request is too large ({backend}:0")
    roles = [line.partition(":")[0] for line in more]
    assert roles == ["asked", "free", "why", "held", "lines", "do"]
    assert re.search(r"3 MiB .*test_oom.py:\d+ test_the_log_explains", more[4])
    # AND the explanation took no device memory, and the exception is torch's
    assert taken[0] == taken[1]
    assert "out of memory" in message
    assert held.numel()


@pytest.mark.parametrize("is_large", [True, False])
def test_an_explanation_that_is_not_possible(
    backend: str,
    ask_for_too_much: Callable[[], str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    is_large: bool,
) -> None:
    # GIVEN files that are too large to be read at that time, or a reader that fails
    def fail(*_: object) -> None:
        raise MemoryError

    if is_large:
        monkeypatch.setattr(oom_answer, "MOST_BYTES", 100)
    monkeypatch.setattr(reader, "load", fail)
    # WHEN memory runs out twice
    with (
        caplog.at_level(logging.WARNING, "pytracer"),
        pytracer.Tracer(tmp_path / "x.pickle", device=backend),
    ):
        messages = [ask_for_too_much(), ask_for_too_much()]
    # THEN the exceptions are torch's, and the files are complete
    assert all("out of memory" in message for message in messages)
    assert len([load(path) for path in tmp_path.glob("x.oom-*")]) == 2
    # AND a failure is logged once
    failures = [record for record in caplog.records if "not explained" in record.getMessage()]
    assert len(failures) <= (0 if is_large else 1)


def test_a_log_that_fails(
    backend: str, ask_for_too_much: Callable[[], str], tmp_path: Path
) -> None:
    # GIVEN a log handler of the user that raises an exception
    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("no log")

    log, handler = logging.getLogger("pytracer"), Failing()
    log.addHandler(handler)
    try:
        # WHEN memory runs out
        with pytracer.Tracer(tmp_path / "x.pickle", device=backend):
            message = ask_for_too_much()
    finally:
        log.removeHandler(handler)
    # THEN the exception is torch's, and the snapshot exists
    assert "out of memory" in message
    assert len(list(tmp_path.glob("x.oom-*"))) == 1


def test_many_threads_run_out(
    backend: str, ask_for_too_much: Callable[[], str], tmp_path: Path
) -> None:
    # GIVEN threads that allocate and run out of memory at the same time
    with pytracer.Tracer(tmp_path / "x.pickle", device=backend, max_oom_snapshots=100) as tracer:

        def work() -> None:
            for _ in range(10):
                kept = [torch.empty(1000, device=backend) for _ in range(20)]
                ask_for_too_much()
                del kept

        failures = failures_of(work)
        # THEN every exception was torch's, and every written file is complete
        assert failures == []
        files = list(tmp_path.glob("*.oom-*"))
        assert 1 <= len(files) == tracer.stats()["oom_snapshots"] <= 40
        for path in files:
            assert pickle.loads(path.read_bytes())["pytracer"]["oom"]["requested_bytes"] >= HUGE
        assert [ACTIONS[number] for number in tracer.events()["action"]].count("oom") == 40
