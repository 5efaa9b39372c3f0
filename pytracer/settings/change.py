"""Reading, merging and changing the settings of the accelerator's allocator at run time.

torch's allocators *replace* their settings when they are given a string: some keys that the string
does not name are reset to their defaults, others stay as they are. A change is therefore sent
together with all settings in force, and restoring names each key that was changed.
"""

import contextlib
import itertools
import json
import os
import subprocess
from collections.abc import Mapping, Set
from typing import ClassVar
from weakref import WeakValueDictionary

from pytracer.backends import devices
from pytracer.backends.names import ACCELERATORS
from pytracer.backends.running_torch import torch_build, torch_module
from pytracer.errors import ConfigError, HookError, PytracerError
from pytracer.log import warn_once
from pytracer.settings import running
from pytracer.settings.keys import BACK_TO_DEFAULT, DEFAULTS, READ_ONCE, not_in_force_error, refusal
from pytracer.variables import VARIABLE, format_settings, parse_settings


def variables(change: str) -> dict[str, str]:
    """Return the variables that give a new process's allocator the settings with `change`.

    They are right for every torch and torch_npu that pytracer records, and none is imported. Each
    variable that is set already is changed separately, because versions differ in which of them
    counts. A torch before 2.10 ignores `PYTORCH_ALLOC_CONF`, so its settings are also written to
    the older variable.

    A ConfigError says which of `change` and the variables that are set is malformed.
    """
    general = os.environ.get("PYTORCH_ALLOC_CONF")
    cuda = os.environ.get(VARIABLE["cuda"], general or "")
    found = {} if general is None else {"PYTORCH_ALLOC_CONF": general}
    found[VARIABLE["cuda"]] = cuda
    # A torch_npu that knows the general variable refuses to start if both are set.
    if general is None or VARIABLE["npu"] in os.environ or running.torch_npu_is_older():
        found[VARIABLE["npu"]] = os.environ.get(VARIABLE["npu"], cuda)
    changed = parse_settings(change)
    for name, value in found.items():
        try:
            found[name] = format_settings(parse_settings(value) | changed)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
    return found


def check_in_new_process(change: str) -> str | None:
    """Have a new process's allocator read its settings, `variables(change)`.

    A ConfigError says that the allocator refuses them, or reads other values.

    Returns:
        The accelerator, "cuda" or "npu"; None without one.
    """
    from pytracer.child_process import last_exception, python_command  # slow imports, rarely needed

    torch_build()
    done = subprocess.run(
        python_command("pytracer.settings.try_process", change),
        env={**os.environ, **variables(change), "PYTRACER": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
        backend, refused, read = answer["backend"], answer["refused"], answer["read"]
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise PytracerError(
            f'a new process could not try the allocator settings "{change}": '
            f"{last_exception(done.stderr)}"
        ) from error
    if refused is not None:
        raise refusal(backend, parse_settings(change), refused)
    if read:
        raise not_in_force_error(parse_settings(change), read)
    return None if backend is None else str(backend)


def in_force(backend: str) -> str | None:
    """Return the settings of this process's allocator, in the form of the environment variable.

    "" means the defaults; None: unknown, or the backend has none ("cpu"). Nothing is initialised.
    For CUDA, the values that the allocator shows are read, which leaves a `snapshot` event of each
    device in recordings. For an NPU, the string that was tried last is returned unchecked.
    """
    try:
        if backend == "cpu" or torch_module(backend)._is_in_bad_fork():
            return None  # CUDA's allocator may have been forked with its locks held
        return running.in_force(backend)
    except Exception:  # torch or its backend is missing, or the variable is malformed
        return None


def expandable_segments(on: bool, *, device: str = "auto") -> "AllocatorSettings":
    """Switch expandable segments on or off, from now on. Other settings stay as they are.

        pytracer.expandable_segments(True)  # for good
        with pytracer.expandable_segments(False): ...  # for a while

    Existing segments stay as they are. For `device`, the return value and errors see
    `allocator_settings`.
    """
    if not isinstance(on, bool):
        raise ConfigError(f"expandable_segments takes True or False, got {on!r}")
    return allocator_settings(f"expandable_segments:{on}", device=device)


def allocator_settings(settings: str, *, device: str = "auto") -> "AllocatorSettings":
    """Change settings of the accelerator's allocator, from now on, in the entire process.

    Settings that are not named stay as they are. CUDA's allocator is asked for its values
    afterwards, which leaves `snapshot` events in a recording. On an initialised NPU, a temporary
    allocation in a separate pool shows whether segments are expandable.

    Args:
        settings: As in `PYTORCH_CUDA_ALLOC_CONF`: `"max_split_size_mb:128"`.
        device: "auto" (the accelerator that is there), "cuda" or "npu", initialised or not.

    Returns:
        A context manager that takes its change back at the end of its block. Blocks may end in any
        order. It may be ignored.

    Raises:
        ConfigError: The settings are malformed, the allocator refuses them, or they cannot be
            changed while the program runs. The settings in force are unchanged.
        HookError: There is no accelerator, or torch does not support one.
        PytracerError: The settings did not take effect, or a graph is being captured.
    """
    if device == "cpu":
        raise ConfigError('the CPU allocator has no settings; give device="cuda" or "npu"')
    if device not in ("auto", *ACCELERATORS):
        raise ConfigError(
            f'device must be "auto", "cuda" or "npu", got {device!r}: settings apply to all '
            "devices of the process"
        )
    backend = devices.automatic_backend() if device == "auto" else device
    if backend == "cpu":
        torch_build()
        raise HookError(
            "no accelerator was found, and the CPU allocator has no settings; if this machine has "
            'an accelerator, set device="cuda" or "npu"'
        )
    devices.indices(backend, None)
    return AllocatorSettings(backend, settings)


class AllocatorSettings(contextlib.AbstractContextManager[None]):
    """A change of the allocator's settings. The end of its block takes it back."""

    _numbers: ClassVar = itertools.count(1)
    _latest: ClassVar = 0
    _all: ClassVar["WeakValueDictionary[int, AllocatorSettings]"] = WeakValueDictionary()

    def __init__(self, backend: str, change: str) -> None:
        """Make the change; raises as `allocator_settings` does."""
        self._backend = backend
        self._change = parse_settings(change)
        self._before: str | None = None  # None: restored
        self._make()

    def __enter__(self) -> None:
        """Make the change again if it was undone."""
        if self._before is None:
            self._make()

    def __exit__(self, *_: object) -> None:
        """Take the change back: restore what its settings were before it."""
        if self._before is not None:
            before, self._before = self._before, None
            try:
                self._restore(before if self._number == self._latest else self._taken_out(before))
            except Exception as problem:  # this must not replace the block's own exception
                warn_once(f'the allocator settings "{before}" could not be restored: {problem}')

    def _make(self) -> None:
        backend, module = self._backend, torch_module(self._backend)
        if (allocator := str(module.get_allocator_backend())) != "native":
            raise ConfigError(
                f"the {backend.upper()} allocator is {allocator}, whose settings cannot be changed "
                "while the program runs"
            )
        if module.is_initialized() and module.is_current_stream_capturing():
            raise PytracerError(
                "a graph is being captured, and its pool would mix segments of old and new "
                "settings; change allocator settings before or after the capture"
            )
        try:
            before = running.in_force(backend)
        except Exception as error:
            raise ConfigError(
                f"the allocator cannot read the settings it was started with: {error}"
            ) from error
        items = parse_settings(before)
        new = items | self._change
        self._refuse_unchangeable(items, new)
        known = DEFAULTS | running.environment_settings(backend) | items
        self._old = {key: known[key] for key in self._change if key in known}
        try:
            running.send(backend, self._change, new)
        except Exception as error:
            self._give_up(before)
            raise refusal(backend, self._change, str(error)) from error
        if unmet := running.unmet_settings(backend, self._change):
            self._give_up(before)
            raise not_in_force_error(self._change, unmet)
        for key in self._change.keys() - known.keys() - set(BACK_TO_DEFAULT):
            warn_once(f"{key} will keep its new value: pytracer does not know the earlier one")
        self._before = before
        self._number = AllocatorSettings._latest = next(self._numbers)
        self._all[self._number] = self

    def _taken_out(self, before: str) -> str:
        """Return the settings in force without this change, after which others were made.

        What a later change set again stays. The end of the later one restores what was before this.
        """
        earlier, own = parse_settings(before), set(self._change)
        for number, later in sorted(self._all.items()):
            if number < self._number or later._before is None or later._backend != self._backend:
                continue
            later._before = format_settings(_replaced(parse_settings(later._before), own, earlier))
            again = own & later._change.keys()
            later._old = _replaced(later._old, again, self._old)
            own -= again
        self._old = {key: value for key, value in self._old.items() if key in own}
        found = _replaced(parse_settings(running.in_force(self._backend)), own, earlier)
        return before if found == earlier else format_settings(found)

    def _refuse_unchangeable(self, items: dict[str, str], new: dict[str, str]) -> None:
        for key, value in self._change.items():
            if key in READ_ONCE[self._backend] and value != items.get(key, DEFAULTS.get(key)):
                raise ConfigError(
                    f"{key} cannot be changed while the program runs: the allocator reads it once; "
                    f"start the program with {VARIABLE[self._backend]}={key}:{value}"
                )
        if lost := running.reset_by(self._backend, self._change, new):
            raise ConfigError(
                f"this torch_npu resets {lost} to its default when a setting changes at run time; "
                f"start the program with {format_settings(self._change)} in {VARIABLE['npu']}"
            )
        if self._backend == "npu" and new.get("expandable_segments") == "True":
            for key in ("max_split_size_mb", "garbage_collection_threshold"):
                if key in new:
                    raise ConfigError(
                        f"torch_npu refuses expandable segments while {key} is {new[key]}; start "
                        f"the program without {key} in {VARIABLE['npu']}"
                    )

    def _give_up(self, before: str) -> None:
        with contextlib.suppress(Exception):  # the earlier settings may be refused too
            self._restore(before)

    def _restore(self, before: str) -> None:
        # First each key by name, because a string that does not name a key may leave it unchanged,
        # and in a string of its own, because one unknown key makes the allocator refuse all. Then
        # the earlier string, so that the allocator reports the same as before.
        backend, items = self._backend, parse_settings(before)
        for key, value in self._old.items():
            with contextlib.suppress(Exception):
                running.send_back(backend, {key: value}, format_settings(items | {key: value}))
        running.send_back(backend, {}, before)


def _replaced(items: dict[str, str], keys: Set[str], by: Mapping[str, str]) -> dict[str, str]:
    """Return `items` with the values that `by` has for some keys, and without those it lacks."""
    kept = {key: value for key, value in items.items() if key not in keys}
    return kept | {key: by[key] for key in keys if key in by}
