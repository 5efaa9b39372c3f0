"""The memory held at a moment, grouped by one of `KEYS`, such as the call site."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pytracer.analysis.block_categories import has_categories
from pytracer.analysis.blocks import KEYS, Blocks, Coded, held_at, numbered
from pytracer.analysis.call_sites import frame_at
from pytracer.analysis.categories import owners_of
from pytracer.analysis.device_data import DeviceData, chosen_devices, device_data, why_empty
from pytracer.analysis.holder_names import has_holders
from pytracer.analysis.moments import Moment, at_moment
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import Frame, Snapshot


@dataclass(frozen=True)
class Group:
    """The active blocks that have the same key.

    Attributes:
        frames: By "line": the call site, then its callers as far as `depth`. By "caller": the
            program's frame that called the call site, then its callers. By "stack": all frames,
            innermost first. [] for blocks without such a frame, and for other keys.
        phase: By "phase": the phase; "" for no phase, None if unknown.
        step: By "step": the step of the allocation; None if unknown.
        age: By "age": the age in steps; None if unknown.
        category: By "category" and "owner": what the blocks hold (see `CategoryUsage`).
        owner: By "owner": the name of the largest tensor in the blocks; None if none is known.
        holder: By "holder": which Python object keeps the blocks' memory, as in "cache['k'] of
            main()", or "losses[…] of main()" for several items. Of unknown blocks that no object
            keeps: "until main() returned" if they were freed before the end of the file, or "the
            pool (0, 3), first filled by main() (a.py:7)". None if none is known.
        stream: By "stream": the stream, as the allocator numbers it; None if unknown.
        pool: By "pool": the memory pool, as torch numbers it; (0, 0) is the default pool. None if
            unknown.
        module: By "module": the path of the module, as in "layers.3.attn.q_proj"; None for blocks
            whose module is unknown, or that no module allocated. "backward of PATH" has what the
            backward pass allocated for the module's forward calls. "backward near PATH" has the
            same where the forward call is that of a neighbouring autograd node.
        size_bytes: The bytes that the allocator gave the blocks.
        requested_bytes: The bytes that the program requested.
        count: The number of blocks.
    """

    size_bytes: int
    requested_bytes: int
    count: int
    frames: list[Frame] = field(default_factory=list)
    phase: str | None = None
    step: int | None = None
    age: int | None = None
    category: str | None = None
    owner: str | None = None
    holder: str | None = None
    module: str | None = None
    stream: int | None = None
    pool: tuple[int, int] | None = None


@dataclass(frozen=True)
class Held:
    """Who holds the memory of one device at one moment.

    Attributes:
        path: The file's path.
        device: The index of the device in the file.
        name: The name of the device, as in "cuda:0".
        moment: The moment.
        is_exact: Whether the sizes of all blocks are known. If not, bytes are lower bounds.
        by: What the groups differ in: one of `KEYS`.
        active_bytes: The bytes of all groups.
        groups: The groups, the largest first.
    """

    path: str
    device: int
    name: str
    moment: Moment
    is_exact: bool
    by: str
    active_bytes: int
    groups: list[Group]


def who_holds(
    snapshot: Snapshot,
    device: int | None = None,
    *,
    at: str | None = None,
    by: str = "line",
    depth: int = 0,
    note: Callable[[str], object] = lambda _: None,
) -> list[Held]:
    """Return who holds memory at a moment, for each device that has such a moment.

    Args:
        snapshot: The snapshot, as returned by `load`.
        device: The index of the only device; None for all devices that were used.
        at: "oom", "peak", "end", the index of an event, or "+SECONDS" after the first event. None:
            the last out-of-memory error, or else the peak.
        by: What to group by: one of `KEYS`.
        depth: How many callers distinguish groups by "line" and "caller".
        note: Called with a sentence for each device that is left out, because it has no such
            moment, or if the file has no devices.

    Raises:
        PytracerError: The snapshot has no such device, no device has such a moment, or `by` is
            unknown.
    """
    if by not in KEYS:
        raise PytracerError(f"by={by!r} is unknown: give one of {', '.join(KEYS)}")
    chosen = chosen_devices(snapshot, device)
    if not chosen:
        note(f"{snapshot.path}: {why_empty(snapshot.metadata)}")
    devices = (device_data(snapshot, index) for index in chosen)

    def held(data: DeviceData, moment: Moment) -> Held:
        return held_by(held_at(data, moment.entry), moment, by, depth)

    return at_moment(devices, at, held, note)


def held_by(blocks: Blocks, moment: Moment, by: str, depth: int = 0) -> Held:
    """Return who holds the blocks of a moment, as by `who_holds`.

    Raises:
        PytracerError: The file lacks what `by` needs: the trace, or the owners or holders of
            blocks.
    """
    data, path = blocks.data, blocks.data.snapshot.path
    if by in ("category", "owner") and not has_categories(data.snapshot):
        raise PytracerError(f"{path} does not say who owns its blocks, so it has no {by}")
    if by == "holder" and not has_holders(data.snapshot) and not blocks["released"].any():
        raise PytracerError(f"{path} does not say which Python objects keep memory")
    if by in ("phase", "step", "age") and blocks.entry is None:
        raise PytracerError(f"{path} has only the state at the end, without {by}s")
    names: tuple[str, ...] = (by,)
    if by in ("line", "caller", "stack"):
        names, sums = ("frames",), blocks.sums(_frames(blocks, by, depth))
    elif by == "owner":
        names, sums = ("category", "owner"), owners_of(blocks)
    else:
        sums = blocks.group(by)
    return Held(
        path=path,
        device=data.device,
        name=data.snapshot.device_name(data.device),
        moment=moment,
        is_exact=moment.entry is None or data.history.uncertain_at(moment.entry) == 0,
        by=by,
        active_bytes=sum(blocks["size_bytes"].tolist()),
        groups=[Group(*one.sizes, **dict(zip(names, one.key, strict=True))) for one in sums],
    )


def _frames(blocks: Blocks, by: str, depth: int) -> Coded:
    """Return the frames that groups differ in, as far as `by` and `depth` tell."""
    stacks, chains, is_caller = blocks.stacks, blocks.data.chains, by == "caller"
    numbers: dict[tuple[int, ...], int] = {}
    used, code = numbered(blocks["stack"])
    for i, stack in enumerate(used.tolist()):
        if by == "stack":
            frames = stacks.frame[stacks.offsets[stack] : stacks.offsets[stack + 1]].tolist()
        else:
            frames = [int(chains.sites[stack]), *chains.callers(stack)][is_caller:][: depth + 1]
        used[i] = numbers.setdefault(tuple(frames), len(numbers))
    found = ([frame_at(stacks, index) for index in key] for key in numbers)
    return Coded([[*filter(None, frames)] for frames in found], used[code])
