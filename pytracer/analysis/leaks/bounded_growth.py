"""Growth that ends by itself: of what containers keep that hold at most so many items."""

from collections.abc import Sequence

from pytracer.analysis.holder_names import bound_of, kept_by_text
from pytracer.analysis.leaks.results import Growth, Release, bytes_when_full
from pytracer.text import size


def without_bounded(
    growths: Sequence[Growth], available_bytes: int | None
) -> tuple[list[Growth], list[Release]]:
    """Return the growths that go on, and those of bounded containers as memory that is no leak.

    If the containers would not fit when they are full, theirs are growths like others.

    Args:
        available_bytes: What the process can still allocate; None if unknown.
    """
    bounded = [growth for growth in growths if bound_of(growth.kept_by)]
    more = sum(bytes_when_full(growth) - growth.held_bytes for growth in bounded)
    if available_bytes is not None and more > available_bytes:
        return list(growths), []
    releases = [
        Release(
            growth.frames,
            growth.held_bytes,
            f"it ends at about {size(bytes_when_full(growth))}, {kept_by_text(growth.kept_by)}",
        )
        for growth in bounded
        if growth.kept_by is not None
    ]
    return [growth for growth in growths if not bound_of(growth.kept_by)], releases
