"""The options of a tracer: names, defaults, bounds, variables, and the errors a bad value gets.

An option that is not given is read from its variable, `PYTRACER_` and its name in capitals; without
one it has its default. An empty variable counts as none.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pytracer.config_checks import (
    OnSnapshot,
    check_bool,
    check_callback,
    check_context,
    check_devices,
    check_discrete,
    check_int,
    check_metadata,
    check_output,
    check_path,
    check_ranks,
    check_role,
    check_schedule,
    check_signal,
    check_step_from,
    check_steps,
    parse_bool,
    parse_discrete,
    parse_int,
    parse_json,
    parse_list,
    parse_none,
    parse_ranks,
    parse_schedule,
    parse_steps,
)
from pytracer.errors import ConfigError
from pytracer.windows import Schedule

MAX_STACK_DEPTH = 1024  # _core.MAX_STACK_DEPTH; the options are read before the core is needed
MAX_ENTRIES_LIMIT = 2**28
STACK_BYTES_LIMITS = (2**16, 2**32)
MAX_OOM_SNAPSHOTS_LIMIT = MAX_KEPT_LIMIT = 1000
MAX_STEPS_LIMIT = 1_000_000  # of a window

Output = str | os.PathLike[str] | None
Device = str | Sequence[str]


class Unset(Enum):
    """The default of every option: its variable, else what the documentation says."""

    UNSET = "unset"

    def __repr__(self) -> str:
        """For `help()`."""
        return "<unset>"


UNSET = Unset.UNSET


@dataclass(frozen=True)
class Options:
    """Checked options.

    Attributes:
        output: where snapshots go (see `pytracer.output`), or None.
        device: "auto", "cpu", "cuda", "npu", or one accelerator as in "cuda:1"; never empty.
        trace_alloc_max_entries: events each device's ring holds.
        stack_depth: Python frames kept of a stack, innermost first.
        context: which stacks are kept: None, "state", "alloc" or "all".
        max_stack_bytes: bound of the table of all stacks.
        metadata: kept in the snapshot under `pytracer.metadata`.
        steps: the steps that have files of their own, from 1; None: one snapshot at the end; []:
            none at all.
        memory_snapshot_num_steps: how many of these share a file.
        schedule: selects the steps instead: a `torch.profiler.schedule`, in the variable its
            arguments, as "wait=1,active=3", or None.
        step_from: who tells that a step is over: "framework", "optimizer", "optimizer:Class", or
            None: the program, by `step()`.
        discrete: which phases have files of their own for each time they occur in such a step:
            names of phases, True: those that are in no other, or False.
        ranks: which ranks write the snapshots at the end and of steps; empty: rank 0.
        all_ranks: all of them do.
        oom_ranks: which ranks write snapshots of an out-of-memory; None: all.
        role: names a process that has no rank, or None.
        on_oom: whether a snapshot is written when memory runs out.
        max_oom_snapshots: how many of those at most.
        keep_last: how many of the snapshots on demand are kept; None: all.
        on_snapshot: called with the path of each file written: a function, "module:function", None.
        dump_signal: a signal on which a snapshot is written, or None.
        trigger_file: a file that, when it is made or touched, has a snapshot written, or None.
        problem: what is wrong with a variable, and what to do: nothing is to be traced. Or None.
    """

    output: str | None
    device: tuple[str, ...]
    trace_alloc_max_entries: int
    stack_depth: int
    context: str | None
    max_stack_bytes: int
    metadata: dict[str, Any]
    steps: Sequence[int] | None
    memory_snapshot_num_steps: int
    schedule: Schedule | None
    step_from: str | None
    discrete: bool | tuple[str, ...]
    ranks: tuple[int, ...]
    all_ranks: bool
    oom_ranks: tuple[int, ...] | None
    role: str | None
    on_oom: bool
    max_oom_snapshots: int
    keep_last: int | None
    on_snapshot: OnSnapshot
    dump_signal: signal.Signals | None
    trigger_file: str | None
    problem: str | None = None

    @classmethod
    def checked(cls, given: Mapping[str, object], **defaults: object) -> "Options":
        """Checks every option; a wrong variable is told in `problem`, and its default stands.

        Args:
            given: options by name; those missing or `UNSET` come from their variable or default.
            defaults: that take the place of the documented ones: the environment's tracer has some.

        Raises:
            ConfigError: an option given is wrong; names it, its value and what to give instead.
        """
        problems: list[str] = []
        values: dict[str, Any] = {}
        called: dict[str, str] = {}
        for name, option in OPTIONS.items():
            called[name] = name
            values[name] = option.check(name, defaults.get(name, option.default))
            value = given.get(name, UNSET)
            text = os.environ.get(variable(name), "")
            if name in OF_ENVIRONMENT and not defaults and switched_on():
                text = ""
            if value is not UNSET:
                values[name] = option.check(name, value)
            elif text:
                called[name] = variable(name)
                try:
                    values[name] = option.check(variable(name), option.parse(text))
                except ConfigError as error:
                    problems.append(str(error))
        in_code = {name for name, value in given.items() if value is not UNSET}
        for names, problem in [] if problems else [*_contradictions(values, called)]:
            of_variables = [name for name in names if called[name] != name]
            if not of_variables:
                raise ConfigError(problem)
            if not in_code & {*names, "steps", "schedule"}:  # what is given in the code counts more
                problems.append(problem)
            for name in of_variables:
                values[name] = OPTIONS[name].check(name, OPTIONS[name].default)
        return cls(**values, problem="; ".join(problems) or None)


def _contradictions(
    values: Mapping[str, Any], called: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Options that do not go together, and what to do; `called`: what to call them by."""

    def told(name: str) -> str:
        return f"{called[name]}={values[name]!r}"

    if values["steps"] is not None and values["schedule"] is not None:
        problem = f"{told('steps')} and {told('schedule')} both select steps: give one of them"
        yield ("steps", "schedule"), problem
    elif values["memory_snapshot_num_steps"] > 1 and not values["steps"]:
        remedy = "give `steps`, or leave it out"
        if values["schedule"] is not None:
            remedy = "leave it out: a schedule's `active` says how many share a file"
        problem = f"{told('memory_snapshot_num_steps')} is of `steps`: {remedy}"
        yield ("memory_snapshot_num_steps",), problem
    if values["discrete"] and not values["steps"] and values["schedule"] is None:
        problem = f"{told('discrete')} is of steps that are selected, which bounds what it writes"
        yield ("discrete",), f"{problem}: give `steps` or `schedule`, or leave it out"


@dataclass(frozen=True)
class Option:
    """One option: its default, its variable's text as a value, and its check.

    `parse` gives the text itself where it cannot be one; `check` takes the name to call it by and
    the value, and returns the value to use.
    """

    default: object
    parse: Callable[[str], object]
    check: Callable[[str, object], Any]


def variable(name: str) -> str:
    """The environment variable of an option."""
    return f"PYTRACER_{name.upper()}"


def _number(least: int, most: int, default: int | None) -> Callable[[str, object], int]:
    return lambda name, value: check_int(name, value, least, most, default)


def _or_none(check: Callable[[str, object], Any]) -> Callable[[str, object], Any]:
    return lambda name, value: None if value is None else check(name, value)


OPTIONS = {
    "output": Option(None, parse_none, check_output),
    "device": Option("auto", parse_list, check_devices),
    "trace_alloc_max_entries": Option(100_000, parse_int, _number(1, MAX_ENTRIES_LIMIT, 100_000)),
    "stack_depth": Option(32, parse_int, _number(1, MAX_STACK_DEPTH, 32)),
    "context": Option("all", parse_none, check_context),
    "max_stack_bytes": Option(2**25, parse_int, _number(*STACK_BYTES_LIMITS, 2**25)),
    "metadata": Option(None, parse_json, check_metadata),
    "steps": Option(None, parse_steps, check_steps),
    "memory_snapshot_num_steps": Option(1, parse_int, _number(1, MAX_STEPS_LIMIT, 1)),
    "schedule": Option(None, parse_schedule, check_schedule),
    "step_from": Option(None, parse_none, check_step_from),
    "discrete": Option(False, parse_discrete, check_discrete),
    "ranks": Option((), parse_ranks, check_ranks),
    "all_ranks": Option(False, parse_bool, check_bool),
    "oom_ranks": Option(None, parse_ranks, _or_none(check_ranks)),
    "role": Option(None, str, check_role),
    "on_oom": Option(True, parse_bool, check_bool),
    "max_oom_snapshots": Option(3, parse_int, _number(0, MAX_OOM_SNAPSHOTS_LIMIT, 3)),
    "keep_last": Option(None, parse_int, _or_none(_number(1, MAX_KEPT_LIMIT, None))),
    "on_snapshot": Option(None, str, check_callback),
    "dump_signal": Option(None, str, check_signal),
    "trigger_file": Option(
        None, str, lambda name, value: check_path(name, value, "give a file name, or None")
    ),
}
"""Every option of a tracer, in the order of the README's table."""


OF_STEPS = ("steps", "memory_snapshot_num_steps", "schedule", "step_from", "discrete")

OF_ENVIRONMENT = ("output", *OF_STEPS, "dump_signal", "trigger_file")
"""Whose variables are the environment's tracer's alone, under `PYTRACER=1`: a tracer in the code
would write the same files, or wait for steps that it is not told."""

SWITCH, PATCH_TORCH = "PYTRACER", "PYTRACER_PATCH_TORCH"
OTHER_VARIABLES = (SWITCH, PATCH_TORCH, "PYTRACER_HOOK_DIR", "PYTRACER_BUILD")


def switch(name: str) -> bool | None:
    """What `PYTRACER` or `PYTRACER_PATCH_TORCH` says; None: nothing.

    Raises:
        ConfigError: it says neither yes nor no.
    """
    text = os.environ.get(name, "")
    return check_bool(name, parse_bool(text)) if text else None


def switched_on() -> bool:
    """Whether `PYTRACER=1` asks for the environment's tracer."""
    return _switch_is(True)


def switched_off() -> bool:
    """Whether `PYTRACER=0` forbids all tracing."""
    return _switch_is(False)


def _switch_is(wanted: bool) -> bool:
    try:
        return switch(SWITCH) is wanted
    except ConfigError:  # told where it would have switched on
        return False
