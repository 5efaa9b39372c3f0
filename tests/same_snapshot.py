"""Compares snapshots by what they hold, however strings, frames and stacks are numbered."""

from dataclasses import fields
from typing import Any

import numpy as np

from pytracer.reading.snapshot import Snapshot


def assert_same(found: Snapshot, expected: Snapshot) -> None:
    """Everything but the path and the keys that were left out."""
    found_contents, expected_contents = contents(found), contents(expected)
    assert found_contents.keys() == expected_contents.keys()
    for name, values in expected_contents.items():
        assert found_contents[name] == values, name


def contents(snapshot: Snapshot) -> dict[str, Any]:
    """Each column with its type, and what its numbers stand for."""
    strings = list(snapshot.strings)
    stacks = [snapshot.stacks.frames(stack) for stack in range(len(snapshot.stacks))]
    meanings: dict[str, Any] = {
        "action": snapshot.actions,
        "pool": [tuple(pool) for pool in snapshot.pools.tolist()],
        "stack": stacks,
        **dict.fromkeys(("kind", "compile_context", "user_metadata"), strings),
    }
    # What index 0 is said to be.
    assert (strings[0], stacks[0], meanings["pool"][0]) == ("", (), (0, 0))
    result: dict[str, Any] = {
        "allocator_settings": snapshot.allocator_settings,
        "external_annotations": snapshot.external_annotations,
        "about": snapshot.about,
        "devices": len(snapshot.traces),
    }
    tables = {"segments": snapshot.segments, "blocks": snapshot.blocks}
    tables |= {f"traces[{device}]": trace for device, trace in enumerate(snapshot.traces)}
    for table_name, table in tables.items():
        for field in fields(table):
            column: np.ndarray = getattr(table, field.name)
            values = column.tolist()
            if field.name in meanings:
                values = [meanings[field.name][value] for value in values]
            result[f"{table_name}.{field.name}"] = (column.dtype, values)
    return result
