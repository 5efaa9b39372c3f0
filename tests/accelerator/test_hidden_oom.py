"""Is an out-of-memory recorded for which torch raises another exception?

NVML fails, or a library has asked for the memory.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

import pytracer
from pytracer import log
from pytracer.analysis import explain
from pytracer.analysis.answer_words import answer_of
from pytracer.reading import load
from pytracer.text import size
from pytracer.tracing import process

ASSERTION = (
    "NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at "
    '"/pytorch/c10/cuda/CUDACachingAllocator.cpp":1289, please report a bug to PyTorch.'
)


@pytest.fixture(autouse=True)
def only_cuda(backend: str) -> None:
    if backend != "cuda":
        pytest.skip("only CUDA's allocator asks NVML")


def fail(train: Callable[[], None], output: Path, error: type[Exception] = RuntimeError) -> None:
    """Run a body that fails in a recording, after it has allocated."""

    def record() -> None:
        with pytracer.Tracer(output, device="cuda"):
            held.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
            train()

    held: list[torch.Tensor] = []
    with pytest.raises(error):
        record()


def test_the_file_of_an_assertion(
    device: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_logged", set())
    # GIVEN a block, and two tracers
    output = tmp_path / "out"

    def train() -> None:
        # WHEN the body ends by the assertion, as the cause of another exception
        try:
            raise RuntimeError(ASSERTION)
        except RuntimeError as error:
            raise ValueError("step 3 failed") from error

    with pytracer.Tracer(device="cuda"):
        fail(train, output, ValueError)
    # THEN there is one file of an out-of-memory, and the file at the end
    (file,) = output.glob("oom_*/*.pickle")
    assert len([*output.glob("exit/*.pickle")]) == 1
    # AND it has the event, and what was free
    snapshot = load(file)
    oom = snapshot.metadata.oom_of(0)
    assert oom is not None
    assert oom.free_bytes == device.mem_get_info()[0]
    assert oom.library_error is None
    assert (snapshot.traces[0].action == pytracer.ACTIONS.index("oom")).sum() == 1
    assert any(text.startswith(f"memory ran out at {__file__}:") for text in log._logged)
    assert any(text.startswith(f"out of memory: wrote {file}") for text in log._logged)


def test_other_exceptions_leave_no_file(device: ModuleType, tmp_path: Path) -> None:
    def train() -> None:
        raise RuntimeError("x INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp")

    # GIVEN / WHEN the body ends by another assertion of torch's
    fail(train, tmp_path)
    # THEN
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["exit"]


def test_an_assertion_that_ends_a_thread(
    device: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN the program's own hook for exceptions of threads
    shown: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: shown.append(arguments.exc_type))

    def train() -> None:
        held.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
        raise RuntimeError(ASSERTION)

    held: list[torch.Tensor] = []
    with pytracer.Tracer(tmp_path, device="cuda") as tracer:
        # AND a device that was found when the tracer recorded already
        monkeypatch.setattr(process, "_watches_threads", False)
        tracer._record({"cuda": [0]})
        # WHEN threads end by the assertion, and by another exception
        for work in (train, lambda: torch.empty(-1)):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    # THEN there is one file of an out-of-memory, with the event
    (file,) = tmp_path.glob("oom_*/*.pickle")
    assert (load(file).traces[0].action == pytracer.ACTIONS.index("oom")).sum() == 1
    # AND the program's own hook was called
    assert shown == [RuntimeError, RuntimeError]


def test_a_library_that_got_no_memory(device: ModuleType, tmp_path: Path) -> None:
    error = "CUBLAS_STATUS_ALLOC_FAILED"

    def train() -> None:
        raise RuntimeError(f"CUDA error: {error} when calling `cublasCreate(handle)`")

    # WHEN the body ends by the exception of a library
    fail(train, tmp_path)
    # THEN the file of an out-of-memory names the library's error and its line
    (file,) = tmp_path.glob("oom_*/*.pickle")
    found, *_ = explain(load(file))
    (asked,) = answer_of(found).texts("asked")
    line = train.__code__.co_firstlineno + 1
    assert asked == f"by a library: {error} at {__file__}:{line}"
    # AND its answer has what was free, which is much here
    (verdict,) = found.verdicts
    free = size(device.mem_get_info()[0])
    assert f"could not allocate device memory, although {free} were free" in verdict.text
