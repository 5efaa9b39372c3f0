"""Test the prebuilt hooks of a wheel, in a stand-in environment."""

import json
from dataclasses import replace

import pytest
from hook_world import World

from pytracer.backends.hook_build import READY
from pytracer.backends.ready_hooks import INDEX, read_index
from pytracer.errors import HookError


def without_compiler(world: World) -> None:
    world.environment.update({"CXX": "", "PATH": "/dev/null"})


def test_a_ready_hook_needs_no_compiler(world: World) -> None:
    # GIVEN a wheel with a hook for this torch, and no compiler
    ready = world.put_ready_hook()
    without_compiler(world)
    # WHEN
    found = world.builder().find_or_build("cpu")
    # THEN the hook is used where it is, and none is compiled
    assert (found.path, found.folder) == (ready, READY)
    assert world.compilations == []


def test_a_ready_hook_serves_all_builds_of_its_release(world: World) -> None:
    # GIVEN a hook for torch 9.9.0
    ready = world.put_ready_hook("9.9.0")
    # WHEN the running torch is another build of it
    world.torch = replace(world.torch, version="9.9.0+cu130")
    # THEN
    found = world.builder().find("cpu")
    assert found is not None
    assert found.path == ready


@pytest.mark.parametrize("changed", ["c10/core/A.h", "release", "abi", "source", "flags"])
def test_what_a_ready_hook_depends_on_must_be_equal(
    changed: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    world.put_ready_hook()
    # WHEN one thing that decides the ABI differs in the running torch or in this pytracer
    if changed == "release":
        world.torch = replace(world.torch, version="9.9.1")
    elif changed == "abi":
        world.torch = replace(world.torch, cxx11_abi=False)
    elif changed == "source":
        (world.source / "hooks/cpu.cpp").write_text("int other;\n")
    elif changed == "flags":
        monkeypatch.setattr("pytracer.backends.hook_compile._FLAGS", ("-O3",))
    else:
        (world.include / changed).write_text("int patched;\n")
    # THEN
    assert world.builder().find("cpu") is None


@pytest.mark.parametrize("damage", ["truncated library", "no library", "damaged index", "no index"])
def test_a_damaged_ready_hook_is_not_used(damage: str, world: World) -> None:
    # GIVEN a wheel of which a file was damaged
    ready = world.put_ready_hook()
    index = world.package / INDEX
    if damage == "truncated library":
        ready.write_text(ready.read_text()[:-1])
    elif damage == "no library":
        ready.unlink()
    elif damage == "damaged index":
        index.write_text(index.read_text()[:-40])
    else:
        index.unlink()
    # WHEN
    found = world.builder().find_or_build("cpu")
    # THEN the hook is compiled, as without a ready one
    assert found.folder == "the user's cache"
    assert len(world.compilations) == 1


@pytest.mark.parametrize(("key", "value"), [("format", 1), ("machine", "s390x")])
def test_an_index_of_another_format_or_machine_is_none(
    key: str, value: object, world: World
) -> None:
    world.put_ready_hook()
    path = world.package / INDEX
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    assert read_index(world.package) == []
    assert world.builder().find("cpu") is None


def test_without_a_compiler_the_error_names_the_ready_releases(world: World) -> None:
    # GIVEN hooks for two releases, of which none fits, and no compiler
    world.put_ready_hook("9.10.0", "9.8.0")
    without_compiler(world)
    # THEN
    with pytest.raises(HookError) as caught:
        world.builder().find_or_build("cpu")
    message = str(caught.value)
    assert "the prebuilt hooks are for torch 9.8.0, 9.10.0, and this is torch 9.9.0" in message
    assert "no C++ compiler" in message
    assert "doctor --build --output" in message


def test_an_error_says_that_a_vendors_headers_differ(world: World) -> None:
    world.put_ready_hook("9.9.0")
    world.torch = replace(world.torch, version="9.9.0+vendor")
    (world.include / "c10/core/A.h").write_text("int patched;\n")
    world.environment["PYTRACER_BUILD"] = "never"
    with pytest.raises(HookError, match=r"the headers of this torch 9\.9\.0\+vendor differ.*never"):
        world.builder().find_or_build("cpu")
