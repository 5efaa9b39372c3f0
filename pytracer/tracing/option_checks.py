"""Checks of options' values, and parsers of their variables' texts.

A check takes the name to call the option by and a value. It returns the value to use, or raises a
`ConfigError` that names both and the remedy. A parser returns the text itself if the text has
another form, and leaves the error to the check.
"""

import contextlib
import json
import operator
import os
import re
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

from pytracer.backends.names import BACKENDS, MAX_ACCELERATORS
from pytracer.errors import ConfigError
from pytracer.text import brief
from pytracer.tracing.step_windows import SCHEDULE_ACTIONS, CyclicSchedule, Schedule, last_of

CONTEXTS = (None, "state", "alloc", "all")
MAX_RANK = 2**31 - 1
MAX_STEP = 2**32 - 1
UNUSABLE_SIGNALS = frozenset(
    {
        *(signal.SIGKILL, signal.SIGSTOP),  # a program cannot handle these
        *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT),
        *(signal.SIGCHLD, signal.SIGALRM, signal.SIGPROF, signal.SIGVTALRM, signal.SIGPIPE),
        *(signal.SIGINT, signal.SIGTERM),  # these must still end the job
    }
)

OnSnapshot = Callable[[str], object] | str | None


def parse_int(text: str) -> object:
    """Parse a decimal integer."""
    try:
        return int(text)
    except ValueError:
        return text


def parse_bool(text: str) -> object:
    """Parse a boolean: 1, true, on, yes; 0, false, off, no."""
    known = {"1": True, "true": True, "on": True, "yes": True}
    known.update({"0": False, "false": False, "off": False, "no": False})
    return known.get(text.strip().lower(), text)


def parse_none(text: str) -> str | None:
    """Parse "none" as None; return any other text."""
    return None if text.strip().lower() == "none" else text


def parse_list(text: str) -> list[str]:
    """Parse items separated by commas."""
    return [item.strip() for item in text.split(",")]


def parse_ranks(text: str) -> list[object]:
    """Parse integers separated by commas."""
    return [parse_int(item) for item in parse_list(text)]


def parse_steps(text: str) -> object:
    """Parse integers separated by commas, in brackets or not; "none"; "[]" for no step."""
    if parse_none(text) is None:
        return None
    items = text.strip().removeprefix("[").removesuffix("]")
    return parse_ranks(items) if items.strip() else []


def parse_schedule(text: str) -> object:
    """Parse arguments of `torch.profiler.schedule`, as in "wait=1,active=3"; "none"."""
    known = {field.name for field in fields(CyclicSchedule)}
    numbers: dict[str, int] = {}
    for item in parse_list(text):
        name, _, number = item.partition("=")
        if name not in known or not number.isdecimal():
            return parse_none(text)
        numbers[name] = int(number)
    return CyclicSchedule(**numbers) if numbers.get("active") else text


def parse_discrete(text: str) -> object:
    """Parse a boolean, or names separated by commas; "none" is False."""
    value = parse_bool("no" if parse_none(text) is None else text)
    return value if isinstance(value, bool) else parse_list(text)


def parse_json(text: str) -> object:
    """Parse JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def check_int(name: str, value: object, least: int, most: int, default: int | None) -> int:
    """Check an integer within bounds; types such as numpy's integers count."""
    wanted = f"give an integer from {least} to {most} (default {default})"
    shown = brief(value)
    if isinstance(value, bool):
        raise ConfigError(f"{name}={shown} is not an integer: {wanted}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{name}={shown} is not an integer: {wanted}") from None
    if not least <= number <= most:
        raise ConfigError(f"{name}={shown} is out of range: {wanted}")
    return number


def check_int_in(least: int, most: int, default: int | None) -> Callable[[str, object], int]:
    """Return the check of an option that is an integer in a range."""
    return lambda name, value: check_int(name, value, least, most, default)


def optional(check: Callable[[str, object], Any]) -> Callable[[str, object], Any]:
    """Return the check of an option that may also be None."""
    return lambda name, value: None if value is None else check(name, value)


def check_bool(name: str, value: object) -> bool:
    """Check a boolean."""
    if isinstance(value, bool):
        return value
    raise ConfigError(f"{name}={brief(value)} is not a boolean: give True or False (1 or 0)")


def check_context(name: str, context: object) -> str | None:
    """Check one of `CONTEXTS`."""
    if context is None or (isinstance(context, str) and context in CONTEXTS):
        return context
    raise ConfigError(f'{name}={brief(context)} is unknown: give None, "state", "alloc" or "all"')


def check_devices(name: str, device: object) -> tuple[str, ...]:
    """Check a device's name, several, or a `torch.device`; return a tuple without duplicates."""
    wanted = (
        'give "auto", "cpu", "cuda", "npu", one device as in "cuda:1", or a list of these '
        "(separated by commas)"
    )
    if isinstance(device, str):
        names: tuple[object, ...] = (device,)
    elif isinstance(device, Sequence) and len(device) > 0:
        names = tuple(device)
    elif type(device).__module__ == "torch":  # torch.device
        names = (str(device),)
    else:
        raise ConfigError(f"{name}={brief(device)} is not a device name: {wanted}")
    checked = []
    for item in names:
        backend, _, index = str(item).partition(":")
        if str(item) != "auto" and (
            backend not in BACKENDS or (":" in str(item) and not index.isdecimal())
        ):
            raise ConfigError(f"{name}={brief(device)} is unknown: {wanted}")
        if backend == "cpu":
            if index not in ("", "0"):
                raise ConfigError(f'{name}={brief(device)} does not exist: there is one CPU, "cpu"')
            index = ""
        if index and int(index) >= MAX_ACCELERATORS:
            raise ConfigError(
                f"{name}={brief(device)} does not exist: indices are below {MAX_ACCELERATORS}"
            )
        checked.append(f"{backend}:{int(index)}" if index else backend)
    return tuple(dict.fromkeys(checked))


def check_path(name: str, value: object, wanted: str) -> str | None:
    """Check a path or None; `wanted` is the remedy in the error."""
    if value is None:
        return None
    try:
        path = os.fspath(value)  # type: ignore[call-overload]
    except TypeError:
        path = None
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigError(f"{name}={brief(value)} is not a path: {wanted}")
    return path


def check_output(name: str, output: object) -> str | None:
    """Check a path or None; refuse names that look like a snapshot file of another suffix."""
    wanted = "give a file name ending in .pickle or .pkl, a directory, or None to write nothing"
    path = check_path(name, output, wanted)
    if path is not None and path.endswith((".pickl", ".pickle.gz", ".pt", ".json")):
        raise ConfigError(f"{name}={brief(output)} is not the name of a snapshot file: {wanted}")
    return path


def check_role(name: str, role: object) -> str | None:
    """Check a part of a file name, or None."""
    if role is None or (isinstance(role, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", role)):
        return role
    raise ConfigError(
        f"{name}={brief(role)} cannot be part of a file name: give up to 100 letters, digits, _, . "
        "and -, or None"
    )


def check_ranks(name: str, ranks: object) -> tuple[int, ...]:
    """Check integers from 0; return a tuple."""
    if isinstance(ranks, Sequence) and not isinstance(ranks, str):
        with contextlib.suppress(ConfigError):
            return tuple(check_int(name, rank, 0, MAX_RANK, None) for rank in ranks)
    raise ConfigError(
        f"{name}={brief(ranks)} is not a list of ranks: give integers from 0 (separated by commas)"
    )


def check_steps(name: str, steps: object) -> Sequence[int] | None:
    """Check integers from 1, or None; return a tuple, or the range that was given."""
    if steps is None:
        return None
    wanted = (
        f"give a list of integers from 1 to {MAX_STEP} (separated by commas, as in 10,11,12), [] "
        "or None"
    )
    if isinstance(steps, range):
        if not steps or (min(steps[0], steps[-1]) >= 1 and last_of(steps) <= MAX_STEP):
            return steps
    elif isinstance(steps, Iterable) and not isinstance(steps, str):
        with contextlib.suppress(ConfigError):
            return tuple(check_int(name, step, 1, MAX_STEP, None) for step in steps)
    raise ConfigError(f"{name}={brief(steps)} is not a list of steps: {wanted}")


def check_schedule(name: str, schedule: object) -> Schedule | None:
    """Check a function like those that `torch.profiler.schedule` returns, or None."""
    if schedule is None or isinstance(schedule, CyclicSchedule):
        return schedule
    wanted = (
        "give what torch.profiler.schedule() returns, or None (in the variable its arguments, as "
        'in "wait=1,warmup=1,active=3,repeat=2,skip_first=10": numbers, active from 1)'
    )
    if not callable(schedule):
        raise ConfigError(f"{name}={brief(schedule)} is not a schedule: {wanted}")
    try:
        answer = schedule(0)
    except Exception as error:
        raise ConfigError(
            f"{name}={brief(schedule)} fails for step 0: {error!r}: {wanted}"
        ) from error
    if getattr(answer, "name", None) not in SCHEDULE_ACTIONS:
        raise ConfigError(
            f"{name}={brief(schedule)} returns {brief(answer)} for step 0, which is not a "
            f"torch.profiler.ProfilerAction: {wanted}"
        )
    return schedule


def check_step_from(name: str, source: object) -> str | None:
    """Check what ends a step: None, "framework", "optimizer", "optimizer:Class"."""
    if source is None or (
        isinstance(source, str) and re.fullmatch(r"framework|optimizer(:[^\W\d]\w*)?", source)
    ):
        return source
    raise ConfigError(
        f'{name}={brief(source)} is unknown: give "framework", "optimizer", "optimizer:" and the '
        "name of its class, or None"
    )


def check_discrete(name: str, discrete: object) -> bool | tuple[str, ...]:
    """Check True, False, or names of phases."""
    if isinstance(discrete, bool):
        return discrete
    if isinstance(discrete, Sequence) and not isinstance(discrete, str):
        names = tuple(discrete)
        if all(isinstance(phase, str) and phase for phase in names):
            return names or False
    raise ConfigError(
        f"{name}={brief(discrete)} is not a list of phases: give True, False or names (separated "
        "by commas)"
    )


def check_phases(name: str, phases: object) -> str | None:
    """Check "auto" or None."""
    if phases is None or phases == "auto":
        return "auto" if phases else None
    raise ConfigError(
        f'{name}={brief(phases)} is unknown: give "auto" for the phases forward, backward and '
        "optimizer, or None for the phases that the program names (pytracer.annotate)"
    )


def check_callback(name: str, callback: object) -> OnSnapshot:
    """Check a function, None, or "package.module:function", which is imported when needed."""
    if callback is None or callable(callback):
        return callback
    if isinstance(callback, str) and re.fullmatch(r"[\w.]+:[\w.]+", callback):
        return callback
    raise ConfigError(
        f'{name}={brief(callback)} is not a function: give one, or "package.module:function", '
        "or None"
    )


def check_signal(name: str, value: object) -> signal.Signals | None:
    """Check a signal by name or number, or None."""
    if value is None:
        return None
    wanted = "give the name of one that a program may handle, such as SIGUSR2, or None"
    try:
        if isinstance(value, str) and not value.isdecimal():
            number = signal.Signals[value if value.startswith("SIG") else f"SIG{value}"]
        else:
            number = signal.Signals(int(value))  # type: ignore[call-overload]
    except (KeyError, ValueError, TypeError):
        raise ConfigError(f"{name}={brief(value)} is not a signal: {wanted}") from None
    if number in UNUSABLE_SIGNALS:
        raise ConfigError(
            f"{name}={brief(value)} cannot be used, because it has another purpose: {wanted}"
        )
    return number


def check_metadata(name: str, metadata: object) -> dict[str, Any]:
    """Check a dict of builtin values; return a copy."""
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise ConfigError(
            f"{name}={brief(metadata)} is not a dict: give a dict, or None (in the variable JSON, "
            'such as {"run": 7})'
        )
    try:
        return {_check_key(key): _check_value(value) for key, value in metadata.items()}
    except RecursionError:
        raise ConfigError(
            "metadata is nested too deeply, or holds itself: give fewer levels"
        ) from None


def _check_key(key: object) -> str:
    if isinstance(key, str):
        return key
    raise ConfigError(f"metadata has the key {brief(key)}: keys are strings")


def _check_value(value: object) -> Any:
    """Return a copy, so that later changes by the program do not reach the file."""
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, dict):
        return {_check_key(key): _check_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_check_value(item) for item in value]
    raise ConfigError(
        f"metadata holds {brief(value)}: give None, booleans, 64-bit integers, floats, strings, "
        "lists and dicts of them"
    )
