"""Columns of numbers in the form in which the page reads them."""

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from pytracer.reading.snapshot import Column

TYPES: Mapping[str, str] = {"u8": "<u1", "u16": "<u2", "u32": "<u4", "i32": "<i4", "f64": "<f8"}
"""The types of columns: names in the page, and numpy's names."""

_ALIGNMENT = 8
_LEVEL = 1  # of zlib: higher levels take several times the time and save a tenth
_EXACT = 2**53  # integers up to here are exact in float64


class Packer:
    """Columns, one after the other, compressed by zlib.

    The bytes of a column are stored as planes: first the first byte of each value, then the second
    byte of each value, and so on. zlib compresses these better, because most high bytes are equal.
    """

    def __init__(self) -> None:
        """Begin without columns."""
        self._columns: list[bytes] = []
        self._end = 0

    def add(self, kind: str, values: Column, *, delta: bool = False) -> dict[str, Any]:
        """Add a column and return its description for the header.

        A column of equal values takes no bytes. With `delta`, the differences of the values are
        stored, which compress better where values rise slowly. `kind` is one of `TYPES`.
        """
        values = np.asarray(values).astype(TYPES[kind])
        column: dict[str, Any] = {"type": kind, "offset": self._end, "length": len(values)}
        if len(values) == 0 or (values == values[0]).all():
            return {**column, "constant": values[0].item() if len(values) else 0}
        if delta and _has_exact_differences(values):
            column["delta"] = True
            values = np.diff(values, prepend=values.dtype.type(0))
        planes = values.view("u1").reshape(len(values), -1).T
        padding = -planes.size % _ALIGNMENT
        self._columns.append(planes.tobytes() + bytes(padding))
        self._end += planes.size + padding
        return column

    def compressed(self, header: bytes) -> bytes:
        """Return the header's length, the header (JSON) and the columns, compressed.

        The offsets of columns count from the header's end, padded to 8 bytes.
        """
        head = len(header).to_bytes(4, "little") + header
        stream = zlib.compressobj(_LEVEL)
        parts = [stream.compress(head + bytes(-len(head) % _ALIGNMENT))]
        parts += [stream.compress(column) for column in self._columns]
        return b"".join([*parts, stream.flush()])


def _has_exact_differences(values: Column) -> bool:
    """Return whether sums of the differences give the values again: float64 may round."""
    if values.dtype.kind != "f":
        return True  # integers wrap around in both directions
    return bool(np.abs(values).max() < _EXACT / 2)
