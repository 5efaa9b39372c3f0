"""Test the key in a hook's file name, of the hook's sources and the headers that they name."""

from dataclasses import replace
from pathlib import Path

import pytest
from hook_world import World

import pytracer
from pytracer.backends.hook_compile import HookCompiler
from pytracer.backends.hook_folders import HookFolders
from pytracer.errors import HookError


@pytest.mark.parametrize(
    "path",
    [
        "csrc/hooks/cpu.cpp",
        "csrc/hooks/hook_abi.h",
        "torch/include/c10/core/A.h",
    ],
)
def test_key_changes_with_what_the_hook_names(world: World, path: str) -> None:
    # GIVEN
    before = world.compiler().key("cpu", "9.9.0")
    # WHEN a vendor patches a header, or the hook's source changes
    with (world.root / path).open("a") as file:
        file.write("// patched\n")
    # THEN
    assert world.compiler().key("cpu", "9.9.0") != before


def test_key_changes_with_the_machine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    before = world.compiler().key("cpu", "9.9.0")
    # WHEN
    monkeypatch.setattr("platform.machine", lambda: "another")
    # THEN
    assert world.compiler().key("cpu", "9.9.0") != before


def test_key_changes_with_the_standard_librarys_abi(world: World) -> None:
    # GIVEN
    before = world.compiler().key("cpu", "9.9.0")
    # WHEN
    world.torch = replace(world.torch, cxx11_abi=False)
    # THEN
    assert world.compiler().key("cpu", "9.9.0") != before


def test_key_changes_with_the_release(world: World) -> None:
    names = set()
    for version in ("9.9.0", "9.9.1", "9.9.0+vendor"):
        world.torch = replace(world.torch, version=version)
        names.add(world.hook_name)
    assert len(names) == 3


def test_key_ignores_other_headers_and_the_install_path(world: World) -> None:
    # GIVEN
    before = world.compiler().key("cpu", "9.9.0")
    # WHEN
    (world.include / "c10/core/near.h").write_text("changed")
    moved = world.root / "elsewhere"
    world.torch.root.rename(moved)
    world.torch = replace(world.torch, root=moved)
    # THEN
    assert world.compiler().key("cpu", "9.9.0") == before


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
