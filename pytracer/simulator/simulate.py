"""Simulates an allocator that serves the requests of a program, or of its recording."""

from dataclasses import asdict, dataclass

from pytracer.analysis.allocator_rules import UNLIMITED
from pytracer.analysis.requests import REQUEST_COLUMNS, Recording, Requests
from pytracer.errors import ConfigError, PytracerError
from pytracer.reading import _reader
from pytracer.reading.snapshot import Column
from pytracer.simulator.rules import AllocatorRules, is_checked, makes_same_segments, rules_of


@dataclass(frozen=True, eq=False)
class Simulated:
    """How an allocator served requests, until one of them found no memory."""

    peak_reserved_bytes: int  # the most that was reserved at any time
    # The allocated bytes when the reserved bytes first had their peak. Blocks have their rounded
    # sizes; a block that was left (`LEAVE`) does not count.
    allocated_at_peak_bytes: int
    # The calls to the device; `maps` and `unmaps` are those of expandable segments, each of one
    # range of pages.
    device_allocs: int
    device_frees: int
    maps: int
    unmaps: int
    retries: int  # how often the cache was given back in order to allocate
    # The first `ALLOCATE` that found no memory; None: none. The requests after it were not made.
    failed_request: int | None
    fitted: int  # the number of `FAIL` that found memory. It was freed again
    oom_requests: Column  # int64, the `ALLOCATE` and `FAIL` that found no memory
    # int64, the values after each request, where asked for.
    reserved_bytes: Column | None = None
    allocated_bytes: Column | None = None

    @property
    def ooms(self) -> int:
        """The number of requests that found no memory."""
        return len(self.oom_requests)


def simulate(
    requests: Requests,
    rules: AllocatorRules,
    *,
    limit_bytes: int | None,
    device_bytes: int | None,
    with_curve: bool = False,
) -> Simulated:
    """Simulate requests, in their order.

    The two limits differ. The allocator checks `limit_bytes` itself, before it asks the device: an
    expandable allocator counts the segment of a request against it, even if the request would need
    few more pages. Garbage collection works with this limit only. The device checks `device_bytes`,
    page by page. Any number of threads may call this function with the same requests.

    Args:
        requests: The requests. The size of `FAIL` is known only up to the recording's rounding,
            because CUDA's out-of-memory event has the rounded size.
        limit_bytes: The memory fraction, in bytes; None: there is none.
        device_bytes: What the device can give to this allocator; None: 1 PiB.
        with_curve: Whether to return the bytes after each request.

    Raises:
        ValueError: A request or a rule has a value that is out of range.
    """
    has_start = begins_as_recorded(requests, rules)
    kept_bytes = 0 if has_start or requests.start is None else requests.start.kept_bytes
    values = asdict(rules) | {
        "divisions": list(rules.divisions),
        "limit_bytes": UNLIMITED if limit_bytes is None else max(limit_bytes - kept_bytes, 0),
        "device_bytes": UNLIMITED if device_bytes is None else max(device_bytes - kept_bytes, 0),
        "total_bytes": 0,  # the size of the device is `device_bytes`
    }
    columns = {name: getattr(requests, name) for name in REQUEST_COLUMNS}
    start = vars(requests.start) if has_start else None
    return Simulated(
        **_reader.simulate(**columns, rules=values, with_curve=with_curve, start=start)
    )


def begins_as_recorded(requests: Requests, rules: AllocatorRules) -> bool:
    """Return whether a simulation begins with the memory that the recording had at its first event.

    Not if the allocator would have made other segments before. Then the older blocks are requested
    from an empty allocator, without the memory that private pools had free.
    """
    start = requests.start
    return start is not None and makes_same_segments(rules, start.settings)


@dataclass(frozen=True)
class Limits:
    """How much memory a simulated allocator has."""

    # The limit of the process (`set_per_process_memory_fraction`); None: none.
    fraction_bytes: int | None
    device_bytes: int | None  # what the device has for the allocator; None: more than it can use


def limits_of(recording: Recording, capacity_bytes: int | None = None) -> Limits:
    """Return the limits of a recording, or the same kind of limit with another capacity."""
    limit_bytes = recording.limit_bytes if capacity_bytes is None else capacity_bytes
    if recording.fraction_bytes is not None:
        return Limits(limit_bytes, None)
    return Limits(None, limit_bytes)


def rules_under(settings: str, recording: Recording) -> AllocatorRules:
    """Return the rules of a recording's allocator under other settings (see `rules_of`)."""
    return rules_of(settings, recording.backend, recording.torch_version)


def own_rules(recording: Recording) -> AllocatorRules:
    """Return the rules of the allocator that made a recording.

    Raises:
        PytracerError: The recording's own settings cannot be simulated.
    """
    try:
        return rules_under(recording.settings, recording)
    except ConfigError as error:
        raise PytracerError(
            f"the recording's own settings cannot be simulated: {error}. `pytracer experiment` "
            "runs the program under other settings"
        ) from error


def version_note(recording: Recording) -> str | None:
    """Return a sentence if no test has compared the simulator with the recording's allocator."""
    if is_checked(recording.backend, recording.torch_version):
        return None
    name = "torch_npu" if recording.backend == "npu" else "torch"
    if recording.torch_version is None:
        return (
            f"The file does not say which version of {name} wrote it. The simulator follows the "
            "rules of the newest version that it knows."
        )
    return (
        f"Unchecked: no test has compared the simulator with the allocator of {name} "
        f"{recording.torch_version}."
    )


def simulate_recording(
    recording: Recording, rules: AllocatorRules, limits: Limits, *, with_curve: bool = False
) -> Simulated:
    """Simulate the requests of a recording; with `with_curve`, with the usage after each.

    Raises:
        PytracerError: A request has a value that no allocator can get, as in a damaged file.
    """
    try:
        return simulate(
            recording.requests,
            rules,
            limit_bytes=limits.fraction_bytes,
            device_bytes=limits.device_bytes,
            with_curve=with_curve,
        )
    except ValueError as error:
        raise PytracerError(
            f"the requests of {recording.name} cannot be simulated: {error}"
        ) from error
