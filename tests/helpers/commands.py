"""Run pytracer's commands in this process and take their tables apart."""

from click.testing import CliRunner, Result

from pytracer.commands.main import main


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


def cells(output: str) -> list[list[str]]:
    """Return the rows of all tables in `output`, as lists of cell texts."""
    return [
        [c.strip() for c in line.split("│")[1:-1]] for line in output.splitlines() if "│" in line
    ]
