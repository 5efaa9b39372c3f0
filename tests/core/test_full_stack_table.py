"""Check what Python sees of a stack table that has given up stacks."""

import itertools
from collections.abc import Callable
from typing import Any

from core_events import ALLOC, CONTEXTS, FREE

from pytracer import _core

BOUND = 2**17


addresses = itertools.count(1)


def pair() -> None:
    address = next(addresses) * 64
    _core.testing.record(ALLOC, address, 8)
    _core.testing.record(FREE, address, 0)


def many_stacks(leaf: Callable[[], None], calls: int = 25) -> Callable[[], None]:
    """Return a function that calls `leaf` from `calls` ** 3 different stacks of few functions."""
    place: dict[str, Any] = {"level0": leaf}
    for level in range(3):
        source = "\n".join([f"def level{level + 1}():", *[f" level{level}()"] * calls])
        exec(compile(source, "many_stacks.py", "exec"), place)
    run: Callable[[], None] = place["level3"]
    return run


def test_stacks_of_returned_events_are_not_given_up() -> None:
    # GIVEN a small stack table, and events that were read
    session = _core.Session([_core.CPU_DEVICE], 50, 32, BOUND, CONTEXTS["all"])
    session.start()
    pair()
    events = session.events()
    stacks = {int(stack): session.frames(int(stack)) for stack in events["stack"]}
    run = many_stacks(pair)
    # WHEN many more stacks are recorded than the table has room for
    for _ in range(3):
        run()
    # THEN next to none was dropped, and the ids that were read still have their stacks
    stats = session.stats()["stacks"]
    assert stats["dropped"] == 0
    assert stats["stacks"] < 2 * 25**3
    assert stats["bytes"] <= BOUND
    assert stacks == {stack: session.frames(stack) for stack in stacks}
    assert all(session.frames(int(stack)) for stack in session.events()["stack"])
