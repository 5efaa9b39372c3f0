"""A part of a program in which Python collects no garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage before, and none inside: two runs shall free at the same moments."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
