"""The recorder (C++). pytracer.tracing.options checks bounds; pytracer.Tracer explains ids."""

from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any
from weakref import ref

import numpy as np
import numpy.typing as npt

CPU_DEVICE: int
HOST_DEVICE: int  # torch's pinned host memory
MAX_STACK_DEPTH: int
CATEGORIES: tuple[str, ...]  # csrc/view/owners.h, as the next
CATEGORY_RULES: tuple[str, ...]

# The workspaces that torch keeps for cuBLAS, each with its address, its device, and whether it is
# cuBLASLt's; and how many more there are.
def workspaces() -> tuple[list[tuple[int, int, bool]], int]: ...

# The objects of each of these types, and of types that inherit from them, that the collector knows:
# the ids, and weak references.
def live_references(*kinds: type) -> list[list[tuple[int, ref[Any]]]]: ...
def is_alive(reference: ref[Any]) -> bool: ...

# The names of the classes of objects, and of all classes that these inherit from.
def class_names(references: list[ref[Any]]) -> set[str]: ...

# Whether modules are in training mode: those that have parameters.
def training_modes(modules: list[ref[Any]]) -> list[bool]: ...

# The id of a parameter of a module; 0: it has none of this name.
def parameter_number(module: ref[Any], name: str) -> int: ...

class TensorCopy:
    """Where a tensor of a module or an optimizer is, and its gradients."""

    number: int  # its id
    # Addresses, bytes, devices, and where the storages begin.
    parts: list[tuple[int, int, int, int]]
    gradient: list[tuple[int, int, int, int]]
    main_gradient: list[tuple[int, int, int, int]]  # Megatron's, in full precision
    is_gradient_unread: bool  # another thread may replace it

# Copies of modules and optimizers, and how many tensors could not be read. See
# csrc/tensors/model_copy.h.
def copy_models(
    torch: ModuleType,
    modules: list[ref[Any]],
    optimizers: list[tuple[ref[Any], int | None, int, int]],
    rule: tuple[bool, int, bool, bool, int, int],
    steppers: dict[int, int],
    uses: bool,
) -> tuple[list[Any], list[Any], int]: ...

# Which tensors have no owner, and who keeps them: csrc/tensors/kept.h.
def kept_tensors(
    torch: ModuleType,
    kinds: tuple[type | None, type | None, type | None],
    owned: list[tuple[int, int, int]],
    devices: set[int],
    session: Session | None,
    allocated: dict[int, int],
    graph_passes: int | None,
    nodes: int,
    graph_seconds: float,
    tensors: int,
    looked: int,
    has_hidden: bool,
    seconds: float,
    hidden: list[str],
    unnamed: list[str],
    roots: list[ref[Any]],
    models: dict[tuple[int, int], str],
    least_part: float,
) -> dict[str, Any]: ...

# Has the main thread call `call` once, soon after the first event whose stack has this code object.
def call_when_seen(code: CodeType, call: Callable[[], object]) -> None: ...

class Mark:
    """An instant of one device, from `Session.mark`."""

    device: int
    used: bool  # whether the device has had an event

class Owners:
    """The owners of memory, read between a mark and the view that they are written with."""

    # Each owner: address, bytes, device, indices in CATEGORIES and CATEGORY_RULES, name.
    def __init__(
        self,
        marks: list[Mark],
        owners: list[tuple[int, int, int, int, int, str]],
        unread: int,  # how many more owners there are
        unread_gradients: int,  # how many gradients this thread may not read
        has_all_modules: bool,  # whether all older modules and optimizers were looked for
        holders: list[tuple[int, int, str]],  # of storages: address, device, who; "": not found
        unheld: str,  # what keeps the memory that is left; "": perhaps a Python tensor
        unsearched: int = 0,  # for how many tensors there was no time, or no room, to find holders
    ) -> None: ...

MAX_DESCRIPTION: int
"""How many bytes `describe_box` takes."""

def open_box(file: int) -> None:
    """Have what is recorded lie in a box, from the first session on.

    Takes over the descriptor of an empty file, unless it raises.

    Raises:
        PytracerError: There already is a session.
        OSError: There is no space, or the file system has no such files.
    """

def describe_box(text: bytes) -> None:
    """Say in the box what a snapshot has that only this process knows; does nothing without one.

    b"": the process has written all, and nobody needs the box.
    """

def box_was_lost() -> bool:
    """Return whether a box's file was truncated, or its disk failed, which ended the recording."""

class Box:
    """A box, which another process writes or has left.

    Attributes:
        description: What its process said last.
        is_cut: Whether something did not find space in the file.
        last_step: The step in which the process was; 0: none.
        devices: What each device has now: `device`, its index; `recorded`, the number of events;
            `allocated_bytes`, `peak_bytes` and `reserved_bytes`, as far as their allocation was
            recorded.
    """

    description: bytes
    is_cut: bool
    last_step: int
    devices: list[dict[str, int]]

    def __init__(self, file: int) -> None:
        """Read the header of an open file.

        Raises:
            PytracerError: It is no box, or one of another version.
            OSError: It cannot be read.
        """

    def view(
        self, stack_depth: int, context: int, forward_stacks: bool, is_same_boot: bool
    ) -> View:
        """Return what was recorded; once in a process, which has recorded nothing.

        The first three are the session's. `is_same_boot`: the clocks are those of this process.
        """

class View:
    """What a session sees at one instant. It stays valid after the session is gone.

    Attributes:
        accelerator_entries: How many entries the traces of accelerators and of pinned memory have
            in the file. Each access looks at all events.
        used_devices: The devices with events or memory.
        overwritten: The number of the session's events that have been overwritten in the ring.
        has_events: Whether the view has events other than the markers of snapshots.
        problem: Why the accelerator's segments are missing; empty: they are there.
    """

    accelerator_entries: int
    used_devices: set[int]
    overwritten: int
    has_events: bool
    problem: str

    def write(
        self,
        file: int,
        path: bytes,
        metadata: dict[str, Any],
        devices: dict[int, dict[str, Any]],
        generated_code: dict[tuple[str, int], list[tuple[str, str, int]]] = ...,
        file_names: dict[str, str] = ...,
        /,
    ) -> None: ...
    def to_bytes(
        self,
        metadata: dict[str, Any],
        devices: dict[int, dict[str, Any]],
        generated_code: dict[tuple[str, int], list[tuple[str, str, int]]] = ...,
        file_names: dict[str, str] = ...,
        /,
    ) -> bytes: ...
    def keep_last_entries(self, most: int) -> None: ...  # of each device
    def lines_in(self, filenames: set[str] | None, most: int) -> set[tuple[str, int]]: ...

class Session:
    """A cursor into the shared recorder. It is inert in a child forked after it was made."""

    def __init__(
        self,
        devices: list[int],
        max_entries: int,
        stack_depth: int,
        max_stack_bytes: int,
        context: int,
        forward_stacks: bool = False,
    ) -> None: ...
    # Without history: blocks, and no events but those so far, if they are kept.
    def start(self, history: bool = True, keeps_events: bool = False) -> None: ...
    def stack_of(self, address: int) -> int: ...  # of the live block that begins there; 0: none
    def pause(self) -> None: ...  # keeps the live blocks, asks for no stacks
    def change(self, max_entries: int, stack_depth: int, context: int) -> None: ...
    def stop(self) -> None: ...
    def clear(self) -> None: ...
    # With a phase: only its events, and those of phases within it; 0: all events.
    # Without owners no block has a category.
    def view(self, history: bool = True, phase: int = 0, owners: Owners | None = None) -> View: ...
    # Returns the view of the window that ends; the next one, in `step`, begins at the same instant.
    def end_window(self, history: bool, step: int, owners: Owners | None = None) -> View: ...
    def mark(self) -> list[Mark]: ...  # before the owners of a view's blocks are read
    def begin_step(self, number: int, replaces: bool = False) -> None: ...  # 0: no step
    def events(self) -> npt.NDArray[np.void]: ...
    def frames(self, stack: int) -> list[tuple[str, str, int]]: ...  # raises IndexError
    def stats(self) -> dict[str, Any]: ...
    @property
    def recording(self) -> bool: ...
    @property
    def is_ours(self) -> bool: ...

def note_use(device: int, address: int, role: int) -> None: ...  # csrc/record/event.h
def enter_phase(name: bytes) -> tuple[int, int]: ...  # entry, phase number
def leave_phase(entry: int) -> None: ...  # on any thread
def is_entered(entry: int) -> bool: ...  # entered and not left
def phase_path(number: int) -> list[bytes]: ...  # names, outermost first; raises IndexError
def attach_hook(path: str | bytes) -> bool: ...  # False: the device is not initialised
def attach_autograd(path: str | bytes) -> None: ...  # forward_stacks.h
def watch_autograd_threads() -> None: ...  # csrc/session/registry.h
def running_node() -> tuple[str, int, int] | None: ...  # type, thread, number on its thread
def observe_oom(observer: Callable[[int, int, int, int], None]) -> None: ...  # the CPU's
def record_oom(device: int, requested_size: int, free_size: int) -> None: ...
def wake_event() -> int: ...  # csrc/support/wake_signal.h
def has_wake_event() -> bool: ...
def wake() -> None: ...
def watch_signal(number: int) -> None: ...
def unwatch_signal(number: int) -> None: ...
def has_signal_handler(number: int) -> bool: ...
def take_signals() -> set[int]: ...
def frame_walk_problem() -> str | None: ...
def enable_stacks() -> None: ...
def prepare_for_exit() -> None: ...

class testing:  # noqa: N801 - a submodule
    """Events on demand, without an allocator: for tests and benchmarks."""

    @staticmethod
    def record(action: int, address: int, size: int, device: int = -1) -> None: ...
    @staticmethod
    def record_free(address: int, size: int, device: int) -> None: ...
    @staticmethod
    def record_pairs(pairs: int, address: int, device: int = -1) -> float: ...
