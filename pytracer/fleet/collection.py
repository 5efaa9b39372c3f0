"""A collection: which files are read, by which engine, and how their rows reach the dataset."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pytracer.errors import PytracerError
from pytracer.fleet.dataset import Dataset
from pytracer.fleet.pool import Pool
from pytracer.fleet.schema import ArrowTables
from pytracer.fleet.sources import Source, find_sources, with_runs
from pytracer.fleet.summary import collect_file, unreadable

BATCH_FILES = 256  # the number of files after which their rows are written

BATCH_S = 60.0  # the seconds after which the rows of fewer files are written


class Engine(Protocol):
    """What finds and reads files."""

    def find(self, paths: Sequence[str]) -> tuple[list[Source], list[PytracerError]]:
        """Return the files that paths name, and why other paths name none."""

    def read(self, sources: Sequence[Source]) -> Iterator[tuple[Source, ArrowTables | None]]:
        """Yield the rows of each source as it is done; None: it was lost, and no row is made."""

    def close(self) -> None:
        """End what the engine has started."""


@dataclass
class Collected:
    """What a collection did.

    Attributes:
        table: The dataset.
        files: The number of files that were found.
        known: The number of them that the dataset had already.
        read: The number of files that were read.
        unreadable: The files that cannot be read, with the reasons: those of this collection.
        lost: The files whose node or process was lost, so that they have to be collected again.
        errors: Why paths name no file.
        seconds: How long it took.
    """

    table: str
    files: int = 0
    known: int = 0
    read: int = 0
    unreadable: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0


def collect(
    paths: Sequence[str],
    output: Path,
    engine: Engine,
    run: str | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Collected:
    """Read the files that the dataset lacks, or that changed, and add their rows to it.

    Args:
        paths: Files, directories, patterns and URLs.
        output: The folder of the dataset.
        engine: What finds and reads files. It is closed.
        run: The run of all files; None: the names of their folders.
        on_progress: Called with the number of files that were read, and of all to read.

    Raises:
        PytracerError: The dataset cannot be opened or written.
    """
    begin = time.monotonic()
    done = Collected(str(output))
    try:
        with Dataset(output) as dataset:
            found, errors = engine.find(paths)
            done.errors = [str(error) for error in errors]
            sources = with_runs(found, run, dataset.runs)
            done.files = len(sources)
            wanted = [each for each in sources if not dataset.has(each.name, each.stamp)]
            done.known = len(sources) - len(wanted)
            on_progress(0, len(wanted))
            _add(dataset, engine.read(wanted), done, len(wanted), on_progress)
    finally:
        engine.close()
    done.seconds = time.monotonic() - begin
    return done


def _add(
    dataset: Dataset,
    results: Iterable[tuple[Source, ArrowTables | None]],
    done: Collected,
    total: int,
    on_progress: Callable[[int, int], None],
) -> None:
    batch: list[ArrowTables] = []
    written = time.monotonic()
    try:
        for source, tables in results:
            if tables is None:
                done.lost.append(source.name)
                continue
            batch.append(tables)
            done.read += 1
            on_progress(done.read + len(done.lost), total)
            if len(batch) >= BATCH_FILES or time.monotonic() - written > BATCH_S:
                ready, batch = batch, []
                done.unreadable += dataset.write(ready)
                written = time.monotonic()
    finally:  # also after Control-C: what was read is kept
        done.unreadable += dataset.write(batch)


class LocalEngine:
    """The processes of this machine."""

    def __init__(self, memory_bytes: int | None = None, workers: int | None = None) -> None:
        """Make an engine; the arguments are those of `Pool`."""
        self._pool: Pool[Source, ArrowTables] = Pool(collect_file, memory_bytes, workers)

    def find(self, paths: Sequence[str]) -> tuple[list[Source], list[PytracerError]]:
        """Return the files that paths name, and why other paths name none."""
        return find_sources(paths)

    def read(self, sources: Sequence[Source]) -> Iterator[tuple[Source, ArrowTables | None]]:
        """Yield the rows of each source as it is done."""
        jobs = [(source, source.needed_bytes) for source in sources]
        for source, result in self._pool.results(jobs):
            if isinstance(result, Exception):
                yield source, unreadable(source, f"{source.name}: {result}", is_content=False)
            else:
                yield source, result

    def close(self) -> None:
        """End the processes."""
        self._pool.close()
