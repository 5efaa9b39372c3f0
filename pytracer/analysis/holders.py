"""Who holds memory at one moment: call sites with their callers and the age of their blocks."""

from dataclasses import dataclass

import numpy as np

from pytracer.analysis.call_sites import Site, active_at, call_sites, callers, frame_at, sites_at
from pytracer.analysis.history import History
from pytracer.analysis.program_files import program_files
from pytracer.reading.metadata import Boundaries, step_at
from pytracer.reading.snapshot import Frame, Snapshot, Stacks

MOST_CALLERS = 2


@dataclass(frozen=True)
class Holder:
    """A call site that holds memory at one moment.

    Attributes:
        site: The call site and its blocks.
        share: The site's part of all active bytes, from 0 to 1.
        callers: The program's frames that called the call site, innermost first, at most
            `MOST_CALLERS`; in the stack that holds most bytes.
        oldest_age: The age of the site's oldest block in steps: 0 for a block of the current step.
            None if a block is older than the known steps, or the file has no steps.
        newest_age: The age of the site's newest block in steps; None if it is unknown.
    """

    site: Site
    share: float
    callers: list[Frame]
    oldest_age: int | None
    newest_age: int | None


def holders(
    stacks: Stacks,
    sites: list[Site],
    active_bytes: int,
    ages: dict[Frame | None, tuple[int | None, int | None]],
) -> list[Holder]:
    """Return the holders of a moment from its sites.

    Args:
        stacks: The snapshot's stacks.
        sites: The sites.
        active_bytes: The active bytes of the moment.
        ages: The oldest and the newest age of each call site; see `ages_at`.
    """
    files, found = program_files(stacks), []
    for site in sites:
        oldest, newest = ages.get(site.call_site, (None, None))
        found.append(
            Holder(
                site=site,
                share=site.size_bytes / active_bytes if active_bytes else 0.0,
                callers=callers(files, site.frames, site.call_site)[:MOST_CALLERS],
                oldest_age=oldest,
                newest_age=newest,
            )
        )
    return found


def holders_at(
    history: History, snapshot: Snapshot, entry: int, boundaries: Boundaries, top: int | None
) -> list[Holder]:
    """Return who holds memory at an entry of the history, the largest call site first."""
    sites = sites_at(history, snapshot, entry, top)
    active = int(history.usage.active_bytes[entry])
    return holders(snapshot.stacks, sites, active, ages_at(history, snapshot, entry, boundaries))


def ages_at(
    history: History, snapshot: Snapshot, entry: int, boundaries: Boundaries
) -> dict[Frame | None, tuple[int | None, int | None]]:
    """Return the oldest and the newest age in steps of each call site's blocks at an entry."""
    now = step_at(boundaries, entry - 1)
    if now is None or len({step for step, _ in boundaries}) < 2:
        return {}
    alive = np.flatnonzero(active_at(history, entry))
    if len(alive) == 0:
        return {}
    alloc = history.blocks.alloc_event[alive]
    site = call_sites(snapshot.stacks)[history.blocks.stack[alive]]
    order = np.lexsort((alloc, site))
    site, alloc = site[order], alloc[order]
    distinct, first = np.unique(site, return_index=True)
    last = np.append(first[1:], len(site)) - 1
    return {
        frame_at(snapshot.stacks, int(index)): (
            _age(boundaries, now, int(oldest)),
            _age(boundaries, now, int(newest)),
        )
        for index, oldest, newest in zip(distinct, alloc[first], alloc[last], strict=True)
    }


def _age(boundaries: Boundaries, now: int, event: int) -> int | None:
    step = step_at(boundaries, event)
    return None if step is None else now - step
