"""Who holds memory at one moment: call sites with their callers and the age of their blocks."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from pytracer.analysis.call_sites import CallChains, frame_at
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.frame_text import shown_callers
from pytracer.analysis.held_memory import HeldMemory, Sum, held_memory, sum_by_group, total_of
from pytracer.analysis.holder_names import (
    ITEM,
    common_holder,
    has_holders,
    holder_names,
    main_holder,
)
from pytracer.analysis.life_rules import UNKNOWN
from pytracer.reading.snapshot import Frame


@dataclass(frozen=True)
class Site:
    """The active blocks that one line of the program allocated.

    Attributes:
        call_site: The program's line (docs/reference/report.md has the rule); None for blocks whose
            stack is not in the snapshot (older than the trace, or recorded without stacks).
        size_bytes: The bytes that the allocator gave the blocks.
        requested_bytes: The bytes that the program requested.
        pending_bytes: The part of `size_bytes` in blocks that the program has freed, but that a
            stream still uses. These bytes count in `active_bytes`, not in `allocated_bytes`.
        count: The number of blocks.
        frames: The complete stack, innermost frame first. If several stacks have this call site,
            the stack that holds most bytes.
    """

    call_site: Frame | None
    size_bytes: int
    requested_bytes: int
    pending_bytes: int
    count: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Holder:
    """A call site that holds memory at one moment.

    Attributes:
        site: The call site and its blocks.
        share: The site's part of all active bytes, from 0 to 1.
        callers: The program's frames that called the call site, as `shown_callers` chooses them
            from those that most of the site's bytes have (`LEAST_SHARED`), innermost first.
        oldest_age: The age of the site's oldest block in steps: 0 for a block of the current step.
            None if a block is older than the known steps, or the file has no steps.
        newest_age: The age of the site's newest block in steps; None if it is unknown.
        kept_by: The Python object that keeps at least half of the site's bytes, as the `holder` of
            `Group`; None if there is none, or if it is unknown. For blocks that were freed before
            the end of the file: "until main() returned"; for those of a private pool that no tensor
            has: "the pool (0, 3), which main() (a.py:7) filled first".
    """

    site: Site
    share: float
    callers: list[Frame]
    oldest_age: int | None
    newest_age: int | None
    kept_by: str | None


@dataclass(frozen=True)
class Keeper:
    """A Python object that keeps memory at one moment.

    Attributes:
        name: The object, as the `holder` of `Group`, without what its items have: "cache[…] of
            main()" for "cache[…].keys of main()".
        size_bytes: The bytes that the allocator gave the blocks that it keeps.
        unknown_bytes: The part of `size_bytes` in blocks of the category "unknown".
        activation_bytes: The part that graphs keep for a backward pass.
        steps: In how many steps the blocks of models and optimizers were allocated.
    """

    name: str
    size_bytes: int
    unknown_bytes: int
    activation_bytes: int
    steps: int


def keepers_of(held: HeldMemory) -> list[Keeper]:
    """Return the Python objects that keep memory, those that keep most first."""
    sizes: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    steps: dict[str, set[int]] = defaultdict(set)
    names, group = holder_names(held.data.snapshot.strings, held.unusual_holder)
    size_bytes = held.column("size_bytes")
    is_unknown, is_activation = held.is_in({UNKNOWN}), held.is_in({"activation"})
    sums = [
        sum_by_group(group, size_bytes * is_counted, len(names)).tolist()
        for is_counted in (1, is_unknown, is_activation)
    ]
    outermost = [None if name is None else _without_parts(name) for name in names]
    for name, *of_name in zip(outermost, *sums, strict=True):
        if name is not None:
            sizes[name] = [sum(each) for each in zip(sizes[name], of_name, strict=True)]
    is_owned = ~(is_unknown | is_activation)
    born = np.unique(np.stack([group, held.birth_steps()])[:, is_owned], axis=1)
    for number, step in born.T.tolist():
        if name := outermost[number]:
            steps[name].add(step)
    found = [
        Keeper(name, size, unknown, activation, len(steps[name]))
        for name, (size, unknown, activation) in sizes.items()
    ]
    return sorted(found, key=lambda each: (-each.size_bytes, each.name))


def _without_parts(name: str) -> str:
    path, item, rest = name.partition(ITEM)
    return path + item + rest[max(rest.find(" of "), 0) :] if item else name


def bytes_of_keepers(keepers: Iterable[Keeper], is_wanted: Callable[[str], bool]) -> int:
    """Return the bytes that the objects keep whose name is a wanted one."""
    return sum(each.size_bytes for each in keepers if is_wanted(each.name))


def sites_at(data: DeviceData, entry: int | None, top: int | None = None) -> list[Site]:
    """Return the lines of the program that hold memory at one moment, the largest first.

    `entry` is as for `held_memory`. All sites (`top`: None) add up to the moment's `active_bytes`.
    """
    return sites_of(held_memory(data, entry), top)


def sites_of(held: HeldMemory, top: int | None = None) -> list[Site]:
    """Return the call sites of the blocks, the largest first, at most `top`."""
    chains = CallChains(held.stacks)
    return [_site(chains, *found) for found in by_site(held, chains=chains)[:top]]


def holders_of(held: HeldMemory, top: int) -> list[Holder]:
    """Return the call sites that hold most, the largest first, at most `top`."""
    chains = CallChains(held.stacks)
    found, ages = by_site(held, chains=chains), _ages(held)
    active_bytes = sum(total.size_bytes for total, _ in found)
    holders = []
    for total, parts in found[:top]:
        site = _site(chains, total, parts)
        oldest, newest = ages.get(total.key[0], (None, None))
        sizes = ((part.key[-1], part.size_bytes) for part in parts)
        holders.append(
            Holder(
                site=site,
                share=site.size_bytes / active_bytes if active_bytes else 0.0,
                callers=shown_callers(site.call_site, chains.shared_callers(sizes)),
                oldest_age=oldest,
                newest_age=newest,
                kept_by=_kept_by(held, chains, total.key[0]),
            )
        )
    return holders


def by_site(held: HeldMemory, *keys: str, chains: CallChains) -> list[tuple[Sum, list[Sum]]]:
    """Return the blocks by call site, and by other keys; the largest groups first.

    Args:
        keys: The other keys; see `HeldMemory.group`.
        chains: Those of the blocks' stacks.

    Returns:
        For each group the sums, whose first key is the call site, a number for `frame_at`; and the
        sums of its stacks, the largest first, whose last key is the stack.
    """
    parts: dict[tuple[object, ...], list[Sum]] = {}
    for part in held.group(*keys, "stack"):
        *others, stack = part.key
        parts.setdefault((int(chains.sites[stack]), *others), []).append(part)
    found = [(total_of(key, of_stacks), of_stacks) for key, of_stacks in parts.items()]
    return sorted(found, key=lambda each: (-each[0].size_bytes, each[0].key[0]))


def _site(chains: CallChains, total: Sum, parts: list[Sum]) -> Site:
    return Site(
        call_site=frame_at(chains.stacks, total.key[0]),
        size_bytes=total.size_bytes,
        requested_bytes=total.requested_bytes,
        pending_bytes=total.pending_bytes,
        count=total.count,
        frames=chains.stacks.frames(parts[0].key[-1]),
    )


def _kept_by(held: HeldMemory, chains: CallChains, site: int) -> str | None:
    """Return the Python object that keeps at least half of a call site's bytes, or kept them."""
    of_site = chains.sites[held.column("stack")] == site
    size_bytes = held.column("size_bytes")[of_site]
    texts, text = held.keeper
    until = main_holder(texts, text[of_site], size_bytes)
    if until is not None or not has_holders(held.data.snapshot):
        return until
    return common_holder(held.data.snapshot.strings, held.unusual_holder[of_site], size_bytes)


def releases_of(held: HeldMemory) -> list[tuple[str, int]]:
    """Return what kept unknown blocks that no object keeps, and their bytes, the most first."""
    texts, text = held.keeper
    sizes = sum_by_group(text, held.column("size_bytes"), len(texts)).tolist()
    found = [(name, size) for name, size in zip(texts, sizes, strict=True) if name]
    return sorted(found, key=lambda each: (-each[1], each[0]))


def _ages(held: HeldMemory) -> dict[int, tuple[int | None, int | None]]:
    """Return the oldest and the newest age in steps of each call site's blocks."""
    if len({step for step, _ in held.data.boundaries}) < 2:
        return {}
    by_site: dict[int, list[int | None]] = defaultdict(list)
    for found in held.group("site", "age"):
        site, age = found.key
        by_site[site].append(age)
    ages: dict[int, tuple[int | None, int | None]] = {}
    for site, of_site in by_site.items():
        known = [age for age in of_site if age is not None]
        ages[site] = max(known) if len(known) == len(of_site) else None, min(known, default=None)
    return ages
