"""The histories of all devices of a snapshot, with a note for each that has none."""

from pytracer.analysis.history import ContradictionError, History, replay
from pytracer.reading.snapshot import Snapshot


def replay_all(snapshot: Snapshot, missing: str) -> tuple[list[History | None], list[str]]:
    """Replay each device of a snapshot.

    Args:
        snapshot: The snapshot, as returned by `load`.
        missing: What the export lacks without a history, as in "no counters".

    Returns:
        The history of each device, or None; and a sentence for each device without one.
    """
    found: list[History | None] = []
    notes = [] if any(map(len, snapshot.traces)) else [f"{snapshot.path}: it has no events"]
    for device in range(len(snapshot.traces)):
        try:
            found.append(replay(snapshot, device))
        except ContradictionError as error:
            found.append(None)
            notes.append(f"{snapshot.path}: {missing}: {error}")
    return found, notes
