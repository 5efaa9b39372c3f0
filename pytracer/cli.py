"""The command `pytracer`, also `python -m pytracer`."""

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from pytracer import __version__
from pytracer.cli_diff import diff_command
from pytracer.cli_experiment import experiment_command
from pytracer.cli_export import export
from pytracer.cli_hooks import build_hooks, doctor
from pytracer.cli_replay import replay_command
from pytracer.cli_run import run
from pytracer.cli_stats import stats_command
from pytracer.errors import PytracerError
from pytracer.reading.text import printable


class _Commands(click.Group):
    """Shows what pytracer raises on purpose as one line, with exit code 1 and no traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PytracerError as error:
            raise click.ClickException(printable(str(error))) from error


@click.group(cls=_Commands)
@click.version_option(__version__, prog_name="pytracer")
def main() -> None:
    """A flight recorder for accelerator memory in PyTorch."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # an encoding may have no µ, no ≥


@main.command()
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("pytracer_demo.pickle"),
    show_default=True,
    help="The snapshot's file.",
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=30, show_default=True, help="Training steps."
)
def demo(output: Path, steps: int) -> None:
    """Train a small transformer under the tracer and show where its memory went."""
    from pytracer import demo  # imports torch, which takes a second: not for --help

    demo.run(output, steps)


main.add_command(build_hooks)
main.add_command(diff_command)
main.add_command(doctor)
main.add_command(experiment_command)
main.add_command(export)
main.add_command(replay_command)
main.add_command(run)
main.add_command(stats_command)
