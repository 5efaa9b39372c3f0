"""Test that no hook is taken from, or built into, a folder that another user can exchange."""

import ctypes
import os
import pwd
import re
import stat
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hook_world import STRANGER, World, give_away, set_group

from pytracer.errors import HookError

CLONE_NEWUSER = 0x10000000


def world_writable(folder: Path, _: pytest.MonkeyPatch) -> None:
    folder.chmod(0o777)


def group_writable(folder: Path, patch: pytest.MonkeyPatch) -> None:
    folder.chmod(0o770)
    set_group(patch, "staff", [])


def of_another(folder: Path, patch: pytest.MonkeyPatch) -> None:
    give_away(folder, patch)


def behind_a_foreign_link(folder: Path, patch: pytest.MonkeyPatch) -> None:
    real = folder.with_name("real")
    folder.rename(real)
    folder.symlink_to(real)
    give_away(folder, patch)


def behind_a_link_to_a_writable_folder(folder: Path, _: pytest.MonkeyPatch) -> None:
    everyones = folder.with_name("everyones")
    everyones.mkdir()
    folder.rename(everyones / "real")
    everyones.chmod(0o777)
    folder.symlink_to("everyones/../everyones/real")


@pytest.mark.parametrize(
    ("exchangeable", "why"),
    [
        (world_writable, "the folder {} above it has mode 777: other users can"),
        (group_writable, "the folder {} above it has mode 770: other users can"),
        (of_another, f"the folder {{}} above it belongs to another user ({STRANGER})"),
        (behind_a_foreign_link, f"the symbolic link {{}} belongs to another user ({STRANGER})"),
        (behind_a_link_to_a_writable_folder, "everyones above it has mode 777"),
    ],
)
@pytest.mark.parametrize("above", ["xdg", "tmp"])
def test_a_folder_above_that_others_can_exchange(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    above: str,
    exchangeable: Callable[[Path, pytest.MonkeyPatch], None],
    why: str,
) -> None:
    # GIVEN a hook in one of pytracer's folders, and none in the other one, which cannot be used
    (folder, other) = (world.cache, "TMPDIR") if above == "xdg" else (world.private, "HOME")
    world.environment |= {other: "/dev/null", **({"XDG_CACHE_HOME": ""} if other == "HOME" else {})}
    world.put_hook(folder)
    assert world.builder().find("cpu") is not None
    # WHEN
    exchangeable(world.root / above, monkeypatch)
    # THEN the hook is not loaded, none is compiled there, and the reason is given
    assert world.builder().find("cpu") is None
    with pytest.raises(HookError, match=re.escape(why.format(world.root / above))):
        world.hooks().attach("cpu")
    assert world.compilations == []


@pytest.mark.parametrize(
    ("name", "members", "is_trusted"),
    [("{}", [], True), ("{}", ["another"], False), ("staff", [], False)],
)
def test_a_group_that_is_this_user_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, members: list[str], is_trusted: bool
) -> None:
    # GIVEN a umask of 002, and with it folders to which the user's group may write
    world.put_hook(world.cache)
    world.environment["TMPDIR"] = "/dev/null"
    for folder in (world.cache, world.cache.parent):
        folder.chmod(0o775)
    # WHEN the group has other members, or is no group of the user's own, THEN they are others
    set_group(monkeypatch, name, members)
    assert (world.builder().find("cpu") is not None) == is_trusted


def another_has_the_group(patch: pytest.MonkeyPatch) -> None:
    user = pwd.getpwuid(os.geteuid())
    another = pwd.struct_passwd(("another", "x", STRANGER, *user[3:]))
    patch.setattr(pwd, "getpwall", lambda: [user, another])


def another_is_on_an_access_list(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "getxattr", lambda *_: b"")


@pytest.mark.parametrize("share", [another_has_the_group, another_is_on_an_access_list])
def test_a_group_that_others_share(
    world: World, monkeypatch: pytest.MonkeyPatch, share: Callable[[pytest.MonkeyPatch], None]
) -> None:
    # GIVEN a cache to which the group of the user may write, which has the user's name
    world.put_hook(world.cache)
    world.environment["TMPDIR"] = "/dev/null"
    world.cache.chmod(0o775)
    set_group(monkeypatch, "{}", [])
    assert world.builder().find("cpu") is not None
    # WHEN others may write, though they are no members THEN nothing is loaded from it
    share(monkeypatch)
    assert world.builder().find("cpu") is None


def test_a_file_that_is_exchanged_during_its_trial(world: World) -> None:
    # GIVEN a cache below a folder in which all users can write
    world.cache.mkdir(parents=True, mode=0o700)
    world.cache.parent.chmod(0o777)

    # WHEN another user exchanges the cache while the hook is tried
    def exchange(backend: str, path: Path) -> None:
        world.cache.rename(world.cache.with_name("gone"))
        world.put_hook(world.cache)

    world.hooks(exchange).attach("cpu")
    # THEN the loaded hook is not from there
    assert world.attached == [str(world.private / world.hook_name)]


def test_the_sticky_bit_protects_entries(world: World) -> None:
    # GIVEN a folder like /tmp
    path = world.put_hook(world.cache)
    world.cache.parent.chmod(0o1777)
    # WHEN
    found = world.builder().find("cpu")
    # THEN
    assert found is not None
    assert found.path == path


def test_the_sticky_bit_does_not_make_entries_of_others_good(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a folder like /tmp, in which another user made the folders first
    world.environment["XDG_CACHE_HOME"] = str(world.root / "shared" / "cache")
    world.put_hook(world.root / "shared" / "cache" / "pytracer")
    (world.root / "shared").chmod(0o1777)
    assert world.builder().find("cpu") is not None
    # WHEN
    give_away(world.root / "shared" / "cache", monkeypatch)
    # THEN
    assert world.builder().find("cpu") is None


@pytest.mark.parametrize("umask", [0, 0o002, 0o077])
def test_folders_are_made_for_this_user_alone(world: World, umask: int) -> None:
    # GIVEN a home without a cache
    del world.environment["XDG_CACHE_HOME"]
    # WHEN
    old_mask = os.umask(umask)
    try:
        world.hooks().attach("cpu")
    finally:
        os.umask(old_mask)
    # THEN
    home = world.root / "home"
    for folder in (home, home / ".cache", home / ".cache" / "pytracer"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert world.builder().find("cpu") is not None


def test_folders_of_built_hooks_cannot_be_written_by_others(world: World) -> None:
    # WHEN, with a umask that forbids nothing
    old_mask = os.umask(0)
    try:
        world.builder().build("cpu", world.root / "a" / "b")
    finally:
        os.umask(old_mask)
    # THEN
    assert [stat.S_IMODE((world.root / name).stat().st_mode) for name in ("a", "a/b")] == [
        0o755
    ] * 2


def test_links_in_a_circle_end(world: World) -> None:
    # GIVEN
    (world.root / "xdg").symlink_to("xdg")
    # WHEN
    world.hooks().attach("cpu")
    # THEN
    assert world.attached == [str(world.private / world.hook_name)]


def test_descriptors_are_closed(world: World) -> None:
    # GIVEN
    (world.root / "scratch").mkdir()
    (world.root / "xdg").symlink_to(world.root / "scratch")
    world.put_hook(world.cache)
    before = os.listdir("/proc/self/fd")
    # WHEN folders are accepted and refused
    for mode in (0o700, 0o777):
        (world.root / "scratch").chmod(mode)
        world.builder().find("cpu")
    # THEN
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_folders_of_the_machine_in_a_rootless_container(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user namespace without the machine's root shows its folders as another user's."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    world.put_hook(world.cache)
    give_away(world.cache.parent, monkeypatch)
    assert world.builder().find("cpu") is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        # WHEN this user is the only one with a mapping
        status = 77
        if ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0:
            Path("/proc/self/uid_map").write_text("1000 0 1\n")
            status = int(world.builder().find("cpu") is None)
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 77:
        pytest.skip("user namespaces are not permitted here")
    # THEN
    assert status == 0
