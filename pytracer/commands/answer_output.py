"""Answers on the terminal."""

import shutil
from collections.abc import Callable

import click

from pytracer.analysis.answer import Answer, Line, text_lines

_MOST_WIDTH = 120


def echo_answer(answer: Answer, source_of: Callable[[Line], str] = lambda _: "") -> None:
    """Print an answer; `source_of` returns the source of a line's call site."""
    width = min(shutil.get_terminal_size().columns, _MOST_WIDTH)
    for line in text_lines(answer, width, source_of):
        click.echo(line)
