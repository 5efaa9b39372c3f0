"""A table of what is known about objects, which keeps none of them alive."""

from typing import Any, Generic, TypeVar
from weakref import ref

from pytracer import _core

_FEW = 64  # objects, of which those that are gone need not be left out
Value = TypeVar("Value")


class WeakTable(Generic[Value]):
    """Values by object, in the order in which the objects came; at most `most`.

    The key is the id of an object, and a later object may have the same one. The reference tells:
    it is the one that an object has without a call, the same as long as both live.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[int, tuple[ref[Any], Value]] = {}
        self._room = _FEW  # for so many more, those that are gone stay

    def get(self, number: int, reference: "ref[Any] | None") -> Value | None:
        """Return the value of an object; None: it has none."""
        kept = self._kept.get(number)
        return kept[1] if kept is not None and kept[0] is reference else None

    def add(self, number: int, reference: "ref[Any]", value: Value) -> bool:
        """Add an object, or replace its value; return whether there was room."""
        if self.get(number, reference) is None:
            self._room -= 1
            if self._room < 0:
                self.forget_dead()
            self._kept.pop(number, None)  # of one that is gone: the new one comes last
            if len(self._kept) >= self._most:
                return False
        self._kept[number] = reference, value
        return True

    def forget(self, number: int) -> None:
        """Leave out an object."""
        self._kept.pop(number, None)

    def forget_dead(self) -> None:
        """Leave out the objects that are gone."""
        self._kept = {number: kept for number, kept in self._all() if _core.is_alive(kept[0])}
        self._room = max(_FEW, len(self._kept))

    def live(self) -> "list[tuple[ref[Any], Value]]":
        """Return references to the objects that still live, and their values."""
        return [kept for _, kept in self._all() if _core.is_alive(kept[0])]

    def _all(self) -> "list[tuple[int, tuple[ref[Any], Value]]]":
        return [*self._kept.items()]  # another thread may add one meanwhile
