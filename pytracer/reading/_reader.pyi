from typing import Any, Protocol

from numpy.typing import NDArray

class _File(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None: ...

class ReadError(Exception):
    """What is wrong with a file: args are its kind (`KINDS` in reader.py), and what, and where."""

def read(file: _File) -> dict[str, Any]:
    """The columns of a snapshot; reader.py puts them together."""

class ContradictionError(Exception):
    """Which event, or part of the state, does not fit, and why."""

def replay(
    action: NDArray[Any],
    address: NDArray[Any],
    size_bytes: NDArray[Any],
    state: dict[str, NDArray[Any]],
    rules: dict[str, Any],
) -> tuple[tuple[NDArray[Any], ...], tuple[NDArray[Any], ...], int]:
    """The levels, the blocks, and the first exact entry; history.py puts them together."""
