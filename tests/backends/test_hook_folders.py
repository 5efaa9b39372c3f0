"""Test the lookup of hooks, and which files and folders are trusted."""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hook_world import STRANGER, World, give_away, set_group

from pytracer.backends.hook_build import READY, Found
from pytracer.errors import HookError


def test_lookup_order(world: World) -> None:
    # GIVEN a hook in every folder
    world.environment["PYTRACER_HOOK_DIR"] = str(world.root / "image")
    named, *chosen = (world.root / "image", world.cache, world.private)
    paths = [world.put_hook(named), world.put_ready_hook()]
    paths += [world.put_hook(directory) for directory in chosen]
    # WHEN each hook is removed after it was found
    found = []
    for _ in paths:
        hook = world.builder().find("cpu")
        assert hook is not None
        found.append(hook)
        hook.path.unlink()
    # THEN
    assert [hook.path for hook in found] == paths
    assert [hook.folder for hook in found] == [
        "PYTRACER_HOOK_DIR",
        READY,
        "the user's cache",
        "the private temporary folder",
    ]
    assert world.builder().find("cpu") is None


def test_find_writes_nothing(world: World) -> None:
    # GIVEN
    before = world.files()
    # WHEN
    assert world.builder().find("cpu") is None
    # THEN
    assert world.files() == before
    assert world.compilations == []


def test_relative_cache_home_is_ignored(world: World) -> None:
    # GIVEN
    world.environment["XDG_CACHE_HOME"] = "somewhere"
    # WHEN
    directories = [folder.directory for folder in world.folders().lookup()]
    # THEN
    assert world.root / "home/.cache/pytracer" in directories


def test_a_cache_behind_the_users_own_symlink_is_used(world: World) -> None:
    # GIVEN a home whose cache folder is a symbolic link to a scratch disk
    scratch = world.root / "scratch"
    world.put_hook(scratch / "pytracer")
    (world.root / "xdg").symlink_to(scratch)
    # WHEN
    found = world.builder().find("cpu")
    # THEN
    assert found is not None
    assert found.path.parent == scratch / "pytracer"


def foreign(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_away(path, monkeypatch)


def group_writable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(0o775)
    set_group(monkeypatch, "staff", [])


def world_writable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(0o757)


def symlinked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = path.with_name("real")
    path.rename(real)
    path.symlink_to(real)


Manipulation = Callable[[Path, pytest.MonkeyPatch], None]


@pytest.mark.parametrize("manipulate", [foreign, group_writable, world_writable, symlinked])
@pytest.mark.parametrize("folder", ["cache", "private"])
def test_untrusted_file_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, folder: str, manipulate: Manipulation
) -> None:
    # GIVEN
    path = world.put_hook(getattr(world, folder))
    assert world.builder().find("cpu") is not None
    # WHEN
    manipulate(path, monkeypatch)
    # THEN
    assert world.builder().find("cpu") is None


@pytest.mark.parametrize(
    ("folder", "manipulate"),
    [
        ("cache", foreign),
        ("cache", group_writable),
        ("cache", world_writable),
        ("private", foreign),
        ("private", group_writable),
        ("private", world_writable),
        ("private", symlinked),
    ],
)
def test_untrusted_folder_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, folder: str, manipulate: Manipulation
) -> None:
    # GIVEN
    path = world.put_hook(getattr(world, folder))
    assert world.builder().find("cpu") is not None
    # WHEN
    manipulate(path.parent, monkeypatch)
    # THEN no hook is loaded from this folder, and none is built into it
    assert world.builder().find("cpu") is None
    assert world.folders().destination().directory != path.parent


@pytest.mark.parametrize(
    ("manipulate", "problem"),
    [
        (foreign, f"belongs to another user ({STRANGER})"),
        (world_writable, "mode 757 gives other users access"),
        (symlinked, "is a symbolic link"),
    ],
)
def test_refused_folder_is_explained(
    world: World, monkeypatch: pytest.MonkeyPatch, manipulate: Manipulation, problem: str
) -> None:
    # GIVEN no other folder to build into
    world.environment["XDG_CACHE_HOME"] = "/dev/null/cache"
    world.private.mkdir(mode=0o700)
    # WHEN
    manipulate(world.private, monkeypatch)
    # THEN
    with pytest.raises(HookError, match=re.escape(f"{world.private}: i")) as error:
        world.folders().destination()
    assert problem in str(error.value)


def test_private_folder_is_accessible_to_its_user_only(world: World) -> None:
    # GIVEN
    world.environment["XDG_CACHE_HOME"] = "/dev/null/cache"
    # WHEN
    world.builder().build("cpu", world.folders().destination().directory)
    # THEN
    assert stat.S_IMODE(world.private.stat().st_mode) == 0o700
    assert world.builder().find("cpu") is not None
    # WHEN other users may read it
    world.private.chmod(0o755)
    # THEN
    assert world.builder().find("cpu") is None


def test_named_folder_is_trusted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a folder that the administrator filled
    path = world.put_hook(world.root / "image")
    give_away(path, monkeypatch)
    path.chmod(0o775)
    # WHEN
    world.environment["PYTRACER_HOOK_DIR"] = str(path.parent)
    # THEN
    assert world.builder().find("cpu") == Found("cpu", path, "PYTRACER_HOOK_DIR")


def test_a_message_names_both_folders_that_cannot_be_written(world: World) -> None:
    # GIVEN
    world.environment["XDG_CACHE_HOME"] = "/dev/null/cache"
    world.environment["TMPDIR"] = "/dev/null/tmp"
    # WHEN
    with pytest.raises(HookError) as error:
        world.hooks().attach("cpu")
    # THEN
    assert "/dev/null/cache/pytracer: Not a directory" in str(error.value)
    assert f"/dev/null/tmp/pytracer-{os.geteuid()}: Not a directory" in str(error.value)
    assert "pytracer doctor --build" in str(error.value)
    assert "PYTRACER_HOOK_DIR" in str(error.value)


def test_without_a_node_local_folder_the_cache_is_used(world: World) -> None:
    # GIVEN
    world.environment["TMPDIR"] = "/dev/null/tmp"
    # WHEN
    world.hooks().attach("cpu")
    # THEN
    assert world.attached == [str(world.cache / world.hook_name)]
