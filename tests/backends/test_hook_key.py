"""Test the key in a hook's file name, which covers the hook's sources and torch's headers."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hook_world import (
    World,
    add_a_header_that_is_found_first,
    edit_a_header,
    remove_a_header,
    set_age,
)

import pytracer
from pytracer.backends import hook_compile
from pytracer.backends.hook_compile import HookCompiler
from pytracer.backends.hook_folders import HookFolders
from pytracer.errors import HookError


@pytest.mark.parametrize(
    "path",
    [
        "csrc/hooks/cpu.cpp",
        "csrc/hooks/hook_abi.h",
        "torch/include/c10/core/A.h",
        "torch/include/c10/core/B.h",
        "torch/include/c10/core/near.h",
    ],
)
def test_key_changes_with_everything_the_hook_includes(world: World, path: str) -> None:
    # GIVEN
    before = world.compiler().key("cpu")
    # WHEN a vendor patches a header, or the hook's source changes
    with (world.root / path).open("a") as file:
        file.write("// patched\n")
    # THEN
    assert world.compiler().key("cpu") != before


def test_key_changes_with_the_machine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    before = world.compiler().key("cpu")
    # WHEN
    monkeypatch.setattr("platform.machine", lambda: "another")
    # THEN
    assert world.compiler().key("cpu") != before


def test_key_changes_with_the_standard_librarys_abi(world: World) -> None:
    # GIVEN
    before = world.compiler().key("cpu")
    # WHEN
    world.torch = replace(world.torch, cxx11_abi=False)
    # THEN
    assert world.compiler().key("cpu") != before


def test_key_ignores_other_headers_the_version_and_the_install_path(world: World) -> None:
    # GIVEN
    before = world.compiler().key("cpu")
    # WHEN
    (world.include / "c10/core/unrelated.h").write_text("changed")
    moved = world.root / "elsewhere"
    world.torch.root.rename(moved)
    world.torch = replace(world.torch, version="1.0", root=moved)
    # THEN
    assert world.compiler().key("cpu") == before


def test_missing_headers_are_named(world: World) -> None:
    # GIVEN
    world.torch = replace(world.torch, root=world.root / "bare")
    # WHEN
    with pytest.raises(HookError) as error:
        world.builder().find("cpu")
    # THEN
    assert str(world.root / "bare/include/c10") in str(error.value)
    assert "install torch" in str(error.value)


def test_missing_sources_are_named(world: World) -> None:
    # GIVEN
    (world.source / "hooks" / "hook_abi.h").unlink()
    # WHEN / THEN
    with pytest.raises(
        HookError, match=r"sources are missing.*_hook_source.*install torch-pytracer"
    ):
        world.builder().find("cpu")


def put_sources(folder: Path) -> Path:
    (folder / "hooks").mkdir(parents=True)
    (folder / "hooks" / "hook_abi.h").write_text("")
    (folder / "hooks" / "cpu.cpp").write_text("")
    return folder


def test_sources_of_an_installed_package_are_found(world: World) -> None:
    # GIVEN the sources as CMake installs them, and an unrelated folder with the name csrc
    installed = put_sources(world.root / "package" / "_hook_source")
    # WHEN / THEN
    assert world.source.is_dir()
    assert world.compiler().source("cpu").parents[1] == installed


def test_sources_may_be_in_another_folder_of_the_package(world: World) -> None:
    # GIVEN an editable install whose modules and data files are in different folders
    world.source.rename(world.root / "gone")
    site = world.root / "site"
    installed = put_sources(site / "_hook_source")
    # WHEN
    folders = HookFolders(world.environment, [world.root / "package", site])
    # THEN
    assert HookCompiler(folders).source("cpu").parents[1] == installed


def test_the_checkout_of_an_editable_install_comes_before_the_installed_copy(world: World) -> None:
    # GIVEN
    site = world.root / "site"
    put_sources(site / "_hook_source")
    # WHEN
    folders = HookFolders(world.environment, [world.root / "package", site])
    # THEN
    assert HookCompiler(folders).source("cpu").parents[1] == world.source


def test_the_folder_of_the_running_code_comes_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN an editable install, for which Python lists the installation's folder first
    site = world.root / "site"
    put_sources(site / "_hook_source")
    code = Path(pytracer.__file__).parent
    monkeypatch.setattr(pytracer, "__path__", [str(site), str(code)])
    # WHEN
    folders = HookFolders(world.environment)
    # THEN
    assert folders.package == [code, site]
    assert HookCompiler(folders).source("cpu").parents[1] != site / "_hook_source"


@pytest.mark.parametrize("backend", ["cuda", "npu", "abacus"])
def test_backend_without_a_hook_is_refused(world: World, backend: str) -> None:
    # WHEN
    with pytest.raises(HookError) as error:
        world.hooks().attach(backend)
    # THEN
    assert "records only the CPU allocator" in str(error.value)
    assert repr(backend) in str(error.value)
    assert world.attached == []


@pytest.fixture
def settled(world: World) -> World:
    """Return a world with a hook, whose headers are a minute old."""
    world.settle()
    world.put_hook(world.cache)
    return world


def computed_key(world: World) -> str:
    """Return the key that a machine without cached keys computes."""
    environment = {**world.environment, "XDG_CACHE_HOME": "/nonexistent", "TMPDIR": "/nonexistent"}
    folders = HookFolders(environment, [world.root / "package"])
    return HookCompiler(folders, environment=environment, torch=lambda: world.torch).key("cpu")


def cached_keys(world: World) -> list[Path]:
    return sorted(world.cache.glob("key-*.json"))


def test_a_second_start_reads_no_headers(settled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a start that found its hook
    found = settled.builder().find_or_build("cpu")
    assert len(cached_keys(settled)) == 1

    # WHEN another process starts
    def included_files(*_: object) -> None:
        raise AssertionError("headers are read")

    monkeypatch.setattr(hook_compile, "included_files", included_files)
    # THEN it finds the same hook without reading the headers
    assert settled.builder().find_or_build("cpu") == found


def test_a_lookup_caches_no_key(settled: World) -> None:
    assert settled.builder().find("cpu") is not None
    assert cached_keys(settled) == []


def test_a_key_is_not_cached_while_headers_may_still_change(settled: World) -> None:
    # GIVEN a header written a second ago: a change now could have the same modification time
    set_age(settled.include / "c10/core/B.h", 1)
    # WHEN a process finds its hook, THEN the key is not cached
    settled.builder().find_or_build("cpu")
    assert cached_keys(settled) == []


def add_a_header_that_was_missing(world: World) -> None:
    (world.include / "vector").write_text("int vector;\n")


@pytest.mark.parametrize(
    "change",
    [
        edit_a_header,
        add_a_header_that_is_found_first,
        add_a_header_that_was_missing,
        remove_a_header,
    ],
)
def test_a_cached_key_is_not_used_after_a_change(
    settled: World, change: Callable[[World], None]
) -> None:
    # GIVEN a cached key
    settled.builder().find_or_build("cpu")
    before = settled.compiler().key("cpu")
    # WHEN the files that the compiler would read change
    change(settled)
    # THEN the key is that of the new files
    assert settled.compiler().key("cpu") == computed_key(settled) != before


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"[]",
        b'{"key": "../../other", "seen": {}}',
        b'{"key": "", "seen": {}}',
        b'{"key": "00000000000000000000", "seen": {"/nonexistent": [1, 2]}}',
        b'{"key": "00000000000000000000", "seen": {"a\\u0000b": [1, 2]}}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_key_is_computed_again(settled: World, content: bytes) -> None:
    # GIVEN a damaged file of a cached key
    settled.builder().find_or_build("cpu")
    (cached,) = cached_keys(settled)
    cached.write_bytes(content)
    # WHEN the next process starts, THEN it computes the right key, and caches it again
    assert settled.compiler().key("cpu") == computed_key(settled)
    settled.builder().find_or_build("cpu")
    assert json.loads(cached.read_bytes())["key"] == computed_key(settled)


def test_a_key_that_other_users_may_write_is_not_used(settled: World) -> None:
    # GIVEN a cached key in a file that all users may write
    settled.builder().find_or_build("cpu")
    (cached,) = cached_keys(settled)
    cached.write_text(json.dumps({"key": "0" * 20, "seen": {}}))
    cached.chmod(0o666)
    # WHEN the next process starts, THEN it computes the key
    assert settled.compiler().key("cpu") == computed_key(settled)
