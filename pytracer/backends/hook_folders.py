"""The folders that keep hooks, and which of their files may be loaded.

Loading a library runs its code. A folder that the user or the installer named is trusted. A folder
that pytracer chose is used only if nobody but its owner and root can put a file there.

A library that lost a page (an interrupted copy, a bad disk) kills the process that loads it. A hook
therefore ends with the SHA-256 of its other bytes: as a part of the file, so that one rename
installs both. The dynamic loader does not read it.
"""

import contextlib
import errno
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TypeVar

from pytracer.backends.trusted_folders import check_entry, open_trusted
from pytracer.errors import HookError
from pytracer.log import warn_once

PREBUILT_REMEDY = (
    "fill a folder with `pytracer doctor --build --output DIR` on a machine that has the same "
    "torch and a compiler, and set PYTRACER_HOOK_DIR=DIR"
)
"""The end of most messages: the remedy that needs neither a compiler nor a writable folder."""

BUILD_BYTES = 8 << 20  # more than the files of one compilation take
_NOEXEC = "the file system is mounted noexec, so that no library can be loaded from it"
Result = TypeVar("Result")
_HASH_LABEL = b"\npytracer-sha256:"


def sealed(library: bytes) -> bytes:
    """Return a library with the hash of its bytes at the end."""
    return library + _HASH_LABEL + hashlib.sha256(library).hexdigest().encode()


@dataclass(frozen=True)
class HookFolder:
    """A folder in which hooks are looked up, which need not exist.

    `forbidden_mode` are the permission bits that it must not have; None for a folder that is
    trusted because the user or the installer named it.
    """

    name: str  # in messages
    directory: Path
    forbidden_mode: int | None = None
    may_be_link: bool = True

    def find_hook(self, file_name: str) -> Path | None:
        """Return the path of a hook that may be loaded, or None.

        Nobody but this user and root can replace the file after this check: see `open_trusted`.
        """
        if (found := self._read(file_name)) is None:
            return None
        path, content = found
        if sealed(content[: -len(sealed(b""))]) != content:
            warn_once(
                f"the hook {path} is not loaded: it is damaged, or comes from an older pytracer "
                "(the SHA-256 at its end is wrong). Another hook is used or compiled instead"
            )
        elif _is_noexec(path):
            warn_once(f"the hook {path} is not loaded: {_NOEXEC}")
        else:
            return path
        return None

    def _read(self, file_name: str) -> tuple[Path, bytes] | None:
        """Return the path and the content of a file that may be trusted, or None."""
        try:
            if self.forbidden_mode is None:
                path = self.directory / file_name
                with _opened(str(path)) as file:
                    return path, file.read()
            folder, real = self._open(self.forbidden_mode)
            try:
                with _opened(file_name, os.O_NOFOLLOW, folder) as file:
                    check_entry(os.fstat(file.fileno()), 0o022)
                    return Path(real, file_name), file.read()
            finally:
                os.close(folder)
        except OSError as error:
            if self.forbidden_mode is None and isinstance(error, PermissionError):
                warn_once(f"the hooks in {self.directory} ({self.name}) are not used: {error}")
            return None

    def _open(self, forbidden_mode: int, *, make: bool = False) -> tuple[int, str]:
        path = str(self.directory)
        return open_trusted(
            path, forbidden_mode=forbidden_mode, follow_last=self.may_be_link, make=make
        )

    def made(self, room_bytes: int = 0, for_hooks: bool = True) -> "HookFolder":
        """Make the folder if it is missing; return it with its path without symbolic links.

        The `strerror` of an OSError says why it cannot keep hooks, or only a lock. `room_bytes` are
        written to a file that is deleted again: quotas, and some file systems of other machines,
        report that they are full only then.
        """
        folder, real = self._open(self.forbidden_mode or 0, make=True)
        os.close(folder)
        if for_hooks and _is_noexec(Path(real)):
            raise OSError(0, _NOEXEC)
        with tempfile.TemporaryFile(dir=real) as file:
            if room_bytes:
                file.write(os.urandom(room_bytes))  # zeros may be compressed
                file.flush()
                os.fsync(file.fileno())
        return replace(self, directory=Path(real))


class HookFolders:
    """The folders of one process, as its environment and its installation name them.

    The environment is read at each use.
    """

    def __init__(
        self, environment: Mapping[str, str] = os.environ, package: Sequence[Path] | None = None
    ) -> None:
        self._environment = environment
        self.package = _package_folders() if package is None else package

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
        return HookFolder("the private temporary folder", directory, 0o077, may_be_link=False)

    def destination(self) -> HookFolder:
        """Return the user's cache or the private temporary folder, whichever can be used.

        If neither can, a HookError names both.
        """
        return self.in_first_usable(lambda folder: folder)

    def in_first_usable(self, use: Callable[[HookFolder], Result], room_bytes: int = 0) -> Result:
        """Return what `use` returns for the first of `chosen()` that can keep hooks.

        An OSError of `use` means that the folder cannot. If none can, a HookError names all.
        """
        reasons: list[str] = []
        for folder in self.chosen():
            try:
                made = folder.made(room_bytes)
                if room_bytes and reasons:
                    why = "; ".join(reasons)
                    warn_once(f"the hook is kept in {made.directory}, because of {why}")
                return use(made)
            except OSError as error:
                reasons.append(f"{folder.directory}: {error.strerror or error}")
        raise HookError(
            f"no folder can keep the hook ({'; '.join(reasons)}); make one of them usable, or "
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
        directory = Path(cache, "pytracer")
        return [HookFolder("the user's cache", directory, 0o022), self.private()]


@contextlib.contextmanager
def _opened(path: str, flags: int = 0, folder: int | None = None) -> Iterator[BinaryIO]:
    """Open a regular file, relative to the descriptor `folder` if that is not None, to read it."""
    flags |= os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # opening a FIFO would block
    with open(os.open(path, flags, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        yield file


def _package_folders() -> list[Path]:
    """Return the folders of the package `pytracer`; the one with this code comes first.

    An editable install has this code in the checkout, and a second folder in the Python
    installation, which Python may name first.
    """
    code = Path(__file__).parents[1]
    return [code, *(path for path in map(Path, sys.modules["pytracer"].__path__) if path != code)]


def _is_noexec(path: Path) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except OSError:  # what fails next has the better message
        return False
