"""Which allocator settings a recorded program needs, by simulation.

    from pytracer.recommendation import recommend

    found = recommend("snapshot.pickle", capacity_bytes=80 << 30)
    print(found.answer, found.command)

Nothing here needs torch or a device.
"""

from pytracer.recommendation.answers import RankOutcome, Recommendation, TriedSetting
from pytracer.recommendation.recommend import recommend, recommend_sweep

__all__ = ["RankOutcome", "Recommendation", "TriedSetting", "recommend", "recommend_sweep"]
