"""Which allocator settings a recorded program needs, by simulation.

    from pytracer.recommendation import recommend

    found = recommend("snapshot.pickle", capacity_bytes=80 << 30)
    print(found.answer, found.command)

Nothing here needs torch or a device. The names are imported when they are used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytracer.recommendation.recommend import recommend, recommend_sweep
    from pytracer.recommendation.results import RankOutcome, Recommendation, TriedSetting

__all__ = ["RankOutcome", "Recommendation", "TriedSetting", "recommend", "recommend_sweep"]

_HOMES = {
    "RankOutcome": "results",
    "Recommendation": "results",
    "TriedSetting": "results",
    "recommend": "recommend",
    "recommend_sweep": "recommend",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
