"""Checks of options' values.

A check takes the name to call the option by and a value. It returns the value to use, or raises a
`ConfigError` that names both and the remedy.
"""

import contextlib
import itertools
import operator
import os
import re
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from pytracer.backends.names import BACKENDS, MAX_ACCELERATORS
from pytracer.errors import ConfigError
from pytracer.text import brief
from pytracer.tracing.option_parsers import parse_list
from pytracer.tracing.step_windows import SCHEDULE_ACTIONS, CyclicSchedule, Schedule, last_of

MAX_RANK = 2**31 - 1
MAX_STEP = 2**32 - 1
MAX_LISTED_STEPS = 100_000  # of a text with several items
UNUSABLE_SIGNALS = frozenset(
    {
        *(signal.SIGKILL, signal.SIGSTOP),  # a program cannot handle these
        *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT),
        *(signal.SIGCHLD, signal.SIGALRM, signal.SIGPROF, signal.SIGVTALRM, signal.SIGPIPE),
        *(signal.SIGINT, signal.SIGTERM),  # these must still end the job
    }
)

OnSnapshot = Callable[[str], object] | str | None
Ranks = tuple[int, ...] | Literal["all"]


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


def check_trigger_file(name: str, path: object) -> str | None:
    """Check a path or None."""
    return check_path(name, path, "give a file name, or None")


def check_role(name: str, role: object) -> str | None:
    """Check a part of a file name, or None."""
    if role is None or (isinstance(role, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", role)):
        return role
    raise ConfigError(
        f"{name}={brief(role)} cannot be part of a file name: give up to 100 letters, digits, _, . "
        "and -, or None"
    )


def check_ranks(name: str, ranks: object) -> Ranks:
    """Check integers from 0, or "all"; return a tuple of integers."""
    if isinstance(ranks, str) and ranks == "all":
        return "all"
    if isinstance(ranks, Sequence) and not isinstance(ranks, str):
        with contextlib.suppress(ConfigError):
            return tuple(check_int(name, rank, 0, MAX_RANK, None) for rank in ranks)
    raise ConfigError(
        f"{name}={brief(ranks)} is not a list of ranks: give integers from 0 (separated by "
        'commas), or "all"'
    )


def check_steps(name: str, steps: object) -> Sequence[int] | None:
    """Check integers from 1, as a text or not, or None; return a tuple or a range."""
    given = _steps_of(steps) if isinstance(steps, str) else steps
    if given is None and steps is None:
        return None
    if isinstance(given, range):
        if not given or (min(given[0], given[-1]) >= 1 and last_of(given) <= MAX_STEP):
            return given
    elif isinstance(given, Iterable):
        with contextlib.suppress(ConfigError):
            return tuple(check_int(name, step, 1, MAX_STEP, None) for step in given)
    raise ConfigError(
        f"{name}={brief(steps)} is not a list of steps: give a list of integers from 1 to "
        f'{MAX_STEP} (as a text "3,10-12", of one range or at most {MAX_LISTED_STEPS:,} steps), [] '
        "or None"
    )


def _steps_of(text: str) -> Sequence[int] | None:
    """Return the steps of a text: numbers and ranges, separated by commas, in brackets or not.

    None: the text has another form, or several items with more than `MAX_LISTED_STEPS` steps.
    """
    ranges = []
    items = text.strip()
    if items == "[]":
        return ()
    for item in parse_list(items.removeprefix("[").removesuffix("]")):
        match = re.fullmatch(r"([0-9]{1,10})(?:\s*-\s*([0-9]{1,10}))?", item)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            return None
        ranges.append(range(first, last + 1))
    if len(ranges) == 1:
        return ranges[0]
    is_bounded = sum(map(len, ranges)) <= MAX_LISTED_STEPS
    return tuple(itertools.chain(*ranges)) if is_bounded else None


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
    if phases is None or (isinstance(phases, str) and phases == "auto"):
        return phases
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
