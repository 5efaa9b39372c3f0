from collections.abc import Callable
from typing import Any, Protocol

from numpy.typing import NDArray

class _File(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None: ...

class ReadError(Exception):
    """A file cannot be read. `args` are a key of `_MESSAGES` in reader.py, and the reason."""

class ExitingError(RuntimeError):
    """The interpreter is about to exit: only content in an `io.BytesIO` can be read."""

def read(file: _File, allowed_bytes: Callable[[], int]) -> dict[str, Any]:
    """Read the columns of a snapshot; reader.py makes a `Snapshot` of them.

    Args:
        file: The file's content, decompressed.
        allowed_bytes: Returns how many bytes the columns and values may take. Called after each
            read. Once the interpreter is about to exit, it must not run Python code.

    Raises:
        ReadError: The file cannot be read.
        ExitingError: Nothing was read yet.
    """

class ContradictionError(Exception):
    """Names the event, or the part of the state, that does not fit, and says why."""

def replay(
    action: NDArray[Any],
    address: NDArray[Any],
    size_bytes: NDArray[Any],
    state: dict[str, NDArray[Any]],
    rules: dict[str, Any],
) -> tuple[tuple[NDArray[Any], ...], tuple[NDArray[Any], ...], int]:
    """Return the usage, the blocks' lifetimes, and the first exact sample; see history.py.

    Args:
        action: uint8, by event, as in `pytracer.ACTIONS`.
        address: int64, by event.
        size_bytes: int64, by event.
        state: The final state: columns of segments and of blocks in use.
        rules: The fields of C++'s `AllocatorRules`.

    Raises:
        ContradictionError: The trace does not lead to the state.
    """

class RequestError(ValueError):
    """Names the request, the column, and the value that is out of range."""

def simulate(
    kind: NDArray[Any],
    block: NDArray[Any],
    size_bytes: NDArray[Any],
    stream: NDArray[Any],
    pool: NDArray[Any],
    rules: dict[str, Any],
    with_curve: bool = ...,
    with_calls: bool = ...,
    continues: bool = ...,
    start: dict[str, Any] | None = ...,
) -> dict[str, Any]:
    """Return the values of `Simulated`; see pytracer/simulator/simulate.py.

    Args:
        kind: uint8, by request, as in pytracer/analysis/requests.py.
        block, size_bytes, stream, pool: int64, by request.
        rules: The fields of C++'s `simulator::Rules`.
        with_curve: Whether to return the reserved and the allocated bytes after each request.
        with_calls: Whether to return `address` by request (0 for none), and `calls` to the device:
            their request, kind (0 alloc, 1 free, 2 map, 3 unmap), address and bytes.
        continues: Whether to go on after an allocation that found no memory.
        start: The columns of `Start` (pytracer/analysis/memory_at_start.py): the memory that is
            there before the first request. The allocations of its blocks are not made again.

    Raises:
        RequestError: A request has a value that is out of range.
        ValueError: The start has segments or blocks that cannot be.
        ValueError: The columns differ in length, or a rule is out of range.
        ValueError: The segments take more than 2**62 addresses.
    """
