"""The files that a collection reads: local files, and files of other file systems by URL."""

import contextlib
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from pytracer.errors import PytracerError, optional
from pytracer.reading.files import SUFFIXES, OnError, find, parse_place, run_folder
from pytracer.reading.reader import usual_bytes

_URL = re.compile(r"[a-z][a-z0-9+.-]*(?:::|://)", re.IGNORECASE)
_LOCAL = re.compile(r"(?:file|local)://", re.IGNORECASE)
_COMPRESSED = (".gz", ".zst")


@dataclass(frozen=True)
class Source:
    """A file to read."""

    name: str  # the absolute path, or the URL. It identifies the file in the dataset
    path: str  # the path, in its file system
    url: str | None  # the URL from which the file is opened; None for a local file
    folder: str  # the folder that holds the files of the run
    run: str = ""
    file_bytes: int | None = None  # the size of the file; None if unknown
    modified_ns: int | None = None  # since the epoch; None if unknown, as of a URL
    stamp: str = ""  # which local file has the name, as nodes of a cluster may have different ones
    nodes: tuple[str, ...] = ()  # the nodes of a Ray cluster that have the file; () for any

    @property
    def needed_bytes(self) -> int:
        """The memory that reading the file takes, as an estimate."""
        size = self.file_bytes or 0
        read = usual_bytes(size, self.path.endswith(_COMPRESSED))
        return read if self.url is None else read + size


def find_sources(paths: Iterable[str]) -> tuple[list[Source], list[PytracerError]]:
    """Return the files that paths name, each once, and why other paths name none.

    Args:
        paths: Files, directories, patterns such as "run7/step*/", and URLs of any of these.
    """
    found: dict[str, Source] = {}
    errors: list[PytracerError] = []
    for path in paths:
        try:
            sources = _remote(path) if is_url(path) else _local(path, errors.append)
            found.update((source.name, source) for source in sources)
        except PytracerError as error:
            errors.append(error)
    return list(found.values()), errors


def is_url(path: str) -> bool:
    """Return whether a path names a file of another file system."""
    return bool(_URL.match(path)) and not _LOCAL.match(path)


def with_runs(sources: Sequence[Source], run: str | None) -> list[Source]:
    """Return the sources with their runs, ordered by run, step and rank.

    The run of a file is the name of its folder. If folders have the same name, the names of their
    parents are added until the runs differ.

    Args:
        run: The name of all runs; None: that of the folders.
    """
    runs: dict[str, str] = {}
    for folder in sorted({source.folder for source in sources}):
        parts = [part for part in PurePosixPath(folder).parts if part != "/"] or [folder]
        names = ["/".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        runs[folder] = next((name for name in names if name not in runs.values()), folder)
    named = [replace(source, run=run or runs[source.folder]) for source in sources]
    return sorted(named, key=_order)


def read_content(source: Source) -> bytes:
    """Return the content of a source with a URL.

    Raises:
        PytracerError: It cannot be read.
    """
    assert source.url is not None
    with _failing_as(f"cannot read {source.url}"), _fsspec(source.url).open(source.url) as file:
        content: bytes = file.read()
    return content


def _order(source: Source) -> tuple[object, ...]:
    place = parse_place(Path(source.path))
    step = -1 if place.last is None else place.last
    return source.run, step, -1 if place.rank is None else place.rank, source.name


def _local(text: str, on_error: OnError) -> Iterator[Source]:
    text = os.path.abspath(_LOCAL.sub("", text))
    paths = [Path(text)]
    if not os.path.exists(text) and glob.has_magic(text):
        paths = [Path(path) for path in sorted(glob.glob(text, recursive=True))]
        if not paths:
            raise PytracerError(f"{text} matches no file: check the pattern")
    return map(_local_source, find(paths, on_error))


def _local_source(path: Path) -> Source:
    folder = encodable(os.fspath(run_folder(path)))
    source = Source(name=encodable(os.fspath(path)), path=os.fspath(path), url=None, folder=folder)
    try:
        state = path.stat()
    except OSError:  # it was removed just now: reading it reports the error
        return source
    stamp = f"{state.st_mtime_ns}-{state.st_ctime_ns}-{state.st_ino}"
    return replace(source, file_bytes=state.st_size, modified_ns=state.st_mtime_ns, stamp=stamp)


def _remote(url: str) -> Iterator[Source]:
    with _failing_as(f"cannot open {url}"):
        file_system, path = _fsspec(url).url_to_fs(url)
    with _failing_as(f"cannot list {url}"):
        found: dict[str, Any] = {
            name: info
            for each in (file_system.glob(path) if glob.has_magic(path) else [path])
            for name, info in file_system.find(each, detail=True).items()
            if name == each
            or (name.endswith(SUFFIXES) and "/." not in f"/{name.removeprefix(each)}")
        }
    if not found:
        raise PytracerError(
            f"{url} contains no snapshots: their names end in {', '.join(SUFFIXES)}"
        )
    for name, info in sorted(found.items()):
        full = _url_of(url, name)
        size = info.get("size")
        yield Source(
            name=encodable(full),
            path=name,
            url=full,
            folder=encodable(os.fspath(run_folder(Path("/", name)))),
            file_bytes=size if isinstance(size, int) else None,
        )


@contextlib.contextmanager
def _failing_as(problem: str) -> Iterator[None]:
    """Name the problem, because file systems raise exceptions of their own."""
    try:
        yield
    except PytracerError:
        raise
    except Exception as error:
        raise PytracerError(f"{problem}: {error}") from error


def _fsspec(url: str) -> Any:
    return optional(f"{url} needs", "fsspec.core")[0]


def _url_of(url: str, path: str) -> str:
    """Return the URL of a path in the file system of a URL; chains keep their other links."""
    head, chain, rest = url.partition("::")
    scheme, separator, _ = head.partition("://")
    if not separator:  # "simplecache::s3://…": the path belongs to the next link
        return f"{head}::{_url_of(rest, path)}"
    return f"{scheme}://{path.lstrip('/')}" + (f"{chain}{rest}" if chain else "")


def encodable(text: str) -> str:
    """Return a text without the bytes, or lone surrogates, that no Unicode text has."""
    return text.encode(errors="backslashreplace").decode()
