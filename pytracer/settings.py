"""The settings of the accelerator's allocator: read, merged, and changed while the program runs.

torch's allocators *replace* their settings when they are given a string: some keys that it does not
name go back to their defaults, others stay as they are. So what is sent is always the whole: what
is in force, merged with the change; and what is restored names each key that was changed.
"""

import contextlib
import json
import os
import subprocess
from types import TracebackType

from pytracer import devices, settings_access
from pytracer.errors import ConfigError, HookError, PytracerError
from pytracer.hook_compile import running_torch
from pytracer.notices import say_once
from pytracer.settings_guards import warn_of_expandable_segments
from pytracer.settings_keys import (
    BACK_TO_DEFAULT,
    DEFAULTS,
    READ_ONCE,
    VARIABLE,
    joined,
    not_in_force,
    parsed,
    refusal,
)


def merged(settings: str, change: str) -> str:
    """The allocator's settings with `change` made to them, both as its variable has them.

    Keys keep their order, new ones come last; of a key that comes twice the last counts.

    Raises:
        ConfigError: One of them is not of the form `key:value,key:[value,value]`.
    """
    return joined(parsed(settings) | parsed(change))


def variables(change: str, settings: str | None = None) -> dict[str, str]:
    """What to set in a new process's environment, for its allocator to have `change` made to it.

    Right for every torch and torch_npu that pytracer records, none of which is imported. A variable
    that is set already is changed for itself, since versions differ in which of them counts; the
    settings of `PYTORCH_ALLOC_CONF` alone are meant for a torch before 2.9 too, which ignores it.

    Args:
        change: The change.
        settings: What it is made to; None: to what this process's environment has.

    Returns:
        Values by the names of variables.

    Raises:
        ConfigError: `change`, `settings`, or a variable that is set, is malformed.
    """
    general = os.environ.get("PYTORCH_ALLOC_CONF")
    cuda = os.environ.get(VARIABLE["cuda"], general or "")
    found = {} if general is None else {"PYTORCH_ALLOC_CONF": general}
    found[VARIABLE["cuda"]] = cuda
    # torch_npu refuses to start where both this and the general one are set, since it knows that.
    if general is None or VARIABLE["npu"] in os.environ or settings_access.torch_npu_is_older():
        found[VARIABLE["npu"]] = os.environ.get(VARIABLE["npu"], cuda)
    if settings is not None:
        return dict.fromkeys(found, merged(settings, change))
    changed = parsed(change)
    return {name: joined(_of_variable(name, value) | changed) for name, value in found.items()}


def _of_variable(name: str, value: str) -> dict[str, str]:
    try:
        return parsed(value)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def check_in_new_process(change: str, settings: str | None = None) -> str | None:
    """Has a new process's allocator read its settings, `variables(change, settings)`.

    Returns:
        The accelerator, "cuda" or "npu"; None: there is none.

    Raises:
        ConfigError: The allocator refuses them, or takes them for others.
        HookError: There is no torch.
        PytracerError: The process failed for another reason.
    """
    from pytracer.child_process import last_exception, python_command  # not for every import torch

    running_torch()
    done = subprocess.run(
        python_command("pytracer.settings_check", change),
        env={**os.environ, **variables(change, settings), "PYTRACER": "0"},
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
        raise refusal(backend, parsed(change), refused)
    if read:
        raise not_in_force(parsed(change), read)
    return None if backend is None else str(backend)


def in_force(backend: str) -> str | None:
    """The settings of this process's allocator, as its variable has them, as far as known.

    Nothing is initialised. The allocators' own answer is the string that was *tried* last, refused
    or not: CUDA's is checked against the values that it shows (which leaves a `snapshot` event of
    each device in recordings), the NPU's is believed.

    Returns:
        The settings; "" are the defaults; None: not known, or there are none ("cpu").
    """
    try:
        if backend == "cpu" or devices.torch_module(backend)._is_in_bad_fork():
            return None  # CUDA's allocator may have been forked with its locks held
        return settings_access.in_force(backend)
    except Exception:  # no torch, or one that has no such backend; or its variable is wrong
        return None


def expandable_segments(on: bool, *, device: str = "auto") -> "AllocatorSettings":
    """Switches expandable segments on or off, from now on; other settings stay as they are.

        pytracer.expandable_segments(True)  # for good
        with pytracer.expandable_segments(False): ...  # for a while

    Segments that are there stay what they are. Warns (logger "pytracer") where expandable segments
    are known to break something that this process uses. Else as `allocator_settings`.
    """
    if not isinstance(on, bool):
        raise ConfigError(f"expandable_segments takes True or False, got {on!r}")
    return allocator_settings(f"expandable_segments:{on}", device=device)


def allocator_settings(settings: str, *, device: str = "auto") -> "AllocatorSettings":
    """Changes settings of the accelerator's allocator, from now on, in the whole process.

    What is not named stays as it is. CUDA's allocator is asked what it took, which leaves
    `snapshot` events in a recording; with an NPU that is initialised, whether segments are
    expandable is observed by an allocation in a pool of its own, which is given back.

    Args:
        settings: As in `PYTORCH_CUDA_ALLOC_CONF`: `"max_split_size_mb:128"`.
        device: "auto" (the accelerator that is there), "cuda" or "npu", initialised or not.

    Returns:
        A context manager, which restores what was before when its block is left; it may be ignored.

    Raises:
        ConfigError: The settings are malformed or refused by the allocator, or are none that can
            be changed while the program runs. Those in force are what they were.
        HookError: There is no accelerator, or no torch that has one.
        PytracerError: They did not take effect, or a graph is being captured.
    """
    return AllocatorSettings(_accelerator(device), settings)


def _accelerator(device: str) -> str:
    if device == "cpu":
        raise ConfigError('the CPU allocator has no settings; give device="cuda" or "npu"')
    if device not in ("auto", *devices.ACCELERATORS):
        raise ConfigError(
            f'device must be "auto", "cuda" or "npu", got {device!r}: settings are those of the '
            "process, for all devices"
        )
    backend = devices.automatic() if device == "auto" else device
    if backend == "cpu":
        running_torch()
        raise HookError(
            "no accelerator was found, and the CPU allocator has no settings; if there is one, "
            'give device="cuda" or "npu"'
        )
    devices.indices(backend, None)
    return backend


class AllocatorSettings(contextlib.AbstractContextManager[None]):
    """A change of the allocator's settings, made; leaving the block restores what was before."""

    def __init__(self, backend: str, change: str) -> None:
        """Makes the change; raises as `allocator_settings` does."""
        self._backend = backend
        self._change = parsed(change)
        self._before: str | None = None  # None: restored
        self._make()

    def __enter__(self) -> None:
        """Makes the change again, if it was restored."""
        if self._before is None:
            self._make()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restores what was in force before the change."""
        if self._before is not None:
            before, self._before = self._before, None
            try:
                self._restore(before)
            except Exception as problem:  # never in the place of the block's own exception
                say_once(f'the allocator settings "{before}" could not be restored: {problem}')

    def _make(self) -> None:
        backend, module = self._backend, devices.torch_module(self._backend)
        if (allocator := str(module.get_allocator_backend())) != "native":
            raise ConfigError(
                f"the {backend.upper()} allocator is {allocator}, whose settings cannot be changed "
                "while the program runs"
            )
        if module.is_initialized() and module.is_current_stream_capturing():
            raise PytracerError(
                "a graph is being captured, whose pool would be of segments of both kinds; change "
                "allocator settings before or after the capture"
            )
        try:
            before = settings_access.in_force(backend)
        except Exception as error:
            raise ConfigError(
                f"the allocator cannot read the settings it was started with: {error}"
            ) from error
        items = parsed(before)
        whole = items | self._change
        self._refuse_what_cannot_be(items, whole)
        known = DEFAULTS | settings_access.of_environment(backend) | items
        self._old = {key: known[key] for key in self._change if key in known}
        try:
            settings_access.send(backend, self._change, whole)
        except Exception as error:
            self._give_up(before)
            raise refusal(backend, self._change, str(error)) from error
        if unmet := settings_access.unmet(backend, self._change):
            self._give_up(before)
            raise not_in_force(self._change, unmet)
        for key in self._change.keys() - known.keys() - set(BACK_TO_DEFAULT):
            say_once(f"{key} will not be restored: pytracer does not know what it was before")
        if "True" == self._change.get("expandable_segments") != items.get("expandable_segments"):
            warn_of_expandable_segments(backend)
        self._before = before

    def _refuse_what_cannot_be(self, items: dict[str, str], whole: dict[str, str]) -> None:
        for key, value in self._change.items():
            if key in READ_ONCE[self._backend] and value != items.get(key, DEFAULTS.get(key)):
                raise ConfigError(
                    f"{key} cannot be changed while the program runs: the allocator looks at it "
                    f"once; start the program with {VARIABLE[self._backend]}={key}:{value}"
                )
        if lost := settings_access.lost_by(self._backend, self._change, whole):
            raise ConfigError(
                f"this torch_npu puts {lost} back to its default with any change while the program "
                f"runs; start the program with {joined(self._change)} in {VARIABLE['npu']}"
            )
        if self._backend == "npu" and whole.get("expandable_segments") == "True":
            for key in ("max_split_size_mb", "garbage_collection_threshold"):
                if key in whole:
                    raise ConfigError(
                        f"torch_npu has no expandable segments together with {key}, which is "
                        f"{whole[key]}; start the program without it in {VARIABLE['npu']}"
                    )

    def _give_up(self, before: str) -> None:
        with contextlib.suppress(Exception):  # what it was started with is refused too
            self._restore(before)

    def _restore(self, before: str) -> None:
        # First each by name, for what a string that does not name it leaves alone; by itself,
        # since one that is unknown here makes the allocator refuse all. Then the string that was in
        # force, so that the allocator tells the same as before.
        backend, items = self._backend, parsed(before)
        for key, value in self._old.items():
            with contextlib.suppress(Exception):
                settings_access.send_back(backend, {key: value}, joined(items | {key: value}))
        settings_access.send_back(backend, {}, before)
