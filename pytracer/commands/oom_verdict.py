"""Explain why memory ran out, and what to try."""

from pytracer.analysis.ooms import OutOfMemory
from pytracer.analysis.report import Report
from pytracer.text import size


def oom_verdict(report: Report, oom: OutOfMemory) -> str:
    """Return why an allocation failed and what to try; "": the file lacks the numbers."""
    free, available = oom.free_in_segments_bytes, oom.available_bytes
    if free is None or oom.fits_if_joined is None:
        return ""
    request = f"The request of {size(oom.requested_bytes)}"
    total = (
        f"{size(available + free)} ({size(available)} on the device and {size(free)} in segments)"
    )
    replay = '"pytracer replay FILE" tests settings.'
    if oom.requested_bytes <= available:
        return (
            f"{request} is not larger than the {size(available)} that were free on the device. A "
            "limit of the process (set_per_process_memory_fraction), or the size of the segment "
            f"that the allocator takes for it, prevented the allocation. {replay}"
        )
    if oom.fits_in_largest_block:
        return (
            f"A free block was large enough for the request of {size(oom.requested_bytes)}, but it "
            "belongs to another stream, to another memory pool, such as a CUDA graph's, or to the "
            f"segments for blocks of other sizes. Free or reuse the memory of that pool. {replay}"
        )
    if oom.fits_if_joined:
        expands = report.allocator_settings.get("expandable_segments") is True
        probably = "" if oom.is_one_pool else "probably "
        pools = "" if oom.is_one_pool else ", or in other streams or memory pools"
        advice = "expandable_segments:True is set" if expands else "Try expandable_segments:True"
        return (
            f"Memory is {probably}fragmented. {size(oom.requested_bytes)} were requested; {total} "
            f"are free, but not in one piece{pools}. {advice}; {replay}"
        )
    verdict = f"{request} is larger than all free memory, {total}, together."
    if available < oom.device_free_bytes:
        unused = size(oom.device_free_bytes - available)
        return (
            f"{verdict} The limit of the process (set_per_process_memory_fraction) leaves {unused} "
            "of the device unused. Raise it, or hold less."
        )
    if oom.elsewhere_bytes is not None and oom.elsewhere_bytes >= oom.requested_bytes:
        return (
            f"{verdict} {size(oom.elsewhere_bytes)} are held outside this process's allocator: "
            "look for other processes on the device, and for libraries that hold memory."
        )
    return (
        f"{verdict} The program must hold less. Settings that round sizes up may cost memory too."
    )
