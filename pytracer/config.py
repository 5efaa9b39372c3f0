"""The options of a tracer: names, defaults, bounds, and the errors a bad value gets."""

import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytracer import _core
from pytracer.devices import BACKENDS, MAX_ACCELERATORS
from pytracer.errors import ConfigError

CONTEXTS = (None, "state", "alloc", "all")
MAX_ENTRIES_LIMIT = 2**28
STACK_BYTES_LIMITS = (2**16, 2**32)
MAX_OOM_SNAPSHOTS_LIMIT = 1000

Output = str | os.PathLike[str] | None
Device = str | Sequence[str]


@dataclass(frozen=True)
class Options:
    """Checked options.

    Attributes:
        output: where snapshots go (see `pytracer.output`), or None.
        devices: "auto", "cpu", "cuda", "npu", or one accelerator as in "cuda:1"; never empty.
        trace_alloc_max_entries: events each device's ring holds.
        stack_depth: Python frames kept of a stack, innermost first.
        context: which stacks are kept: None, "state", "alloc" or "all".
        max_stack_bytes: bound of the table of all stacks.
        metadata: kept in the snapshot under `pytracer.metadata`.
        on_oom: whether a snapshot is written when the device's memory runs out.
        max_oom_snapshots: how many of those at most.
    """

    output: str | None
    devices: tuple[str, ...]
    trace_alloc_max_entries: int
    stack_depth: int
    context: str | None
    max_stack_bytes: int
    metadata: dict[str, Any]
    on_oom: bool
    max_oom_snapshots: int

    @classmethod
    def checked(
        cls,
        output: Output,
        device: Device,
        trace_alloc_max_entries: int,
        stack_depth: int,
        context: str | None,
        max_stack_bytes: int,
        metadata: dict[str, Any] | None,
        on_oom: bool,
        max_oom_snapshots: int,
    ) -> "Options":
        """Checks every option.

        Raises:
            ConfigError: names the option, its value and what to give instead.
        """
        return cls(
            _checked_output(output),
            _checked_devices(device),
            _checked_int(
                "trace_alloc_max_entries", trace_alloc_max_entries, 1, MAX_ENTRIES_LIMIT, 100_000
            ),
            _checked_int("stack_depth", stack_depth, 1, _core.MAX_STACK_DEPTH, 32),
            _checked_context(context),
            _checked_int("max_stack_bytes", max_stack_bytes, *STACK_BYTES_LIMITS, 2**25),
            _checked_metadata(metadata),
            _checked_bool("on_oom", on_oom),
            _checked_int("max_oom_snapshots", max_oom_snapshots, 0, MAX_OOM_SNAPSHOTS_LIMIT, 3),
        )


def _checked_int(name: str, value: object, least: int, most: int, default: int) -> int:
    wanted = f"give an integer from {least} to {most} (default {default})"
    try:
        shown = repr(value)
    except ValueError:  # Python prints no integer of more than some thousand digits
        shown = "(a number of thousands of digits)"
    if isinstance(value, bool):
        raise ConfigError(f"{name}={shown} is not an integer: {wanted}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{name}={shown} is not an integer: {wanted}") from None
    if not least <= number <= most:
        raise ConfigError(f"{name}={shown} is out of range: {wanted}")
    return number


def _checked_bool(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ConfigError(f"{name}={value!r} is not a boolean: give True or False")


def _checked_context(context: object) -> str | None:
    if context is None or (isinstance(context, str) and context in CONTEXTS):
        return context
    raise ConfigError(f'context={context!r} is unknown: give None, "state", "alloc" or "all"')


def _checked_devices(device: object) -> tuple[str, ...]:
    wanted = 'give "auto", "cpu", "cuda", "npu", one device as in "cuda:1", or a list of these'
    if isinstance(device, str):
        names: tuple[object, ...] = (device,)
    elif isinstance(device, Sequence) and len(device) > 0:
        names = tuple(device)
    elif type(device).__module__ == "torch":  # torch.device
        names = (str(device),)
    else:
        raise ConfigError(f"device={device!r} is not a device name: {wanted}")
    checked = []
    for name in names:
        backend, _, index = str(name).partition(":")
        if str(name) != "auto" and (
            backend not in BACKENDS or (":" in str(name) and not index.isdecimal())
        ):
            raise ConfigError(f"device={device!r} is unknown: {wanted}")
        if backend == "cpu":
            if index not in ("", "0"):
                raise ConfigError(f'device={device!r} does not exist: there is one CPU, "cpu"')
            index = ""
        if index and int(index) >= MAX_ACCELERATORS:
            raise ConfigError(
                f"device={device!r} does not exist: indices are below {MAX_ACCELERATORS}"
            )
        checked.append(f"{backend}:{int(index)}" if index else backend)
    return tuple(dict.fromkeys(checked))


def _checked_output(output: object) -> str | None:
    if output is None:
        return None
    try:
        path = os.fspath(output)  # type: ignore[call-overload]
    except TypeError:
        path = None
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigError(
            f"output={output!r} is not a path: give a file name ending in .pickle, a directory, "
            "or None to write nothing"
        )
    return path


def _checked_metadata(metadata: object) -> dict[str, Any]:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise ConfigError(f"metadata={metadata!r} is not a dict: give a dict, or None")
    try:
        return {_checked_key(key): _checked_plain(value) for key, value in metadata.items()}
    except RecursionError:
        raise ConfigError(
            "metadata is nested too deeply, or holds itself: give fewer levels"
        ) from None


def _checked_key(key: object) -> str:
    if isinstance(key, str):
        return key
    raise ConfigError(f"metadata has the key {key!r}: keys are strings")


def _checked_plain(value: object) -> Any:
    """A copy, so that what the file says is what was given."""
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, dict):
        return {_checked_key(key): _checked_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_checked_plain(item) for item in value]
    raise ConfigError(
        f"metadata holds {value!r}: give None, booleans, 64-bit integers, floats, strings, lists "
        "and dicts of them"
    )
