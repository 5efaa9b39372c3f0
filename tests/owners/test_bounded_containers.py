"""The holder in a file says how many items a bounded container has, and at most has."""

import functools
import queue
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pytracer
from pytracer.owners import holders
from pytracer.reading import load

pytestmark = pytest.mark.usefixtures("no_collector")


class _Limited(deque[Any]):
    """A container whose code is the program's."""

    @property
    def maxlen(self) -> int:
        raise AssertionError

    def __len__(self) -> int:
        raise AssertionError


def names(tracer: pytracer.Tracer, folder: Path) -> set[str]:
    """Return the holders of the tensors that the test keeps, as a file has them."""
    tracer.dump(folder / "a.pickle")
    snapshot = load(folder / "a.pickle")
    found = {snapshot.strings[index] for index in snapshot.blocks.holder.tolist() if index}
    return {name.replace("<locals>.", "") for name in found if " of test_" in name}


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytracer.Tracer]:
    monkeypatch.setattr(holders, "MAX_SECONDS", 30)
    with pytracer.Tracer(device="cpu") as tracer:
        yield tracer


def test_the_bound_is_in_the_name(tracer: pytracer.Tracer, tmp_path: Path) -> None:
    # GIVEN containers with and without a bound
    memory = deque([(torch.zeros(9), torch.zeros(9))] * 2, maxlen=300)
    waiting: queue.Queue[Any] = queue.Queue(maxsize=5)
    waiting.put(torch.zeros(9))
    free, endless = deque([torch.zeros(9)]), queue.Queue[Any]()
    endless.put(torch.zeros(9))
    nested = {"a": [deque([torch.zeros(9)], maxlen=7)]}
    limited = _Limited([torch.zeros(9)], 3)
    ring = [torch.zeros(9), *[None] * 79]
    mixed = [torch.zeros(9), None, torch.zeros(9), None]

    @functools.lru_cache(maxsize=8)
    def cached(size: int) -> Any:
        return torch.zeros(size)

    cached(3)
    of = "test_the_bound_is_in_the_name()"
    # THEN those with a bound have it in their names
    assert names(tracer, tmp_path) == {
        f"memory (inside a deque, 2 of at most 300)[0] of {of}",
        f"memory (inside a deque, 2 of at most 300)[1] of {of}",
        f"waiting.queue (inside a deque, 1 of at most 5) of {of}",
        f"free (inside a deque) of {of}",
        f"endless.queue (inside a deque) of {of}",
        f"nested['a'][0] (inside a deque, 1 of at most 7) of {of}",
        f"cached (inside a _lru_cache_wrapper, 1 of at most 8) of {of}",
        f"ring (inside a list, 1 of at most 80) of {of}",
        f"mixed[0] of {of}",
        f"mixed[2] of {of}",
        f"limited (inside a _Limited) of {of}",
    }
    del memory, free, nested, limited, ring, mixed
