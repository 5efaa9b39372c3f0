"""Test simulations of recordings whose ring has lost events: they start from the first event."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from random_allocators import snapshot_of, used_allocator
from reference_reader import convert
from simulated_recordings import MIB, Recorded, random_requests

from pytracer.analysis.allocator_rules import UNIT_BYTES
from pytracer.analysis.requests import ALLOCATE, FREE, Recording, extract_recording
from pytracer.reading.snapshot import ALLOC
from pytracer.simulator.rules import rules_of
from pytracer.simulator.simulate import (
    Simulated,
    begins_as_recorded,
    limits_of,
    own_rules,
    simulate,
    simulate_recording,
)

SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:24",
    "roundup_power2_divisions:4",
    "large_segment_size_mb:64",
)


def simulated(recording: Recording) -> Simulated:
    rules, limits = own_rules(recording), limits_of(recording)
    return simulate_recording(recording, rules, limits, with_curve=True)


def reserved_by_event(recording: Recording, done: Simulated, first: int = 0) -> dict[int, int]:
    """Return what was reserved after each allocation and free of the trace, by its event."""
    assert done.reserved_bytes is not None
    requests = recording.requests
    is_compared = np.isin(requests.kind, (ALLOCATE, FREE)) & (requests.event >= 0)
    events = requests.event[is_compared] + first
    return dict(zip(events.tolist(), done.reserved_bytes[is_compared].tolist(), strict=True))


def recorded(seed: int, settings: str, *, is_limited: bool) -> Recorded:
    """Return a recording; on a limited device, most run out of memory, or nearly."""
    rows = random_requests(seed, waits=not is_limited)
    made = Recorded(rows, settings)
    if not is_limited:
        return made
    share = (1.05, 1.2, 0.8, 0.95)[seed % 4]
    capacity = int(made.peak_allocated_bytes * share) // UNIT_BYTES * UNIT_BYTES
    return Recorded(rows, settings, capacity)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("is_limited", [False, True])
def test_a_cut_recording_is_simulated_as_the_complete_one(settings: str, is_limited: bool) -> None:
    compared = 0
    for seed in range(8):
        # GIVEN a random program, recorded completely, and by rings that lost its first events
        made = recorded(seed, settings, is_limited=is_limited)
        complete = extract_recording(convert(made.content()), 0)
        done = simulated(complete)
        assert done.ooms == made.ran_out
        reserved = reserved_by_event(complete, done)
        last = max(i for i, event in enumerate(made.events) if event["action"] == "alloc")
        for first in (last * part // 5 for part in (1, 2, 3, 4)):
            cut = extract_recording(convert(made.content(first)), 0)
            # The file has the sizes of blocks that `max_split_size_mb` keeps whole only if they
            # are alive at its end, and not whether its first event had to take a segment.
            is_unknown = cut.history.exact_from > 0 or cut.trace.action[0] == ALLOC
            if "max_split" in settings and is_unknown:
                continue
            # WHEN both are simulated under their own settings
            found = simulated(cut)
            # THEN after each request, both have the same reserved
            later = {event: size for event, size in reserved.items() if event >= first}
            assert reserved_by_event(cut, found, first) == later, (seed, first)
            at_first = int(cut.history.usage.reserved_bytes[0])
            assert found.peak_reserved_bytes == max(at_first, *later.values())
            # AND both run out of memory, or none does
            assert (found.ooms, found.fitted) == (done.ooms, 0)
            compared += 1
    assert compared >= 5


@pytest.mark.parametrize("name", ["segments", "npu"])
def test_a_cut_recording_of_the_reference_allocator(name: str) -> None:
    for seed in range(4):
        # GIVEN a ring of another implementation of the allocator, which lost its first events
        allocator = used_allocator(name, seed)
        first = len(allocator.events) // 3
        snapshot = snapshot_of(allocator, name, first, torch="2.11.0+cu126")
        cut = extract_recording(snapshot, 0)
        # WHEN it is simulated under its own settings
        found = reserved_by_event(cut, simulated(cut), first)
        # THEN as much is reserved as the allocator had
        expected = {event: allocator.usage[event + 1]["reserved_bytes"] for event in found}
        assert found == expected
        assert len(set(expected.values())) > 3


@pytest.mark.parametrize(
    ("settings", "keeps"), [("max_split_size_mb:64", True), ("expandable_segments:True", False)]
)
def test_other_settings_start_with_the_recorded_segments_if_they_make_such(
    settings: str, keeps: bool
) -> None:
    # GIVEN a ring that lost its first events
    made = recorded(3, "", is_limited=False)
    cut = extract_recording(convert(made.content(len(made.events) // 2)), 0)
    rules = rules_of(settings, "cuda", cut.torch_version)
    limits: dict[str, Any] = {"limit_bytes": None, "device_bytes": None, "with_curve": True}
    # WHEN other settings are simulated
    done = simulate(cut.requests, rules, **limits)
    # THEN settings that make the same segments start with the recorded ones
    assert begins_as_recorded(cut.requests, rules) == keeps
    assert done.reserved_bytes is not None
    older = cut.requests.older_blocks
    at_first = int(cut.history.usage.reserved_bytes[0])
    assert (done.reserved_bytes[older - 1] == at_first) == keeps
    # AND others with an empty cache, in which the older blocks are allocated
    empty = simulate(replace(cut.requests, start=None), rules, **limits)
    assert empty.reserved_bytes is not None
    assert np.array_equal(done.reserved_bytes, empty.reserved_bytes) != keeps


def test_a_start_that_is_larger_than_the_device_fails() -> None:
    made = recorded(1, "", is_limited=False)
    cut = extract_recording(convert(made.content(len(made.events) // 2)), 0)
    in_use = int(cut.history.usage.active_bytes[0])
    rules = own_rules(cut)
    done = simulate(cut.requests, rules, limit_bytes=None, device_bytes=in_use - MIB)
    assert done.failed_request == 0


@pytest.mark.parametrize("seed", range(30))
def test_any_start_is_used_or_refused(seed: int) -> None:
    # GIVEN a start with a value that no file has
    rng = np.random.default_rng(seed)
    made = recorded(seed, SETTINGS[seed % 2], is_limited=False)
    cut = extract_recording(convert(made.content(len(made.events) // 2)), 0)
    start = cut.requests.start
    assert start is not None
    columns = [name for name, values in vars(start).items() if isinstance(values, np.ndarray)]
    name = columns[int(rng.integers(len(columns)))]
    column = getattr(start, name).copy()
    value = int(rng.choice([-(2**62), -1, 0, 1, 511, 2**40, 2**62, 2**63 - 1]))
    column[int(rng.integers(len(column)))] = value
    # WHEN it is simulated, THEN it is used, or refused by an error that says so
    changed = replace(cut.requests, start=replace(start, **{name: column}))
    refusal = None
    try:
        limits: dict[str, Any] = {"limit_bytes": None, "device_bytes": 2**36, "with_curve": True}
        done = simulate(changed, own_rules(cut), **limits)
        assert done.reserved_bytes is not None
        assert done.peak_reserved_bytes >= done.reserved_bytes.max()
    except ValueError as error:
        refusal = str(error)
    assert refusal is None or "the memory at the start" in refusal


def test_columns_of_other_lengths_are_refused() -> None:
    made = recorded(1, "", is_limited=False)
    requests = extract_recording(convert(made.content(100)), 0).requests
    start = requests.start
    assert start is not None
    wrong = replace(start, stream=start.stream[:-1])
    with pytest.raises(ValueError, match="different lengths"):
        simulate(
            replace(requests, start=wrong),
            rules_of("", "cuda", "2.12.1"),
            limit_bytes=None,
            device_bytes=None,
        )
