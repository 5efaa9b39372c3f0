"""The dataset that a collection writes, in Parquet files.

    TABLE/{table}/{number}.parquet     a part of a table
    TABLE/_pytracer_fleet.json         the version of the schema: the collection is complete

A batch of files is one part of each table. Part 0 is empty, so that each table has a file with its
columns. A dataset is written once, into a new folder, and the mark is written last.
"""

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pytracer.atomic_file import open_output
from pytracer.errors import PytracerError
from pytracer.fleet.schema import SCHEMA_VERSION, TABLES, ArrowTables, arrow_schema, pyarrow
from pytracer.reading.files import is_special

MARK = "_pytracer_fleet.json"  # the file that tells a dataset from other folders

_ROWS = 1 << 16
_ORDER = [(name, "ascending") for name in ("run", "file_step", "rank", "source")]


@contextlib.contextmanager
def new_dataset(path: Path) -> Iterator[Callable[[Iterable[ArrowTables]], None]]:
    """Make a dataset, and yield a function that writes the rows of files into it.

    If the body raises, what was written is deleted.

    Raises:
        PytracerError: The folder exists and is not empty, or cannot be written.
    """
    arrow, parts = pyarrow(), itertools.count()

    def write(batch: Iterable[ArrowTables]) -> None:
        batch, part = list(batch), next(parts)
        for table in TABLES:
            if rows := [of_file[table] for of_file in batch if table in of_file]:
                found = arrow.concat_tables(rows).sort_by(_ORDER)
                with open_output(path / table / f"{part:08d}.parquet") as file:
                    arrow.parquet.write_table(found, file, compression="zstd", row_group_size=_ROWS)

    try:
        path.mkdir(parents=True, exist_ok=True)
        if os.listdir(path):
            raise FileExistsError(0, "it exists and is not empty")
        for table in TABLES:  # of two collections that write a folder, one fails here
            (path / table).mkdir()
    except OSError as error:
        raise PytracerError(
            f"cannot write {path}: {error.strerror}. Give --output a new folder"
        ) from error
    try:
        write([{table: arrow_schema(table).empty_table() for table in TABLES}])
        yield write
        with open_output(path / MARK) as file:
            file.write(f"{json.dumps({'schema_version': SCHEMA_VERSION})}\n".encode())
    except BaseException:
        for table in TABLES:
            shutil.rmtree(path / table, ignore_errors=True)
        raise


def check_dataset(path: Path) -> None:
    """Check that a folder is a complete dataset of a version that this code knows.

    Raises:
        PytracerError: It is not, or has a file such as a FIFO, for which a reader would wait.
    """
    for folder, _, names in os.walk(path):
        for name in names:
            if is_special(Path(folder, name)):
                raise PytracerError(f"{folder}/{name} is not a regular file: delete it")
    try:
        version = str(json.loads((path / MARK).read_text())["schema_version"])
    except FileNotFoundError:
        raise PytracerError(
            f"{path} is not a complete dataset, because it has no file {MARK}: give the folder "
            "that `pytracer fleet collect --output` wrote"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PytracerError(f"cannot read {path / MARK}: {error}") from error
    if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise PytracerError(
            f"{path} has tables of version {version}, and this pytracer reads {SCHEMA_VERSION}: "
            "collect the files again"
        )
