"""The lines of the program that held memory at an entry of a history.

A block counts from its allocation until its memory can serve another one (`free_completed`), as in
memory_viz's timeline: the bytes of all call sites add up to the entry's `active_bytes`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pytracer.analysis.history import History
from pytracer.analysis.program_files import ProgramFiles, program_files
from pytracer.reading.snapshot import INACTIVE, PENDING_FREE, Column, Frame, Snapshot, Stacks

# Files of C and C++ frames, as torch's recorder names them: an unknown file, a source file, a
# library, the interpreter's executable. The names of C++ functions are recognised as well.
_NATIVE_FILE = re.compile(
    r"(?:\?\?)?"
    r"|.*\.(?:c|cc|cpp|cxx|cu|cuh|h|hh|hpp|inl|S|dll|dylib|pyd|so(?:\.\d+)*)"
    r"|.*[/\\]include[/\\](?!.*\.py$).*"
    r"|(?:.*/)?python[\d.]*",
    re.DOTALL,
)
_NATIVE_NAME = re.compile(r"\?\?|.*(?:::|\().*", re.DOTALL)

# The most informative frame of a stack without Python frames, as on autograd's threads: the node of
# the backward, or the operator that was called.
_NODE = re.compile(r"::\w+Backward\d*::apply\(")
_OPERATOR = re.compile(r"\bat::_ops::(?!empty)\w+::(?:call|redispatch)\(")

# The frames of torch's recorder and of the allocator, which are innermost in each C++ stack, and
# frames without a name.
_RECORDER = re.compile(
    r"^\?\?$|^torch::unwind::|CapturedTraceback|gather(?:_with_cpp|Context)|CachingAllocator|"
    r"c10::(?:alloc_cpu|StorageImpl)"
)
# The Python function of torch that calls autograd's engine, which runs nodes on the same thread.
_ENGINE = re.compile("_engine_run_backward")

UNKNOWN = -1
"""The call site of an empty stack."""


@dataclass(frozen=True)
class Site:
    """The active blocks that one line of the program allocated.

    Attributes:
        call_site: The program's line (docs/reference/report.md has the rule); None for blocks whose
            stack is not in the snapshot (older than the trace, or recorded without stacks).
        size_bytes: The bytes that the allocator gave the blocks.
        requested_bytes: The bytes that the program requested.
        pending_bytes: The part of `size_bytes` in blocks that the program has freed, but that a
            stream still uses. These bytes count in `active_bytes`, not in `allocated_bytes`.
        count: The number of blocks.
        frames: The complete stack, innermost frame first. If several stacks have this call site,
            the stack that holds most bytes.
    """

    call_site: Frame | None
    size_bytes: int
    requested_bytes: int
    pending_bytes: int
    count: int
    frames: tuple[Frame, ...]


def call_sites(stacks: Stacks) -> Column:
    """Find the call site of each distinct stack.

    The call site is the innermost frame of the program: a Python frame outside torch's packages,
    the code that torch generates, and the standard library. In a stack without such a frame, the
    call site is the innermost Python frame. In a stack of C++ frames only, it is the innermost node
    of autograd, else the innermost operator of torch, else the innermost frame that has a name
    and is neither of torch's recorder nor of the allocator, else the innermost frame.

    Where a node of autograd has made an allocation, and no Python code that the node runs, the call
    site is that of the forward call that made the node, and names the node.

    Returns:
        int64, for each stack a number for `frame_at`, or `UNKNOWN`.
    """
    is_pythons = is_python(stacks)
    begin, end = stacks.offsets[:-1], stacks.offsets[1:]
    innermost = begin
    is_operator, is_node = (
        frames_matching(pattern.search, stacks, "name") for pattern in (_OPERATOR, _NODE)
    )
    is_users = ~frames_matching(_RECORDER.search, stacks, "name")
    # The last match wins.
    for is_wanted in (is_users, is_operator, is_node, is_pythons, is_programs(stacks)):
        wanted = np.flatnonzero(is_wanted[stacks.frame])
        # The next wanted frame after the beginning of each stack; it may be in a later stack.
        following = np.append(wanted, len(stacks.frame))[np.searchsorted(wanted, begin)]
        innermost = np.where(following < end, following, innermost)
    frames = np.append(stacks.frame.astype(np.int64), UNKNOWN)
    sites = np.where(begin < end, frames[innermost], UNKNOWN)
    python = np.flatnonzero(is_pythons[stacks.frame])
    following = np.append(python, len(stacks.frame))[np.searchsorted(python, begin)]
    is_engine = np.append(frames_matching(_ENGINE.fullmatch, stacks, "name")[stacks.frame], False)
    is_made_by_node = (following >= end) | is_engine[following]
    is_backward = ((stacks.forward != 0) | (stacks.node != 0)) & is_made_by_node
    return np.where(is_backward, _backward_sites(stacks, sites[stacks.forward]), sites)


def _backward_sites(stacks: Stacks, forward_sites: Column) -> Column:
    """Return numbers from `len(stacks.line)` on, of which `frame_at` makes frames.

    Each number has three parts: a frame or none, a node, and whether the frame is exact.
    """
    parts = 2 * stacks.node.astype(np.int64) + stacks.is_exact
    return (parts + 1) * (len(stacks.line) + 1) + forward_sites


def is_programs(stacks: Stacks) -> Column:
    """Return for each distinct frame whether it is a Python frame of the program: bool."""
    files = program_files(stacks)
    found: Column = is_python(stacks) & frames_matching(files.__contains__, stacks, "filename")
    return found


def is_python(stacks: Stacks) -> Column:
    """Return for each distinct frame whether it is one of Python: bool."""
    found: Column = ~(
        frames_matching(_NATIVE_FILE.fullmatch, stacks, "filename")
        | frames_matching(_NATIVE_NAME.fullmatch, stacks, "name")
    )
    return found


def callers(files: ProgramFiles, frames: tuple[Frame, ...], call_site: Frame | None) -> list[Frame]:
    """Return the program's frames that called a call site, innermost first.

    Args:
        files: The program's source files.
        frames: The stack, innermost frame first.
        call_site: The stack's call site.
    """
    if call_site not in frames:
        return []
    return [
        frame
        for frame in frames[frames.index(call_site) + 1 :]
        if not _NATIVE_FILE.fullmatch(frame.filename)
        and not _NATIVE_NAME.fullmatch(frame.name)
        and frame.filename in files
    ]


def frames_matching(
    matches: Callable[[str], object], stacks: Stacks, text: Literal["filename", "name"]
) -> Column:
    """Return for each distinct frame whether its filename or name matches: bool."""
    column = stacks.filename if text == "filename" else stacks.name
    is_match = np.zeros(len(stacks.strings), bool)
    for index in np.unique(column).tolist():
        is_match[index] = bool(matches(stacks.strings[index]))
    found: Column = is_match[column]
    return found


def frame_at(stacks: Stacks, index: int) -> Frame | None:
    """Return the frame of a number of `call_sites`; None for `UNKNOWN`.

    The name in a frame of the backward pass is "backward of FUNCTION (NODE)", or "backward near
    FUNCTION (NODE)" if only a neighbouring node's forward call is known.
    """
    if index == UNKNOWN:
        return None
    parts, frame = divmod(index + 1, len(stacks.line) + 1)
    node, is_exact = divmod(parts - 1, 2)
    of_node = f" ({stacks.strings[node]})" if parts and node else ""
    if frame == 0:
        return Frame("", f"backward{of_node}", 0)
    filename, name = (
        stacks.strings[int(column[frame - 1])] for column in (stacks.filename, stacks.name)
    )
    if parts:
        name = f"backward {'of' if is_exact else 'near'} {name}{of_node}"
    return Frame(filename, name, int(stacks.line[frame - 1]))


def callers_of(stacks: Stacks, stack: int, site: int) -> list[int]:
    """Return the frames that called a call site, innermost first: indices in `stacks`.

    In the backward pass, these are the callers of the forward call that made the node.

    Args:
        stacks: The snapshot's stacks.
        stack: One of the stacks.
        site: The stack's number in `call_sites`.
    """
    is_backward = site >= len(stacks.line)
    frame = (site + 1) % (len(stacks.line) + 1) - 1
    source = int(stacks.forward[stack]) if is_backward else stack
    inside: list[int] = stacks.frame[stacks.offsets[source] : stacks.offsets[source + 1]].tolist()
    return inside[inside.index(frame) + 1 :] if frame in inside else []


def sum_by_group(group: Column, values: Column | int, groups: int) -> Column:
    """Return the sum of the values of each group, 0 to `groups - 1`: int64, exact."""
    result = np.zeros(groups, np.int64)
    np.add.at(result, group, values)
    return result


def sum_by_key(keys: Column, *columns: Column | int) -> tuple[Column, list[Column]]:
    """Return the distinct keys, sorted, and for each column the sums of its values by key."""
    distinct, group = np.unique(keys, return_inverse=True)
    return distinct, [sum_by_group(group, values, len(distinct)) for values in columns]


def active_at(history: History, entry: int) -> Column:
    """Return for each block whether it is active at an entry of `history.usage`: bool."""
    blocks = history.blocks
    is_active: Column = (blocks.alloc_event < entry) & (blocks.free_event >= entry)
    return is_active


def sites_at(
    history: History, snapshot: Snapshot, entry: int, top: int | None = None
) -> list[Site]:
    """Return the lines of the program that hold memory at an entry of the history.

    Args:
        history: The history of one of the snapshot's devices, as returned by `replay`.
        snapshot: The snapshot.
        entry: An entry of `history.usage`: 0 is before the first event, `i + 1` after event i.
        top: The largest number of sites to return; None for all, which add up to the entry's
            `active_bytes`.

    Returns:
        The sites, the largest first.
    """
    blocks, alive = history.blocks, np.flatnonzero(active_at(history, entry))
    return _sites(
        snapshot,
        blocks.stack[alive],
        blocks.size_bytes[alive],
        blocks.requested_bytes[alive],
        blocks.free_requested_event[alive] < entry,
        top,
    )


def sites_at_end(snapshot: Snapshot, device: int, top: int | None = None) -> list[Site]:
    """Return the sites as `sites_at`, at the end, from the snapshot's blocks without the trace."""
    blocks = snapshot.blocks
    active = np.flatnonzero(
        (blocks.state != INACTIVE) & (snapshot.segments.device[blocks.segment] == device)
    )
    return _sites(
        snapshot,
        blocks.stack[active],
        blocks.size_bytes[active],
        blocks.requested_bytes[active],
        blocks.state[active] == PENDING_FREE,
        top,
    )


def _sites(
    snapshot: Snapshot,
    stack: Column,
    size_bytes: Column,
    requested_bytes: Column,
    is_pending: Column,
    top: int | None,
) -> list[Site]:
    # By stack first, because there are far fewer stacks than blocks.
    present, by_stack = sum_by_key(stack, size_bytes, requested_bytes, size_bytes * is_pending, 1)
    site_of_stack = call_sites(snapshot.stacks)[present]
    site, (total, requested, pending, count) = sum_by_key(site_of_stack, *by_stack)
    # Sorted by site, and within a site by size: the first of each site is its heaviest stack.
    order = np.lexsort((-by_stack[0], site_of_stack))
    heaviest = present[order[np.searchsorted(site_of_stack[order], site)]]
    largest = np.argsort(-total, kind="stable")[:top]
    return [
        Site(
            call_site=frame_at(snapshot.stacks, int(site[i])),
            size_bytes=int(total[i]),
            requested_bytes=int(requested[i]),
            pending_bytes=int(pending[i]),
            count=int(count[i]),
            frames=snapshot.stacks.frames(int(heaviest[i])),
        )
        for i in largest
    ]
