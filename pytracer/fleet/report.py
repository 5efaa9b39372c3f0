"""The report on a run that was collected: DuckDB runs the files in `sql/` on the dataset."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from pytracer.errors import PytracerError, optional
from pytracer.fleet.dataset import check_dataset
from pytracer.fleet.report_results import FleetReport, Row
from pytracer.fleet.report_texts import answers_and_commands

BASE = "tables"
QUERIES = (
    *("processes", "rank_peaks", "peak_groups", "spread", "outliers", "outlier_sites"),
    *("growth_in_files", "growth_traces", "overview", "growth"),
    *("oom_order", "setting_differences"),
)
"""The tables of a report, in the order in which they are made; each is made by `sql/NAME.sql`."""

WHO_NEEDS = "pytracer fleet report needs"  # optional packages

_CONFIG = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}


def fleet_report(table: Path, run: str | None = None) -> FleetReport:
    """Return the report on a run.

    Args:
        table: The dataset that `pytracer fleet collect` wrote.
        run: The run; None for the run that was written last.

    Raises:
        PytracerError: The dataset cannot be read, has no files, or lacks the run.
    """
    with closing(_connect()) as connection:
        run, others = _chosen_run(connection, table, run)
        connection.execute(_variables(table, run))
        with _reading(table):
            connection.execute(query(BASE))
        for name in QUERIES:
            connection.execute(query(name))
        report = _read(connection, table, run, others)
    report.answers, report.commands = answers_and_commands(report)
    return report


def query(name: str) -> str:
    """Return the SQL of a table."""
    return (resources.files("pytracer.fleet") / "sql" / f"{name}.sql").read_text()


def script(table: Path, run: str | None = None) -> str:
    """Return the SQL of all tables of a report on a run, for DuckDB's own command or notebooks.

    Raises:
        PytracerError: As for `fleet_report`.
    """
    with closing(_connect()) as connection:
        run, _ = _chosen_run(connection, table, run)
    return "\n".join([_variables(table, run), *map(query, (BASE, *QUERIES))])


def _connect() -> Any:
    return optional(WHO_NEEDS, "duckdb")[0].connect(config=_CONFIG)


def _chosen_run(connection: Any, table: Path, run: str | None) -> tuple[str | None, list[str]]:
    check_dataset(table)
    with _reading(table):
        found = connection.execute(
            "SELECT run FROM read_parquet(?, hive_partitioning = false) GROUP BY run "
            "ORDER BY max(coalesce(written_ns, modified_ns)) DESC NULLS LAST, run",
            [_pattern(table) + "/files/*.parquet"],
        ).fetchall()
    runs = [name for (name,) in found]
    if not runs:
        raise PytracerError(
            f"{table} has no files: collect some with pytracer fleet collect PATHS --output {table}"
        )
    chosen = runs[0] if run is None else run
    if chosen not in runs:
        raise PytracerError(
            f"run {run!r} does not exist; the runs are {', '.join(map(repr, runs[:20]))}"
        )
    return chosen, [str(name) for name in runs if name != chosen]


@contextmanager
def _reading(table: Path) -> Iterator[None]:
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        first = str(error).partition("\n")[0]
        raise PytracerError(
            f"cannot read {table}: {first}; delete the folder, and collect again"
        ) from error


def _variables(table: Path, run: str | None) -> str:
    """Return the statements that set the variables which the SQL reads."""
    values = {"dataset": _pattern(table), "run": run}
    return "".join(f"SET VARIABLE {name} = {_literal(value)};\n" for name, value in values.items())


def _pattern(table: Path) -> str:
    """Return the absolute path of a dataset with the characters of patterns escaped."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in str(table.absolute()))


def _literal(text: str | None) -> str:
    return "NULL" if text is None else "'" + text.replace("'", "''") + "'"


def _rows(connection: Any, query: str) -> list[Row]:
    found = connection.execute(f"FROM {query}")
    columns = [column[0] for column in found.description]
    return [Row(**dict(zip(columns, values, strict=True))) for values in found.fetchall()]


def _read(connection: Any, table: Path, run: str | None, others: list[str]) -> FleetReport:
    names = ("spread", "outliers", "outlier_sites", "growth", "oom_order", "setting_differences")
    rows = {name: _rows(connection, name) for name in names}
    highest = "rank_peaks ORDER BY is_cpu, peak_bytes DESC, rank, slot, source LIMIT 1"
    damaged = "processes WHERE error IS NOT NULL ORDER BY step, rank, source"
    return FleetReport(
        table=str(table),
        run=run,
        other_runs=others,
        answers=[],
        commands=[],
        overview=_rows(connection, "overview")[0],
        worst=next(iter(_rows(connection, highest)), None),
        damaged=_rows(connection, damaged),
        **rows,
    )
