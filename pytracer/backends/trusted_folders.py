"""Opening a folder whose entries only this user and root can exchange.

A check of a folder alone is worth nothing if another user may write to a folder above it: that user
exchanges the checked folder for another one. `open_trusted` therefore walks down from `/`, and
checks each folder by its descriptor before it opens the next one in it:

1. The folder belongs to this user or to root.
2. Other users cannot write to it, except to a folder with the sticky bit (`/tmp`), where they can
   exchange only entries of their own, which rule 1 refuses. A group that has this user's name and
   no other member is no other user: with a umask of 002, it may write to all folders of its user.
3. A symbolic link belongs to this user or to root, and the folders of its target are checked too.

So nobody else can change what the returned path names, neither before nor after the check.
"""

import contextlib
import errno
import grp
import os
import pwd
import stat

_LINKS = 40
_OTHERS_MAY_WRITE = 0o022


def open_trusted(
    directory: str, *, forbidden_mode: int, follow_last: bool = True, make: bool = False
) -> tuple[int, str]:
    """Open a folder, of which the absolute path is given, by the rules of this module.

    An OSError says which rule it breaks. The folder itself must not have the permission bits
    `forbidden_mode`, and may be a symbolic link with `follow_last`. Missing folders are made with
    mode 0700 if asked to.

    Returns:
        A descriptor, which can be used for its entries but not to list them, and the path of the
        folder without symbolic links.
    """
    at, path, links = _root(), "/", 0
    try:
        names = _names(directory)
        _check(at, path, forbidden_mode if not names else None)
        while names:
            name = names.pop()
            child = _open(name, at, make)
            try:
                info = os.fstat(child)
                if stat.S_ISLNK(info.st_mode):
                    links += 1
                    if not names and not follow_last:
                        raise PermissionError(errno.EPERM, "it is a symbolic link")
                    if not _is_own(info.st_uid):
                        raise PermissionError(
                            errno.EPERM,
                            f"the symbolic link {os.path.join(path, name)} belongs to another user "
                            f"({info.st_uid})",
                        )
                    if links > _LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    target = os.readlink("", dir_fd=child)
                    names += _names(target)
                    if target.startswith("/"):
                        os.close(at)
                        at, path = -1, "/"
                        at = _root()
                    continue
                path = os.path.dirname(path) if name == ".." else os.path.join(path, name)
                _check(child, path, forbidden_mode if not names else None)
                at, child = child, at
            finally:
                os.close(child)
        return at, path
    except BaseException:
        if at >= 0:
            os.close(at)
        raise


def _root() -> int:
    return os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _names(path: str) -> list[str]:
    """Return the components of a path, the last one first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _open(name: str, parent: int, make: bool) -> int:
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):  # another process has made it meanwhile
        os.mkdir(name, 0o700, dir_fd=parent)
    return os.open(name, flags, dir_fd=parent)


def _check(folder: int, path: str, forbidden_mode: int | None) -> None:
    """Check a folder by its descriptor; `forbidden_mode` is None for a folder above."""
    info = os.fstat(folder)
    if not stat.S_ISDIR(info.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    mode = stat.S_IMODE(info.st_mode)
    refused = _OTHERS_MAY_WRITE if forbidden_mode is None else forbidden_mode
    if mode & refused & stat.S_IWGRP and _is_group_of_user_alone(folder, info.st_gid):
        refused &= ~stat.S_IWGRP
    if forbidden_mode is not None:
        check_entry(info, refused)
    elif not _is_own(info.st_uid) and not _is_unmapped_root(info.st_uid):
        raise PermissionError(
            errno.EPERM, f"the folder {path} above it belongs to another user ({info.st_uid})"
        )
    elif mode & refused and not mode & stat.S_ISVTX:
        raise PermissionError(
            errno.EPERM,
            f"the folder {path} above it has mode {mode:o}: other users can replace its entries",
        )


def check_entry(info: os.stat_result, forbidden_mode: int) -> None:
    """Raise an OSError if another user owns a file or folder, or if it has forbidden bits."""
    if not _is_own(info.st_uid):
        raise PermissionError(errno.EPERM, f"it belongs to another user ({info.st_uid})")
    mode = stat.S_IMODE(info.st_mode)
    if mode & forbidden_mode:
        raise PermissionError(errno.EPERM, f"its mode {mode:o} gives other users access")


def _is_group_of_user_alone(folder: int, number: int) -> bool:
    """Return whether the group of a folder gives nobody but this user access."""
    try:
        user = pwd.getpwuid(os.geteuid())
        if number != user.pw_gid:
            return False
        group = grp.getgrgid(number)
        others = (each.pw_name for each in pwd.getpwall() if each.pw_gid == number)
        if {group.gr_name, *group.gr_mem, *others} != {user.pw_name}:
            return False
    except KeyError:  # as in a container whose users have no names
        return False
    try:
        # With such a list, the bits of the group are those of all users on the list.
        os.getxattr(f"/proc/self/fd/{folder}", "system.posix_acl_access")
    except OSError as error:
        return error.errno in (errno.ENODATA, errno.ENOTSUP)
    return False


def _is_own(user: int) -> bool:
    return user in (0, os.geteuid())


def _is_unmapped_root(user: int) -> bool:
    """Return whether the owner of a folder above may be root outside of this user namespace.

    Rootless containers show the folders of the machine's root with the kernel's overflow user. The
    kernel does not tell one user without a mapping from another.
    """
    try:
        with open("/proc/self/uid_map", "rb") as file:
            ranges = [list(map(int, line.split())) for line in file]
        with open("/proc/sys/kernel/overflowuid", "rb") as file:
            overflow = int(file.read())
    except (OSError, ValueError):
        return False
    return user == overflow and sum(count for _, _, count in ranges) < 2**32 - 1
