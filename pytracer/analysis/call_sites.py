"""The call site of each stack: the line of the program that made an allocation, and its callers."""

import re
from collections.abc import Callable
from typing import Literal

import numpy as np

from pytracer.analysis.program_files import ProgramFiles, program_files
from pytracer.reading.snapshot import Column, Frame, Stacks

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
