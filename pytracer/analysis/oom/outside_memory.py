"""The verdicts on memory of the device outside torch's allocator, or outside its limit."""

from collections.abc import Iterator

from pytracer.analysis.oom import kinds as reasons
from pytracer.analysis.oom.kinds import Surroundings, Verdict
from pytracer.analysis.ooms import OutOfMemory
from pytracer.analysis.usage import UsageSample
from pytracer.text import size

USUAL_CONTEXT_BYTES = 2**30
"""Memory of a process outside the allocator that is not counted: its context and its kernels.

They take several hundred MiB on current devices, and the program cannot release them.
"""

LITTLE = 0.05
"""The part of the device up to which others are no reason if the program has nearly all of it."""


def of_library(oom: OutOfMemory, sample: UsageSample, around: Surroundings) -> Verdict:
    """Return the verdict on a library that got no memory of the device."""
    unused, free = sample.reserved_bytes - sample.allocated_bytes, size(oom.device_free_bytes)
    if oom.device_free_bytes > USUAL_CONTEXT_BYTES:
        why = f"a library got no memory of the device, although {free} were free"
        return Verdict(reasons.UNKNOWN, f"{why}: {oom.library_error}.")
    _, others = _elsewhere(oom, around)
    elsewhere = held_outside(oom)
    if others is not None and others > USUAL_CONTEXT_BYTES:
        elsewhere = f" Other processes hold {size(others)} of it."
    return Verdict(
        reasons.LIBRARY,
        "a library such as cuBLAS asked the device for memory, without torch's allocator, and "
        f"{free} were free. The allocator has reserved "
        f"{size(sample.reserved_bytes)} of the device, of which {size(unused)} are not in use."
        f"{elsewhere}",
    )


def of_limit(oom: OutOfMemory) -> Iterator[Verdict]:
    """Yield the verdict on a limit of the process."""
    if oom.available_bytes < oom.device_free_bytes and oom.segment_bytes <= oom.device_free_bytes:
        unused = size(oom.device_free_bytes - oom.available_bytes)
        yield Verdict(
            reasons.LIMIT,
            f"the limit of the process (set_per_process_memory_fraction) leaves {unused} of the "
            f"device unused. Without it, the {size(oom.requested_bytes)} would have fitted.",
        )


def of_others(oom: OutOfMemory, around: Surroundings, *, is_exhausted: bool) -> Iterator[Verdict]:
    """Yield the verdict on what others hold of the device."""
    own, others = _elsewhere(oom, around)
    if oom.sample is None or own is None:
        return
    extra = max(own - USUAL_CONTEXT_BYTES, 0) + (others or 0)
    room = oom.device_free_bytes + extra
    if oom.limit_bytes is not None:
        room = min(room, oom.limit_bytes - oom.sample.reserved_bytes)
    total = oom.sample.reserved_bytes + oom.device_free_bytes + (oom.elsewhere_bytes or 0)
    # A program that has nearly all memory soon needs more than a little that others have.
    if extra <= (LITTLE * total if is_exhausted else 0) or oom.segment_bytes > room:
        return
    if others is None:
        held = (
            f"{size(own)} of the device are held outside this process's allocator. Whether by "
            "other processes or by this process's context and libraries is unknown, because the "
            "driver did not report the memory of the process"
        )
    else:
        parts = []
        if others:
            parts.append(f"other processes hold {size(others)} of the device")
        if own > USUAL_CONTEXT_BYTES or not others:
            parts.append(
                f"this process's context and libraries hold {size(own)} outside the allocator"
            )
        held = ", and ".join(parts)
    yield Verdict(
        reasons.OTHERS,
        f"{held}. Without this memory, the {size(oom.requested_bytes)} would have fitted.",
    )


def _elsewhere(oom: OutOfMemory, around: Surroundings) -> tuple[int | None, int | None]:
    """Return the bytes outside the allocator, of this process and of other processes.

    The second number is None if the two are not known apart: then the first is their sum.
    """
    elsewhere = oom.elsewhere_bytes
    if elsewhere is None or around.outside_bytes is None or not oom.is_at_end:
        return elsewhere, None
    own = min(around.outside_bytes, elsewhere)
    return own, elsewhere - own


def held_outside(oom: OutOfMemory) -> str:
    """Return a sentence about the memory outside the allocator; "" if there is none."""
    if oom.elsewhere_bytes is None:
        return " How much of the device is held outside the allocator is unknown."
    if oom.elsewhere_bytes == 0:
        return ""
    held = size(oom.elsewhere_bytes)
    return f" {held} of the device are held outside this process's allocator."
