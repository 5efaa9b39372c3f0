"""Containers of Python that hold at most so many items: what they keep does not grow for ever."""

import re

from pytracer import _core

MARKS = {
    " (inside a deque)": " (inside a deque, {} of at most {})",
    " (inside a _lru_cache_wrapper)": " (inside a _lru_cache_wrapper, {} of at most {})",
}
"""How texts name a container that `csrc/holders/` cannot look into, and how one with a bound."""

_ITEM = re.compile(r"\[\d+\]")


def with_bounds(texts: list[str], hidden: list[str], seconds: float) -> list[str]:
    """Return the texts of holders, with the number of items and the bound of bounded containers.

    Args:
        texts: The names of holders.
        hidden: The folders of functions whose variables do not count.
        seconds: The processor time that the search for containers takes at most.
    """
    has_marks = any(mark in text for text in texts for mark in MARKS)
    if not has_marks and not any(map(_ITEM.search, texts)):
        return texts
    of_name: dict[str, tuple[int, int]] = {}
    for name, length, most in _core.bounded_containers(not has_marks, hidden, seconds):
        # Of two containers with one name, an item's text does not tell which one has it.
        is_one = of_name.get(name, (length, most)) == (length, most)
        of_name[name] = (length, most) if is_one else (0, 0)
    return [_with_bound(text, of_name) for text in texts]


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
