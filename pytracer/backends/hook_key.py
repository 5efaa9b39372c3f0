"""The key of a hook: a hash of headers and of what else decides the ABI.

The key of a hook that is compiled here is in its file name. It covers every header that the
compiler may read, because it is needed before the compilation. The key of a ready hook covers the
headers that the compiler did read, so that the hook serves builds of torch that differ in others.
Install paths do not count, so that a hook built elsewhere for the same torch is found.

Reading the headers for an NPU takes 0.5 s. A key is therefore cached in the folders of hooks, with
the size and the time of modification of each file that it was computed from. A later start compares
those, and reads no header.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from pytracer.atomic_file import open_atomically
from pytracer.backends.hook_folders import HookFolders
from pytracer.errors import HookError

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^<>"\n]+)[>"]', re.MULTILINE)

SETTLED_NS = 2_000_000_000
"""A key is cached if nothing changed in this time: a later change has another time of modification,
even where the file system counts in whole seconds."""

NO_KEY = ""  # what is cached where no hook fits
_KEYS = {"key": re.compile(r"[0-9a-f]{20}"), "ready": re.compile(r"([0-9a-f]{20})?")}
"""What may be cached, by kind: a hook can always be compiled, and a ready one may be missing."""

Stamp = str
"""The size of a file or folder in bytes, and its time of modification in ns: "1024:17000000000000".

A text, because reading thousands of lists makes Python's collector look at all of torch's objects.
"""


def stamp(path: str) -> Stamp:
    """Return the state of a file or folder, or raise an OSError."""
    info = os.stat(path)
    return f"{info.st_size}:{info.st_mtime_ns}"


class SeenFiles:
    """Reads files, and notes on what the answers depend.

    Attributes:
        stamps: The stamps of the files, and of the folders in which a file was not found, by path.
            While these are the same, so are the contents.
    """

    def __init__(self) -> None:
        self.stamps: dict[str, Stamp] = {}
        self._nearest = functools.cache(_nearest_folder)

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None: there is none."""
        if not os.path.isfile(path):
            folder = self._nearest(os.path.dirname(path))
            if folder not in self.stamps:
                self.stamps[folder] = stamp(folder)
            return None
        self.stamps[path] = stamp(path)  # before its content is read, which may then be newer
        return Path(path).read_bytes()


def _nearest_folder(path: str) -> str:
    """Return the folder at `path`, or the nearest one above it that exists."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


class HookCache:
    """The cached keys of one process. Keys are written by `write` alone.

    A cached key is trusted as a hook in `folders` is.
    """

    def __init__(self, folders: HookFolders) -> None:
        self._folders = folders
        self._unwritten: dict[str, tuple[str, dict[str, Stamp]]] = {}  # by file name

    def key(
        self,
        kind: str,
        parts: Sequence[bytes],
        roots: Sequence[Path],
        facts: Mapping[str, bytes],
        compute: Callable[[SeenFiles], str | None],
    ) -> str:
        """Return the cached key or `NO_KEY`; compute it if a file has changed, and keep it.

        Args:
            kind: "key" for a hook to compile, "ready" for a ready one.
            parts: What decides the key, with the paths of `roots`, the `facts` and the files.
            roots: The folders in which the compiler would look for headers, in order.
            facts: What else decides the ABI, by name.
            compute: Returns the key or None; gets what reads the files that decide it.
        """
        decides = [kind.encode(), *parts, *map(os.fsencode, roots)]
        decides += [b"%s=%s" % (name.encode(), fact) for name, fact in sorted(facts.items())]
        name = f"{kind}-{hashlib.sha256(bytes(1).join(decides)).hexdigest()[:20]}.json"
        if (cached := self._read(name, _KEYS[kind])) is not None:
            return cached
        seen = SeenFiles()
        key = compute(seen) or NO_KEY
        self._unwritten[name] = key, seen.stamps
        return key

    def _read(self, name: str, form: re.Pattern[str]) -> str | None:
        for folder in self._folders.chosen():
            if (found := folder.read(name)) is None:
                continue
            try:
                cached = json.loads(found[1])
                key, seen = cached["key"], cached["seen"]
                if form.fullmatch(key) and all(stamp(path) == was for path, was in seen.items()):
                    return str(key)
            except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue  # the file is not ours, or is damaged: the key is computed again
        return None

    def write(self) -> None:
        """Write the keys that were computed, if a folder can be written."""
        while self._unwritten:
            name, (key, seen) = self._unwritten.popitem()
            newest_ns = max((int(each.partition(":")[2]) for each in seen.values()), default=0)
            if time.time_ns() - newest_ns < SETTLED_NS:
                continue
            with contextlib.suppress(HookError, OSError):
                path = self._folders.destination().directory / name
                with open_atomically(path) as file:
                    file.write(json.dumps({"key": key, "seen": seen}).encode())


def headers_key(
    headers: Iterable[str], facts: Mapping[str, bytes], digest: Callable[[str], bytes | None]
) -> str | None:
    """Return 20 hexadecimal digits that identify headers and facts; None: a header is missing.

    `digest` returns the hash of a header's content, or None if there is no such header. `facts`
    decide the ABI, too.
    """
    whole = hashlib.sha256()
    for name, fact in sorted(facts.items()):
        whole.update(b"%s=%s\0" % (name.encode(), fact))
    for header in sorted(headers):
        content = digest(header)
        if content is None:
            return None
        whole.update(b"%s\0%s" % (os.fsencode(header), content))
    return whole.hexdigest()[:20]


def included_files(source: Path, roots: Sequence[Path], seen: SeenFiles) -> dict[str, bytes]:
    """Return the hashes of all files under `roots` that `source` includes, directly or not.

    They are by the path relative to the root, and `source` is among them.
    """
    digests: dict[str, bytes] = {}
    # torch_npu's headers name 200,000 files, most of them many times. Each is looked up once.
    prefixes = [str(root) for root in roots]
    tried: set[tuple[str, str]] = set()
    done: set[str] = set()
    todo = [str(source)]
    while todo:
        path = todo.pop()
        if path in done:
            continue
        done.add(path)
        root = next((root for root in prefixes if path.startswith(f"{root}{os.sep}")), None)
        if root is None or (content := seen.read(path)) is None:
            continue
        digests[os.path.relpath(path, root)] = hashlib.sha256(content).digest()
        for name in map(os.fsdecode, set(_INCLUDE.findall(content))):
            for folder in (os.path.dirname(path), *prefixes):
                if (folder, name) not in tried:
                    tried.add((folder, name))
                    todo.append(os.path.normpath(os.path.join(folder, name)))
    return digests
