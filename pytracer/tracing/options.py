"""The options of a tracer, and the environment variables that pytracer reads.

`TracerOptions` is the only place where an option's types, default, meaning, check and text form are
written. The signature and the docstring of `Tracer`, `pytracer run --help` and the table in the
documentation are made from its fields.

An option that is not given is read from its variable, `PYTRACER_` and the option's name in
capitals. Without a variable, or if the variable is blank or wrong, the option has its default.
"""

import contextlib
import functools
import inspect
import os
import signal
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, get_args, overload

from pytracer.errors import ConfigError
from pytracer.text import brief
from pytracer.tracing import option_forms as form
from pytracer.tracing.option_forms import OnSnapshot, Ranks
from pytracer.tracing.step_windows import Schedule

MAX_STACK_DEPTH = 1024  # _core.MAX_STACK_DEPTH; the options are read before the core is imported
MAX_ENTRIES_LIMIT = 2**28
STACK_BYTES_LIMITS = (2**16, 2**32)
MAX_OOM_SNAPSHOTS_LIMIT = MAX_KEPT_LIMIT = 1000
MAX_STEPS_LIMIT = 1_000_000  # of a window

ENVIRONMENT_DEFAULTS: dict[str, object] = {"output": "outputs/profile", "step_from": "framework"}
"""Defaults of the tracer that `PYTRACER=1` starts, where they differ from those in code."""

Output = str | os.PathLike[str] | None
Given = TypeVar("Given")
Value = TypeVar("Value")


def variable(name: str) -> str:
    """Return the environment variable of an option."""
    return f"PYTRACER_{name.upper()}"


@dataclass(eq=False)
class Option(Generic[Given, Value]):
    """One option of a tracer: a field of `TracerOptions`, which takes a `Given`, has a `Value`.

    Attributes:
        name: The name of the argument of `Tracer`.
        default: The default in code.
        metavar: The form of the option's text, in a variable and on the command line.
        parse: Turns such a text into a value, or returns the text if it has another form.
        usable: Takes a value; returns the value to use, or raises a `WrongValueError`.
        doc: The meaning, in Markdown.
        shown: The default in the documentation, if not as Python shows it.
    """

    name: str = field(init=False)
    default: Given
    metavar: str
    parse: Callable[[str], object]
    usable: Callable[[object], Value]
    doc: str
    shown: str | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        """Take the name of the field."""
        self.name = name

    @overload
    def __get__(self, options: None, owner: type) -> Given: ...

    @overload
    def __get__(self, options: object, owner: type) -> Value: ...

    def __get__(self, options: object, owner: type) -> Any:
        """Return the option's value. Of the class: the default, which a dataclass asks for."""
        return self.default if options is None else options.__dict__[self.name]

    def __set__(self, options: object, value: Given) -> None:
        """Keep a value. It is not checked: `Options.checked` does that."""
        options.__dict__[self.name] = value

    def check(self, name: str, value: object) -> Value:
        """Return the value to use, or raise a `ConfigError` that calls the option by a name."""
        try:
            return self.usable(value)
        except form.WrongValueError as error:
            raise ConfigError(f"{name}={brief(value)} {error}") from error.__cause__

    def of_variable(self) -> Value | None:
        """Return the value of the option's variable; None: it has none. May raise a ConfigError."""
        text = variable_text(self.variable)
        return self.check(self.variable, self.parse(text)) if text else None

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


@dataclass  # in a frozen one, mypy takes the type `Given` for the value
class TracerOptions:
    """The options that `Tracer` takes, in the order of the documentation."""

    output: Option[Output, str | None] = Option(
        *(None, "PATH", form.parse_none, form.check_output),
        "Where snapshots are written: `None` (nowhere), a file name that ends in `.pickle` or "
        "`.pkl`, or a directory.",
    )
    _: KW_ONLY
    device: Option[str | Sequence[str], tuple[str, ...]] = Option(
        *("auto", "DEVICE[,DEVICE...]", form.parse_list, form.check_devices),
        'The devices to record: `"cpu"`, `"cuda"`, `"npu"`, one such as `"cuda:1"`, or a list of '
        'these. `"auto"`: the accelerator that is present, else the CPU. A device that torch has '
        "not initialised yet is recorded from its initialisation on.",
    )
    trace_alloc_max_entries: Option[int, int] = Option(
        *(100_000, "INTEGER", form.parse_int, form.check_int(1, MAX_ENTRIES_LIMIT, 100_000)),
        "How many ring events of 48 bytes are kept for each device. An allocation and its free "
        "are two events, or three if the free is completed later. To keep N steps, set at least "
        "twice the allocations of N steps (column `allocs` of the table *Steps*). A full ring "
        "overwrites its oldest events.",
    )
    stack_depth: Option[int, int] = Option(
        *(32, "INTEGER", form.parse_int, form.check_int(1, MAX_STACK_DEPTH, 32)),
        f"How many Python frames of a stack are kept, innermost first; at most {MAX_STACK_DEPTH}.",
    )
    max_stack_bytes: Option[int, int] = Option(
        *(2**25, "INTEGER", form.parse_int, form.check_int(*STACK_BYTES_LIMITS, 2**25)),
        "The maximum size of the stack table. All tracers share it, and the first one sets the "
        "size. When the table is full, unused stacks are removed. If that makes no room, events "
        "with new stacks are recorded without a stack, and counted in `dropped`.",
        shown="32 MiB",
    )
    forward_stacks: Option[bool | None, bool | None] = Option(
        *(None, "1|0", form.parse_bool, form.optional(form.check_bool)),
        "Whether to record, for each allocation in the backward pass, its autograd node and the "
        "stack of the forward call that made it. The default is on if the library for this torch "
        "is ready (`pytracer doctor`). `True`: the library is compiled if it is missing.",
    )
    pinned_memory: Option[bool | None, bool | None] = Option(
        *(None, "1|0", form.parse_bool, form.optional(form.check_bool)),
        "Whether to record torch's pinned host memory (`pin_memory=True`) too, as the device "
        "`host`. It costs 200 to 300 ns an event. torch's allocator stays wrapped until the "
        "process ends. Needs torch 2.8 or newer, and a compiled hook. Not given: on if the hook is "
        "ready. `True`: the hook is compiled if it is missing.",
    )
    source_lines: Option[bool, bool] = Option(
        *(True, "1|0", form.parse_bool, form.check_bool),
        "Whether to store the program's source lines that stack frames point to, up to 2,000 lines "
        "or 65,536 characters.",
    )
    metadata: Option[dict[str, Any] | None, dict[str, Any]] = Option(
        *(None, "JSON|NAME=VALUE,...", form.parse_metadata, form.check_metadata),
        "A dict of plain values that is written into each snapshot, such as "
        "`batch=2,length=512`. `pytracer fit` reads the sizes of the data from it.",
    )
    steps: Option[Sequence[int] | str | None, Sequence[int] | None] = Option(
        *(None, "STEP[-STEP][,STEP...]", form.parse_none, form.check_steps),
        'The steps to record, counted from 1: a list, a `range`, or a text such as `"3,10-12"`. '
        "Each gets its own snapshot; there is none at the end of the program. Between these "
        "steps, only the live blocks and their stacks are tracked. `None`: all steps, with one "
        "snapshot at the end. `[]`: all steps, but only `dump()` writes a snapshot.",
    )
    memory_snapshot_num_steps: Option[int, int] = Option(
        *(1, "INTEGER", form.parse_int, form.check_int(1, MAX_STEPS_LIMIT, 1)),
        "How many of the `steps` go into one file, with the events between them. Needs `steps`.",
    )
    schedule: Option[Schedule | None, Schedule | None] = Option(
        *(None, "wait=N,active=N,...", form.parse_schedule, form.check_schedule),
        "A function that selects the steps, such as the result of `torch.profiler.schedule()`. "
        "The environment variable takes the arguments of `schedule()`: `wait=1,active=3`. "
        "Consecutive selected steps share a file. The file ends at a step whose action is "
        "`RECORD_AND_SAVE`, or before a step that is not selected.",
    )
    step_from: Option[str | None, str | None] = Option(
        *(None, "framework|optimizer[:CLASS]|none", str, form.check_step_from),
        'Who ends a step, besides the program with `step()`. `"optimizer"`: the torch optimizer '
        'that steps first; `"optimizer:AdamW"`: the first one of this class. `"framework"`: verl, '
        "for the steps that it profiles. Without verl: the first optimizer, or one that steps "
        "twice while the first does not, or only `step()` if it is called and no steps are "
        'selected. `"none"`: only `step()`. `None`: `"framework"`, or `"none"` if steps are '
        "selected.",
    )
    discrete: Option[bool | Sequence[str], bool | tuple[str, ...]] = Option(
        *(False, "PHASE[,PHASE...]|1|0", form.parse_discrete, form.check_discrete),
        "Which phases (`pytracer.annotate`) get their own snapshot in each selected step: a list "
        "of names, or `True` for all that are not nested in another. Decorated coroutines and "
        "generators get no snapshot.",
    )
    phases: Option[str | None, str | None] = Option(
        *(None, "auto|none", form.parse_none, form.check_phases),
        '`"auto"`: outermost module calls become the phase `forward`, backward passes '
        "`backward`, steps of torch optimizers `optimizer`. Arguments and results of models get "
        "a category. `None`: only the phases that the program names (`pytracer.annotate`).",
    )
    ranks: Option[Sequence[int] | str, Ranks] = Option(
        *((), "RANK[,RANK...]|all", form.parse_ranks, form.check_ranks),
        "Which ranks write the snapshots of steps and the snapshot at the end: a list, or "
        '`"all"`. Empty: rank 0. A process without a rank always writes these.',
    )
    all_ranks: Option[bool, bool] = Option(
        *(False, "1|0", form.parse_bool, form.check_bool), '`True`: the same as `ranks="all"`.'
    )
    role: Option[str | None, str | None] = Option(
        *(None, "NAME", str, form.check_role),
        "A name for a process without a rank. Its files in a directory are named after it.",
    )
    max_oom_snapshots: Option[int, int] = Option(
        *(3, "INTEGER", form.parse_int, form.check_int(0, MAX_OOM_SNAPSHOTS_LIMIT, 3)),
        "How many out-of-memory snapshots are kept: the first ones plus the latest. Each is "
        "written before the exception is raised. `1`: only the latest. `0`: none is written.",
    )
    keep_last: Option[int | None, int | None] = Option(
        *(None, "INTEGER", form.parse_int, form.optional(form.check_int(1, MAX_KEPT_LIMIT, None))),
        "How many snapshots on demand (`dump_signal`, `trigger_file`) are kept; `None`: all.",
    )
    on_snapshot: Option[OnSnapshot, OnSnapshot] = Option(
        *(None, "MODULE:FUNCTION", str, form.check_callback),
        'A function, or its name as `"package.module:function"`. It gets the path of each file '
        "that the tracer has written by itself (not by `dump()`), on the thread that wrote it.",
    )
    dump_signal: Option[str | int | None, signal.Signals | None] = Option(
        *(None, "SIGNAL", str, form.check_signal),
        'The signal on which a snapshot is written: a name such as `"SIGUSR2"`, or a number. '
        "The program's earlier handler runs too.",
    )
    trigger_file: Option[Output, str | None] = Option(
        *(None, "FILE", str, form.check_trigger_file),
        "A trigger file: about a second after it is created or touched, a snapshot is written.",
    )


OPTIONS: dict[str, Option[Any, Any]] = {
    each.name: vars(TracerOptions)[each.name] for each in fields(TracerOptions)
}
"""Every option of a tracer by name, in the order of the documentation."""

STEP_OPTIONS = ("steps", "memory_snapshot_num_steps", "schedule", "step_from", "discrete")

ENVIRONMENT_OPTIONS = ("output", *STEP_OPTIONS, "dump_signal", "trigger_file")
"""Options whose variables apply only to the tracer that `PYTRACER=1` starts, while there is one: a
tracer in the code would write the same files, or wait for steps that nobody reports to it."""

SWITCH, PATCH_TORCH = "PYTRACER", "PYTRACER_PATCH_TORCH"
OTHER_VARIABLES = (SWITCH, PATCH_TORCH, "PYTRACER_HOOK_DIR", "PYTRACER_BUILD")


def record_all_ranks(environment: dict[str, str]) -> None:
    """Have all ranks of a program recorded, unless its environment chooses some."""
    if not environment.get(variable("ranks")):
        environment.setdefault(variable("all_ranks"), "1")


def variable_text(name: str) -> str:
    """Return the text of a variable; "": it is not set, or blank."""
    text = os.environ.get(name, "")
    return text if text.strip() else ""


def switch(name: str) -> bool | None:
    """Return the value of `PYTRACER` or `PYTRACER_PATCH_TORCH`; None: it is not set.

    Raises a ConfigError if it is not a boolean.
    """
    text = variable_text(name)
    return OPTIONS["all_ranks"].check(name, form.parse_bool(text)) if text else None


def switched_on() -> bool:
    """Return whether `PYTRACER=1` asks for the environment's tracer."""
    return _switched() is True


def switched_off() -> bool:
    """Return whether `PYTRACER=0` forbids all tracing."""
    return _switched() is False


def _switched() -> bool | None:
    with contextlib.suppress(ConfigError):  # `pytracer.activation` reports it
        return switch(SWITCH)
    return None


@dataclass(kw_only=True)
class Options(TracerOptions):
    """Checked options: the values that the checks return. `ranks` is "all" if `all_ranks` is True.

    `problem` says what is wrong with variables, whose options have their defaults, and what to do.
    """

    given: frozenset[str]  # the names of the options that the code gave
    problem: str | None = None

    @classmethod
    def checked(cls, given: Mapping[str, object], **defaults: object) -> "Options":
        """Check the options that the code gives, where a wrong one raises, and those of variables.

        `defaults` replace those in code, for the environment's tracer.
        """
        problems: dict[str, str] = {}  # by option
        values: dict[str, Any] = {}
        shown_names: dict[str, str] = {}  # the variable's name if the value comes from it
        for name, option in OPTIONS.items():
            shown_names[name] = name
            default = defaults.get(name, option.default)
            values[name] = option.check(name, given.get(name, default))
            is_of_other = name in ENVIRONMENT_OPTIONS and not defaults and switched_on()
            if name not in given and not is_of_other and variable_text(option.variable):
                shown_names[name] = option.variable
                try:
                    values[name] = option.of_variable()
                except ConfigError as error:
                    shown = values[name] if name in defaults else option.shown_default
                    problems[name] = f"{error}. The default, {shown}, is used"
        lacks_steps = not problems.keys().isdisjoint(("steps", "schedule"))
        for names, problem in [*_contradictions(values, shown_names)]:
            from_variables = [name for name in names if shown_names[name] != name]
            if not from_variables and not lacks_steps:
                raise ConfigError(problem)
            # The code overrides variables, and what needs the steps of a wrong variable goes too.
            if not lacks_steps and not given.keys() & {*names, "steps", "schedule"}:
                problems[names[0]] = f"{problem}. The defaults are used"
            for name in from_variables or names:
                values[name] = OPTIONS[name].check(name, OPTIONS[name].default)
        if values["all_ranks"]:
            values["ranks"] = "all"
        text = "; ".join(problems.values())
        return cls(**values, given=frozenset(given), problem=text or None)


def _contradictions(
    values: Mapping[str, Any], shown_names: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the names of options that do not go together, and a message that says what to do."""

    def shown(name: str) -> str:
        return f"{shown_names[name]}={brief(values[name])}"

    if values["steps"] is not None and values["schedule"] is not None:
        problem = f"{shown('steps')} and {shown('schedule')} both select steps: give one of them"
        yield ("steps", "schedule"), problem
    elif values["memory_snapshot_num_steps"] > 1 and not values["steps"]:
        remedy = "give `steps`, or leave this option out"
        if values["schedule"] is not None:
            remedy = "leave it out: a schedule's `active` says how many steps share a file"
        problem = f"{shown('memory_snapshot_num_steps')} has no effect without `steps`: {remedy}"
        yield ("memory_snapshot_num_steps",), problem
    if values["discrete"] and not values["steps"] and values["schedule"] is None:
        problem = (
            f"{shown('discrete')} needs selected steps, to limit the number of files: give "
            "`steps` or `schedule`, or leave this option out"
        )
        yield ("discrete",), problem


Class = TypeVar("Class", bound=type)
Self = TypeVar("Self")
Arguments = ParamSpec("Arguments")

# The line of a docstring that `with_options` replaces.
PLACEHOLDER = "    ...: see `pytracer.tracing.options.TracerOptions`."


def takes_options(
    _: Callable[Arguments, TracerOptions],
) -> Callable[
    [Callable[[Self, dict[str, Any]], None]], Callable[Concatenate[Self, Arguments], None]
]:
    """Give `__init__` the arguments of `TracerOptions`; a decorator.

    The decorated function gets a dict of those that a call gives: an option that is given overrides
    its variable, also if it equals the default.
    """
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    of_options = inspect.signature(TracerOptions)
    parameters = (
        each.replace(annotation=get_args(each.annotation)[0])
        for each in of_options.parameters.values()
    )
    signature = of_options.replace(parameters=[own, *parameters])

    def decorate(
        init: Callable[[Self, dict[str, Any]], None],
    ) -> Callable[Concatenate[Self, Arguments], None]:
        @functools.wraps(init)
        def init_with_options(
            self: Self, /, *args: Arguments.args, **kwargs: Arguments.kwargs
        ) -> None:
            _, *given = signature.bind(self, *args, **kwargs).arguments.items()
            init(self, dict(given))

        init_with_options.__signature__ = signature  # type: ignore[attr-defined]
        return init_with_options

    return decorate


def with_options(documented: Class) -> Class:
    """Insert all options into the docstring of a class; a class decorator."""
    if documented.__doc__ is not None:  # `python -OO` drops docstrings
        wrapper = textwrap.TextWrapper(96, " " * 4, " " * 8, break_on_hyphens=False)
        arguments = "\n".join(
            wrapper.fill(f"{option.name}: {option.doc} Default: `{option.shown_default}`.")
            for option in OPTIONS.values()
        )
        documented.__doc__ = inspect.cleandoc(documented.__doc__).replace(PLACEHOLDER, arguments)
    return documented
