"""Out of memory: a snapshot before the exception, which stays what it was."""

import gc
import logging
import pickle
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import pytracer
from pytracer import devices
from pytracer.actions import ACTIONS

HUGE = 1 << 50


@pytest.fixture
def ask_for_too_much(backend: str, device: ModuleType) -> Callable[[], str]:
    """Runs out of memory; what torch says then."""

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
    """As a user's program does; for the rest of the process."""
    devices.attach_oom_observer(backend, observer)


def test_the_snapshot_is_there_before_the_exception(
    backend: str,
    ask_for_too_much: Callable[[], str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN what torch says without a tracer, and a traced program on rank 5 with a block in use
    untraced = ask_for_too_much()
    monkeypatch.setenv("RANK", "5")
    seen: list[Any] = []
    with pytracer.Tracer(tmp_path, device=backend, ranks=[5]) as tracer:
        observe(backend, lambda *event: seen.append((event, list(tmp_path.glob("oom_*/*")))))
        held = torch.empty(3_000_000, dtype=torch.uint8, device=backend)
        # WHEN it runs out
        with caplog.at_level(logging.WARNING, "pytracer"):
            said = ask_for_too_much()
        (event, files), *_ = seen
    # THEN the exception is torch's own
    plain = re.compile(r"\d[\d.]* \w+")
    assert plain.sub("", said) == plain.sub("", untraced)
    # AND the snapshot lies where verl puts it; the user's own observer, called later, found it
    (path,) = files
    assert re.fullmatch(r"oom_\d{8}-\d{6}-\d{6}", path.parent.name)
    assert re.fullmatch(r"torch_memory_oom_rank5_pid\d+\.pickle", path.name)
    assert str(path) in caplog.text
    # AND tells what happened
    snapshot = pickle.loads(path.read_bytes())
    index, requested, total, free = event
    assert snapshot["pytracer"]["oom"] == {
        "device": index,
        "requested_bytes": requested,
        "total_bytes": total,
        "free_bytes": free,
    }
    assert requested >= HUGE > total >= free
    *_, oom, marker = snapshot["device_traces"][index]
    assert (oom["action"], marker["action"]) == ("oom", "snapshot")
    assert oom["size"] >= HUGE
    assert oom["device_free"] <= total
    assert oom["frames"][0]["filename"] == __file__
    assert "addr" not in oom
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert held.data_ptr() in {block["address"] for block in blocks}
    memory = snapshot["pytracer"]["devices"][index]
    assert memory["reserved_bytes"] >= held.numel()
    assert memory["total_bytes"] >= memory["free_bytes"] > 0
    # AND the recording went on
    assert tracer.stats()["oom_snapshots"] == 1
    assert (tmp_path / "exit").is_dir()


def test_no_more_than_wished_for(
    backend: str, ask_for_too_much: Callable[[], str], tmp_path: Path
) -> None:
    # GIVEN tracers of which one wants two, one none, and one has nowhere to write
    two = pytracer.Tracer(tmp_path / "two.pickle", device=backend, max_oom_snapshots=2)
    none = pytracer.Tracer(tmp_path / "none.pickle", device=backend, on_oom=False)
    nowhere = pytracer.Tracer(device=backend)
    with two, none, nowhere:
        # WHEN memory runs out three times
        for _ in range(3):
            ask_for_too_much()
        # THEN the first two are there, beside the file that is to come
        names = sorted(path.name for path in tmp_path.iterdir())
        assert [re.sub(r"\d", "0", name) for name in names] == [
            "two.oom-00000000-000000-000000.pickle"
        ] * 2
        # AND all three are in everyone's record
        for tracer in (two, none, nowhere):
            actions = [ACTIONS[each] for each in tracer.events()["action"]]
            assert actions.count("oom") == 3
    # WHEN the tracers have stopped
    ask_for_too_much()
    # THEN nothing more is written
    assert len(list(tmp_path.glob("*.oom-*"))) == 2


def test_fifty_leave_three_files(
    backend: str, ask_for_too_much: Callable[[], str], tmp_path: Path
) -> None:
    # GIVEN a program that catches what torch raises
    with pytracer.Tracer(tmp_path, device=backend) as tracer:
        # WHEN it runs out fifty times
        for _ in range(50):
            ask_for_too_much()
        # THEN three snapshots are there, and all fifty in the record
        assert len(list(tmp_path.glob("oom_*/*"))) == tracer.stats()["oom_snapshots"] == 3
        actions = [ACTIONS[each] for each in tracer.events()["action"]]
        assert actions.count("oom") == 50


@pytest.mark.parametrize(("chosen", "files"), [([5], 1), ([0, 4], 0), (None, 1)])
def test_oom_ranks(
    backend: str,
    ask_for_too_much: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chosen: list[int] | None,
    files: int,
) -> None:
    # GIVEN rank 5
    monkeypatch.setenv("RANK", "5")
    # WHEN it runs out, THEN it writes if it is one of those chosen
    with pytracer.Tracer(tmp_path, device=backend, oom_ranks=chosen):
        ask_for_too_much()
    assert len(list(tmp_path.glob("oom_*/*"))) == files


def test_out_of_memory_in_a_backward(backend: str, device: ModuleType, tmp_path: Path) -> None:
    # GIVEN an operation whose backward, on autograd's own thread, asks for too much
    leaf = torch.ones(1, device=backend, requires_grad=True)
    with pytracer.Tracer(tmp_path, device=backend):
        output = leaf.expand(HUGE)[:1].sum()
        # WHEN it does, THEN the exception is torch's, and the snapshot is there
        with pytest.raises(torch.OutOfMemoryError):
            output.backward()
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
            said = ask_for_too_much()
        # THEN it does not recurse, the outer exception is torch's, the failure is counted and said
        assert len(inner) == 1
        assert "out of memory" in said
        assert tracer.stats()["failures"] == 1
        assert "was not written" in caplog.text
        monkeypatch.undo()
    # AND no file is left half written
    assert [path.name for path in tmp_path.iterdir()] == ["x.pickle"]


def test_a_log_that_fails(
    backend: str, ask_for_too_much: Callable[[], str], tmp_path: Path
) -> None:
    # GIVEN a handler of the user's that raises
    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("no log")

    log, handler = logging.getLogger("pytracer"), Failing()
    log.addHandler(handler)
    try:
        # WHEN memory runs out
        with pytracer.Tracer(tmp_path / "x.pickle", device=backend):
            said = ask_for_too_much()
    finally:
        log.removeHandler(handler)
    # THEN the exception is torch's, and the snapshot is there
    assert "out of memory" in said
    assert len(list(tmp_path.glob("x.oom-*"))) == 1


def test_many_threads_run_out(
    backend: str, ask_for_too_much: Callable[[], str], tmp_path: Path
) -> None:
    # GIVEN threads that allocate and run out at the same time
    with pytracer.Tracer(tmp_path / "x.pickle", device=backend, max_oom_snapshots=100) as tracer:
        failures: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(10):
                    kept = [torch.empty(1000, device=backend) for _ in range(20)]
                    ask_for_too_much()
                    del kept
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # THEN every exception was torch's, and every file that was written is whole
        assert failures == []
        files = list(tmp_path.glob("*.oom-*"))
        assert 1 <= len(files) == tracer.stats()["oom_snapshots"] <= 40
        for path in files:
            assert pickle.loads(path.read_bytes())["pytracer"]["oom"]["requested_bytes"] >= HUGE
        assert [ACTIONS[each] for each in tracer.events()["action"]].count("oom") == 40
