"""Containers of Python that hold at most so many items: what they keep does not grow for ever."""

import functools
import queue
import re
from collections import deque
from typing import Any

from pytracer import _core

MARKS = {
    " (inside a deque)": " (inside a deque, {} of at most {})",
    " (inside a _lru_cache_wrapper)": " (inside a _lru_cache_wrapper, {} of at most {})",
}
"""How texts name a container that `csrc/holders/` cannot look into, and how one with a bound."""

_ITEM = re.compile(r"\[\d+\]")
_LEAST_ROOM = 2, 16  # None at the end of a list with room: so many, and so many of its items (1/16)
_MOST = 1000  # of how many containers the names are searched at most
_MOST_ITEMS = 10_000  # of a list that is looked at
_PLAIN = {bool, int, float, str, bytes}  # items without tensors
_Cache: Any = type(functools.cache(len))


def with_bounds(texts: list[str], hidden: list[str], seconds: float) -> list[str]:
    """Return the texts of holders, with the number of items and the bound of bounded containers.

    Only objects of Python's own types are looked at, so that no code of the program runs.

    Args:
        texts: What `_core.holders_of` has returned.
        hidden: The folders of functions whose variables do not count.
        seconds: The argument of it.
    """
    has_marks = any(mark in text for text in texts for mark in MARKS)
    if not has_marks and not any(map(_ITEM.search, texts)):
        return texts
    containers, bounds = _bounded(has_marks)
    if not containers:
        return texts
    names = _core.holders_of(containers, hidden, [], seconds)
    of_name: dict[str, tuple[int, int]] = {}
    for name, bound in zip(names, bounds, strict=True):
        # Of two containers with one name, an item's text does not tell which one has it.
        of_name[name] = bound if of_name.get(name, bound) == bound else (0, 0)
    return [_with_bound(text, of_name) for text in texts]


def _bounded(has_marks: bool) -> tuple[list[Any], list[tuple[int, int]]]:
    """Return the youngest bounded containers, and of each the number of its items and its bound.

    Without `has_marks`, only lists.
    """
    # The deque of a queue has no bound of its own, but its queue has.
    known = _core.live_instances(deque, queue.Queue, _Cache, list)
    queues = (vars(each) for each in known if type(each) is queue.Queue)
    of_queues = {id(each.get("queue")): int(each.get("maxsize", 0)) for each in queues}
    found: list[Any] = []
    bounds: list[tuple[int, int]] = []
    for each in reversed(known):
        if not has_marks and type(each) is not list:
            continue
        if type(each) is deque:
            length, bound = len(each), each.maxlen or of_queues.get(id(each), 0)
        elif type(each) is _Cache:
            _, _, bound, length = each.cache_info()
        elif type(each) is list and 0 < len(each) <= _MOST_ITEMS:
            items = list(each)  # other threads may change it
            length, bound = _filled(items) if items and items[-1] is None else 0, len(items)
        else:
            continue
        if length and bound and len(found) < _MOST:
            found.append(each)
            bounds.append((length, bound))
    known.clear()  # it may have itself
    return found, bounds


def _filled(items: list[Any]) -> int:
    """Return how many items a list has that was made with None in all places; 0: it was not."""
    # No value is compared: that would run code of the program.
    places = [place for place, item in enumerate(items) if item is not None]
    if not places or places[-1] - places[0] >= len(places) or type(items[places[0]]) in _PLAIN:
        return 0
    room = len(items) - 1 - places[-1]
    return len(places) if room >= max(_LEAST_ROOM[0], len(items) // _LEAST_ROOM[1]) else 0


def _with_bound(text: str, of_name: dict[str, tuple[int, int]]) -> str:
    """Return the text with the bound of the first container in it, if that is known."""
    for mark, bounded in MARKS.items():
        before, found, after = text.partition(mark)
        place = after.find(" of ")
        while found and place >= 0:
            length, bound = of_name.get(before + after[place:], (0, 0))
            if bound:
                return before + bounded.format(length, bound) + after
            place = after.find(" of ", place + 1)
    for item in _ITEM.finditer(text):
        before, after = text[: item.start()], text[item.end() :]
        length, bound = of_name.get(before + after[max(after.find(" of "), 0) :], (0, 0))
        if bound:
            return f"{before} (inside a list, {length} of at most {bound}){after}"
    return text
