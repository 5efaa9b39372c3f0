"""Which settings a recorded program needs, as one answer with its reasons."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pytracer.analysis.device_data import DeviceData, device_data
from pytracer.analysis.explanation import explain_device
from pytracer.analysis.oom.trials import longest_lasting
from pytracer.analysis.requests import Recording, extract_recording
from pytracer.errors import ConfigError, PytracerError
from pytracer.log import warn_once
from pytracer.reading.files import find
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Snapshot
from pytracer.recommendation.results import (
    RankOutcome,
    Recommendation,
    TriedSetting,
    answered,
    ran_out,
    reason_first,
)
from pytracer.recommendation.search import (
    COLLECTION,
    Search,
    best_of,
    is_tight,
    name_of,
    needed_bytes,
    placement,
)
from pytracer.simulator.deviation import Reference, reference_of
from pytracer.simulator.simulate import begins_as_recorded, limits_of, rules_under, version_note
from pytracer.simulator.trials import SimulatedOom, try_settings
from pytracer.text import number, size

Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class _Loaded:
    """A file that can be simulated."""

    snapshot: Snapshot
    recording: Recording
    given_bytes: int | None  # the capacity to simulate; None: as much as in the recording

    @property
    def capacity_bytes(self) -> int | None:
        return self.recording.limit_bytes if self.given_bytes is None else self.given_bytes

    @cached_property
    def data(self) -> DeviceData:
        return device_data(self.snapshot, self.recording.device)

    @cached_property
    def simulation(self) -> SimulatedOom | None:
        return try_settings(self.data)

    @cached_property
    def whole(self) -> Recording:
        """The recording, with the rest of the step in which memory ran out."""
        return self.recording if self.simulation is None else self.simulation.recording()

    def search(self) -> Search:
        return Search(self.whole, limits_of(self.recording, self.given_bytes))

    def reference(self) -> Reference:
        return reference_of(self.recording, self.given_bytes)


def recommend(
    path: str | os.PathLike[str],
    *,
    settings: Sequence[str] = (),
    capacity_bytes: int | None = None,
    device: int | None = None,
    on_progress: Progress = lambda _: None,
) -> Recommendation:
    """Return the allocator settings that a recorded program needs.

    Args:
        path: A snapshot, or a directory of the snapshots of a job's ranks. The worst rank decides:
            one that ran out of memory, and does not in the simulation; or else the first that does
            not fit, or the one with the highest peak of reserved bytes.
        settings: Changes of the recording's settings, such as "expandable_segments:True", which are
            compared with the recording's own settings, and no others; (): many are searched.
        capacity_bytes: How much the allocator can reserve; None: as much as in the recording.
        device: The device's index in the file; None: the accelerator with most events.
        on_progress: Called with what is being done.

    Raises:
        PytracerError: No file can be simulated (see `extract_recording`).
        ConfigError: A setting is malformed or refused.
    """
    if capacity_bytes is not None and capacity_bytes <= 0:
        raise ConfigError(f"capacity_bytes={capacity_bytes}: give more than 0, or None")
    if isinstance(settings, str):
        raise ConfigError(f"settings={settings!r}: give a list of the settings to compare")
    if not all(change.strip() for change in settings):
        raise ConfigError(
            "a setting is empty: give NAME:VALUE; the recording's own settings are simulated anyway"
        )
    given = list(dict.fromkeys(settings))

    def loaded(file: Path) -> _Loaded:
        on_progress(f"Reading {file}")
        snapshot = load(os.fspath(file))
        return _Loaded(snapshot, extract_recording(snapshot, device), capacity_bytes)

    files = find([Path(path)], lambda error: warn_once(str(error)))
    if len(files) == 1:
        return _of_file(loaded(files[0]), given, on_progress)
    return _of_directory(files, loaded, given, on_progress)


def recommend_sweep(
    path: str | os.PathLike[str], capacities: Sequence[int | None], **options: Any
) -> list[Recommendation]:
    """Return a recommendation for each capacity; `options` are the others of `recommend`."""
    return [recommend(path, capacity_bytes=capacity, **options) for capacity in capacities]


def _of_directory(
    files: Sequence[Path],
    loaded: Callable[[Path], _Loaded],
    given: list[str],
    on_progress: Progress,
) -> Recommendation:
    """Return the recommendation for the worst file, and check it with all others.

    Only one file is in memory at a time.
    """
    ranks, errors, orders = [], [], []
    for file in files:
        try:
            one = loaded(file)
            reference, own = one.reference(), one.search().own()
        except ConfigError:
            raise
        except PytracerError as error:
            errors.append(f"Not judged: {error}")
            continue
        # A rank that ran out of memory, but not in the simulation, leaves no answer to the job.
        is_clear = reference.why_unknown is None or not ran_out(one.recording)
        orders.append((is_clear, own.fits, -own.peak_reserved_bytes / (one.capacity_bytes or 1)))
        its_rank, why = one.snapshot.metadata.rank, reference.why_unknown
        ranks.append(RankOutcome(os.fspath(file), its_rank, own, why, None))
    if not ranks:
        raise PytracerError(f"no file can be simulated: {errors[0]}")
    worst = min(range(len(ranks)), key=orders.__getitem__)
    found = _of_file(loaded(Path(ranks[worst].path)), given, on_progress)
    which = found.path if found.rank is None else f"rank {found.rank} ({found.path})"
    notes = [f"The worst of {len(ranks)} files counts: {which}.", *errors]
    if (best := found.recommended) is not None:
        for i, rank in enumerate(ranks):
            if i == worst:
                ranks[i] = replace(rank, recommended=best)
            elif rank.why_unknown is None:
                search = loaded(Path(rank.path)).search()
                tried = search.of_settings(best.settings, best.name)
                ranks[i] = replace(rank, recommended=tried)
                if not tried.fits:
                    notes.append(f"{rank.path}: does not fit with the recommended settings.")
    return replace(found, ranks=ranks, notes=[*notes, *found.notes])


def _of_file(one: _Loaded, given: list[str], on_progress: Progress) -> Recommendation:
    recording, notes = one.recording, list[str]()
    on_progress("Simulating the recording's own settings")
    reference, search = one.reference(), one.search()
    own = search.own()
    if given:
        others = search.given(given)
    else:
        others = search.others(own, lambda count: on_progress(f"Simulated {count} settings"))
    on_progress("Searching the smallest devices")
    own, best, ranked = _measured(search, own, others, measure_all=bool(given))
    if one.given_bytes is None and not given:
        advised = _advised_after_oom(one, search, best)
        notes += _why_not_best(advised, best)
        best = advised
        ranked = [
            best,
            *(tried for tried in ranked if placement(tried.settings) != placement(best.settings)),
        ]
    found = Recommendation(
        path=one.snapshot.path,
        rank=one.snapshot.metadata.rank,
        device=recording.name,
        torch_version=recording.torch_version,
        capacity_bytes=one.capacity_bytes,
        requests=len(recording.requests),
        kind="",
        answer="",
        command="",
        why="",
        needed_bytes=needed_bytes(one.whole.requests),
        deviation=reference.deviation,
        own=own,
        recommended=None,
        settings=given,
        tried=ranked,
        ranks=[],
        notes=notes,
    )
    like = "" if one.simulation is None else one.simulation.like
    recorded_bytes = needed_bytes(recording.requests)
    found = answered(found, best, recording, reference.why_unknown, like, recorded_bytes)
    if not given:
        found = reason_first(found, explain_device(one.data, lambda _: one.simulation))
    simulated = [own] if best is own else [own, best]
    notes = [*found.notes, *_notes(recording, ranked if given else simulated)]
    if given:
        notes += _notes_of_given((t for t in found.tried if t is not own), recording)
    if (note := version_note(recording)) is not None:
        notes.append(note)
    return replace(found, notes=notes)


def _measured(
    search: Search, own: TriedSetting, others: list[TriedSetting], *, measure_all: bool
) -> tuple[TriedSetting, TriedSetting, list[TriedSetting]]:
    own, *given = search.with_smallest_device([own, *(others if measure_all else [])])
    everything = [own, *(given or others)]
    fitting = [tried for tried in everything if tried.fits]
    if measure_all:
        measured = given
        best = best_of(own, everything)
    elif is_tight(own) and fitting:
        measured = search.least_needing(fitting)
        best = best_of(own, measured)
    else:
        best = best_of(own, everything)
        measured = search.with_smallest_device([] if best is own else [best])
        best = measured[0] if measured else own
    by_name = {tried.name: tried for tried in [*everything, *measured, own]}
    ranked = sorted(by_name.values(), key=lambda tried: (tried is not best, tried.rank))
    return own, best, ranked


def _advised_after_oom(one: _Loaded, search: Search, best: TriedSetting) -> TriedSetting:
    """Return the settings that an explanation of the same out-of-memory names, or else the best.

    All answers to one question name the same settings, also those that simulate few settings.
    """
    fitting = None if one.simulation is None else longest_lasting(one.simulation.trials)
    if fitting is None or placement(fitting.settings) == placement(best.settings):
        return best
    name = name_of(placement(fitting.settings))
    (tried,) = search.with_smallest_device([search.of_settings(fitting.settings, name)])
    return tried


def _why_not_best(advised: TriedSetting, best: TriedSetting) -> list[str]:
    least, needed = best.smallest_device_bytes, advised.smallest_device_bytes
    if least is None or needed is None or least >= needed:
        return []
    return [
        f"With {best.name}, a device of {size(least)} would be enough, instead of {size(needed)}."
    ]


def _names(simulated: list[TriedSetting]) -> str:
    return " and of ".join(one.name for one in simulated)


def _notes(recording: Recording, simulated: list[TriedSetting]) -> Iterator[str]:
    """Yield how the simulations start, and what makes them inexact, in sentences."""
    requests = recording.requests
    if requests.start is not None or requests.older_blocks:
        blocks = number(requests.older_blocks, "block")
        kept = [
            one
            for one in simulated
            if begins_as_recorded(requests, rules_under(one.settings, recording))
        ]
        others = [one for one in simulated if one not in kept]
        if kept:
            yield (
                f"The simulation of {_names(kept)} starts at the first recorded event, with the "
                f"segments of that moment and {blocks} allocated earlier."
            )
        if others:
            yield (
                f"The simulation of {_names(others)} starts with an empty cache. First, it "
                f"allocates {blocks} from before the trace, whose segments are unknown."
            )
    if recording.were_changed:
        yield (
            "The setting of expandable segments was changed while the program ran. A simulation "
            "has one setting throughout."
        )
    if requests.given_back:
        yield (
            f"The allocator gave memory back {number(requests.given_back, 'time')} just before "
            "it took more. The memory limit is unknown, so the simulation assumes that this was "
            "empty_cache(), not a lack of memory. Give --capacity if you know the limit."
        )


def _notes_of_given(others: Iterable[TriedSetting], recording: Recording) -> Iterator[str]:
    """Yield what the rows of given settings do not show, in sentences."""
    for tried in others:
        if tried.failed_event is not None:
            when = f"at event {tried.failed_event:,}"
            if tried.failed_event < 0:
                when = "for blocks that are older than the trace"
            yield f"{tried.name}: out of memory {when}, for {size(tried.failed_bytes or 0)}."
        if COLLECTION in tried.settings and recording.fraction_bytes is None:
            yield (
                f"{tried.name}: {COLLECTION} has no effect without a memory fraction, and the "
                "recording has none."
            )
