"""The prebuilt hooks of a wheel: compiled before, for released versions of torch and torch_npu.

The file `index.json` next to the libraries names them. `.ci/wheels/` in the sources of pytracer
makes both. One hook serves all builds of a release, for the CPU and for each CUDA.
"""

import functools
import hashlib
import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytracer.backends.hook_compile import HookCompiler

FOLDER = "_ready_hooks"
INDEX = "index.json"
FORMAT = 2  # of the index; one of another format counts as none


@dataclass(frozen=True)
class ReadyHook:
    """An entry of the index."""

    backend: str  # one of `LIBRARIES`
    release: str  # of torch, or of torch_npu
    key: str  # as `HookCompiler.key` returns it
    library: str  # the name of its file, which several releases may share
    sha256: str  # of the file's bytes, in hexadecimal digits


class ReadyHooks:
    """The prebuilt hooks of this installation, if it has any, in the folders of its `package`."""

    def __init__(self, package: Sequence[Path], compiler: HookCompiler) -> None:
        self._directories = [folder / FOLDER for folder in package]
        self._compiler = compiler

    def find(self, backend: str) -> Path | None:
        """Return the library for the running torch, or None.

        A library whose bytes are not those of the index is not returned.
        """
        release = public(self._compiler.release(backend))
        if release not in self.releases(backend):
            return None
        key = self._compiler.key(backend, release)
        for directory, hook in self._hooks:
            if (hook.backend, hook.key) == (backend, key):
                path = directory / hook.library
                if _hash_of(path) == hook.sha256:
                    return path
        return None

    def releases(self, backend: str) -> list[str]:
        """Return the versions of torch or torch_npu that have a prebuilt hook, oldest first."""
        found = {hook.release for _, hook in self._hooks if hook.backend == backend}
        return sorted(found, key=_version_order)

    @functools.cached_property
    def _hooks(self) -> list[tuple[Path, ReadyHook]]:
        return [(path, hook) for path in self._directories for hook in read_index(path)]


def public(version: str) -> str:
    """Return a version without its local part: 2.13.0 for 2.13.0+cu130."""
    return version.partition("+")[0]


def read_index(directory: Path) -> list[ReadyHook]:
    """Return the hooks of an index; none if it is missing, damaged or made for another machine."""
    try:
        index = json.loads((directory / INDEX).read_bytes())
        if (index["format"], index["machine"]) != (FORMAT, platform.machine()):
            return []
        return [ReadyHook(**entry) for entry in index["hooks"]]
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return []


def write_index(directory: Path, hooks: Iterable[ReadyHook]) -> None:
    """Write the index of libraries that are in `directory`."""
    in_order = sorted(
        hooks, key=lambda each: (each.backend, _version_order(each.release), each.key)
    )
    entries = [vars(hook) for hook in in_order]
    index = {"format": FORMAT, "machine": platform.machine(), "hooks": entries}
    (directory / INDEX).write_text(json.dumps(index, indent=1) + "\n")


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
