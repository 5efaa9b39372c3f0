"""The table of a tracer's options, and the environment variables that pytracer reads.

`OPTIONS` is the only place where an option's default, meaning, check and text form are written. The
docstring of `Tracer`, `pytracer run --help` and the table in the documentation are made from it
(`pytracer.tracing.option_docs`).

An option that is not given is read from its variable, `PYTRACER_` and the option's name in
capitals. Without a variable, or if the variable is blank or wrong, the option has its default.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytracer.errors import ConfigError
from pytracer.tracing.option_checks import (
    check_bool,
    check_callback,
    check_context,
    check_devices,
    check_discrete,
    check_int_in,
    check_metadata,
    check_output,
    check_path,
    check_phases,
    check_ranks,
    check_role,
    check_schedule,
    check_signal,
    check_step_from,
    check_steps,
    optional,
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

MAX_STACK_DEPTH = 1024  # _core.MAX_STACK_DEPTH; the options are read before the core is imported
MAX_ENTRIES_LIMIT = 2**28
STACK_BYTES_LIMITS = (2**16, 2**32)
MAX_OOM_SNAPSHOTS_LIMIT = MAX_KEPT_LIMIT = 1000
MAX_STEPS_LIMIT = 1_000_000  # of a window

ENVIRONMENT_DEFAULTS: dict[str, object] = {"output": "outputs/profile", "step_from": "framework"}
"""Defaults of the tracer that `PYTRACER=1` starts, where they differ from those of `OPTIONS`."""


def variable(name: str) -> str:
    """Return the environment variable of an option."""
    return f"PYTRACER_{name.upper()}"


@dataclass(frozen=True)
class Option:
    """One option of a tracer.

    Attributes:
        name: The name of the argument of `Tracer`.
        default: The default in code.
        metavar: The form of the option's text, in a variable and on the command line.
        parse: Turns such a text into a value, or returns the text if it has another form.
        check: Takes the name to call the option by in an error, and a value; returns the value to
            use, or raises a `ConfigError`.
        doc: The meaning, in Markdown.
        shown: The default as the documentation shows it, if not as Python does.
    """

    name: str
    default: object
    metavar: str
    parse: Callable[[str], object]
    check: Callable[[str, object], Any]
    doc: str
    shown: str | None = None

    @property
    def variable(self) -> str:
        """The option's environment variable."""
        return variable(self.name)

    @property
    def environment_default(self) -> object:
        """The default of the tracer that `PYTRACER=1` or `pytracer run` starts."""
        return ENVIRONMENT_DEFAULTS.get(self.name, self.default)

    @property
    def shown_default(self) -> str:
        """The default as a person reads it: 100_000 and "auto", not 100000."""
        return self.shown or _shown(self.default)

    @property
    def shown_environment_default(self) -> str:
        """The same for `environment_default`."""
        default = self.environment_default
        return self.shown_default if default == self.default else _shown(default)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:_}" if type(value) is int else repr(value)


_ALL = (
    Option(
        *("output", None, "PATH", parse_none, check_output),
        "Where snapshots are written: `None` (nowhere), a file name that ends in `.pickle` or "
        "`.pkl`, or a directory.",
    ),
    Option(
        *("device", "auto", "DEVICE[,DEVICE...]", parse_list, check_devices),
        'The devices to record: `"auto"` (the accelerator that is present, or else the CPU), '
        '`"cpu"`, `"cuda"` or `"npu"` (all devices of the process), one device such as `"cuda:1"`, '
        "or a list of these. A device that torch has not initialised yet is recorded from its "
        "initialisation on.",
    ),
    Option(
        "trace_alloc_max_entries",
        *(100_000, "INTEGER", parse_int, check_int_in(1, MAX_ENTRIES_LIMIT, 100_000)),
        "How many ring events are kept for each device. An allocation is one ring event, and so is "
        "its free; a free that an accelerator's allocator completes later is two. (In a file, an "
        "allocation and its free have five entries on the CPU, and three on an accelerator.) A "
        "ring event takes 48 bytes of memory once it is written. A full ring overwrites its oldest "
        "events, and counts them.",
    ),
    Option(
        *("stack_depth", 32, "INTEGER", parse_int, check_int_in(1, MAX_STACK_DEPTH, 32)),
        f"How many Python frames of a stack are kept, innermost first; at most {MAX_STACK_DEPTH}.",
    ),
    Option(
        *("context", "all", "all|alloc|state|none", parse_none, check_context),
        'Which stacks are kept. `"all"`: each event has the stack of the thread that caused it. '
        '`"alloc"`: an allocation and its free both have the stack of the allocation. `"state"`: '
        "events have no stack, and each live block has the stack of its allocation. `None`: no "
        "stacks.",
    ),
    Option(
        *("max_stack_bytes", 2**25, "INTEGER", parse_int, check_int_in(*STACK_BYTES_LIMITS, 2**25)),
        "The most bytes that the table of distinct stacks may take. When the table fills, stacks "
        "that no event and no live block has are given up. An event whose stack does not fit has "
        "no stack, and is counted. All tracers that exist at the same time share the "
        "table, and the bound of the first one applies.",
        shown="32 MiB",
    ),
    Option(
        *("forward_stacks", False, "1|0", parse_bool, check_bool),
        "Whether an allocation in the backward pass also has the stack of the forward call that "
        "made its autograd node, and the node's name. An allocation and its free then take 50 to "
        "210 ns more. "
        "This needs a small library that is compiled for the running torch, as the hooks are; "
        "`pytracer doctor` reports whether it is there. No effect with `context=None`.",
    ),
    Option(
        *("pinned_memory", False, "1|0", parse_bool, check_bool),
        "Whether torch's pinned host memory (`pin_memory=True`) is recorded too, as a device of "
        "its own, `host`, next to the CUDA devices. A request and its free then take 200 to 300 ns "
        "more. pytracer wraps torch's allocator of pinned memory until the process ends, which "
        "needs torch 2.8 or newer, and a hook that is compiled at the first use.",
    ),
    Option(
        *("metadata", None, "JSON", parse_json, check_metadata),
        "A dict that is written into each snapshot. Its values may be strings, numbers, booleans, "
        "`None`, lists and dicts.",
    ),
    Option(
        *("steps", None, "STEP[,STEP...]", parse_steps, check_steps),
        "The steps to record, counted from 1. Each of these steps has a snapshot, and no snapshot "
        "is written at the end of the program. Between these steps, only the live blocks and their "
        "stacks are tracked. `None`: everything is recorded, and one snapshot is written at the "
        "end. An empty list, `[]`: everything is recorded, and no snapshot is written at the end; "
        "`dump()` writes one.",
    ),
    Option(
        "memory_snapshot_num_steps",
        *(1, "INTEGER", parse_int, check_int_in(1, MAX_STEPS_LIMIT, 1)),
        "How many of the `steps` share a file. The file has everything from the start of the first "
        "of these steps to the end of the last, also what is between them. Needs `steps`.",
    ),
    Option(
        *("schedule", None, "wait=N,active=N,...", parse_schedule, check_schedule),
        "A function that selects the steps, as `torch.profiler.schedule()` returns it; in a "
        "variable or on the command line, the arguments of `torch.profiler.schedule()`, such as "
        "`wait=1,active=3`. Consecutive selected steps share a file, which ends at the latest with "
        "a step whose action is `RECORD_AND_SAVE`. The function may be called more than once for a "
        "step.",
    ),
    Option(
        *("step_from", None, "framework|optimizer[:CLASS]|none", parse_none, check_step_from),
        'What ends a step, in addition to `step()`. `"framework"`: verl ends the steps that it '
        'profiles. `"optimizer"`: each step of one torch optimizer, the first that steps. '
        '`"optimizer:AdamW"`: each step of the first optimizer of this class that steps. `None`: '
        "only `step()`.",
    ),
    Option(
        *("discrete", False, "PHASE[,PHASE...]|1|0", parse_discrete, check_discrete),
        "Which phases (`pytracer.annotate`) get a snapshot of their own each time they occur in a "
        "recorded step: a list of names, or `True` for all phases that are not nested in another "
        "phase. Needs `steps` or `schedule`. Decorated coroutines and generators get no snapshot "
        "of their own, because their phases interleave.",
    ),
    Option(
        *("phases", None, "auto|none", parse_none, check_phases),
        '`"auto"`: each outermost call of a module is the phase `forward`, each call of '
        "`torch.autograd.backward`, `Tensor.backward` or `torch.autograd.grad` is `backward`, and "
        "each step of a torch optimizer is `optimizer`. Each call of a module then takes some 3 µs "
        "of host time more. The arguments and the results of models are noted, so that their "
        "memory has a category. `None`: only the phases that the program names "
        "(`pytracer.annotate`).",
    ),
    Option(
        *("ranks", (), "RANK[,RANK...]", parse_ranks, check_ranks),
        "Which ranks write the snapshots of steps and the snapshot at the end. Empty: rank 0. A "
        "process without a rank always writes these snapshots.",
    ),
    Option(
        *("all_ranks", False, "1|0", parse_bool, check_bool),
        "`True`: all ranks write the snapshots of steps and the snapshot at the end, whatever "
        "`ranks` is.",
    ),
    Option(
        *("oom_ranks", None, "RANK[,RANK...]", parse_ranks, optional(check_ranks)),
        "Which ranks write a snapshot when memory runs out; `None`: all.",
    ),
    Option(
        *("role", None, "NAME", str, check_role),
        "A name for a process without a rank, used in the names of its files in a directory.",
    ),
    Option(
        *("on_oom", True, "1|0", parse_bool, check_bool),
        "Whether a snapshot is written when memory runs out, before the exception is raised. Needs "
        "`output`.",
    ),
    Option(
        "max_oom_snapshots",
        *(3, "INTEGER", parse_int, check_int_in(0, MAX_OOM_SNAPSHOTS_LIMIT, 3)),
        "How many out-of-memory snapshots are kept: the first ones and the latest. At the limit, "
        "each further out-of-memory replaces the latest file. `1`: only the latest. `0`: none. "
        "Each snapshot takes the time of a dump, even if the program survives the out-of-memory.",
    ),
    Option(
        *("keep_last", None, "INTEGER", parse_int, optional(check_int_in(1, MAX_KEPT_LIMIT, None))),
        "How many snapshots on demand (`dump_signal`, `trigger_file`) are kept; `None`: all.",
    ),
    Option(
        *("on_snapshot", None, "MODULE:FUNCTION", str, check_callback),
        'A function, or its name as `"package.module:function"`. When the tracer has written a '
        "file by itself (not by `dump()`), the thread that wrote the file calls the function with "
        "the file's path. There is no call when `max_oom_snapshots` or `keep_last` deletes a file. "
        "`pytracer.integrations` has functions that upload the file.",
    ),
    Option(
        *("dump_signal", None, "SIGNAL", str, check_signal),
        'The signal on which a snapshot is written: a name such as `"SIGUSR2"`, or a number. '
        "A handler that the program has installed before the tracer starts runs too.",
    ),
    Option(
        *("trigger_file", None, "FILE", str),
        lambda name, value: check_path(name, value, "give a file name, or None"),
        "The path of a file. A snapshot is written each time this file is created or touched. "
        "pytracer looks at the file about once a second.",
    ),
)

OPTIONS = {option.name: option for option in _ALL}
"""Every option of a tracer by name, in the order of the documentation."""

STEP_OPTIONS = ("steps", "memory_snapshot_num_steps", "schedule", "step_from", "discrete")

ENVIRONMENT_OPTIONS = ("output", *STEP_OPTIONS, "dump_signal", "trigger_file")
"""Options whose variables apply only to the tracer that `PYTRACER=1` starts, while there is one: a
tracer in the code would write the same files, or wait for steps that nobody reports to it."""

SWITCH, PATCH_TORCH = "PYTRACER", "PYTRACER_PATCH_TORCH"
INTEGRATION_VARIABLES = {
    "PYTRACER_UPLOAD_URL": "pytracer.integrations.fsspec:upload",
    "PYTRACER_TENSORBOARD_DIR": "pytracer.integrations.tensorboard:add_peaks",
}
"""Variables, and the functions for `on_snapshot` that read them."""

OTHER_VARIABLES = (
    *(SWITCH, PATCH_TORCH, "PYTRACER_HOOK_DIR", "PYTRACER_BUILD"),
    *INTEGRATION_VARIABLES,
)


def variable_text(name: str) -> str:
    """Return the text of a variable; "": it is not set, or blank."""
    text = os.environ.get(name, "")
    return text if text.strip() else ""


def switch(name: str) -> bool | None:
    """Return the value of `PYTRACER` or `PYTRACER_PATCH_TORCH`; None: the variable is not set.

    Raises:
        ConfigError: The variable is not a boolean.
    """
    text = variable_text(name)
    return check_bool(name, parse_bool(text)) if text else None


def switched_on() -> bool:
    """Return whether `PYTRACER=1` asks for the environment's tracer."""
    return _switch_is(True)


def switched_off() -> bool:
    """Return whether `PYTRACER=0` forbids all tracing."""
    return _switch_is(False)


def _switch_is(wanted: bool) -> bool:
    try:
        return switch(SWITCH) is wanted
    except ConfigError:  # `pytracer.activation` reports it
        return False
