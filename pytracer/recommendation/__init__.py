"""Which allocator settings a recorded program needs, by simulation.

    from pytracer.recommendation import recommend

    found = recommend("snapshot.pickle", capacity_bytes=80 << 30)
    print(found.answer, found.command)

Nothing here needs torch or a device.
"""

from pytracer.recommendation.recommend import recommend, recommend_sweep
from pytracer.recommendation.results import RankOutcome, Recommendation, TriedSetting

__all__ = ["RankOutcome", "Recommendation", "TriedSetting", "recommend", "recommend_sweep"]
