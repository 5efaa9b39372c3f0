"""The arguments of `Tracer()`, and their documentation, made from `TracerOptions`."""

import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, get_args

from pytracer.tracing.options import OPTIONS, Option, TracerOptions

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
    """Return a signature with the types that a call gives."""
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
