"""Compare the contents of snapshots, independently of the numbers of strings, frames and stacks."""

from dataclasses import fields
from typing import Any

import numpy as np

from pytracer.reading.snapshot import Snapshot


def assert_same(found: Snapshot, expected: Snapshot) -> None:
    """Compare two snapshots in everything except their paths and unknown keys."""
    found_contents, expected_contents = contents(found), contents(expected)
    assert found_contents.keys() == expected_contents.keys()
    for name, values in expected_contents.items():
        assert found_contents[name] == values, name


def backward(snapshot: Snapshot, stack: int) -> Any:
    """Return the node, the forward frames, their phase and whether all are exact; None: none."""
    stacks, strings = snapshot.stacks, snapshot.strings
    forward, node = int(stacks.forward[stack]), int(stacks.node[stack])
    if not forward and not node:
        return None
    phase = strings[stacks.phase[stack]]
    return strings[node], stacks.frames(forward), phase, bool(stacks.is_exact[stack])


def contents(snapshot: Snapshot) -> dict[str, Any]:
    """Return each column with its type, with indices replaced by the values they refer to."""
    strings = list(snapshot.strings)
    all_stacks = range(len(snapshot.stacks))
    stacks = [(snapshot.stacks.frames(s), backward(snapshot, s)) for s in all_stacks]
    meanings: dict[str, Any] = {
        "action": snapshot.actions,
        "pool": [tuple(pool) for pool in snapshot.pools.tolist()],
        "stack": stacks,
        **dict.fromkeys(("kind", "compile_context", "user_metadata"), strings),
        **dict.fromkeys(("category", "category_rule", "owner", "holder"), strings),
    }
    # Index 0 is always the empty value.
    assert (strings[0], stacks[0], meanings["pool"][0]) == ("", ((), None), (0, 0))
    result: dict[str, Any] = {
        "allocator_settings": snapshot.allocator_settings,
        "external_annotations": snapshot.external_annotations,
        "metadata": snapshot.metadata,
        "devices": len(snapshot.traces),
        "host_device": snapshot.host_device,
    }
    tables: dict[str, Any] = {"segments": snapshot.segments, "blocks": snapshot.blocks}
    for device, trace in enumerate(snapshot.traces):
        tables |= {f"traces[{device}]": trace, f"traces[{device}].missing": trace.missing}
    for table_name, table in tables.items():
        for field in fields(table):
            if field.name == "missing":  # a table of its own
                continue
            column: np.ndarray = getattr(table, field.name)
            values = column.tolist()
            if field.name in meanings:
                values = [meanings[field.name][value] for value in values]
            result[f"{table_name}.{field.name}"] = (column.dtype, values)
    return result
