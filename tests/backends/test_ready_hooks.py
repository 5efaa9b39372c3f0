"""Test the ready hooks of a wheel, in a stand-in environment."""

import json
import os
from collections.abc import Callable
from dataclasses import replace

import pytest
from hook_world import World, add_a_header_that_is_found_first, edit_a_header, remove_a_header

from pytracer.backends import ready_hooks
from pytracer.backends.hook_build import READY
from pytracer.backends.ready_hooks import INDEX, read_index, write_index
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


def test_a_ready_hook_serves_another_build_with_equal_headers(world: World) -> None:
    # GIVEN a hook for torch 9.9.0
    ready = world.put_ready_hook("9.9.0")
    # WHEN the running torch is another build, and a header that the hook does not read differs
    world.torch = replace(world.torch, version="9.9.1+vendor")
    (world.include / "c10/core/unrelated.h").write_text("int patched;\n")
    # THEN
    found = world.builder().find("cpu")
    assert found is not None
    assert found.path == ready


@pytest.mark.parametrize("changed", ["c10/core/near.h", "abi", "source", "flags"])
def test_what_a_ready_hook_depends_on_must_be_equal(
    changed: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    world.put_ready_hook()
    # WHEN one thing that decides the ABI differs in the running torch or in this pytracer
    if changed == "abi":
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


@pytest.mark.parametrize(("key", "value"), [("format", 2), ("machine", "s390x")])
def test_an_index_of_another_format_or_machine_is_none(
    key: str, value: object, world: World
) -> None:
    world.put_ready_hook()
    path = world.package / INDEX
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    assert read_index(world.package) == []
    assert world.builder().find("cpu") is None


def test_the_index_keeps_what_each_hook_depends_on(world: World) -> None:
    # GIVEN two hooks of one backend, with headers of their own
    world.put_ready_hook("9.9.0", "9.10.0")
    (first,) = read_index(world.package)
    second = replace(first, library="b.so", key="b", headers=("a/new.h", *first.headers[1:]))
    # WHEN
    write_index(world.package, [first, second])
    # THEN
    read = read_index(world.package)
    assert [set(hook.headers) for hook in read] == [set(first.headers), set(second.headers)]
    assert [replace(hook, headers=()) for hook in read] == [
        replace(hook, headers=()) for hook in (first, second)
    ]


def test_without_a_compiler_the_error_names_the_ready_releases(world: World) -> None:
    # GIVEN hooks for two releases, of which none fits, and no compiler
    world.put_ready_hook("9.10.0", "9.8.0")
    (world.include / "c10/core/near.h").write_text("int patched;\n")
    without_compiler(world)
    # THEN
    with pytest.raises(HookError) as caught:
        world.builder().find_or_build("cpu")
    message = str(caught.value)
    assert "the ready hooks are for torch 9.8.0, 9.10.0, and this is torch 9.9.0" in message
    assert "no C++ compiler" in message
    assert "doctor --build --output" in message


def test_an_error_says_that_a_vendors_headers_differ(world: World) -> None:
    world.put_ready_hook("9.9.0")
    world.torch = replace(world.torch, version="9.9.0+vendor")
    (world.include / "c10/core/near.h").write_text("int patched;\n")
    world.environment["PYTRACER_BUILD"] = "never"
    with pytest.raises(HookError, match=r"the headers of this torch 9\.9\.0\+vendor differ.*never"):
        world.builder().find_or_build("cpu")


def forbid_hashing(monkeypatch: pytest.MonkeyPatch) -> None:
    def headers_key(*_: object) -> None:
        raise AssertionError("headers are read")

    monkeypatch.setattr(ready_hooks, "headers_key", headers_key)


def test_a_second_start_reads_no_headers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a start that found its ready hook
    world.put_ready_hook()
    world.settle()
    found = world.builder().find_or_build("cpu")
    assert found.folder == READY
    # WHEN another process starts
    forbid_hashing(monkeypatch)
    # THEN it finds the same hook without reading the headers
    assert world.builder().find_or_build("cpu") == found


def test_a_second_start_without_a_fitting_hook_reads_no_headers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a torch with a vendor's headers, for which a start compiled the hook
    world.put_ready_hook()
    (world.include / "c10/core/near.h").write_text("int patched;\n")
    world.settle()
    found = world.builder().find_or_build("cpu")
    assert found.folder == "the user's cache"
    # WHEN another process starts
    forbid_hashing(monkeypatch)
    # THEN it finds the compiled hook
    assert world.builder().find_or_build("cpu") == found


@pytest.mark.parametrize(
    "change", [edit_a_header, add_a_header_that_is_found_first, remove_a_header]
)
def test_a_cached_find_is_not_used_after_a_change(
    world: World, change: Callable[[World], None]
) -> None:
    # GIVEN a cached find
    world.put_ready_hook()
    world.settle()
    world.builder().find_or_build("cpu")
    # WHEN the headers that the compiler would read change
    change(world)
    # THEN the ready hook does not fit any more
    assert world.builder().find("cpu") is None


def test_a_cached_find_is_not_used_with_another_index(world: World) -> None:
    # GIVEN a start that found no ready hook for this torch
    ready = world.put_ready_hook()
    world.settle()
    index = world.package / INDEX
    before, text = index.stat(), index.read_text()
    key = ready.stem.removeprefix("cpu-")
    index.write_text(text.replace(f'"key": "{key}"', f'"key": "{key[::-1]}"'))
    world.builder().find_or_build("cpu")
    # WHEN a pytracer is installed that has one, with an index of the same size and time
    index.write_text(text)
    os.utime(index, ns=(before.st_atime_ns, before.st_mtime_ns))
    # THEN
    found = world.builder().find("cpu")
    assert found is not None
    assert found.path == ready


def test_a_library_that_was_damaged_after_it_was_found_is_not_used(world: World) -> None:
    # GIVEN a cached find
    ready = world.put_ready_hook()
    world.settle()
    world.builder().find_or_build("cpu")
    # WHEN
    ready.write_text("a damaged hook")
    # THEN
    assert world.builder().find("cpu") is None
