"""The values of a tracer's options: what is given, else the variable, else the default.

The arguments of `Tracer()`, and their documentation, are made from `TracerOptions`.
"""

import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar, get_args

from pytracer.errors import ConfigError
from pytracer.text import brief
from pytracer.tracing import options
from pytracer.tracing.options import OPTIONS, Option, TracerOptions


@dataclass(kw_only=True)
class Options(options.TracerOptions):
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
        for name, option in options.OPTIONS.items():
            shown_names[name] = name
            default = defaults.get(name, option.default)
            values[name] = option.check(name, given.get(name, default))
            is_of_other = (
                name in options.ENVIRONMENT_OPTIONS and not defaults and options.switched_on()
            )
            if name not in given and not is_of_other and options.variable_text(option.variable):
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
                values[name] = options.OPTIONS[name].check(name, options.OPTIONS[name].default)
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
        remedy = "give `steps`, or leave it out"
        if values["schedule"] is not None:
            remedy = "leave it out: a schedule's `active` says how many steps share a file"
        problem = f"{shown('memory_snapshot_num_steps')} has no effect without `steps`: {remedy}"
        yield ("memory_snapshot_num_steps",), problem
    if values["discrete"] and not values["steps"] and values["schedule"] is None:
        problem = (
            f"{shown('discrete')} needs selected steps, which bound the number of files: give "
            "`steps` or `schedule`, or leave it out"
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
    signature = _signature()

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


def _signature() -> inspect.Signature:
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    options = inspect.signature(TracerOptions)
    parameters = (
        each.replace(annotation=get_args(each.annotation)[0])
        for each in options.parameters.values()
    )
    return options.replace(parameters=[own, *parameters])


def with_options(documented: Class) -> Class:
    """Insert all options into the docstring of a class; a class decorator."""
    if documented.__doc__ is not None:  # `python -OO` drops docstrings
        arguments = "\n".join(map(_argument, OPTIONS.values()))
        documented.__doc__ = inspect.cleandoc(documented.__doc__).replace(PLACEHOLDER, arguments)
    return documented


def _argument(option: Option[Any, Any]) -> str:
    text = f"{option.name}: {option.doc} Default: `{option.shown_default}`."
    return textwrap.fill(
        text, 96, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False
    )
