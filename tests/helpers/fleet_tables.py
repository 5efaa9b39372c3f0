"""Folders of snapshots, and the rows of a dataset, for the tests of `pytracer fleet collect`."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pytracer.fleet.collection import LocalEngine
from pytracer.fleet.report_results import FleetReport
from pytracer.fleet.schema import TABLES, ArrowTables
from pytracer.fleet.sources import Source
from pytracer.fleet.summary import collect_file

GOLDEN = Path(__file__).parents[1] / "golden"
CUDA = GOLDEN / "snapshot-1.6-cuda.pickle"  # with an out-of-memory
CPU = GOLDEN / "snapshot-1.6-cpu.pickle"

Row = tuple[Any, ...]


class InProcess(LocalEngine):
    """An engine that reads in this process."""

    def read(self, sources: Sequence[Source]) -> Iterator[ArrowTables]:
        return map(collect_file, sources)


def make_run(folder: Path, ranks: int = 2, steps: int = 2) -> list[Path]:
    """Write the files of a run, in pytracer's layout; those of odd ranks are of the CPU."""
    paths = []
    for step in range(1, steps + 1):
        for rank in range(ranks):
            path = folder / f"step{step}" / f"torch_memory_rank{rank}_pid{100 + rank}.pickle"
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CPU if rank % 2 else CUDA, path)
            paths.append(path)
    return paths


def rows(table: Path, name: str) -> list[Row]:
    """Return all rows of a table in a fixed order, without what a copy of a file changes."""
    fields = [field for field in TABLES[name].columns if field != "modified_ns"]
    found = []
    for path in (table / name).rglob("*.parquet"):
        found += [tuple(row[f] for f in fields) for row in pq.ParquetFile(path).read().to_pylist()]
    return sorted(found, key=repr)


def all_rows(table: Path) -> dict[str, list[Row]]:
    return {name: rows(table, name) for name in TABLES}


def column(table: Path, name: str, field: str) -> list[Any]:
    values: list[Any] = []
    for path in (table / name).rglob("*.parquet"):
        values += pq.ParquetFile(path).read()[field].to_pylist()
    return values


def answer(report: FleetReport, topic: str) -> tuple[str, str]:
    (found,) = (each for each in report.answers if each.topic == topic)
    return found.verdict, found.text
