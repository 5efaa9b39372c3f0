"""Which settings a recorded program needs, as one answer with its reasons."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pytracer.analysis.requests import FAIL, Recording, extract_recording
from pytracer.analysis.suggestions import command_of
from pytracer.errors import ConfigError, PytracerError
from pytracer.experiments.comparison import Setting
from pytracer.experiments.replay_curves import deviation_of, recorded_curve
from pytracer.experiments.replay_result import Deviation, Replayed
from pytracer.experiments.simulated_replay import (
    limits_of,
    own_rules,
    simulate_setting,
    version_note,
)
from pytracer.experiments.what_if import change_requests
from pytracer.log import warn_once
from pytracer.reading.files import find
from pytracer.reading.metadata import read_number
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Snapshot
from pytracer.recommendation.answers import Facts, answer_of
from pytracer.recommendation.results import RankOutcome, Recommendation
from pytracer.recommendation.search import Search, Tried, best_of, is_tight, needed_bytes
from pytracer.settings.hazards import known_hazards

Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class _Loaded:
    """A file that can be simulated.

    Attributes:
        snapshot: The snapshot.
        recording: The recording of its device.
        changed: The recording with the requests to simulate.
        what_if: A sentence about each change of the requests.
    """

    snapshot: Snapshot
    recording: Recording
    changed: Recording
    what_if: list[str]

    @property
    def rank(self) -> int | None:
        return read_number(self.snapshot.metadata, "rank")

    def search(self, capacity_bytes: int | None) -> Search:
        name = self.recording.own_name
        return Search(self.changed, limits_of(self.recording, capacity_bytes), name)

    def simulated_own(self, capacity_bytes: int | None) -> Tried:
        own_rules(self.recording)  # raises the error that explains
        return self.search(capacity_bytes).own()


def recommend(
    path: str | os.PathLike[str],
    *,
    capacity_bytes: int | None = None,
    device: int | None = None,
    without: Sequence[str] = (),
    scale: Sequence[str] = (),
    on_progress: Progress = lambda _: None,
) -> Recommendation:
    """Return the allocator settings that a recorded program needs.

    Args:
        path: A snapshot, or a directory of the snapshots of a job's ranks. The worst rank decides:
            the first that does not fit, or else the one with the highest peak of reserved bytes.
        capacity_bytes: How much the allocator can reserve; None: as much as in the recording.
        device: The device's index in the file; None: the accelerator with most events.
        without: Call sites and categories whose allocations are left out (see `change_requests`).
        scale: The same with a factor for their sizes, as in "model.py:12=0.5".
        on_progress: Called with what is being done.

    Raises:
        PytracerError: No file can be simulated (see `extract_recording`).
        ConfigError: `without` or `scale` match no allocation.
    """
    (found,) = recommend_sweep(
        path,
        [capacity_bytes],
        device=device,
        without=without,
        scale=scale,
        on_progress=on_progress,
    )
    return found


def recommend_sweep(
    path: str | os.PathLike[str],
    capacities: Sequence[int | None],
    *,
    device: int | None = None,
    without: Sequence[str] = (),
    scale: Sequence[str] = (),
    on_progress: Progress = lambda _: None,
) -> list[Recommendation]:
    """Return a recommendation for each capacity; the arguments are those of `recommend`."""
    for capacity in capacities:
        if capacity is not None and capacity <= 0:
            raise ConfigError(f"capacity_bytes={capacity}: give more than 0, or None")

    def loaded(file: Path) -> _Loaded:
        on_progress(f"Reading {file}")
        snapshot = load(os.fspath(file))
        recording = extract_recording(snapshot, device)
        return _Loaded(snapshot, recording, *change_requests(snapshot, recording, without, scale))

    files = find([Path(path)], lambda error: warn_once(str(error)))
    if len(files) == 1:
        one = loaded(files[0])
        return [_of_file(one, capacity, on_progress) for capacity in capacities]
    return [_of_directory(files, loaded, capacity, on_progress) for capacity in capacities]


def _of_directory(
    files: Sequence[Path],
    loaded: Callable[[Path], _Loaded],
    capacity_bytes: int | None,
    on_progress: Progress,
) -> Recommendation:
    """Return the recommendation for the worst file, and check it with all others.

    Only one file is in memory at a time.
    """
    ranks, errors, orders = [], [], []
    for file in files:
        try:
            one = loaded(file)
            own = one.simulated_own(capacity_bytes)
        except ConfigError:
            raise
        except PytracerError as error:
            errors.append(f"Not judged: {error}")
            continue
        limit = one.recording.limit_bytes if capacity_bytes is None else capacity_bytes
        orders.append((own.result.fits, -own.result.peak_reserved_bytes / (limit or 1)))
        ranks.append(RankOutcome(os.fspath(file), one.rank, own.result, None))
    if not ranks:
        raise PytracerError(f"no file can be simulated: {errors[0]}")
    worst = min(range(len(ranks)), key=orders.__getitem__)
    found = _of_file(loaded(Path(ranks[worst].path)), capacity_bytes, on_progress)
    notes = [*errors]
    if found.recommended is not None:
        for i, rank in enumerate(ranks):
            if i == worst:
                ranks[i] = replace(rank, recommended=found.recommended)
                continue
            one = loaded(Path(rank.path))
            tried = one.search(capacity_bytes).of_settings(
                found.recommended.settings, found.recommended.name
            )
            ranks[i] = replace(rank, recommended=tried.result)
            if not tried.result.fits:
                notes.append(f"{rank.path}: does not fit with the recommended settings.")
    which = found.path if found.rank is None else f"rank {found.rank} ({found.path})"
    notes.insert(0, f"The worst of {len(ranks)} files decides: {which}.")
    return replace(found, ranks=ranks, notes=[*notes, *found.notes])


def _of_file(one: _Loaded, capacity_bytes: int | None, on_progress: Progress) -> Recommendation:
    recording, changed = one.recording, one.changed
    on_progress("Simulating the recording's own settings")
    reference, deviation = _reference(recording)
    search = one.search(capacity_bytes)
    own = search.own()
    others = search.others(own, lambda count: on_progress(f"Simulated {count} settings"))
    on_progress("Searching the smallest devices")
    own, best, ranked = _measured(search, own, others)
    limit_bytes = recording.limit_bytes if capacity_bytes is None else capacity_bytes
    facts = Facts(
        recording=recording,
        capacity_bytes=limit_bytes,
        needed_bytes=needed_bytes(changed.requests),
        own=own.result,
        best=best.result,
        settings=len(ranked),
        deviation=deviation,
        why_unknown=_why_unknown(recording, reference, deviation),
        is_estimate=bool(one.what_if),
    )
    answer = answer_of(facts)
    version, backend = recording.torch_version, recording.backend
    hazards: list[str] = []
    command = ""
    if answer.is_change:
        command = command_of(best.result.settings, backend, version, recording.settings)
        files = [one.snapshot.strings[i] for i in np.unique(one.snapshot.stacks.filename)]
        has_pools = recording.requests.pools > 1
        if (
            best.choice.get("expandable_segments")
            == "True"
            != own.choice.get("expandable_segments")
        ):
            hazards = known_hazards(backend, version, files, has_pools)
    notes = [*one.what_if, *answer.notes]
    if (note := version_note(recording)) is not None:
        notes.append(note)
    if changed.requests.pools > 1 or not recording.starts_empty:
        notes += _limits_of_the_trace(recording)
    return Recommendation(
        path=one.snapshot.path,
        rank=one.rank,
        device=recording.name,
        torch_version=version,
        capacity_bytes=limit_bytes,
        requests=len(changed.requests),
        kind=answer.kind,
        answer=answer.text,
        command=command,
        why=answer.why,
        needed_bytes=facts.needed_bytes,
        deviation=deviation,
        own=own.result,
        recommended=best.result if answer.is_change else None,
        tried=[tried.result for tried in ranked],
        ranks=[],
        hazards=hazards,
        notes=notes,
        is_estimate=bool(one.what_if),
    )


def _reference(recording: Recording) -> tuple[Replayed, Deviation]:
    """Simulate a recording under its own settings and limit, and compare the two."""
    setting = Setting("own settings", recording.settings)
    reference = simulate_setting(setting, recording, own_rules(recording), limits_of(recording))
    return reference, deviation_of(recording, recorded_curve(recording), reference)


LARGE = 0.05
"""The deviation of the peaks from which there is no answer, as a share of the recording's peak."""


def _why_unknown(recording: Recording, reference: Replayed, deviation: Deviation) -> str | None:
    """Return why a recording says nothing about other settings; None if it does."""
    if reference.failed_event is not None:
        return (
            "the simulation of the recording's own settings runs out of memory where the recording "
            "did not"
        )
    failed = int(np.count_nonzero(recording.requests.kind == FAIL))
    if reference.fitted and recording.limit_bytes is not None:
        return (
            f"of {failed} allocations that failed in the recording, {reference.fitted} find memory "
            "in the simulation of its own settings, so that the real limit is unknown"
        )
    if abs(deviation.peak_share) > LARGE:
        return (
            "the simulation of the recording's own settings differs from the recording by "
            f"{abs(deviation.peak_share):.0%} at the peak".replace("%", " %")
        )
    return None


def _measured(search: Search, own: Tried, others: list[Tried]) -> tuple[Tried, Tried, list[Tried]]:
    """Return the recording's own settings, the best, and all, with the devices of the best."""
    (own,) = search.with_smallest_device([own])
    everything = [own, *others]
    fitting = [tried for tried in everything if tried.result.fits]
    if is_tight(own) and fitting:
        measured = search.least_needing(fitting)
        best = best_of(own, measured)
    else:
        best = best_of(own, everything)
        measured = search.with_smallest_device([] if best is own else [best])
        best = measured[0] if measured else own
    by_name = {tried.result.name: tried for tried in [*everything, *measured, own]}
    ranked = sorted(by_name.values(), key=lambda tried: (tried is not best, tried.rank))
    return own, best, ranked


def _limits_of_the_trace(recording: Recording) -> list[str]:
    notes = []
    if recording.requests.older_blocks:
        notes.append(
            f"{recording.requests.older_blocks:,} blocks are older than the trace. The simulation "
            "allocates them first. What was cached before the trace is unknown."
        )
    if recording.were_changed:
        notes.append(
            "The setting of expandable segments was changed while the program ran. A simulation "
            "has one setting throughout."
        )
    return notes
