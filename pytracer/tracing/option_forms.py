"""The forms of options: parsers of their texts, and checks of their values.

A parser returns the text itself if the text has another form, and leaves the error to the check. A
check returns the value to use, or raises a `WrongValueError` with the problem and the remedy.
"""

import contextlib
import itertools
import json
import operator
import os
import re
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Literal, TypeVar

from pytracer.backends.names import BACKENDS, MAX_ACCELERATORS
from pytracer.errors import ConfigError
from pytracer.text import brief
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
Item = TypeVar("Item")


class WrongValueError(ValueError):
    """What is wrong with a value: the end of a sentence that begins with the option."""


def parse_int(text: str) -> object:
    """Parse a decimal integer."""
    try:
        return int(text)
    except ValueError:
        return text


def check_int(least: int, most: int, default: int | None = None) -> Callable[[object], int]:
    """Return the check of an integer within bounds; types such as numpy's integers count."""
    wanted = f"give an integer from {least} to {most} (default {default})"

    def check(value: object) -> int:
        try:
            if isinstance(value, bool):
                raise TypeError
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise WrongValueError(f"is not an integer: {wanted}") from None
        if not least <= number <= most:
            raise WrongValueError(f"is out of range: {wanted}")
        return number

    return check


def optional(check: Callable[[object], Item]) -> Callable[[object], Item | None]:
    """Return the check of an option that may also be None."""
    return lambda value: None if value is None else check(value)


def items(value: object, check: Callable[[Any], Item]) -> tuple[Item, ...] | None:
    """Return the checked items of a list or another sequence; None: it is none, or one is wrong."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    with contextlib.suppress(WrongValueError):
        return tuple(map(check, value))
    return None


def parse_bool(text: str) -> object:
    """Parse a boolean: 1, true, on, yes; 0, false, off, no."""
    known = dict.fromkeys(("1", "true", "on", "yes"), True)
    known |= dict.fromkeys(("0", "false", "off", "no"), False)
    return known.get(text.strip().lower(), text)


def check_bool(value: object) -> bool:
    """Check a boolean."""
    if isinstance(value, bool):
        return value
    raise WrongValueError("is not a boolean: give True or False (1 or 0)")


def parse_none(text: str) -> str | None:
    """Parse "none" as None; return any other text."""
    return None if text.strip().lower() == "none" else text


def parse_list(text: str) -> list[str]:
    """Parse items separated by commas."""
    return [item.strip() for item in text.split(",")]


def check_devices(device: object) -> tuple[str, ...]:
    """Check a device's name, several, or a `torch.device`; return a tuple without duplicates."""
    wanted = (
        'give "auto", "cpu", "cuda", "npu", one device as in "cuda:1", or a list of these '
        "(separated by commas)"
    )
    is_one = isinstance(device, str) or type(device).__module__ == "torch"  # torch.device
    names = (str(device),) if is_one else items(device, str)
    if not names:
        raise WrongValueError(f"is not a device name: {wanted}")
    checked = []
    for item in names:
        backend, colon, index = item.partition(":")
        if item != "auto" and (backend not in BACKENDS or (colon and not index.isdecimal())):
            raise WrongValueError(f"is unknown: {wanted}")
        if backend == "cpu":
            if index not in ("", "0"):
                raise WrongValueError('does not exist: there is one CPU, "cpu"')
            index = ""
        if index and int(index) >= MAX_ACCELERATORS:
            raise WrongValueError(f"does not exist: indices are below {MAX_ACCELERATORS}")
        checked.append(f"{backend}:{int(index)}" if index else backend)
    return tuple(dict.fromkeys(checked))


def check_path(value: object, wanted: str, refused: tuple[str, ...] = ()) -> str | None:
    """Check a path or None; `refused` are suffixes."""
    if value is None:
        return None
    path: object = None
    with contextlib.suppress(TypeError):
        path = os.fspath(value)  # type: ignore[call-overload]
    if not isinstance(path, str) or not path or "\0" in path:
        raise WrongValueError(f"is not a path: {wanted}")
    if path.endswith(refused):
        raise WrongValueError(f"is not the name of a snapshot file: {wanted}")
    return path


check_output = partial(
    check_path,
    wanted="give a file name ending in .pickle or .pkl, a directory, or None to write nothing",
    refused=(".pickl", ".pickle.gz", ".pt", ".json"),
)
check_trigger_file = partial(check_path, wanted="give a file name, or None")


def check_text(form: str, problem: str) -> Callable[[object], str | None]:
    """Return the check of a text that matches a regular expression, or None."""

    def check(value: object) -> str | None:
        if value is None or (isinstance(value, str) and re.fullmatch(form, value)):
            return value
        raise WrongValueError(problem)

    return check


check_role = check_text(
    r"[A-Za-z0-9][\w.-]{0,99}",
    "cannot be part of a file name: give up to 100 letters, digits, _, . and -, or None",
)
check_step_from = check_text(
    r"none|framework|optimizer(:[^\W\d]\w*)?",
    'is unknown: give "framework", "optimizer", "optimizer:CLASS" (with its class name), "none", '
    "or None",
)
check_phases = check_text(
    "auto",
    'is unknown: give "auto" for the phases forward, backward and optimizer, or None for the '
    "phases that the program names (pytracer.annotate)",
)


def parse_ranks(text: str) -> object:
    """Parse integers separated by commas; "all"."""
    is_all = text.strip().lower() == "all"
    return "all" if is_all else [parse_int(item) for item in parse_list(text)]


def check_ranks(ranks: object) -> Ranks:
    """Check integers from 0, or "all"; return a tuple of integers."""
    if isinstance(ranks, str) and ranks == "all":
        return "all"
    if (numbers := items(ranks, check_int(0, MAX_RANK))) is None:
        problem = 'is not a list of ranks: give integers from 0 (separated by commas), or "all"'
        raise WrongValueError(problem)
    return numbers


def check_steps(steps: object) -> Sequence[int] | None:
    """Check integers from 1, as a text or not, or None; return a tuple or a range."""
    if steps is None:
        return None
    given = _steps_of(steps) if isinstance(steps, str) else steps
    if isinstance(given, range):
        if not given or (min(given[0], given[-1]) >= 1 and last_of(given) <= MAX_STEP):
            return given
    elif isinstance(given, Iterable):
        with contextlib.suppress(WrongValueError):
            return tuple(map(check_int(1, MAX_STEP), given))
    raise WrongValueError(
        f'is not a list of steps: give integers from 1 to {MAX_STEP}, one range such as "3-500", '
        f'up to {MAX_LISTED_STEPS:,} steps such as "3,10-12", [] or None'
    )


def _steps_of(text: str) -> Sequence[int] | None:
    """Return the steps of a text: numbers and ranges, separated by commas, in brackets or not.

    None: the text has another form, or several items with more than `MAX_LISTED_STEPS` steps.
    """
    ranges = []
    text = text.strip()
    if text == "[]":
        return ()
    for item in parse_list(text.removeprefix("[").removesuffix("]")):
        match = re.fullmatch(r"([0-9]{1,10})(?:\s*-\s*([0-9]{1,10}))?", item)
        steps = range(int(match[1]), int(match[2] or match[1]) + 1) if match else ()
        if not steps:
            return None
        ranges.append(steps)
    if len(ranges) == 1:
        return ranges[0]
    is_bounded = sum(map(len, ranges)) <= MAX_LISTED_STEPS
    return tuple(itertools.chain(*ranges)) if is_bounded else None


def parse_schedule(text: str) -> object:
    """Parse arguments of `torch.profiler.schedule`, as in "wait=1,active=3"; "none"."""
    known = {field.name for field in fields(CyclicSchedule)}
    pairs = [item.partition("=")[::2] for item in parse_list(text)]
    if not all(name in known and number.isdecimal() for name, number in pairs):
        return parse_none(text)
    numbers = {name: int(number) for name, number in pairs}
    return CyclicSchedule(**numbers) if numbers.get("active") else text


def check_schedule(schedule: object) -> Schedule | None:
    """Check a function like those that `torch.profiler.schedule` returns, or None."""
    if schedule is None or isinstance(schedule, CyclicSchedule):
        return schedule
    wanted = (
        "give what torch.profiler.schedule() returns, or None (in the environment: its integers, "
        'as "wait=1,warmup=1,active=3,repeat=2,skip_first=10"; active at least 1)'
    )
    if not callable(schedule):
        raise WrongValueError(f"is not a schedule: {wanted}")
    try:
        answer = schedule(0)
    except Exception as error:
        raise WrongValueError(f"fails for step 0: {error!r}: {wanted}") from error
    if getattr(answer, "name", None) not in SCHEDULE_ACTIONS:
        wrong = "for step 0, not a torch.profiler.ProfilerAction"
        raise WrongValueError(f"returns {brief(answer)} {wrong}: {wanted}")
    return schedule


def parse_discrete(text: str) -> object:
    """Parse a boolean, or names separated by commas; "none" is False."""
    value = parse_bool("no" if parse_none(text) is None else text)
    return value if isinstance(value, bool) else parse_list(text)


def check_discrete(discrete: object) -> bool | tuple[str, ...]:
    """Check True, False, or names of phases."""
    if isinstance(discrete, bool):
        return discrete
    wanted = "is not a list of phases: give True, False or names (separated by commas)"
    names = items(discrete, check_text("(?s).+", wanted))
    if names is None or None in names:
        raise WrongValueError(wanted)
    return tuple(filter(None, names)) or False


def check_callback(callback: object) -> OnSnapshot:
    """Check a function, None, or "package.module:function", which is imported when needed."""
    problem = 'is not a function: give one, or "package.module:function", or None'
    return callback if callable(callback) else check_text(r"[\w.]+:[\w.]+", problem)(callback)


def check_signal(value: object) -> signal.Signals | None:
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
        raise WrongValueError(f"is not a signal: {wanted}") from None
    if number in UNUSABLE_SIGNALS:
        raise WrongValueError(f"cannot be used, because it has another purpose: {wanted}")
    return number


def parse_metadata(text: str) -> object:
    """Parse JSON, or pairs such as "batch=2,run=a"."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pairs = [part.partition("=") for part in text.split(",")]
        if not all(equals and name.strip().isidentifier() for name, equals, _ in pairs):
            return text
        is_number = re.compile(r"-?\d{1,18}").fullmatch
        return {name.strip(): int(v) if is_number(v) else v for name, _, v in pairs}


def check_metadata(metadata: object) -> dict[str, Any]:
    """Check a dict of builtin values; return a copy."""
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise WrongValueError(
            'is not a dict: give a dict, or None (in the environment: JSON such as {"run": 7}, '
            "or batch=2,length=512)"
        )
    try:
        copy: dict[str, Any] = _copied(metadata)
    except RecursionError:
        raise ConfigError(
            "metadata is nested too deeply, or contains itself: give fewer levels"
        ) from None
    return copy


def _copied(value: object) -> Any:
    """Return a copy, so that later changes by the program do not reach the file."""
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, dict):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise ConfigError(f"metadata has the key {brief(wrong[0])}: keys must be strings")
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(item) for item in value]
    raise ConfigError(
        f"metadata holds {brief(value)}: give None, booleans, 64-bit integers, floats, strings, "
        "or lists and dicts of these"
    )
