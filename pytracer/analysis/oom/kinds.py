"""The verdicts on an out-of-memory error, and what is known about it apart from its request."""

from dataclasses import dataclass

from pytracer.analysis.leaks.results import DeviceLeaks
from pytracer.analysis.oom.earlier_requests import EarlierRequests
from pytracer.analysis.oom.unfinished_pass import Unfinished
from pytracer.analysis.stream_memory import StreamMemory

LEAK = "leak"
GARBAGE = "garbage"
EXCEPTION = "exception"
FRAGMENTED = "fragmented"
LIMIT = "limit"
OTHERS = "others"
LIBRARY = "library"
OTHER_POOL = "other pool"
STREAMS = "idle streams"
FREED = "freed meanwhile"
LARGER_INPUT = "larger input"
REPLACED = "replaced by larger"
GROWING = "grows from step to step"
EXHAUSTED = "nearly exhausted"
TOO_LARGE = "too large"
UNKNOWN = "can't tell"

NEARLY_ALL = 0.85
"""The part of the memory that the program has allocated when it is nearly exhausted."""


@dataclass(frozen=True)
class Verdict:
    """A reason why an allocation failed.

    Attributes:
        kind: "leak": memory that is kept from step to step, and the allocation would have fitted
            without it. "garbage": objects that refer to each other keep memory that
            `gc.collect()` would free, and "exception": an exception keeps the functions that have
            failed; the allocation would have fitted without this memory. "fragmented": the
            allocation would have fitted if the free memory of its pool and of the device were one
            piece; and a step of the program had ended before, or it had had as much memory, or much
            is in pieces. "limit": a limit of the process (`set_per_process_memory_fraction`) leaves
            memory of the device unused, and the allocation would have fitted without it. "others":
            memory outside the allocator, of other processes or of libraries, and the allocation
            would have fitted without it. "library": not the allocator, but a library such as cuBLAS
            got no memory of the device.
            "freed meanwhile": a piece of its pool that fits is free, although the allocator found
            none. "other pool": the same of the free memory of another memory pool, such as a CUDA
            graph's. "idle streams": the same of streams that are not used any more.
            "nearly exhausted": the program had nearly all memory allocated, and more than
            ever before, so it may need more than this allocation. "too large": no allocator could
            have served the allocation next to the memory that the program held. In place of these
            two, and of "fragmented" and "can't tell", "larger input" if the line has requested less
            in each earlier step; "grows from step to step" if nearly each step has requested more
            than the one before; and in place of the two, "replaced by larger" if the line replaces
            its blocks by larger ones within the step. "can't tell": none of these is certain.
        text: The figures that decided, as sentences.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Surroundings:
    """What a file says about the device apart from the out-of-memory error. None means unknown.

    Attributes:
        is_cpu: Whether the device is the CPU.
        expands: Whether expandable segments were on at the end.
        outside_bytes: The bytes that the process held on the device outside the allocator.
        why_no_history: Why the usage at the out-of-memory error is unknown; None if it is known.
        leaks: The leaks until the out-of-memory error; None if there was none, or if nobody looked.
        garbage_bytes: The bytes that objects keep which `gc.collect()` would free.
        exception_bytes: The bytes that functions keep which have failed.
        fits_without_garbage, fits_without_exception: Whether the request would have found memory
            without these bytes.
        of_streams: What streams keep that are not used any more; None if it is little.
        splits_all: Whether the allocator may split free memory of any size.
        earlier: What the line of the allocation has requested before; None if it is unknown.
        progress: What was not finished; None if that is unknown.
        is_first_backward: Whether gradients are there, and no step nor states of an optimizer.
        has_step: Whether a step of the program had ended before.
    """

    is_cpu: bool
    expands: bool
    outside_bytes: int | None
    why_no_history: str | None
    leaks: DeviceLeaks | None = None
    garbage_bytes: int = 0
    exception_bytes: int = 0
    fits_without_garbage: bool | None = None
    fits_without_exception: bool | None = None
    earlier: EarlierRequests | None = None
    progress: Unfinished | None = None
    of_streams: StreamMemory | None = None
    splits_all: bool = True
    is_first_backward: bool = False
    has_step: bool = False
