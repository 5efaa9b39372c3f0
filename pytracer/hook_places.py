"""The folders hooks are kept in, and which of their files may be loaded.

Loading a library is running it. A folder that the user or the installer named is trusted; one that
we chose is used only if nobody but its owner and root can put a file there.
"""

import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pytracer.errors import HookError

# The end of most messages: the way out that needs neither a compiler nor a folder to write to.
PREBUILT_REMEDY = (
    "fill a folder with `pytracer build-hooks --output DIR` on a machine that has the same torch "
    "and a compiler, and set PYTRACER_HOOK_DIR=DIR"
)


@dataclass(frozen=True)
class Place:
    """A folder hooks are looked up in.

    Attributes:
        name: What to call it in a message.
        directory: Where it is; it need not exist.
        forbidden_mode: Permission bits the folder must not have; None for a folder that is trusted
            because the user or the installer named it.
    """

    name: str
    directory: Path
    forbidden_mode: int | None = None

    def holds(self, file_name: str) -> bool:
        """Whether the file is there and may be loaded.

        In a folder that only its owner can write to, nobody swaps the file after this check.
        """
        path = self.directory / file_name
        if self.forbidden_mode is not None and (self.distrust() or _distrust(path, 0o022)):
            return False
        return os.path.isfile(path)

    def distrust(self) -> str | None:
        """Says why the folder must not be used; None if nothing speaks against it."""
        return (
            None if self.forbidden_mode is None else _distrust(self.directory, self.forbidden_mode)
        )

    def unwritable(self) -> str | None:
        """Makes the folder if it is not there; says why it cannot be used, None if it can."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if problem := self.distrust():
                return problem
            with tempfile.TemporaryFile(dir=self.directory):
                return None
        except OSError as error:
            return error.strerror


def places() -> list[Place]:
    """The places a hook is looked up in, in order."""
    named = []
    if given := os.environ.get("PYTRACER_HOOK_DIR"):
        named.append(Place("PYTRACER_HOOK_DIR", Path(given).absolute()))
    named += [Place("the package", folder / "_prebuilt_hooks") for folder in package_dirs()]
    return [*named, *_own_places()]


def private_place() -> Place:
    """The temporary folder that is ours alone, on a file system of this node."""
    temporary = os.path.abspath(os.environ.get("TMPDIR") or "/tmp")
    return Place("the private temporary folder", Path(temporary, f"pytracer-{os.geteuid()}"), 0o077)


def destination() -> Place:
    """The first of the user's cache and the private temporary folder that can be written.

    Raises:
        HookError: Neither can; the message names both.
    """
    problems = []
    for place in _own_places():
        problem = place.unwritable()
        if problem is None:
            return place
        problems.append(f"{place.directory}: {problem}")
    raise HookError(f"no folder to keep a hook in ({'; '.join(problems)}); {PREBUILT_REMEDY}")


def package_dirs() -> list[Path]:
    """The package's folders: an editable install has one in the checkout and one installed."""
    import pytracer

    return [Path(folder) for folder in pytracer.__path__]


def _own_places() -> list[Place]:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):  # as the XDG specification asks
        cache = os.path.expanduser("~/.cache")
    if not os.path.isabs(cache):  # no home either
        return [private_place()]
    # A link there is the user's own doing; the folder it leads to is what has to be safe.
    folder = Path(os.path.realpath(os.path.join(cache, "pytracer")))
    return [Place("the user's cache", folder, 0o022), private_place()]


def _distrust(path: Path, forbidden_mode: int) -> str | None:
    try:
        info = path.lstat()
    except OSError as error:
        return error.strerror
    if stat.S_ISLNK(info.st_mode):
        return "it is a symbolic link"
    if info.st_uid not in (os.geteuid(), 0):
        return f"it belongs to another user ({info.st_uid})"
    if info.st_mode & forbidden_mode:
        return f"its mode {stat.S_IMODE(info.st_mode):o} lets other users in"
    return None
