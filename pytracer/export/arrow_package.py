"""The package pyarrow, which is optional."""

import importlib
from typing import Any

from pytracer.errors import PytracerError


def import_pyarrow(who_needs: str) -> Any:
    """Return the package.

    Args:
        who_needs: The beginning of the error's text, with its verb, such as "tables need".

    Raises:
        PytracerError: It is not installed.
    """
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise PytracerError(f"{who_needs} pyarrow ({error}): `pip install pyarrow`") from error
