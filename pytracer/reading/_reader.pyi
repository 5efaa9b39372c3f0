from collections.abc import Callable
from typing import Any, Protocol

from numpy.typing import NDArray

class _File(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None: ...

class ReadError(Exception):
    """A file cannot be read. `args` are a key of `_MESSAGES` in reader.py, and the reason."""

def read(file: _File, allowed_bytes: Callable[[], int]) -> dict[str, Any]:
    """Read the columns of a snapshot; reader.py makes a `Snapshot` of them.

    Args:
        file: The file's content, decompressed.
        allowed_bytes: Returns how many bytes the columns and values may take. Called after each
            read.

    Raises:
        ReadError: The file cannot be read.
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
