"""Each field of a snapshot at its limits.

Every key and every item of small snapshots (of an accelerator and of the CPU, of pytracer and of
PyTorch) is replaced in turn by each of a list of values: the limits of 32 and 64 bits and values
beyond, negative sizes, NaN, infinity, text with terminal codes and lone surrogates, and containers
in place of numbers. Or it is removed, or doubled. As a result blocks overlap, end behind their
segments, are freed twice, or have no address. Every command is run.
"""

import copy
import pickle
from pathlib import Path
from typing import Any

from analysis.test_any_snapshot import BAD_VALUES
from attack import Budget, Found
from hostile import GOLDEN, PROMISE, attack_files

__all__ = ["PROMISE"]

DEVICE = "none"
SECONDS = 30

FILES = ("snapshot-1.4-cuda.pickle", "snapshot-1.4-cpu.pickle", "cuda-2.15.0-ring.pickle")
LIMITS: list[Any] = [
    *BAD_VALUES,
    *(2**31 - 1, -(2**31), 2**32, 2**53, -(2**62), 2**63, -(2**63) - 1, 2**200),
]
LIMITS += [-0.0, 1e308, float("-inf"), "x" * 10_000, "0", b"bytes", {"a": 1}, [0] * 100]
REMOVED, DOUBLED = object(), object()
CHANGES = [*LIMITS, REMOVED, DOUBLED]
ITEMS_OF_A_LIST = 3  # the first, the middle and the last item, which stand for the others

Path_ = tuple[Any, ...]


def places(value: Any, at: Path_ = ()) -> list[Path_]:
    """Return the position of each field, as keys and indices."""
    found: list[Path_] = []
    keys: Any = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list) and value:
        last = len(value) - 1
        keys = sorted({round(last * i / (ITEMS_OF_A_LIST - 1)) for i in range(ITEMS_OF_A_LIST)})
    for key in keys:
        found += [(*at, key), *places(value[key], (*at, key))]
    return found


def changed(content: Any, at: Path_, change: Any) -> Any:
    """Return a copy with one changed field."""
    copied = copy.deepcopy(content)
    container = copied
    for key in at[:-1]:
        container = container[key]
    key = at[-1]
    if change is REMOVED:
        del container[key]
    elif change is DOUBLED and isinstance(container, list):
        container.insert(key, container[key])
    elif change is DOUBLED:
        container[f"{key}_"] = container[key]
    else:
        container[key] = change
    return copied


def attack(budget: Budget) -> Found:
    files = {path.name: pickle.loads(path.read_bytes()) for path in GOLDEN if path.name in FILES}
    fields = [(name, at) for name, content in files.items() for at in places(content)]
    count = len(fields) * len(CHANGES)

    def make(number: int) -> tuple[str, bytes]:
        # Spread over all cases, because the time may end before all are tried.
        number = number * 7919 % count
        name, at = fields[number // len(CHANGES)]
        change = CHANGES[number % len(CHANGES)]
        what = {id(REMOVED): "removed", id(DOUBLED): "doubled"}.get(id(change), f"= {change!r:.60}")
        where = "".join(f"[{key!r}]" for key in at)
        return f"{Path(name).stem}{where} {what}", pickle.dumps(
            changed(files[name], at, change), protocol=4
        )

    return attack_files(budget, "changed fields", make, count)
