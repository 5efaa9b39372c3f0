"""Functions that call an action through Python frames of different shapes."""

from collections.abc import Callable, Iterator
from typing import Any

Action = Callable[[], int]


def _directly(action: Action) -> int:
    return action()


def _deep(action: Action, levels: int = 45) -> int:
    return action() if levels == 0 else _deep(action, levels - 1)


def _shallow(action: Action, levels: int = 4) -> int:
    if levels:
        return _shallow(action, levels - 1)
    return action()


def _by_lambda(action: Action) -> int:
    return (lambda: action())()


def _by_generator(action: Action) -> int:
    def once() -> Iterator[int]:
        yield action()

    return sum(value for value in once())


def _by_comprehension(action: Action) -> int:
    return sum([action() for _ in range(1)])


class _Caller:
    def __call__(self, action: Action) -> int:
        return self.within(action)

    @property
    def within(self) -> Callable[[Action], int]:
        return lambda action: action()


SHAPES: list[Callable[[Action], int]] = [
    _directly,
    _deep,
    _shallow,
    _by_lambda,
    _by_generator,
    _by_comprehension,
    _Caller(),
]


def compiled_shape(number: int) -> Callable[[Action], int]:
    """Compile a function whose code object is freed after the call."""
    lines = "\n" * (number % 40)
    names: dict[str, Any] = {}
    exec(
        compile(f"{lines}def made_{number}(action):\n  return action()\n", "<compiled>", "exec"),
        names,
    )
    function: Callable[[Action], int] = names[f"made_{number}"]
    return function
