"""Functions that call an action through different kinds of Python frames.

They are in addition to those of tests/accelerator/parity_stacks.py: coroutines, event loops,
generated code, callbacks from C, classes, finalisers, exception handlers, greenlets.
"""

import asyncio
import contextvars
import ctypes
import functools
import gc
import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

Action = Callable[[], object]


def plainly(action: Action, rng: random.Random) -> None:
    action()


def recursively(action: Action, rng: random.Random) -> None:
    def down(levels: int) -> object:
        return down(levels - 1) if levels else action()

    down(rng.randrange(1, 200))


def in_generators(action: Action, rng: random.Random) -> None:
    def generate(levels: int) -> Iterator[object]:
        if levels:
            yield from generate(levels - 1)
        yield action() if levels == 0 else None

    list(generate(rng.randrange(60)))


def in_coroutines(action: Action, rng: random.Random) -> None:
    async def wait(levels: int) -> object:
        return await wait(levels - 1) if levels else action()

    coroutine = wait(rng.randrange(60))
    with suppress(StopIteration):
        coroutine.send(None)


def in_a_loop(action: Action, rng: random.Random) -> None:
    """Use tasks and async generators of an event loop, if none is running."""

    async def count() -> Any:
        for _ in range(2):
            await asyncio.sleep(0)
            yield action() if _ else None

    async def main() -> None:
        async def all_of_it() -> None:
            async for _ in count():
                pass

        await asyncio.gather(all_of_it(), asyncio.to_thread(lambda: None))

    if asyncio._get_running_loop() is None:
        asyncio.run(main())
    else:
        action()


def in_generated_code(action: Action, rng: random.Random) -> None:
    lines = "\n" * rng.randrange(70_000)
    name = f"é{rng.randrange(10**6)}"
    code = compile(f"{lines}def {name}():\n    return action()\n{name}()", f"<{name}>", "exec")
    exec(code, {"action": action})
    eval(compile(f"{lines}(lambda: action())()", "", "eval"), {"action": action})


def through_c(action: Action, rng: random.Random) -> None:
    """Call from C: a sort's key, map, partial, a weak reference, ctypes, a context."""
    kind = rng.randrange(6)
    if kind == 0:
        sorted([1], key=lambda _: action() is None)
    elif kind == 1:
        list(map(lambda _: action(), [0]))  # noqa: C417
    elif kind == 2:
        functools.partial(functools.partial(action))()
    elif kind == 3:

        class Target:
            pass

        target = Target()
        reference = weakref.ref(target, lambda _: action())
        del target
        assert reference() is None
    elif kind == 4:
        ctypes.CFUNCTYPE(None)(lambda: action() and None)()
    else:
        contextvars.copy_context().run(action)


def in_classes(action: Action, rng: random.Random) -> None:
    """Call in a class's body, a metaclass, a property, an operator, a finaliser."""

    class Meta(type):
        def __call__(cls, *arguments: Any) -> Any:
            action()
            return super().__call__(*arguments)

    class Odd(metaclass=Meta):
        instance = action()

        @property
        def value(self) -> object:
            return action()

        def __add__(self, other: object) -> object:
            return action()

        def __del__(self) -> None:
            action()

    odd = Odd()
    _ = odd.value, odd + 1
    if rng.random() < 0.5:
        odd.__dict__["itself"] = odd
        del odd
        gc.collect()


def in_the_collector(action: Action, rng: random.Random) -> None:
    """Call in finalisers of cycles, which the collector runs during other functions' calls."""

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            action()

    def with_cells(first: object, second: object) -> Callable[[], object]:
        return lambda: [first, second]

    def generate(value: object) -> Iterator[object]:
        yield (lambda: value)()

    before = gc.get_threshold()
    gc.set_threshold(rng.randrange(1, 40))
    try:
        for _ in range(4):
            Cycle()
            kept = [with_cells(number, list(generate(number)))() for number in range(20)]
            del kept
    finally:
        gc.set_threshold(*before)
        gc.collect()


def while_handling(action: Action, rng: random.Random) -> None:
    @contextmanager
    def entered() -> Iterator[None]:
        action()
        try:
            yield
        finally:
            action()

    try:
        with entered():
            raise ValueError(action())
    except ValueError:
        [action() for _ in range(2)]
    finally:
        action()


def in_greenlets(action: Action, rng: random.Random) -> None:
    import greenlet

    def switch() -> None:
        action()
        greenlet.getcurrent().parent.switch()
        recursively(action, rng)

    first, second = greenlet.greenlet(switch), greenlet.greenlet(switch)
    for current in (first, second, first, second):
        current.switch()


SHAPES = [
    plainly,
    recursively,
    in_generators,
    in_coroutines,
    in_a_loop,
    in_generated_code,
    through_c,
    in_classes,
    in_the_collector,
    while_handling,
]
