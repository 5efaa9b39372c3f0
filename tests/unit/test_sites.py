"""Call sites, against a made-up program of which every moment is kept."""

from collections import Counter

import plain_reader
from hypothesis import given
from hypothesis import strategies as st
from made_program import CALL_SITES, STACKS, Program, operations, run

from pytracer.reading.history import replay
from pytracer.reading.sites import Site, call_sites, frame, sites_at, sites_in_the_end
from pytracer.reading.snapshot import Frame


@given(operations, st.integers(0, 200), st.integers(0, 200))
def test_sites_equal_the_model(program: list[tuple[str, int, int]], lost: int, level: int) -> None:
    # GIVEN a program, and a ring that has lost some of its first events
    model = run(program)
    lost = min(lost, len(model.trace))
    level = min(level, len(model.trace) - lost)
    snapshot = model.snapshot(lost)

    # WHEN the sites of any moment are asked for
    sites = sites_at(replay(snapshot, 1), snapshot, level)

    # THEN they are the model's: unknown only where the allocation is older than the trace and the
    # block did not live to be in the segments
    sizes: Counter[Frame | None] = Counter()
    counts: Counter[Frame | None] = Counter()
    pending: Counter[Frame | None] = Counter()
    for address, block in model.moments[lost + level].items():
        in_the_end = model.alive.get(address)
        lives = in_the_end is not None and in_the_end.event == block.event
        site = CALL_SITES[block.stack] if lives or block.event >= lost else None
        sizes[site] += block.size
        counts[site] += 1
        pending[site] += block.size * block.pending
    assert {site.call_site: site.size_bytes for site in sites} == sizes
    assert {site.call_site: site.requested_bytes for site in sites} == sizes
    assert {site.call_site: site.count for site in sites} == counts
    assert {site.call_site: site.pending_bytes for site in sites} == pending
    assert [site.size_bytes for site in sites] == sorted(sizes.values(), reverse=True)


@given(operations)
def test_the_end_needs_no_trace(program: list[tuple[str, int, int]]) -> None:
    # GIVEN a snapshot with a trace
    snapshot = run(program).snapshot()
    # WHEN the sites of its end are asked for, THEN they are those of the trace's last moment
    last = sites_at(replay(snapshot, 1), snapshot, len(snapshot.traces[1]))
    assert set(sites_in_the_end(snapshot, 1)) == set(last)


def test_everything_adds_up_to_the_level() -> None:
    # GIVEN blocks of some sites, one of which is freed and still used
    model = run([("alloc", 10, 0), ("alloc", 30, 2), ("alloc", 20, 3), ("free", 1, 0)])
    snapshot = model.snapshot()
    history = replay(snapshot, 1)
    # WHEN they are taken together, THEN they are the allocator's levels
    sites = sites_at(history, snapshot, 7)
    active, pending = (sum(s.size_bytes for s in sites), sum(s.pending_bytes for s in sites))
    assert (active, pending) == (60, 30)
    assert active == history.levels.active_bytes[7]
    assert active - pending == history.levels.allocated_bytes[7]


def test_rounded_blocks() -> None:
    # GIVEN a block that the allocator made larger than it was asked for
    content = Program().content()
    block = {"address": 512, "size": 512, "requested_size": 7, "state": "active_allocated"}
    content["segments"] = [{"device": 1, "address": 512, "total_size": 512, "blocks": [block]}]
    # WHEN its site is asked for, THEN it says both
    (site,) = sites_in_the_end(plain_reader.convert(content), 1)
    assert site == Site(None, 512, 7, 0, 1, ())


def test_the_whole_stack_is_the_one_with_most_bytes() -> None:
    # GIVEN two stacks that lead to one call site, and an allocation elsewhere
    model = run([("alloc", 10, 0), ("alloc", 30, 1), ("alloc", 25, 0), ("alloc", 5, 2)])
    # WHEN the sites are asked for
    first, second = sites_in_the_end(model.snapshot(), 1)
    # THEN the site has the bytes of both, and the larger one's frames
    assert first == Site(CALL_SITES[0], 65, 65, 0, 3, STACKS[0])
    assert second == Site(CALL_SITES[2], 5, 5, 0, 1, STACKS[2])


def test_top_limits_the_sites() -> None:
    snapshot = run([("alloc", 10, 0), ("alloc", 30, 2), ("alloc", 20, 3)]).snapshot()
    assert [site.size_bytes for site in sites_in_the_end(snapshot, 1, top=2)] == [30, 20]


def test_each_stack_has_a_call_site() -> None:
    # GIVEN all kinds of stacks, empty ones between them
    snapshot = run([("alloc", 1, stack) for stack in (3, 4, 2, 1, 0)]).snapshot()
    # WHEN their call sites are asked for, THEN they are those of the stacks
    stacks = snapshot.stacks
    found = {
        stacks.frames(i): frame(stacks, site) for i, site in enumerate(call_sites(stacks).tolist())
    }
    assert found == dict(zip(STACKS, CALL_SITES, strict=True))


def test_a_snapshot_with_nothing_in_it() -> None:
    snapshot = Program().snapshot()
    assert sites_at(replay(snapshot, 1), snapshot, 0) == []
    assert sites_in_the_end(snapshot, 1) == []
    assert call_sites(snapshot.stacks).tolist() == [-1]
