"""Who holds memory at one moment: call sites with their callers and the age of their blocks."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from pytracer.analysis.blocks import Blocks, Sum, held_at
from pytracer.analysis.call_sites import frame_at
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.frame_text import shown_callers
from pytracer.analysis.holder_names import (
    AUTOCAST,
    LIKELY,
    NO_TENSOR,
    common_holder,
    has_holders,
    main_holder,
    outermost,
    tells_where,
)
from pytracer.analysis.leaks.results import LEAST_STEPS
from pytracer.analysis.life_rules import UNKNOWN
from pytracer.reading.snapshot import Frame

_LEAST_CARRIED = 0.3  # the least part of the peak


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
            has: "the pool (0, 3), first filled by main() (a.py:7)".
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


def keepers_of(held: Blocks) -> list[Keeper]:
    """Return the Python objects that keep memory, those that keep most first."""
    sizes: dict[str, Counter[str]] = defaultdict(Counter)
    steps: dict[str, set[int | None]] = defaultdict(set)
    for found in held.group("keeper", "category", "step"):
        keeper, category, step = found.key
        if keeper is None:
            continue
        name = outermost(keeper)
        sizes[name][category] += found.size_bytes
        if category not in (UNKNOWN, "activation"):
            steps[name].add(step)
    keepers = [
        Keeper(name, each.total(), each[UNKNOWN], each["activation"], len(steps[name]))
        for name, each in sizes.items()
    ]
    return sorted(keepers, key=lambda each: (-each.size_bytes, each.name))


def bytes_of_keepers(keepers: Iterable[Keeper], is_wanted: Callable[[str], bool]) -> int:
    """Return the bytes that the objects keep whose name is a wanted one."""
    return sum(each.size_bytes for each in keepers if is_wanted(each.name))


def sites_at(data: DeviceData, entry: int | None, top: int | None = None) -> list[Site]:
    """Return the lines of the program that hold memory at one moment, the largest first.

    `entry` is as for `Blocks.at`. All sites (`top`: None) add up to the moment's `active_bytes`.
    """
    return sites_of(held_at(data, entry), top)


def sites_of(held: Blocks, top: int | None = None) -> list[Site]:
    """Return the call sites of the blocks, the largest first, at most `top`."""
    return [_site(held, *found) for found in held.by_site()[:top]]


def holders_of(held: Blocks, top: int) -> list[Holder]:
    """Return the call sites that hold most, the largest first, at most `top`."""
    chains, active_bytes = held.data.chains, int(held["size_bytes"].sum())
    has_steps = len({step for step, _ in held.data.boundaries}) > 1
    holders = []
    for total, parts in held.by_site()[:top]:
        site, of_site = _site(held, total, parts), held.where(held.is_in("site", total.key[0]))
        ages = [age for found in of_site.group("age") for age in found.key if has_steps]
        known = [age for age in ages if age is not None]
        kept_by = main_holder(*of_site.column("released"), of_site["size_bytes"])
        if kept_by is None and has_holders(held.data.snapshot):
            kept_by = common_holder(*of_site.column("unusual_holder"), of_site["size_bytes"])
        if kept_by == LIKELY + AUTOCAST and not max(known, default=0):
            kept_by = NO_TENSOR  # a pass that runs has more than autocast's copies
        callers = chains.shared_callers((part.key[-1], part.size_bytes) for part in parts)
        holders.append(
            Holder(
                site=site,
                share=site.size_bytes / active_bytes if active_bytes else 0.0,
                callers=shown_callers(site.call_site, callers),
                oldest_age=max(known) if known and len(known) == len(ages) else None,
                newest_age=min(known, default=None),
                kept_by=kept_by,
            )
        )
    return holders


def _site(held: Blocks, total: Sum, parts: list[Sum]) -> Site:
    return Site(
        call_site=frame_at(held.stacks, total.key[0]),
        size_bytes=total.size_bytes,
        requested_bytes=total.requested_bytes,
        pending_bytes=total.pending_bytes,
        count=total.blocks,
        frames=held.stacks.frames(parts[0].key[-1]),
    )


def releases_of(held: Blocks) -> list[tuple[str, int]]:
    """Return what kept unknown blocks that no object keeps, and their bytes, the most first."""
    found = [(one.key[0], one.size_bytes) for one in held.group("released") if one.key[0]]
    return sorted(found, key=lambda each: (-each[1], each[0]))


def carried_over(held: Blocks) -> tuple[int, str] | None:
    """Return how much stays between steps, and what keeps such memory; None if it is little, has no
    name, or the peak shows it. What models and optimizers have does not count."""
    boundaries = held.data.boundaries
    if len(boundaries) < LEAST_STEPS:
        return None
    kept, at_end = held.at(boundaries[-1][1]), held.at(None)
    kept = kept.where(kept.is_in("category", UNKNOWN, "activation", "output", "input"))
    size_bytes = int(kept["size_bytes"].sum())
    # The last step's memory has its name.
    alike = at_end.where(np.isin(at_end["stack"], kept["stack"]))
    name = main_holder(*alike.column("kept_by"), alike["size_bytes"])
    if not tells_where(name):
        name = main_holder(*kept.column("released"), kept["size_bytes"])
    said_bytes = held.bytes_where(held.is_in("keeper", name) | held.is_in("released", name))
    is_much = size_bytes >= max(_LEAST_CARRIED * int(held["size_bytes"].sum()), 2 * said_bytes)
    return (size_bytes, name) if name is not None and is_much else None
