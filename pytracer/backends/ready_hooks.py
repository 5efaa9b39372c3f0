"""The ready hooks of a wheel: compiled before, for released versions of torch and torch_npu.

A ready hook fits a torch whose headers are equal to those from which it was compiled: not all
headers of torch, but those that the compiler read. So one hook serves several builds of torch. The
file `index.json` next to the libraries names them; `.ci/wheels/` in the sources of pytracer
makes both.
"""

import functools
import hashlib
import itertools
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytracer.backends.hook_compile import HookCompiler
from pytracer.backends.hook_key import NO_KEY, SeenFiles, headers_key

FOLDER = "_ready_hooks"
INDEX = "index.json"
FORMAT = 1  # of the index; one of another format counts as none


@dataclass(frozen=True)
class ReadyHook:
    """One library of the index."""

    backend: str  # one of `LIBRARIES`
    library: str  # the name of its file
    sha256: str  # of the file's bytes, in hexadecimal digits
    key: str  # what `headers_key` returns for the headers that its compilation read
    headers: tuple[str, ...]  # relative to the folders in which they were found
    releases: tuple[str, ...]  # the versions of torch, or of torch_npu, with these headers


def digests_in(roots: Sequence[Path], seen: SeenFiles) -> Callable[[str], bytes | None]:
    """Return a function that hashes the first file of a name under `roots`, each file once."""

    @functools.cache
    def digest(header: str) -> bytes | None:
        contents = (seen.read(os.path.join(root, header)) for root in roots)
        content = next((each for each in contents if each is not None), None)
        return None if content is None else hashlib.sha256(content).digest()

    return digest


class ReadyHooks:
    """The ready hooks of this installation, if it has any, in the folders of its `package`."""

    def __init__(self, package: Sequence[Path], compiler: HookCompiler) -> None:
        self._directories = [folder / FOLDER for folder in package]
        self._compiler = compiler

    def find(self, backend: str) -> Path | None:
        """Return the library for the headers that the compiler would read, or None.

        A library whose bytes are not those of the index is not returned.
        """
        key = self._fitting_key(backend) if self.releases(backend) else NO_KEY
        for directory, hook in self._hooks:
            if (hook.backend, hook.key) == (backend, key):
                path = directory / hook.library
                if _hash_of(path) == hook.sha256:
                    return path
        return None

    def _fitting_key(self, backend: str) -> str:
        release = public(self._compiler.release(backend))
        roots, facts = self._compiler.roots(backend), self._compiler.facts(backend)
        # The index itself: installers may give the index of another pytracer the same time.
        indices = [_hash_of(directory / INDEX).encode() for directory in self._directories]

        def compute(seen: SeenFiles) -> str | None:
            digest = digests_in(roots, seen)
            hooks = [hook for _, hook in self._hooks if hook.backend == backend]
            hooks.sort(key=lambda hook: release not in hook.releases)  # which saves time
            fitting = (
                hook.key for hook in hooks if headers_key(hook.headers, facts, digest) == hook.key
            )
            return next(fitting, None)

        cache = self._compiler.cache
        return cache.key("ready", [backend.encode(), *indices], roots, facts, compute)

    def releases(self, backend: str) -> list[str]:
        """Return the versions of torch or torch_npu that have a ready hook, oldest first."""
        found = [hook.releases for _, hook in self._hooks if hook.backend == backend]
        return sorted(set(itertools.chain(*found)), key=_version_order)

    @functools.cached_property
    def _hooks(self) -> list[tuple[Path, ReadyHook]]:
        return [(path, hook) for path in self._directories for hook in read_index(path)]


def public(version: str) -> str:
    """Return a version without its local part: 2.13.0 for 2.13.0+cu130."""
    return version.partition("+")[0]


def read_index(directory: Path) -> list[ReadyHook]:
    """Return the hooks of an index; none if it is missing, damaged or made for another machine."""
    try:
        index: dict[str, Any] = json.loads((directory / INDEX).read_bytes())
        if (index["format"], index["machine"]) != (FORMAT, platform.machine()):
            return []
        return [
            ReadyHook(
                entry["backend"],
                entry["library"],
                entry["sha256"],
                entry["key"],
                _without(index["headers"][entry["backend"]], entry["without"]),
                tuple(entry["releases"]),
            )
            for entry in index["hooks"]
        ]
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return []


def write_index(directory: Path, hooks: Sequence[ReadyHook]) -> None:
    """Write the index of libraries that are in `directory`.

    The headers of all hooks of a backend are nearly the same: they are listed once, and each hook
    names the numbers of those that it is without.
    """
    known: dict[str, set[str]] = {hook.backend: set() for hook in hooks}
    for hook in hooks:
        known[hook.backend].update(hook.headers)
    headers = {backend: sorted(names) for backend, names in sorted(known.items())}
    entries = []
    for hook in sorted(hooks, key=lambda hook: (hook.backend, _version_order(hook.releases[0]))):
        own = set(hook.headers)
        entries.append(
            {
                "backend": hook.backend,
                "library": hook.library,
                "sha256": hook.sha256,
                "key": hook.key,
                "releases": list(hook.releases),
                "without": [n for n, name in enumerate(headers[hook.backend]) if name not in own],
            }
        )
    top = {"format": FORMAT, "machine": platform.machine()}
    index = {**top, "headers": headers, "hooks": entries}
    (directory / INDEX).write_text(json.dumps(index, indent=1) + "\n")


def _without(headers: list[str], numbers: list[int]) -> tuple[str, ...]:
    is_in = bytearray(b"\1") * len(headers)
    for number in numbers:
        is_in[number] = 0
    return tuple(itertools.compress(headers, is_in))


def _hash_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits; empty: the file cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _version_order(version: str) -> list[int]:
    """Return what to sort a release by: `2.9.0.post9` comes before `2.10.0`."""
    numbers = version.replace("post", "").split(".")
    return [int(number) if number.isdigit() else -1 for number in numbers]
