"""The report on a run that was collected: DuckDB runs the files in `sql/` on the dataset."""

import importlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from pytracer.errors import PytracerError
from pytracer.fleet.dataset import UNFINISHED, check_dataset
from pytracer.fleet.report_results import BaselineChange, FleetReport, Row
from pytracer.fleet.report_texts import answers_and_commands
from pytracer.fleet.report_words import UNKNOWN_SITE

BASE = "tables"
QUERIES = (
    *("processes", "rank_peaks", "peak_groups", "spread", "outliers", "outlier_sites"),
    *("growth_in_files", "growth_traces", "overview", "growth"),
    *("oom_order", "expected_slots", "missing", "setting_differences"),
    "phase_imbalance",
)
"""The tables of a report, in the order in which they are made; each is made by `sql/NAME.sql`."""

COMPARISONS = ("compare_peaks", "compare_sites", "compare_settings")
"""The tables of a comparison with a baseline."""

_CONFIG = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
_LINE = re.compile(r":\d+ ")


def fleet_report(
    table: Path,
    run: str | None = None,
    *,
    ranks: int | None = None,
    baseline: Path | None = None,
    baseline_run: str | None = None,
) -> FleetReport:
    """Return the report on a run.

    Args:
        table: The dataset that `pytracer fleet collect` wrote.
        run: The run; None for the run that was written last.
        ranks: The number of ranks of the job; None if it is the highest rank of a file and one.
        baseline: The dataset of another run to compare with; it may be the same dataset.
        baseline_run: The run of `baseline`; None for the run that was written last.

    Raises:
        PytracerError: A dataset cannot be read, has no files, or lacks the run.
    """
    with closing(_connect()) as connection:
        if baseline is not None:
            connection.execute("CREATE SCHEMA baseline")
            connection.execute("USE memory.baseline")
            baseline_run, _ = _make(connection, baseline, baseline_run, None)
            connection.execute("USE memory.main")
        run, others = _make(connection, table, run, ranks)
        report = _read(connection, table, run, others)
        if baseline is not None:
            report.baseline = _change(connection, str(baseline), baseline_run, report)
    report.answers, report.commands = answers_and_commands(report)
    return report


def query(name: str) -> str:
    """Return the SQL of a table."""
    return (resources.files("pytracer.fleet") / "sql" / f"{name}.sql").read_text()


def script(table: Path, run: str | None = None, ranks: int | None = None) -> str:
    """Return the SQL of all tables of a report on a run, for DuckDB's own command or notebooks.

    Raises:
        PytracerError: As for `fleet_report`.
    """
    with closing(_connect()) as connection:
        run, _ = _chosen_run(connection, table, run)
    return "\n".join([_variables(table, run, ranks), *map(query, (BASE, *QUERIES))])


def check_packages(*packages: str) -> None:
    """Raise a PytracerError that names all packages that are needed and cannot be imported."""
    missing, reasons = [], []
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            missing.append(package)
            reasons.append(str(error))
    if missing:
        raise PytracerError(
            f"pytracer fleet report needs {' and '.join(missing)} ({'; '.join(reasons)}): "
            f"`pip install {' '.join(missing)}`"
        )


def _connect() -> Any:
    check_packages("duckdb")
    return importlib.import_module("duckdb").connect(config=_CONFIG)


def _make(
    connection: Any, table: Path, run: str | None, ranks: int | None
) -> tuple[str | None, list[str]]:
    """Make the tables of a run in the current schema; return the run and the other runs."""
    run, others = _chosen_run(connection, table, run)
    connection.execute(_variables(table, run, ranks))
    with _reading(table):
        connection.execute(query(BASE))
    for name in QUERIES:
        connection.execute(query(name))
    return run, others


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
            f"{table} has no files: collect some by pytracer fleet collect PATHS --output {table}"
        )
    chosen = runs[0] if run is None else run
    if chosen not in runs:
        raise PytracerError(
            f"there is no run {run!r}; the runs are {', '.join(map(repr, runs[:20]))}"
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


def _variables(table: Path, run: str | None, ranks: int | None) -> str:
    """Return the statements that set the variables which the SQL reads."""
    values = {"dataset": _pattern(table), "run": run, "ranks": ranks}
    return "".join(f"SET VARIABLE {name} = {_literal(value)};\n" for name, value in values.items())


def _pattern(table: Path) -> str:
    """Return the absolute path of a dataset with the characters of patterns escaped."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in str(table.absolute()))


def _literal(value: str | int | None) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _rows(connection: Any, query: str) -> list[Row]:
    found = connection.execute(f"FROM {query}")
    columns = [column[0] for column in found.description]
    return [Row(**dict(zip(columns, values, strict=True))) for values in found.fetchall()]


def _read(connection: Any, table: Path, run: str | None, others: list[str]) -> FleetReport:
    sites = defaultdict(list)
    for difference in _rows(connection, "outlier_sites"):
        sites[difference.process].append(difference)
    outliers = _rows(connection, "outliers")
    for outlier in outliers:
        outlier.sites = sites[outlier.process]
    overview = _rows(connection, "overview")[0]
    highest = _rows(
        connection, "rank_peaks ORDER BY is_cpu, peak_bytes DESC, rank, slot, source LIMIT 1"
    )
    damaged = "processes WHERE error IS NOT NULL ORDER BY step, rank, source"
    return FleetReport(
        table=str(table),
        run=run,
        other_runs=others,
        is_unfinished=(table / UNFINISHED).exists(),
        observed_ranks=max(overview.traced_ranks, overview.stepped_ranks),
        expects_files=bool(_rows(connection, "expected_slots")),
        answers=[],
        commands=[],
        overview=overview,
        worst=highest[0] if highest else None,
        spread=_rows(connection, "spread"),
        outliers=outliers,
        growth=_rows(connection, "growth"),
        ooms=_rows(connection, "oom_order"),
        phases=_rows(connection, "phase_imbalance"),
        settings=_rows(connection, "setting_differences"),
        missing=_rows(connection, "missing"),
        damaged=_rows(connection, damaged),
        baseline=None,
    )


def _change(connection: Any, table: str, run: str | None, report: FleetReport) -> BaselineChange:
    """Return what changed in a report against a run whose tables are in the schema `baseline`."""
    for name in COMPARISONS:
        connection.execute(query(name))
    growth = _growing(report.growth)
    old_growth = _growing(_rows(connection, "baseline.growth"))
    outliers = [each.process for each in report.outliers]
    old_outliers = [each.process for each in _rows(connection, "baseline.outliers")]
    return BaselineChange(
        table=table,
        run=run,
        peaks=_rows(connection, "compare_peaks"),
        sites=_rows(connection, "compare_sites"),
        settings=_rows(connection, "compare_settings"),
        ooms=len(report.ooms),
        baseline_ooms=len(_rows(connection, "baseline.oom_order")),
        new_growth=_only(growth, old_growth),
        gone_growth=_only(old_growth, growth),
        new_outliers=[each for each in outliers if each not in old_outliers],
        gone_outliers=[each for each in old_outliers if each not in outliers],
    )


def _growing(growth: Iterable[Row]) -> list[str]:
    return [each.site or UNKNOWN_SITE for each in growth if each.verdict != "unknown"]


def _only(sites: list[str], others: list[str]) -> list[str]:
    """Return the call sites that others lack in any line of the same function."""
    known = {_LINE.sub(" ", site) for site in others}
    return [site for site in sites if _LINE.sub(" ", site) not in known]
