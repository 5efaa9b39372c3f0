"""The call site of each stack: the line of the program that made an allocation, and its callers.

The program's source files are those of neither torch nor the standard library.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pytracer.reading.snapshot import Column, Frame, Stacks

_PACKAGE = re.compile(r"(?:torch|torch_npu|functorch)[/\\]")

# Files that do not belong to the program, wherever torch is: installed packages of torch, code that
# torch generates, the standard library, through which torch calls its own code (contextlib, copy,
# threading), and the parts of pytracer that the program calls, or that call it.
_OTHERS = re.compile(
    rf"[/\\](?:site|dist)-packages[/\\]{_PACKAGE.pattern}"
    r"|[/\\]pytracer[/\\](?:tracing|integrations|rehearsal)[/\\]\w+\.py$"
    r"|[/\\]torchinductor_[^/\\]*[/\\]"
    r"|^<eval_with_key>"
    r"|^<frozen "
    r"|[/\\]lib(?:64)?[/\\]python\d[\d.]*t?[/\\](?!(?:site|dist)-packages[/\\])"
)

# Functions of torch that are on many stacks, and their files: they tell in which folder torch is,
# where it is not installed in site-packages.
_TORCHS_FUNCTIONS = [
    (re.compile(rf"((?:.*[/\\])?)torch[/\\]{file}\.py", re.DOTALL), frozenset(names))
    for file, *names in (
        (r"nn[/\\]modules[/\\]module", "_call_impl", "_wrapped_call_impl"),
        (r"autograd[/\\]graph", "_engine_run_backward"),
        (r"autograd[/\\]function", "apply"),
        (r"_tensor", "backward", "wrapped", "__torch_function__"),
        (r"_ops", "__call__"),
        (r"optim[/\\]optimizer", "wrapper", "_use_grad", "profile_hook_step", "zero_grad"),
        (r"utils[/\\]_contextlib", "decorate_context"),
        (r"utils[/\\]checkpoint", "checkpoint", "unpack_hook"),
        (r"utils[/\\]data[/\\]dataloader", "__next__"),
        (r"utils[/\\]data[/\\]_utils[/\\]\w+", "fetch", "pin_memory", "default_collate"),
        (r"_dynamo[/\\]eval_frame", "compile_wrapper", "_fn"),
    )
]


@dataclass(frozen=True)
class ProgramFiles:
    """The source files of a program: `filename in files` tells whether a Python file is one.

    Attributes:
        torch_parents: The folders with torch's packages, each with its last separator, as in
            "/opt/pytorch/". Installed packages of torch are known without them.
    """

    torch_parents: frozenset[str]

    @classmethod
    def outside(cls, torch_folders: Iterable[str]) -> "ProgramFiles":
        """Return the source files outside the folders of torch's packages."""
        return cls(frozenset(map(_parent, torch_folders)))

    def __contains__(self, filename: str) -> bool:
        """Return whether a Python file is outside torch's packages and the standard library."""
        return _OTHERS.search(filename) is None and not any(
            filename[: found.start()] in self.torch_parents for found in _PACKAGE.finditer(filename)
        )


def program_files(stacks: Stacks) -> ProgramFiles:
    """Return the source files of the program that has the stacks.

    Files of pytracer name the folders of torch's packages since format 1.9. In other files, the
    frames of functions that torch is known to have tell the folder.
    """
    parents = set(ProgramFiles.outside(stacks.torch_folders).torch_parents)
    for index in np.unique(stacks.filename).tolist():
        filename = stacks.strings[index]
        for pattern, names in _TORCHS_FUNCTIONS:
            found = pattern.fullmatch(filename)
            if found is None or found[1] in parents:
                continue
            of_file = np.unique(stacks.name[stacks.filename == index]).tolist()
            if not names.isdisjoint(stacks.strings[name] for name in of_file):
                parents.add(found[1])
    return ProgramFiles(frozenset(parents))


def _parent(folder: str) -> str:
    """Return the folder that a folder is in, with its last separator."""
    folder = folder.rstrip("/\\")
    return folder[: max(folder.rfind("/"), folder.rfind("\\")) + 1]


def common_files(files: Iterable[ProgramFiles]) -> ProgramFiles:
    """Return the files that are the program's in each of several snapshots."""
    return ProgramFiles(frozenset[str]().union(*(each.torch_parents for each in files)))


# Files of C and C++ frames, as torch's recorder names them: an unknown file, a source file, a
# library, the interpreter's executable. The names of C++ functions are recognised as well.
_NATIVE_FILE = re.compile(
    r"(?:\?\?)?"
    r"|.*\.(?:c|cc|cpp|cxx|cu|cuh|h|hh|hpp|inl|S|dll|dylib|pyd|so(?:\.\d+)*)"
    r"|.*[/\\]include[/\\](?!.*\.py$).*"
    r"|(?:.*/)?python[\d.]*",
    re.DOTALL,
)
# Each thread begins with one of the functions of C, whose library may have any file.
_BEGIN = r"(?:execute_native_thread_routine|start_thread|clone3?|_start)(?:\.\w+)*"
_NATIVE_NAME = re.compile(rf"\?\?|.*(?:::|\().*|{_BEGIN}", re.DOTALL)

# The most informative frame of a stack without Python frames, as on autograd's threads: the node of
# the backward, autograd's engine, which adds gradients, or the operator that was called.
_NODE = re.compile(r"\btorch::autograd::(?:\w+::)*\w+::apply\(")
_NATIVE_ENGINE = re.compile(r"\btorch::autograd::Engine::")
_OPERATOR = re.compile(r"\bat::_ops::(?!empty)\w+::(?:call|redispatch)\(")

# The frames of torch's recorder and of the allocator, which are innermost in each C++ stack, and
# frames without a name.
_RECORDER = re.compile(
    rf"^{_BEGIN}$|^\?\?$|^torch::unwind::|CapturedTraceback|gather(?:_with_cpp|Context)|CachingAllocator|"
    r"c10::(?:alloc_cpu|StorageImpl)"
)
# The Python function of torch that calls autograd's engine, which runs nodes on the same thread.
_ENGINE = re.compile("_engine_run_backward")

LEAST_SHARED = 0.8
"""A caller is named if at least this part of a call site's bytes was allocated below it."""

UNKNOWN = -1  # the call site of an empty stack

UNKNOWN_NODE = "backward"
"""The `autograd_node` where only the thread shows that a node ran: see csrc/session/registry.h."""


def call_sites(stacks: Stacks) -> Column:
    """Find the call site of each distinct stack.

    The call site is the innermost frame of the program: a Python frame outside torch's packages,
    the code that torch generates, and the standard library. In a stack without such a frame, the
    call site is the innermost Python frame. In a stack of C++ frames only, it is the innermost node
    of autograd, else its engine, else the innermost operator of torch, else the innermost frame
    that has a name and is neither of torch's recorder nor of the allocator, else the innermost one.

    Where a node of autograd has made an allocation, and no Python code that the node runs, the call
    site is that of the forward call that made the node, and names the node.

    Returns:
        int64, for each stack a number for `frame_at`, or `UNKNOWN`.
    """
    is_pythons = is_python(stacks)
    begin, end = stacks.offsets[:-1], stacks.offsets[1:]
    innermost = begin
    of_torch = (
        frames_matching(pattern.search, stacks, "name")
        for pattern in (_OPERATOR, _NATIVE_ENGINE, _NODE)
    )
    is_users = ~frames_matching(_RECORDER.search, stacks, "name")
    # The last match wins.
    for is_wanted in (is_users, *of_torch, is_pythons, is_programs(stacks)):
        wanted = first_frames(stacks, is_wanted)
        innermost = np.where(wanted < end, wanted, innermost)
    frames = np.append(stacks.frame.astype(np.int64), UNKNOWN)
    sites = np.where(begin < end, frames[innermost], UNKNOWN)
    python = first_frames(stacks, is_pythons)
    is_engine = np.append(frames_matching(_ENGINE.fullmatch, stacks, "name")[stacks.frame], False)
    is_made_by_node = (python >= end) | is_engine[python]
    is_backward = ((stacks.forward != 0) | (stacks.node != 0)) & is_made_by_node
    return np.where(is_backward, _backward_sites(stacks, sites[stacks.forward]), sites)


def first_frames(stacks: Stacks, is_wanted: Column) -> Column:
    """Return for each stack the place in `stacks.frame` of its innermost wanted frame: int64.

    It is at or after the stack's end if the stack has none. `is_wanted`: for each distinct frame.
    """
    wanted = np.flatnonzero(is_wanted[stacks.frame])
    found: Column = np.append(wanted, len(stacks.frame))[
        np.searchsorted(wanted, stacks.offsets[:-1])
    ]
    return found


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


def is_programs_frame(frame: Frame, files: ProgramFiles) -> bool:
    """Return whether a frame is a Python frame of the program that has these source files."""
    return (
        not _NATIVE_FILE.fullmatch(frame.filename)
        and not _NATIVE_NAME.fullmatch(frame.name)
        and frame.filename in files
    )


def frames_matching(
    matches: Callable[[str], object], stacks: Stacks, text: Literal["filename", "name"]
) -> Column:
    """Return for each distinct frame whether its filename or name matches: bool."""
    column = stacks.filename if text == "filename" else stacks.name
    return texts_matching(matches, stacks.strings, column)


def texts_matching(
    matches: Callable[[str], object], strings: Sequence[str], column: Column
) -> Column:
    """Return whether the text of each element of a column, an index in `strings`, matches: bool."""
    is_match = np.zeros(len(strings), bool)
    for index in np.unique(column).tolist():
        is_match[index] = bool(matches(strings[index]))
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
    node_name = stacks.strings[node] if parts else ""
    of_node = f" ({node_name})" if node_name not in ("", UNKNOWN_NODE) else ""
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
        site: The stack's number in `call_sites`.
    """
    is_backward = site >= len(stacks.line)
    frame = (site + 1) % (len(stacks.line) + 1) - 1
    source = int(stacks.forward[stack]) if is_backward else stack
    inside: list[int] = stacks.frame[stacks.offsets[source] : stacks.offsets[source + 1]].tolist()
    return inside[inside.index(frame) + 1 :] if frame in inside else []


class CallChains:
    """The call site of each stack of a snapshot, and the program's frames that called it."""

    def __init__(self, stacks: Stacks) -> None:
        self.stacks = stacks
        self.sites = call_sites(stacks)
        self._is_programs = is_programs(stacks)

    def site(self, stack: int) -> Frame | None:
        """Return the call site of a stack; None if it is unknown."""
        return frame_at(self.stacks, int(self.sites[stack]))

    def callers(self, stack: int) -> list[int]:
        """Return the program's frames that called a stack's call site, innermost first."""
        found = callers_of(self.stacks, stack, int(self.sites[stack]))
        return [frame for frame in found if self._is_programs[frame]]

    def caller_frames(self, stack: int) -> list[Frame]:
        """Return `callers` as frames."""
        return [frame for index in self.callers(stack) if (frame := frame_at(self.stacks, index))]

    def shared_callers(
        self, sizes: Iterable[tuple[int, int]], most: int | None = None
    ) -> list[Frame]:
        """Return the callers of a call site that most of its bytes have, innermost first.

        The chain ends before the first caller that less than `LEAST_SHARED` of the bytes have.

        Args:
            sizes: Stacks with the call site, each with its bytes.
            most: The largest number of callers; None: all.
        """
        paths = [(self.callers(stack), size_bytes) for stack, size_bytes in sizes]
        total = sum(size_bytes for _, size_bytes in paths)
        found: list[int] = []
        for depth in range(max((len(path) for path, _ in paths), default=0))[:most]:
            by_caller: dict[int, int] = defaultdict(int)
            for path, size_bytes in paths:
                if path[:depth] == found and len(path) > depth:
                    by_caller[path[depth]] += size_bytes
            caller = max(by_caller, key=by_caller.__getitem__, default=None)
            if caller is None or by_caller[caller] < LEAST_SHARED * total:
                break
            found.append(caller)
        return [frame for index in found if (frame := frame_at(self.stacks, index))]
