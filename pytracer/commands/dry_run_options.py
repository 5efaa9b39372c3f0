"""The options of dry runs, which `pytracer run --dry-run` and `pytracer fit --on` have."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from pytracer.commands import shared_options as shared
from pytracer.text import parsed_size

DOES_NOT_FIT = 4  # the exit code of a program that does not fit

WARNING = (
    "pytracer: a dry run executes the program itself. Kernels do nothing, torch.save and "
    "safetensors write nothing, and loggers are offline; everything else that it does is real"
)


def dry_run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of dry runs, as `dry_run` takes them; None: not given."""
    size = shared.parsed_by(parsed_size)
    positive = click.IntRange(min=1)
    options = (
        click.option(
            "--context-memory",
            "context_memory_bytes",
            metavar="SIZE",
            callback=size,
            help="Device memory that a process uses outside torch's allocator.  [default: 600MiB]",
        ),
        click.option(
            "--world-size", type=positive, help="The number of ranks; only one of them runs."
        ),
        click.option("--rank", type=click.IntRange(min=0), help="Which rank runs.  [default: 0]"),
        click.option(
            "--together",
            is_flag=True,
            default=None,
            help="Run all ranks, for programs whose ranks send each other objects.",
        ),
        click.option(
            "--stop-after-steps",
            type=click.IntRange(min=0),
            help="Stop after this many steps; 0: run to the end.  [default: 3]",
        ),
        click.option(
            "--time-limit",
            "time_limit_s",
            type=click.FloatRange(min=1),
            metavar="SECONDS",
            help="After this many seconds, stop and show the current line.  [default: 600]",
        ),
        click.option(
            "--allow-writes", is_flag=True, default=None, help="Write checkpoints of zeros."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of these options that are given, as `dry_run` takes them."""
    return {name: value for name, value in options.items() if value is not None}
