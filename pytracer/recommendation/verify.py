"""The replay of a recommendation with the real allocator of this machine's device."""

from collections.abc import Sequence
from dataclasses import replace

from pytracer.analysis.requests import extract_recording
from pytracer.errors import PytracerError
from pytracer.experiments.comparison import Setting
from pytracer.experiments.real_replay import replay_with_device
from pytracer.experiments.what_if import change_requests
from pytracer.reading.reader import load
from pytracer.recommendation.results import Recommendation, Verification


def verified(
    found: Recommendation,
    device: int | None = None,
    without: Sequence[str] = (),
    scale: Sequence[str] = (),
) -> Recommendation:
    """Return a recommendation with its verification.

    Without other settings to recommend, the recording's own settings are replayed.

    Args:
        found: The recommendation.
        device: The device's index, as given to `recommend`.
        without: The changes of the requests, as given to `recommend`.
        scale: The changes of the requests, as given to `recommend`.
    """
    tried = found.own if found.recommended is None else found.recommended
    snapshot = load(found.path)
    recording = extract_recording(snapshot, device)
    changed, _ = change_requests(snapshot, recording, without, scale)
    setting = Setting(tried.name, tried.settings)
    try:
        answers = replay_with_device(
            recording, changed, [setting], found.capacity_bytes, lambda _: None
        )
    except PytracerError as error:
        return replace(found, verification=Verification(None, None, False, str(error)))
    outcome = setting.outcomes[0]
    if outcome.failure is not None:
        failed = Verification(None, None, False, outcome.failure)
        return replace(found, verification=failed)
    same_limit = answers.limit_bytes == found.capacity_bytes
    is_equal = (outcome.peak_reserved_bytes, outcome.ooms) == (
        tried.peak_reserved_bytes,
        tried.ooms,
    )
    done = Verification(outcome.peak_reserved_bytes, outcome.ooms, is_equal and same_limit, None)
    return replace(found, verification=done)
