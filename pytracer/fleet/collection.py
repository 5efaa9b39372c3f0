"""A collection: which files are read, by which engine, and how their rows reach the dataset."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pytracer.errors import PytracerError
from pytracer.fleet.dataset import new_dataset
from pytracer.fleet.pool import Pool
from pytracer.fleet.schema import ArrowTables
from pytracer.fleet.sources import Source, find_sources, with_runs
from pytracer.fleet.summary import collect_file, unreadable

if TYPE_CHECKING:
    from pytracer.fleet.ray_engine import RayEngine

Engine: TypeAlias = "LocalEngine | RayEngine"  # what finds and reads files

BATCH_FILES = 256  # the number of files whose rows are written together


@dataclass
class Collected:
    """What a collection did.

    Attributes:
        table: The dataset.
        files: The number of files that were found.
        unreadable: Why files cannot be read.
        errors: Why paths name no file.
        seconds: How long it took.
    """

    table: str
    files: int
    unreadable: list[str]
    errors: list[str]
    seconds: float


def collect(
    paths: Sequence[str],
    output: Path,
    engine: "Engine",
    run: str | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Collected:
    """Read files, and write their rows into a new dataset.

    Args:
        paths: Files, directories, patterns and URLs.
        output: A new or empty folder for the dataset.
        engine: What finds and reads files. It is closed.
        run: The run of all files; None: the names of their folders.
        on_progress: Called with the number of files that were read, and of all to read.

    Raises:
        PytracerError: No path names a file, or the dataset cannot be written.
    """
    begin = time.monotonic()
    with closing(engine):
        found, errors = engine.find(paths)
        if not found:
            raise errors[0]
        sources, batch = with_runs(found, run), list[ArrowTables]()
        done = Collected(str(output), len(sources), [], [*map(str, errors)], 0.0)
        with new_dataset(output) as write:
            on_progress(0, len(sources))
            for number, tables in enumerate(engine.read(sources), 1):
                batch.append(tables)
                done.unreadable += filter(None, tables["files"]["error"].to_pylist())
                on_progress(number, len(sources))
                if len(batch) == BATCH_FILES or number == len(sources):
                    write(batch)
                    batch = []
    done.seconds = time.monotonic() - begin
    return done


class LocalEngine:
    """The processes of this machine."""

    def __init__(self, workers: int | None = None) -> None:
        """Make an engine; `workers`: as for `Pool`."""
        self._pool: Pool[Source, ArrowTables] = Pool(collect_file, workers)

    def find(self, paths: Sequence[str]) -> tuple[list[Source], list[PytracerError]]:
        """Return the files that paths name, and why other paths name none."""
        return find_sources(paths)

    def read(self, sources: Sequence[Source]) -> Iterator[ArrowTables]:
        """Yield the rows of each source as it is done."""
        jobs = [(source, source.needed_bytes) for source in sources]
        for source, result in self._pool.results(jobs):
            if isinstance(result, Exception):
                result = unreadable(source, f"{source.name}: {result}")
            yield result

    def close(self) -> None:
        """End the processes."""
        self._pool.close()
