"""What a tracer records: an owner of the core's recorder, on the devices that are there."""

from pytracer import _core, devices, hooks, lifetime, settings
from pytracer.config import Options, switched_off
from pytracer.config_checks import CONTEXTS
from pytracer.errors import ConfigError, HookError, PytracerError
from pytracer.notices import say_once

Indices = dict[str, list[int]]
"""Of devices, by backend; the CPU's is `_core.CPU_DEVICE`."""


class Recording:
    """A tracer's.

    Attributes:
        owner: Another one once it records other devices.
        indices: Of the devices it records, or recorded; empty until it starts.
    """

    def __init__(self, options: Options) -> None:
        """Records nothing yet."""
        self._options = options
        self._untraced: dict[str, str] = {}  # reasons, by backend, or of all
        self._final_memory: dict[int, dict[str, int | None]] = {}  # of when it stopped
        self.indices: Indices = {}
        self.owner = self.new_owner()

    def new_owner(self) -> _core.Owner:
        """Of these devices and options."""
        return _core.Owner(
            [index for indices in self.indices.values() for index in indices],
            self._options.trace_alloc_max_entries,
            self._options.stack_depth,
            self._options.max_stack_bytes,
            CONTEXTS.index(self._options.context),
        )

    def change(self, options: Options) -> None:
        """Other options from now on: entries, depth and context."""
        self._options = options
        self.owner.change(
            options.trace_alloc_max_entries, options.stack_depth, CONTEXTS.index(options.context)
        )

    def is_forbidden(self) -> bool:
        """By `PYTRACER=0`, or by a wrong variable, which is said."""
        self._untraced = {}
        if switched_off():
            self._untraced = {"all": "PYTRACER=0"}
        elif self._options.problem is not None:
            self._untraced = {"all": self._options.problem}
            say_once(f"not recording: {self._options.problem}")
        return bool(self._untraced)

    def attach(self) -> Indices:
        """Attaches to what can be recorded, and tells it. Says what cannot be."""
        self._untraced = {}
        attached = {}
        for backend, wanted in devices.resolve(self._options.device).items():
            try:
                attached[backend] = (
                    [_core.CPU_DEVICE] if backend == "cpu" else devices.indices(backend, wanted)
                )
                hooks.attach(backend)
            except Exception as error:  # a HookError, or one from torch itself
                attached.pop(backend, None)
                self.leave_out(backend, error)
        if {*self._options.device} != {"cpu"}:
            lifetime.await_devices()
        return attached

    def attach_to_new(self) -> Indices | None:
        """The same if by now there are devices to record that it does not record; else None."""
        attached = self.attach()
        before = self.indices if self.owner.recording else {}
        new = [
            f"{backend}:{index}"
            for backend, there in attached.items()
            for index in there
            if index not in before.get(backend, [])
        ]
        if new and before and "cpu" in self._options.device:
            error = HookError(
                "it came when the CPU was already being recorded, and would end that; make all "
                "devices visible before the tracer starts, or give the CPU a tracer of its own"
            )
            self.leave_out(", ".join(new), error)
            return None
        return attached if new else None

    def leave_out(self, what: str, error: Exception) -> None:
        """Says that it is not recorded."""
        reason = str(error) if isinstance(error, PytracerError) else repr(error)
        self._untraced[what] = reason
        say_once(f"not recording {what}: {reason}")

    def start(self, indices: Indices, step: int, history: bool) -> None:
        """On these devices, in this step; without history: the live blocks alone.

        Raises:
            ConfigError: there is no room for the ring.
        """
        if self.indices != indices:
            self.indices = indices
            self.owner = self.new_owner()
        self.owner.begin_step(step)
        try:
            self.owner.start(history)
        except PytracerError as error:
            entries = self._options.trace_alloc_max_entries
            raise ConfigError(
                f"trace_alloc_max_entries={entries}: {error}; give a smaller number"
            ) from None

    def stop(self) -> None:
        """Raises MemoryError: for the blocks alive; it has stopped without them."""
        self.owner.stop()
        if any(backend != "cpu" for backend in self.indices):
            self._final_memory = self._memory_now(self.owner.view())

    def memory(self, view: _core.View) -> dict[int, dict[str, int | None]]:
        """How full the devices are, or were when it stopped, by index."""
        return self._memory_now(view) if self.owner.recording else self._final_memory

    def _memory_now(self, view: _core.View) -> dict[int, dict[str, int | None]]:
        """Those not in use are not asked: it would use them."""
        return {
            index: devices.memory(backend, index)
            for backend, indices in self.indices.items()
            for index in indices
            if backend != "cpu" and index in view.used_devices
        }

    @property
    def settings(self) -> dict[str, str | None]:
        """Of allocators whose state does not tell them, by backend."""
        return {"npu": settings.in_force("npu")} if "npu" in self.indices else {}

    @property
    def is_going_on(self) -> bool:
        """Whether it records; some hooks wait for torch to initialise, and may fail then."""
        return self.owner.recording and not all(map(hooks.late_problem, self.indices))

    @property
    def why_untraced(self) -> str | None:
        """Why a device, or all, are not recorded."""
        late = [hooks.late_problem(backend) for backend in self.indices]
        reasons = [*self._untraced.values(), *filter(None, late)]
        return "; ".join(dict.fromkeys(reasons)) or None  # some are told twice
