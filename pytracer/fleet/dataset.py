"""The dataset that a collection writes, in Parquet files.

    TABLE/_pytracer_fleet.json         the version of the schema
    TABLE/_unfinished                  a collection runs, or was killed
    TABLE/{table}/{number}.parquet     a part of a table

A batch of files is one part of each table, of the same number. The part of the table `files` is
written last, so a source counts as collected only if all of its rows are on the disk. Of a source
in several parts, the part with the highest number is valid, and the rows in the others are removed.
So a collection that was killed leaves nothing that the next one cannot repair. Part 0 is empty, so
that each table has a file with its columns.
"""

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pytracer.atomic_file import open_atomically
from pytracer.errors import PytracerError
from pytracer.fleet.schema import SCHEMA_VERSION, TABLES, ArrowTables, arrow_schema, pyarrow
from pytracer.reading.files import is_special

MARK = "_pytracer_fleet.json"  # the file that tells a dataset from other folders

UNFINISHED = "_unfinished"  # the file that exists while a collection runs, and after one was killed

_ROWS = 1 << 16
_TABLES = [*(name for name in TABLES if name != "files"), "files"]
"""The tables in the order in which they are written."""

_LEARNED = ["source", "stamp", "run", "folder"]  # the columns of `files` that a collection reads


class Dataset:
    """A dataset that is open for writing, by this process only.

    Attributes:
        runs: The runs of the folders that the dataset has.
    """

    def __init__(self, path: Path) -> None:
        """Open or make a dataset. It is used as a context manager.

        Raises:
            PytracerError: The folder is no dataset, is of another version, or cannot be written.
        """
        self.path = path
        self.runs: dict[str, str] = {}
        self._parts: dict[str, int] = {}  # by source
        self._stamps: dict[str, str] = {}  # by source
        self._arrow = pyarrow()
        self._next = 1
        check_dataset(path, may_be_new=True)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(path / ".pytracer.lock", timeout=0)
        except OSError as error:
            raise PytracerError(f"cannot write {path}: {error.strerror}") from error

    def __enter__(self) -> "Dataset":
        """Lock the dataset, and repair what an earlier collection left unfinished.

        Raises:
            PytracerError: Another process writes the dataset, or it cannot be written.
        """
        try:
            self._lock.acquire()
        except Timeout:
            raise PytracerError(
                f"another collection is writing {self.path}: wait until it has ended, or give "
                "another --output"
            ) from None
        except OSError as error:
            raise PytracerError(f"cannot write {self.path}: {error.strerror}") from error
        try:
            self._begin()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Unlock the dataset. After an exception, it stays marked as unfinished."""
        if kind is None:
            (self.path / UNFINISHED).unlink(missing_ok=True)
        self._lock.release()

    def has(self, source: str, stamp: str) -> bool:
        """Return whether a source was collected in the state that a stamp tells."""
        return stamp != "" and self._stamps.get(source) == stamp

    def write(self, batch: Iterable[ArrowTables]) -> list[str]:
        """Add the rows of sources, and remove the rows of earlier states of their files.

        Returns:
            Why files of the batch could not be read.

        Raises:
            PytracerError: The dataset cannot be written.
        """
        found = defaultdict(list)
        for of_file in batch:
            for table, rows in of_file.items():
                found[table].append(rows)
        if not found:
            return []
        part, self._next = self._next, self._next + 1
        for table in filter(found.__contains__, _TABLES):
            rows = self._arrow.concat_tables(found[table])
            order = [(name, "ascending") for name in ("run", "step", "rank", "source")]
            self._write_part(part, table, rows.sort_by(order))
        files = self._arrow.concat_tables(found["files"])
        self._learn({part: files})
        return [error for error in files["error"].to_pylist() if error is not None]

    def _begin(self) -> None:
        mark = self.path / MARK
        for table in _TABLES:
            if not self._part(0, table).exists():
                self._write_part(0, table, arrow_schema(table).empty_table())
        if not mark.exists():
            content = json.dumps({"schema_version": SCHEMA_VERSION})
            self._write_file(mark, f"{content}\n".encode())
        self._write_file(self.path / UNFINISHED, b"")
        self._repair()

    def _repair(self) -> None:
        """Read which sources the dataset has, and remove what an earlier collection left."""
        parts = {table: set(self._parts_of(table)) for table in _TABLES}
        for table in _TABLES[:-1]:
            for part in parts[table] - parts["files"]:
                self._delete(self._part(part, table))
        files = {}
        for part in sorted(parts["files"]):
            path = self._part(part, "files")
            try:
                files[part] = self._arrow.parquet.ParquetFile(path).read(_LEARNED)
            except (self._arrow.ArrowException, OSError, KeyError) as error:
                raise PytracerError(
                    f"{path} is damaged ({error}): delete it, and collect its files again"
                ) from error
            self._next = part + 1
        self._learn(files)

    def _learn(self, parts: dict[int, Any]) -> None:
        """Note the sources of parts, and remove their rows from the parts that had them before."""
        old: dict[int, set[str]] = defaultdict(set)
        for part, files in parts.items():
            for row in files.select(_LEARNED).to_pylist():
                source = row["source"]
                if source in self._parts:
                    old[self._parts[source]].add(source)
                self._parts[source], self._stamps[source] = part, row["stamp"]
                if row["folder"] is not None and row["run"] is not None:
                    self.runs[row["folder"]] = row["run"]
        for part, sources in old.items():
            self._remove(part, sources)

    def _remove(self, part: int, sources: set[str]) -> None:
        for table in _TABLES:
            path = self._part(part, table)
            if not path.exists():
                continue
            rows = self._arrow.parquet.ParquetFile(path).read()
            compute, gone = self._arrow.compute, self._arrow.array(sorted(sources))
            kept = rows.filter(compute.invert(compute.is_in(rows["source"], gone)))
            if len(kept):
                self._write_part(part, table, kept)
            else:
                self._delete(path)

    def _delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def _part(self, part: int, table: str) -> Path:
        return self.path / table / f"{part:08d}.parquet"

    def _parts_of(self, table: str) -> Iterator[int]:
        """Yield the parts of a table, and delete temporary files of writers that were killed."""
        for path in (self.path / table).iterdir():
            if path.name.startswith(".pytracer-"):
                path.unlink(missing_ok=True)
            elif path.suffix == ".parquet" and path.stem.isdecimal():
                yield int(path.stem)

    def _write_part(self, part: int, table: str, rows: Any) -> None:
        sink = self._arrow.BufferOutputStream()
        self._arrow.parquet.write_table(rows, sink, compression="zstd", row_group_size=_ROWS)
        self._write_file(self._part(part, table), sink.getvalue())

    def _write_file(self, path: Path, content: Any) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open_atomically(path) as file:
                file.write(content)
        except OSError as error:
            raise PytracerError(
                f"cannot write {path}: {error.strerror or error}; what was collected before is "
                "complete"
            ) from error


def check_dataset(path: Path, *, may_be_new: bool = False) -> None:
    """Check that a folder is a dataset of a version that this code knows.

    Raises:
        PytracerError: It is not.
    """
    mark = path / MARK
    if path.exists() and not path.is_dir():
        raise PytracerError(f"{path} is a file: give the name of a folder")
    try:
        if mark.exists() and not mark.is_file():
            raise OSError(0, "it is not a regular file")
        version = str(json.loads(mark.read_text())["schema_version"])
    except FileNotFoundError:
        if _is_foreign(path) or not may_be_new:
            problem = f"is no dataset of pytracer fleet, because it has no file {MARK}"
            new = "a new folder, or " if may_be_new else ""
            raise PytracerError(
                f"{path} {problem if path.exists() else 'does not exist'}: give {new}the folder "
                "that `pytracer fleet collect --output` wrote"
            ) from None
        version = SCHEMA_VERSION
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PytracerError(f"cannot read {mark}: {error}") from error
    if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise PytracerError(
            f"{path} has tables of version {version}, and this pytracer writes {SCHEMA_VERSION}: "
            "collect into a new folder"
        )
    _check_files(path)


def _check_files(path: Path) -> None:
    """Check that reading and writing a dataset opens no FIFO, which would wait for ever.

    Raises:
        PytracerError: The dataset has a special file.
    """
    folders = [os.fspath(path)]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif is_special(entry) and not os.path.isdir(entry.path):
                    raise PytracerError(f"{entry.path} is not a regular file: delete it")


def _is_foreign(path: Path) -> bool:
    """Return whether a folder has more than the beginning of a dataset, which was interrupted."""
    try:
        return path.exists() and not {*os.listdir(path)} <= {*TABLES, UNFINISHED, ".pytracer.lock"}
    except OSError as error:
        raise PytracerError(f"cannot read {path}: {error.strerror}") from error
