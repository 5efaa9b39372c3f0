"""The command line, for the tests."""

from click.testing import CliRunner, Result

from pytracer.cli import main


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


def cells(output: str) -> list[list[str]]:
    """The rows of all tables."""
    return [
        [c.strip() for c in line.split("│")[1:-1]] for line in output.splitlines() if "│" in line
    ]
