"""The report on a run that was collected: DuckDB runs the files in `sql/` on the dataset."""

import re
from collections import defaultdict
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pytracer.errors import PytracerError
from pytracer.fleet.dataset import UNFINISHED, check_dataset
from pytracer.fleet.report_results import BaselineChange, FleetReport
from pytracer.fleet.report_rows import (
    DamagedFile,
    FleetOom,
    FleetSiteChange,
    MissingRank,
    Outlier,
    Overview,
    PeakChange,
    PhaseImbalance,
    SettingChange,
    SettingValue,
    SiteDifference,
    SiteGrowth,
    Spread,
    Worst,
)
from pytracer.fleet.report_texts import answers_and_commands

BASE = "tables"
QUERIES = (
    *("processes", "overview", "rank_peaks", "worst", "peak_groups", "spread"),
    *("outliers", "outlier_sites", "growth_in_files"),
    *("growth_traces", "growth_observed", "growth"),
    *("oom_order", "damaged", "expected_slots", "missing", "setting_differences"),
    "phase_imbalance",
)
"""The tables of a report, in the order in which they are made; each is made by `sql/NAME.sql`."""

COMPARISONS = ("compare_peaks", "compare_sites", "compare_settings")
"""The tables of a comparison with a baseline."""

_CONFIG = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
_LINE = re.compile(r":\d+ ")
_Row = TypeVar("_Row")


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
    connection = _connect()
    try:
        if baseline is not None:
            connection.execute("CREATE SCHEMA baseline")
            connection.execute("USE memory.baseline")
            baseline_run, _ = _make(connection, baseline, baseline_run, None)
            old_ooms, old_growth, old_outliers = _compared(connection)
            connection.execute("USE memory.main")
        run, others = _make(connection, table, run, ranks)
        report = _read(connection, table, run, others)
        if baseline is not None:
            for name in COMPARISONS:
                connection.execute(query(name))
            ooms, growth, outliers = _compared(connection)
            report = replace(
                report,
                baseline=BaselineChange(
                    table=str(baseline),
                    run=baseline_run,
                    peaks=_rows(connection, "compare_peaks", PeakChange),
                    sites=_rows(connection, "compare_sites", FleetSiteChange),
                    settings=_rows(connection, "compare_settings", SettingChange),
                    ooms=ooms,
                    baseline_ooms=old_ooms,
                    new_growth=_only(growth, old_growth),
                    gone_growth=_only(old_growth, growth),
                    new_outliers=[each for each in outliers if each not in old_outliers],
                    gone_outliers=[each for each in old_outliers if each not in outliers],
                ),
            )
    finally:
        connection.close()
    answers, commands = answers_and_commands(report)
    return replace(report, answers=answers, commands=commands)


def query(name: str) -> str:
    """Return the SQL of a table."""
    return (resources.files("pytracer.fleet") / "sql" / f"{name}.sql").read_text()


def script(table: Path, run: str | None = None, ranks: int | None = None) -> str:
    """Return the SQL of all tables of a report on a run, for DuckDB's own command or notebooks.

    Raises:
        PytracerError: As for `fleet_report`.
    """
    connection = _connect()
    try:
        run, _ = _chosen_run(connection, table, run)
    finally:
        connection.close()
    values = {"dataset": _literal(_pattern(table)), "run": _literal(run), "ranks": _literal(ranks)}
    variables = [f"SET VARIABLE {name} = {value};\n" for name, value in values.items()]
    return "\n".join(["".join(variables), *(query(name) for name in (BASE, *QUERIES))])


def _connect() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise PytracerError("pytracer fleet report needs duckdb: `pip install duckdb`") from error
    return duckdb.connect(config=_CONFIG)


def _make(
    connection: Any, table: Path, run: str | None, ranks: int | None
) -> tuple[str | None, list[str]]:
    """Make the tables of a run in the current schema; return the run and the other runs."""
    chosen, others = _chosen_run(connection, table, run)
    for name, value in (("dataset", _pattern(table)), ("run", chosen), ("ranks", ranks)):
        connection.execute(f"SET VARIABLE {name} = {_literal(value)}")
    import duckdb

    try:
        connection.execute(query(BASE))
    except duckdb.Error as error:
        raise _unreadable(table, error) from error
    for name in QUERIES:
        connection.execute(query(name))
    return chosen, others


def _chosen_run(connection: Any, table: Path, run: str | None) -> tuple[str | None, list[str]]:
    import duckdb

    check_dataset(table)
    try:
        found = connection.execute(
            "SELECT run FROM read_parquet(?, hive_partitioning = false) GROUP BY run "
            "ORDER BY max(coalesce(written_ns, modified_ns)) DESC NULLS LAST, run",
            [_pattern(table) + "/files/*/*/*.parquet"],
        ).fetchall()
    except duckdb.Error as error:
        raise _unreadable(table, error) from error
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


def _unreadable(table: Path, error: Exception) -> PytracerError:
    first = str(error).partition("\n")[0]
    return PytracerError(f"cannot read {table}: {first}; delete the folder, and collect again")


def _pattern(table: Path) -> str:
    """Return the absolute path of a dataset with the characters of patterns escaped."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in str(table.absolute()))


def _literal(value: str | int | None) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _only(sites: list[str], others: list[str]) -> list[str]:
    """Return the call sites that others lack in any line of the same function."""
    known = {_LINE.sub(" ", site) for site in others}
    return [site for site in sites if _LINE.sub(" ", site) not in known]


def _rows(connection: Any, table: str, kind: type[_Row]) -> list[_Row]:
    columns = [field.name for field in fields(kind) if field.name != "sites"]  # type: ignore[arg-type]
    rows = connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
    return [kind(*row) for row in rows]


def _compared(connection: Any) -> tuple[int, list[str], list[str]]:
    """Return the number of errors, the call sites that grow, and the outliers."""
    ooms = _number(connection, "SELECT count(*) FROM oom_order")
    growth = connection.execute("SELECT site FROM growth WHERE verdict <> 'unknown'").fetchall()
    outliers = connection.execute("SELECT process FROM outliers").fetchall()
    return ooms, [site or "" for (site,) in growth], [process for (process,) in outliers]


def _number(connection: Any, sql: str) -> int:
    (found,) = connection.execute(sql).fetchone()
    return int(found or 0)


def _read(connection: Any, table: Path, run: str | None, others: list[str]) -> FleetReport:
    sites = defaultdict(list)
    for difference in _rows(connection, "outlier_sites", SiteDifference):
        sites[difference.process].append(difference)
    outliers = _rows(connection, "outliers", Outlier)
    return FleetReport(
        table=str(table),
        run=run,
        other_runs=others,
        is_unfinished=(table / UNFINISHED).exists(),
        observed_ranks=_number(connection, "SELECT max(of_ranks) FROM growth_observed"),
        expects_files=_number(connection, "SELECT count(*) FROM expected_slots") > 0,
        answers=[],
        commands=[],
        overview=_rows(connection, "overview", Overview)[0],
        worst=next(iter(_rows(connection, "worst", Worst)), None),
        spread=_rows(connection, "spread", Spread),
        outliers=[replace(outlier, sites=sites[outlier.process]) for outlier in outliers],
        growth=_rows(connection, "growth", SiteGrowth),
        ooms=_rows(connection, "oom_order", FleetOom),
        phases=_rows(connection, "phase_imbalance", PhaseImbalance),
        settings=_rows(connection, "setting_differences", SettingValue),
        missing=_rows(connection, "missing", MissingRank),
        damaged=_rows(connection, "damaged", DamagedFile),
        baseline=None,
    )
