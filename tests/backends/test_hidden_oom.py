"""Which exceptions hide an out-of-memory: those of libraries that got no memory of the device."""

import pytest

from pytracer.backends import oom

CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"


def caught(raising: str) -> BaseException:
    """Run a statement that raises, after it has caught the exception of a library."""
    program = (
        f"try:\n    raise RuntimeError({CUBLAS!r})\nexcept RuntimeError as first:\n    {raising}"
    )
    with pytest.raises(BaseException) as found:  # noqa: PT011
        exec(program, {})
    return found.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CUBLAS, "CUBLAS_STATUS_ALLOC_FAILED"),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"),
        ("CUDA error: out of memory\nCompile with", "CUDA error: out of memory"),
        ("CUDA driver error: out of memory", "CUDA driver error: out of memory"),
        (
            "NCCL error\nLast error:\nCuda failure 2 'out of memory'",
            "Cuda failure 2 'out of memory'",
        ),
        # Other texts that have these words
        ("rank 3 reported: CUDA error: out of memory", None),
        ("Caught ValueError\n    if 'out of memory' in str(error):\nValueError: bad shape", None),
        ("SHM_ALLOC_FAILED", None),
        ("CUDA error: device-side assert triggered", None),
    ],
)
def test_what_libraries_say(text: str, expected: str | None) -> None:
    error = RuntimeError(text)
    assert oom._hidden(error) == ((error, expected) if expected else (None, None))


@pytest.mark.parametrize(
    ("raising", "is_found"),
    [
        ("raise", True),
        ("raise ValueError('step 3 failed') from first", True),
        ("raise RuntimeError(f'step 3 failed: {first}') from first", True),
        ("raise KeyError('no fallback')", False),  # the program went on
        ("raise KeyError('no fallback') from None", False),
    ],
)
def test_an_exception_that_a_program_has_handled(raising: str, is_found: bool) -> None:
    error = caught(raising)
    hidden, library_error = oom._hidden(error)
    assert (library_error == "CUBLAS_STATUS_ALLOC_FAILED") == is_found
    # AND one that was reported is not found again, also not behind another one
    if hidden is not None:
        hidden._pytracer = True  # type: ignore[attr-defined]
        assert oom._hidden(error) == (None, None)
