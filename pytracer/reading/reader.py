"""Loads a snapshot file. Nothing in the file is executed, whoever wrote it."""

import pickle
from pathlib import Path
from typing import Any, NoReturn

from pytracer.errors import PytracerError

Snapshot = dict[str, Any]


class _RefusedError(PytracerError):
    """The file asks for something that a snapshot never holds."""


class _Unpickler(pickle.Unpickler):
    """Makes builtin containers, numbers and strings; every other request is an error."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _RefusedError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: object) -> NoReturn:
        raise _RefusedError(f"it asks for the external object {pid!r}")


def load(path: str | Path) -> Snapshot:
    """Loads a memory snapshot, written by pytracer or by PyTorch's own recorder.

    Args:
        path: The pickle file.

    Returns:
        The snapshot, as `torch.cuda.memory._snapshot()` returns it; pytracer's own facts are under
        the key `pytracer`.

    Raises:
        PytracerError: The file cannot be read, is cut short, is no memory snapshot, or asks for
            anything but builtin containers, numbers and strings. That is refused: loading it would
            run code of the file's choosing.
    """
    try:
        with open(path, "rb") as file:
            snapshot = _Unpickler(file).load()
    except OSError as error:
        raise PytracerError(f"cannot read {path}: {error.strerror}") from error
    except _RefusedError as error:
        raise PytracerError(
            f"{path} is refused: {error}, and a memory snapshot holds nothing but containers, "
            "numbers and strings; do not load this file with pickle either unless you trust it"
        ) from None
    except EOFError as error:
        raise PytracerError(f"{path} is cut short or empty: copy or dump it again") from error
    except Exception as error:  # a damaged pickle can raise nearly anything
        if "truncated" in str(error):
            raise PytracerError(f"{path} is cut short: copy or dump it again") from error
        raise PytracerError(f"{path} is damaged or no pickle file at all: {error}") from error
    if not isinstance(snapshot, dict) or not {"segments", "device_traces"} <= snapshot.keys():
        raise PytracerError(
            f"{path} is a pickle but no memory snapshot: "
            "that is a dict with the keys 'segments' and 'device_traces'"
        )
    return snapshot
