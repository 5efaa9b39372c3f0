"""The names of Python objects that keep memory: their parts, and groups of alike ones."""

import re
from collections.abc import Collection, Sequence
from typing import TypeGuard

import numpy as np

from pytracer.reading.snapshot import Column, Snapshot

NO_TENSOR = "no Python tensor"
LIKELY = f"{NO_TENSOR}, perhaps "
AUTOCAST = "autocast's cache"
ITEM = "[…]"  # any item of a list or dict
INSIDE = " (inside a "  # of a deque, and of other containers without numbers
COMPILED = "compiled code"  # a variable of code that torch.compile made
TEMPORARY = "a temporary value"  # of an expression that is computed, without a name
BY_OTHERS = "kept by other objects"  # those that are no model, optimizer or graph, and not named
UNTIL = "until "  # of memory that was freed before the file was written: releases.py
_IS_GARBAGE = ", which gc.collect() would free"
_OF_EXCEPTION = ", which the traceback of "
_VARIABLE = re.compile(r"\w+ of (?:.*\(\)|module __main__)")
_OF_FORWARD = re.compile(r" of (?:\w+\.)*forward\(\)$")
_OF_LAST = re.compile(r", which (the traceback of )?last_\w+ of module sys keeps$")
_OF_TEMPORARY = re.compile(rf", which {TEMPORARY} of [^,]* keeps$")
"""What files say of a block's holder: pytracer/owners/holders.py and csrc/holders/."""

# An item is a number or a text in quotes, which may have brackets itself; or in the name of a
# parameter the number of a module or a group; or the number of items that a container has.
_ITEM = re.compile(
    r"""\[(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^]["'])*\]"""
    r"""|(?<=[.#])\d+(?=\.|$)|(?<= group )\d+(?= parameter \d)|(?<=, )\d+(?= of at most \d)"""
)
_ATTRIBUTES = re.compile(r"(?:\.\w+)+")
_OF_MODULE = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")
# Each path in the text of a holder, after what comes before it. It is never tried in two ways.
_NAMED = re.compile(
    r"(^|which |perhaps |traceback of |cycle of |model's )"
    rf"(\w++(?:\.[\w…]+|[.#]?(?:{_ITEM.pattern}))*+)(?= of |, | \(inside | \(a|$)"
)
_CACHE = re.compile(r"(`[^`]*`) \(inside a _lru_cache_wrapper[^()]*\)(?:\[…\])?")
_BOUNDED = re.compile(r" \(inside a \w+, (\d+) of at most (\d+)\)")


def folded(holder: str) -> str:
    """Return a holder without the items of its path, as in "losses[…] of main()"."""
    return _ITEM.sub(ITEM, holder)


def is_garbage(holder: str) -> bool:
    """Return whether memory is kept by objects that nothing but each other refers to."""
    return holder.endswith(_IS_GARBAGE)


def is_of_exception(holder: str, *, may_go_on: bool = False) -> bool:
    """Return whether an exception that the program could drop keeps memory.

    The last uncaught exception is one if the program may go on after it, as in a notebook.
    """
    return may_go_on if is_of_last_exception(holder) else _OF_EXCEPTION in holder


def is_of_last_exception(holder: str) -> bool:
    """Return whether the last uncaught exception keeps memory."""
    return _OF_LAST.search(holder) is not None


def is_of_forward(holder: str) -> bool:
    """Return whether a forward pass that runs keeps memory, in a variable or in its items."""
    return _OF_FORWARD.search(holder) is not None


def tells_where(holder: str | None) -> TypeGuard[str]:
    """Return whether the text of a holder tells where in the program to look."""
    return holder is not None and not holder.startswith((NO_TENSOR, TEMPORARY))


def tells_keeper(holder: str | None) -> bool:
    """Return whether the text of a holder tells what keeps memory, if only perhaps."""
    return tells_where(holder) or (holder or "").startswith(LIKELY)


def bound_of(holder: str | None) -> tuple[int, int] | None:
    """Return how many items the container has that keeps memory, and at most has; None: no bound
    is known, or there are several containers, whose number has none."""
    found = None if holder is None else _BOUNDED.search(holder)
    if holder is None or found is None or "…" in holder[: found.start()]:
        return None
    return int(found[1]), int(found[2])


def is_variable(holder: str) -> bool:
    """Return whether a variable keeps memory, and not an item of it: of a function that runs, or of
    a program without functions."""
    return _VARIABLE.fullmatch(holder) is not None


def outermost_name(holder: str) -> str:
    """Return the object that keeps a function and its variables; else the holder itself.

    A loop over a generator keeps it in no variable.
    """
    named = _OF_TEMPORARY.sub("", _OF_LAST.sub("", holder))
    return named.rpartition(", which ")[2].removesuffix(" keeps")


def marked(holder: str) -> str:
    """Return a holder for people, as in "`losses[…]` of main()": the names are in backticks."""
    return _CACHE.sub(r"the lru_cache of \1", _NAMED.sub(r"\1`\2`", holder.replace("`", "'")))


def kept_by_text(holder: str) -> str:
    """Return a clause about what keeps memory, as in "kept by `losses[…]` of main()"."""
    if holder == TEMPORARY:
        return "kept by running code"
    if holder.startswith(UNTIL):
        return f"kept {holder}"
    return f"kept by {marked(_OF_LAST.sub(', which the last uncaught exception keeps', holder))}"


def look_at(holder: str, keeps: str = "", *, is_graph: bool = False) -> str:
    """Return what to do about memory that an object keeps, without capital and full stop.

    `keeps`: how much it keeps, as a clause, or "".
    """
    outer = outermost_name(holder)
    how = "drop what you no longer need, or move it off the device (.detach().cpu(), or a file)"
    if _OF_EXCEPTION in holder:
        how = "store the error's text, or drop its traceback with error.with_traceback(None)"
    elif is_graph:
        how = "it keeps graphs. Store .item() or .detach(), or call backward() on each loss"
    elif "_lru_cache" in outer:
        how = "give it a small maxsize, or call cache_clear()"
    return f"look at {marked(outer)}{keeps}: {how}"


_OF_LIKELY = {
    "a process that received it": "let the processes that receive these tensors drop them",
    AUTOCAST: "let torch.autocast() end with each step, or call torch.clear_autocast_cache()",
    "the graph of a gradient": "set each .grad to None after backward(create_graph=True), or "
    "compute such gradients with torch.autograd.grad()",
}


def likely_remedy(holder: str) -> str:
    """Return what to do about memory that C++ keeps, without capital and full stop."""
    likely = holder.removeprefix(LIKELY)
    return _OF_LIKELY.get(likely, f"look at {marked(likely)}: a future keeps its result")


def has_holders(snapshot: Snapshot) -> bool:
    """Return whether a file says which Python objects keep blocks."""
    return bool(snapshot.blocks.holder.any())


def holder_names(strings: Sequence[str], holder: Column) -> tuple[list[str | None], Column]:
    """Group holders that differ only in the items of their paths.

    Args:
        holder: int64, an index in `strings` for each block.

    Returns:
        The name of each group: its only holder, or what its holders share, as in "losses[…]"; None
        for blocks without a holder. And the group of each block, an index in the names.
    """
    groups: dict[str, set[str]] = {}
    found, text = np.unique(holder, return_inverse=True)
    for index in found.tolist():
        groups.setdefault(folded(strings[index]), set()).add(strings[index])
    numbers = {name: number for number, name in enumerate(groups)}
    group = np.array([numbers[folded(strings[index])] for index in found.tolist()], np.int64)
    return [_shared(each) or None for each in groups.values()], group[text]


def _shared(holders: Collection[str]) -> str:
    """Return the holders of a group as one, with the items that all of them have."""
    items = [set(each) for each in zip(*map(_ITEM.findall, holders), strict=True)]
    shown = (each.pop() if len(each) == 1 else ITEM for each in items)
    named = iter(ITEM if each.startswith("[<") else each for each in shown)  # a class, not a key
    return _OF_MODULE.sub(r".\1", _ITEM.sub(lambda _: next(named), next(iter(holders))))


def main_holders(
    strings: Sequence[str], holder: Column, size_bytes: Column, least: float = 0.5
) -> list[str]:
    """Return the names of the holders of a part of the bytes, those that hold most first.

    Args:
        holder: int64, an index in `strings` for each block.
        size_bytes: int64, the bytes of each block.
    """
    names, group = holder_names(strings, holder)
    sums = np.zeros(len(names), np.int64)
    np.add.at(sums, group, size_bytes)
    order = np.argsort(-sums, kind="stable")
    found = ((names[i], sums[i] >= least * sums.sum()) for i in order.tolist())
    return [name for name, is_much in found if name and is_much]


def main_holder(strings: Sequence[str], holder: Column, size_bytes: Column) -> str | None:
    """Return the name of the holder of at least half of the bytes; None if there is none."""
    return next(iter(main_holders(strings, holder, size_bytes)), None)


def outermost(holder: str) -> str:
    """Return a holder without what its items have: "cache[…] of f()" for "cache[…].keys of f()"."""
    path, item, rest = holder.partition(ITEM)
    return path + item + rest[max(rest.find(" of "), 0) :] if item else holder


def _without_attributes(holder: str) -> str:
    path, of, place = holder.partition(" of ")
    path = "the variables" if _OF_EXCEPTION in place else _ATTRIBUTES.sub(".…", path)
    return path + of + place


def common_holder(strings: Sequence[str], holder: Column, size_bytes: Column) -> str | None:
    """Return `main_holder`; without one, what several share: "tree[…] of f()", "box.… of f()"."""
    found = main_holder(strings, holder, size_bytes)
    names, group = holder_names(strings, holder)
    texts = [name or "" for name in names]
    for shorter in (outermost, _without_attributes):
        if found is None:
            texts = [shorter(text) for text in texts]
            found = main_holder(texts, group, size_bytes)
    return found
