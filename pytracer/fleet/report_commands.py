"""The commands that `pytracer fleet report` prints to look further."""

import shlex
from collections.abc import Iterator

from pytracer.fleet.report_results import Command, FleetReport
from pytracer.fleet.report_words import in_slot, site_text

MOST_COMMANDS = 6
"""The most commands of a report."""


def commands(report: FleetReport) -> Iterator[Command]:
    """Yield commands, the most urgent first."""
    if report.ooms:
        first = report.ooms[0]
        yield _command(
            "show", f"Explains the out-of-memory error of {first.process}.", first.source
        )
    for outlier in report.outliers[:1]:
        why = f"Compares {outlier.process} with {outlier.reference_process}, the median rank."
        yield _command("diff", why, outlier.reference, outlier.source)
    for growth in [growth for growth in report.growth if growth.verdict != "unknown"][:2]:
        where = f"the growth at {site_text(growth.site)}"
        if growth.evidence == "trace":
            yield _command("show --leaks", f"Shows {where}.", growth.source)
        elif growth.first_source is not None:
            why = f"Compares two steps of {growth.processes[0]}: {where}."
            yield _command("diff", why, growth.first_source, growth.source)
    if report.worst is not None:
        where = f"{report.worst.process} {in_slot(report.worst.slot)}"
        yield _command(
            "view", f"Shows the file with the highest peak, of {where}.", report.worst.source
        )


def _command(name: str, why: str, *sources: str) -> Command:
    if any("://" in source for source in sources):
        why += " Copy the file to this machine first."
    return Command(" ".join(["pytracer", name, *map(shlex.quote, sources)]), why)
