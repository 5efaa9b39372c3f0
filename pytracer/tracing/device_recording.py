"""The recording of one tracer: a session of the core's recorder, and the devices it is on."""

from collections.abc import Callable, Collection
from dataclasses import replace

from pytracer import _core
from pytracer.backends import devices
from pytracer.backends.hook_attach import HOOKS
from pytracer.backends.names import ACCELERATORS, HOST
from pytracer.errors import ConfigError, HookError, PytracerError
from pytracer.log import warn_once
from pytracer.owners.read import collector_paused, read_owners
from pytracer.owners.registry import REGISTRY
from pytracer.settings import change
from pytracer.tracing import process
from pytracer.tracing.options import OPTIONS, Options, switched_off

# The `context` of torch's `_record_memory_history`, by the number of the core's `Context`.
CONTEXTS = (None, "state", "alloc", "all")
# Indices of devices by backend: also `_core.CPU_DEVICE`, and `_core.HOST_DEVICE` of pinned memory.
Indices = dict[str, list[int]]
LONG_PATIENCE = 5
"""How many times longer the search for who holds memory may take when memory has run out, or the
recording ends: mostly the program does so too."""
# How full devices are, by index: see `pytracer.backends.devices.memory`.
Size = dict[str, int | None]
Sizes = dict[int, Size]


class DeviceRecording:
    """The recording of one tracer.

    Attributes:
        context: Which stacks are kept, of `CONTEXTS`; a tracer keeps all of them, and a session of
            torch's recorder those that it asks for.
        session: The session of the core; replaced when other devices are recorded.
        indices: The devices that are or were recorded; empty until the first start.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.context: str | None = "all"
        self._untraced: dict[str, str] = {}  # reasons by backend; "all": for all devices
        self._final_memory: Sizes = {}  # when the recording stopped
        self._final_owners: _core.Owners | None = None  # the same
        self.indices: Indices = {}
        self.session = self.new_session()

    def new_session(self) -> _core.Session:
        """Return a session for the current devices and options."""
        return _core.Session(
            [index for indices in self.indices.values() for index in indices],
            self.options.trace_alloc_max_entries,
            self.options.stack_depth,
            self.options.max_stack_bytes,
            CONTEXTS.index(self.context),
            self.options.forward_stacks is not False,
        )

    def change(self, options: Options, context: str | None) -> None:
        """Use another number of entries, another depth and another context from now on."""
        self.options, self.context = options, context
        self.session.change(
            options.trace_alloc_max_entries, options.stack_depth, CONTEXTS.index(context)
        )

    def is_forbidden(self) -> bool:
        """Return whether `PYTRACER=0` forbids recording; log variables that are wrong."""
        self._untraced = {"all": "PYTRACER=0"} if switched_off() else {}
        if not self._untraced and self.options.problem is not None:
            warn_once(self.options.problem)
        return bool(self._untraced)

    def attach(self) -> Indices:
        """Attach to the devices that can be recorded and return them; warn about the others."""
        self._untraced = {}
        attached = {}
        for backend, wanted in devices.resolve(self.options.device).items():
            try:
                attached[backend] = (
                    [_core.CPU_DEVICE] if backend == "cpu" else devices.indices(backend, wanted)
                )
                HOOKS.attach(backend)
            except Exception as error:  # a HookError, or one from torch itself
                attached.pop(backend, None)
                self.leave_out(backend, error)
        # Where NVML does not answer, pinned memory is recorded as soon as CUDA is.
        is_early = "cuda" not in attached and devices.may_come_later("cuda", self.options.device)
        wanted_host = self.options.pinned_memory
        if wanted_host is not False and not is_early:
            try:
                if "cuda" not in attached:
                    raise HookError(
                        "pytracer records pinned memory only together with a CUDA device; set "
                        "pinned_memory=False"
                    )
                if HOOKS.attach_host(build=wanted_host is True):
                    attached[HOST] = [_core.HOST_DEVICE]
            except Exception as error:
                if wanted_host:
                    self.leave_out(HOST, error)
        if attached and self._wants_forward_stacks:
            HOOKS.attach_autograd(build=self.options.forward_stacks is True)
        if {*self.options.device} != {"cpu"}:
            process.await_devices()
        return attached

    def attach_to_new(self) -> Indices | None:
        """Attach again; return the devices if there are new ones to record, else None."""
        attached = self.attach()
        before = self.indices if self.session.recording else {}
        new = [
            f"{backend}:{index}"
            for backend, present in attached.items()
            for index in present
            if backend != HOST and index not in before.get(backend, [])
        ]
        if new and before and "cpu" in self.options.device:
            error = HookError(
                "the device appeared after the recording of the CPU began, and recording it too "
                "would end the CPU's recording; make all devices visible before the tracer starts, "
                "or give the CPU a tracer of its own"
            )
            self.leave_out(", ".join(new), error)
            return None
        return attached if new else None

    def leave_out(self, name: str, error: Exception) -> None:
        """Warn that a device is not recorded, and remember why."""
        reason = str(error) if isinstance(error, PytracerError) else repr(error)
        self._untraced[name] = reason
        rest = "" if self.session.recording else ". The job continues untraced"
        shown = "pinned memory" if name == HOST else name.upper()
        warn_once(f"{shown} is not recorded: {reason}{rest}")

    def start(self, indices: Indices, step: int, history: bool) -> None:
        """Record these devices from now on; without `history`, only live blocks, and no events.

        Raises a ConfigError if there is no room for the ring.
        """
        before = self.session  # its tables, and their box, go with the last session
        if self.indices != indices:
            self.indices = indices
            self.session = self.new_session()
        try:
            self._start_session(step, history)
        except ConfigError as error:
            if "trace_alloc_max_entries" in self.options.given:
                raise
            warn_once(f"{error}. The default is used")
            option = OPTIONS["trace_alloc_max_entries"]
            entries: int = option.check(option.name, option.default)
            self.options = replace(self.options, trace_alloc_max_entries=entries)
            self.session = self.new_session()
            self._start_session(step, history)
        del before
        REGISTRY.follow()

    def _start_session(self, step: int, history: bool) -> None:
        self.session.begin_step(step)
        try:
            self.session.start(history)
        except PytracerError as error:
            entries = self.options.trace_alloc_max_entries
            raise ConfigError(
                f"trace_alloc_max_entries={entries}: {error}; give a smaller number"
            ) from None

    def stop(self) -> None:
        """End the recording, also if there is no memory to keep the live blocks: a MemoryError."""
        self._final_owners = read_owners(self.session, LONG_PATIENCE)
        self.session.stop()
        if any(backend in ACCELERATORS for backend in self.indices):
            self._final_memory = self._sizes(self.session.view().used_devices, devices.memory)

    def view(
        self,
        session: _core.Session | None = None,
        phase: int = 0,
        history: bool = True,
        patience: float = 1,
    ) -> _core.View:
        """Return what a session of these devices sees now, with the owners of its blocks.

        None: the recording's own session. With a `phase`, only events of this phase are shown.
        `patience`: as for `read_owners`.
        """
        session = self.session if session is None else session
        with collector_paused():
            is_present = self.session.recording
            owners = read_owners(session, patience) if is_present else self._final_owners
            return session.view(history, phase, owners)

    def end_window(self, history: bool, step: int) -> _core.View:
        """Return the view of the window that ends; see `_core.Session.end_window`."""
        with collector_paused():
            return self.session.end_window(history, step, read_owners(self.session))

    def memory(self, view: _core.View) -> Sizes:
        """Return how full the devices are, or were when the recording stopped, by index."""
        if not self.session.recording:
            return self._final_memory
        return self._sizes(view.used_devices, devices.memory)

    @property
    def for_restore(self) -> tuple[int, int, bool]:
        """How much of stacks is shown: the first arguments of `_core.Box.view`."""
        context = CONTEXTS.index(self.context)
        return self.options.stack_depth, context, self.has_forward_stacks

    def sizes_of_used(self) -> Sizes:
        """Return how large the devices are that have been used so far, by index.

        The driver is not asked, which a graph that is being captured may not survive.
        """
        used = {each["device"] for each in self.session.stats()["devices"] if each["recorded"]}
        return self._sizes(used, devices.total_memory)

    def _sizes(self, used: Collection[int], ask: Callable[[str, int], Size]) -> Sizes:
        """Ask only devices that are in use: the question would initialise the others."""
        return {
            index: ask(backend, index)
            for backend, indices in self.indices.items()
            for index in indices
            if backend in ACCELERATORS and index in used
        }

    @property
    def settings(self) -> dict[str, str | None]:
        """Settings of allocators whose state does not contain them, by backend."""
        return {"npu": change.in_force("npu")} if "npu" in self.indices else {}

    @property
    def is_going_on(self) -> bool:
        """Whether anything is recorded; hooks that wait for torch to initialise may fail later."""
        return self.session.recording and not all(map(HOOKS.late_problem, {*self.indices} - {HOST}))

    @property
    def has_forward_stacks(self) -> bool:
        """Whether allocations in backward have the stacks of their forward calls."""
        return self._wants_forward_stacks and HOOKS.reads_autograd

    @property
    def _wants_forward_stacks(self) -> bool:
        return self.options.forward_stacks is not False and self.context is not None

    @property
    def why_untraced(self) -> str | None:
        """Why a device, or all devices, are not recorded; None: all are."""
        late = [HOOKS.late_problem(backend) for backend in self.indices]
        reasons = [*self._untraced.values(), *filter(None, late)]
        return "; ".join(dict.fromkeys(reasons)) or None  # without duplicates
