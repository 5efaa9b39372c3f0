"""The verdicts on free memory that a request cannot use: of other streams and of other pools."""

from collections.abc import Iterator

from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.oom import kinds as reasons
from pytracer.analysis.oom.kinds import Surroundings, Verdict
from pytracer.analysis.ooms import OutOfMemory
from pytracer.analysis.stream_memory import idle_streams_text
from pytracer.text import size


def of_idle_streams(oom: OutOfMemory, around: Surroundings) -> Iterator[Verdict]:
    """Yield the verdict on what streams keep that are not used any more, of which one has to be."""
    found = around.of_streams
    if found is None:
        return
    others = found.size_bytes // found.streams * (found.streams - 1)
    if oom.segment_bytes <= oom.available_bytes + others:
        yield Verdict(
            reasons.STREAMS,
            f"{idle_streams_text(found)} If one stream had been used in their place, the "
            f"{size(oom.requested_bytes)} would have fitted.",
        )


def of_other_pool(oom: OutOfMemory) -> Iterator[Verdict]:
    """Yield the verdict on memory that is free in a pool that the request cannot use."""
    pool = oom.other_pool
    # Other segments of the pool cannot be given back, and have their free memory in pieces.
    if pool is None or oom.segment_bytes > oom.available_bytes + pool.segment_bytes:
        return
    by = "" if pool.call_site is None else f", which {call_site_text(pool.call_site)} filled"
    yield Verdict(
        reasons.OTHER_POOL,
        f"{size(pool.segment_bytes)} are free in the memory pool {pool.name}{by}: only what "
        f"allocates in this pool can use them. With them, the {size(oom.requested_bytes)} would "
        "have fitted.",
    )
