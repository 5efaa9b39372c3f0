"""The folders that keep hooks, and which of their files may be loaded.

Loading a library runs its code. A folder that the user or the installer named is trusted. A folder
that pytracer chose is used only if nobody but its owner and root can put a file there.
"""

import os
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytracer.errors import HookError

PREBUILT_REMEDY = (
    "fill a folder with `pytracer build-hooks --output DIR` on a machine that has the same torch "
    "and a compiler, and set PYTRACER_HOOK_DIR=DIR"
)
"""The end of most messages: the remedy that needs neither a compiler nor a writable folder."""


@dataclass(frozen=True)
class HookFolder:
    """A folder in which hooks are looked up.

    Attributes:
        name: The folder's name in messages.
        directory: Its path. The folder need not exist.
        forbidden_mode: Permission bits that the folder must not have; None for a folder that is
            trusted because the user or the installer named it.
    """

    name: str
    directory: Path
    forbidden_mode: int | None = None

    def has_loadable(self, file_name: str) -> bool:
        """Return whether the file exists and may be loaded.

        In a folder that only its owner can write to, nobody replaces the file after this check.
        """
        path = self.directory / file_name
        if self.forbidden_mode is not None and (self.distrust() or _distrust(path, 0o022)):
            return False
        return os.path.isfile(path) and not _is_truncated(path)

    def distrust(self) -> str | None:
        """Return why the folder must not be used, or None if it may be."""
        return (
            None if self.forbidden_mode is None else _distrust(self.directory, self.forbidden_mode)
        )

    def unwritable(self) -> str | None:
        """Create the folder if it is missing. Return why it cannot be written, or None."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if problem := self.distrust():
                return problem
            with tempfile.TemporaryFile(dir=self.directory):
                return None
        except OSError as error:
            return error.strerror


class HookFolders:
    """The folders of one process, as its environment variables and its installation name them."""

    def __init__(
        self, environment: Mapping[str, str] = os.environ, package: Sequence[Path] | None = None
    ) -> None:
        """Look up nothing yet.

        Args:
            environment: The variables that name folders, read at each use.
            package: The package's folders; None: those of the package `pytracer`.
        """
        self._environment = environment
        self._package = package

    @property
    def package(self) -> Sequence[Path]:
        """The folders of the package `pytracer`; the one with this code comes first.

        An editable install has this code in the checkout, and a second folder in the Python
        installation, which Python may name first.
        """
        if self._package is None:
            code = Path(__file__).parents[1]
            folders = map(Path, sys.modules["pytracer"].__path__)
            self._package = [code, *(folder for folder in folders if folder != code)]
        return self._package

    def lookup(self) -> list[HookFolder]:
        """Return the folders in which a hook is looked up by its file name, in order."""
        return [*self.named(), *self.chosen()]

    def named(self) -> list[HookFolder]:
        """Return the folder that the user named, if any."""
        path = self._environment.get("PYTRACER_HOOK_DIR")
        return [HookFolder("PYTRACER_HOOK_DIR", Path(path).absolute())] if path else []

    def private(self) -> HookFolder:
        """Return the temporary folder that only this user can read, local to this node."""
        temporary = os.path.abspath(self._environment.get("TMPDIR") or "/tmp")
        directory = Path(temporary, f"pytracer-{os.geteuid()}")
        return HookFolder("the private temporary folder", directory, 0o077)

    def destination(self) -> HookFolder:
        """Return the user's cache or the private temporary folder, whichever can be written.

        Raises:
            HookError: Neither can be written; the message names both.
        """
        problems = []
        for folder in self.chosen():
            problem = folder.unwritable()
            if problem is None:
                return folder
            problems.append(f"{folder.directory}: {problem}")
        raise HookError(
            f"no folder can keep the hook ({'; '.join(problems)}); make one of them writable, or "
            f"{PREBUILT_REMEDY}"
        )

    def chosen(self) -> list[HookFolder]:
        """Return the folders that pytracer chose: the user's cache, and the private folder."""
        cache = self._environment.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(cache):  # the XDG specification has a relative path ignored
            home = self._environment.get("HOME") or os.path.expanduser("~")
            cache = os.path.join(home, ".cache")
        if not os.path.isabs(cache):  # the user has no home either
            return [self.private()]
        # A link to the cache is the user's own choice. Its target is what has to be safe.
        directory = Path(os.path.realpath(os.path.join(cache, "pytracer")))
        return [HookFolder("the user's cache", directory, 0o022), self.private()]


def _is_truncated(path: Path) -> bool:
    """Return whether a library ends before its section headers do, which are its last part.

    The dynamic loader maps such a file, and the process dies of SIGBUS where a page is missing.
    """
    with path.open("rb") as file:
        header = file.read(64)
        size = os.fstat(file.fileno()).st_size
    if len(header) < 64 or not header.startswith(b"\x7fELF"):
        return False  # the loader's message is better
    begin = int.from_bytes(header[40:48], sys.byteorder)
    entry_size, count = (int.from_bytes(header[at : at + 2], sys.byteorder) for at in (58, 60))
    return begin + entry_size * count > size


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
        return f"its mode {stat.S_IMODE(info.st_mode):o} gives other users access"
    return None
