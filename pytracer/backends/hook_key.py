"""The key in a hook's file name: a hash of everything that the hook is compiled from.

Hashing reads some 3,000 headers for an NPU, which takes 0.4 s. The key is therefore cached in the
folder of the hooks, with the size and the time of modification of each header. A start compares
those, and reads no header.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytracer.atomic_file import open_atomically
from pytracer.backends.hook_folders import HookFolders
from pytracer.errors import HookError

SETTLED_NS = 2_000_000_000
"""A key is cached if nothing changed in this time: a later change has another time of modification,
even where the file system counts in whole seconds."""

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^<>"\n]+)[>"]', re.MULTILINE)
_KEY = re.compile(r"[0-9a-f]{20}")

Stamp = list[int]
"""The size in bytes of a file or folder, and its time of modification in nanoseconds."""


class HookKeys:
    """The keys of hooks. Keys that were computed before are cached in the folders of hooks."""

    def __init__(self, folders: HookFolders) -> None:
        """Compute nothing yet.

        Args:
            folders: The folders of hooks. A cached key is trusted as a hook is.
        """
        self._folders = folders
        self._computed: dict[str, tuple[str, dict[str, Stamp]]] = {}  # by file name, not yet cached

    def key(self, source: Path, roots: Sequence[Path], facts: Mapping[str, bytes]) -> str:
        """Return 20 hexadecimal digits that identify what a hook is compiled from.

        The key is a hash of the hook's source, of every header under `roots` that the source
        includes, directly or not, and of `facts`. Install paths do not count, so that a hook built
        elsewhere for the same torch is found.

        Args:
            source: The hook's source, in one of `roots`.
            roots: The folders in which the compiler looks for headers, in order.
            facts: What else decides the ABI, by name.

        Raises:
            OSError: A header cannot be read.
        """
        name = _file_name(source, roots, facts)
        if key := self._cached_key(name):
            return key
        contents, seen = included_files(source, roots)
        digest = hashlib.sha256()
        for part, content in sorted({**facts, **contents}.items()):
            digest.update(b"%s\0%d\0%s" % (os.fsencode(part), len(content), content))
        key = digest.hexdigest()[:20]
        self._computed[name] = key, seen
        return key

    def _cached_key(self, name: str) -> str | None:
        """Return the cached key, if no header has changed since."""
        for folder in self._folders.chosen():
            if not folder.has_loadable(name):
                continue
            try:
                cached = json.loads((folder.directory / name).read_bytes())
                key, seen = cached["key"], cached["seen"]
                if _KEY.fullmatch(key) and all(_stamp(path) == was for path, was in seen.items()):
                    return str(key)
            except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue  # the file is not ours, or is damaged: the key is computed again
        return None

    def cache(self) -> None:
        """Cache the keys that were computed, so that later starts read no headers.

        Where no folder can be written, each start computes its keys.
        """
        while self._computed:
            name, (key, seen) = self._computed.popitem()
            newest_ns = max(modified_ns for _, modified_ns in seen.values())
            if time.time_ns() - newest_ns < SETTLED_NS:
                continue
            with contextlib.suppress(HookError, OSError):
                path = self._folders.destination().directory / name
                with open_atomically(path) as file:
                    file.write(json.dumps({"key": key, "seen": seen}).encode())


def included_files(
    source: Path, roots: Sequence[Path]
) -> tuple[dict[str, bytes], dict[str, Stamp]]:
    """Return all files under `roots` that `source` includes, directly or not.

    Returns:
        The contents of the files, `source` among them, by the path relative to the root; and the
        stamps of the files, and of the folders in which a header was looked up and not found, by
        path. While these stamps are the same, so are the contents.
    """
    contents: dict[str, bytes] = {}
    seen: dict[str, Stamp] = {}
    # torch_npu's headers name 200,000 files, most of them many times. Each is looked up once.
    prefixes = [str(root) for root in roots]
    tried: set[tuple[str, str]] = set()
    done: set[str] = set()
    todo = [str(source)]
    folder_of = functools.cache(_nearest_folder)
    while todo:
        path = todo.pop()
        if path in done:
            continue
        done.add(path)
        root = next((root for root in prefixes if path.startswith(f"{root}{os.sep}")), None)
        if root is None:
            continue
        if not os.path.isfile(path):
            folder = folder_of(os.path.dirname(path))
            seen.setdefault(folder, _stamp(folder))
            continue
        seen[path] = _stamp(path)  # before its content is read, which may then be newer
        content = Path(path).read_bytes()
        contents[os.path.relpath(path, root)] = content
        for name in map(os.fsdecode, set(_INCLUDE.findall(content))):
            for folder in (os.path.dirname(path), *prefixes):
                if (folder, name) not in tried:
                    tried.add((folder, name))
                    todo.append(os.path.normpath(os.path.join(folder, name)))
    return contents, seen


def _nearest_folder(path: str) -> str:
    """Return the folder at `path`, or the nearest one above it that exists."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _stamp(path: str) -> Stamp:
    info = os.stat(path)
    return [info.st_size, info.st_mtime_ns]


def _file_name(source: Path, roots: Sequence[Path], facts: Mapping[str, bytes]) -> str:
    """Return the name of the file that caches the key of one hook of one installation."""
    parts = [os.fsencode(path) for path in (source, *roots)]
    parts += [b"%s=%s" % (os.fsencode(name), fact) for name, fact in sorted(facts.items())]
    return f"key-{hashlib.sha256(bytes(1).join(parts)).hexdigest()[:20]}.json"
