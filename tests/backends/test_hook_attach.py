"""Test attaching hooks."""

import sys
from pathlib import Path

import pytest
from hook_world import World

import pytracer
from pytracer.backends.hook_attach import Hooks
from pytracer.errors import HookError


def test_attach_hands_over_the_hook_once(world: World) -> None:
    # GIVEN
    path = world.put_hook(world.cache)
    hooks = world.hooks()
    # WHEN
    hooks.attach("cpu")
    hooks.attach("cpu")
    # THEN
    assert world.attached == [str(path)]
    assert world.compilations == []


def test_attach_builds_a_missing_hook_into_the_cache(world: World) -> None:
    # GIVEN
    image = world.root / "image"
    image.mkdir()
    world.environment["PYTRACER_HOOK_DIR"] = str(image)
    # WHEN
    world.hooks().attach("cpu")
    # THEN
    assert world.attached == [str(world.cache / world.hook_name)]
    assert list(image.iterdir()) == []
    assert not world.package.exists()
    # WHEN another process attaches
    world.hooks().attach("cpu")
    # THEN
    assert len(world.compilations) == 1


def test_failed_attach_is_tried_again(world: World) -> None:
    # GIVEN
    world.put_hook(world.cache)
    hooks = world.hooks()
    attach_hook = world.core.attach_hook

    def refuse(path: str) -> None:
        raise HookError("no")

    world.core.attach_hook = refuse  # type: ignore[attr-defined]
    with pytest.raises(HookError, match="no"):
        hooks.attach("cpu")
    # WHEN
    world.core.attach_hook = attach_hook  # type: ignore[attr-defined]
    hooks.attach("cpu")
    # THEN
    assert len(world.attached) == 1


def test_missing_core_is_a_hook_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    world.put_hook(world.cache)
    monkeypatch.delattr(pytracer, "_core", raising=False)
    monkeypatch.setitem(sys.modules, "pytracer._core", None)
    # WHEN / THEN
    with pytest.raises(HookError, match=r"core cannot be imported.*install torch-pytracer again"):
        Hooks(world.builder()).attach("cpu")


def test_unreadable_headers_are_a_hook_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    def read_bytes(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    # WHEN / THEN
    with pytest.raises(HookError, match="Permission denied"):
        world.hooks().attach("cpu")


def test_one_kind_of_accelerator_per_process(world: World) -> None:
    # GIVEN a process that records CUDA
    (world.source / "hooks" / "cuda.cpp").write_text("")
    (world.source / "hooks" / "npu.cpp").write_text("")
    world.put_hook(world.cache).rename(world.cache / world.compiler().file_name("cuda"))
    hooks = world.hooks()
    hooks.attach("cuda")
    # WHEN / THEN
    with pytest.raises(HookError, match="cuda and npu in one process: pytracer records one kind"):
        hooks.attach("npu")
    assert len(world.attached) == 1


def test_the_backend_is_watched_for_ooms_once_its_hook_is_attached(world: World) -> None:
    # GIVEN
    world.put_hook(world.cache)
    watched: list[str] = []
    hooks = Hooks(world.builder(), lambda: world.core, watched.append)
    # WHEN
    hooks.attach("cpu")
    hooks.attach("cpu")
    # THEN
    assert watched == ["cpu"]


def test_forward_stacks_where_their_library_is_ready(world: World) -> None:
    # GIVEN a process that has not compiled the library for autograd
    (world.source / "hooks" / "autograd.cpp").write_text('#include "hook_abi.h"\n')
    said: list[str] = []
    world.core.attach_autograd = lambda *_: said.append("library")  # type: ignore[attr-defined]
    world.core.watch_autograd_threads = lambda: said.append("threads")  # type: ignore[attr-defined]
    (world.source / "hooks" / "cuda.cpp").write_text("")
    cuda = world.put_hook(world.cache).rename(world.cache / world.compiler().file_name("cuda"))
    hooks = world.hooks()
    # WHEN it is wanted where it is ready, many times
    for _ in range(3):
        hooks.attach_autograd(build=False)
    # THEN nothing is compiled; and on the CPU, names of threads would tell nothing
    assert (said, hooks.reads_autograd, world.compilations) == ([], False, [])
    # WHEN there is an accelerator, THEN autograd's threads are known by their names
    hooks.attach("cuda")
    for _ in range(2):
        hooks.attach_autograd(build=False)
    assert (world.attached, said, hooks.reads_autograd) == ([str(cuda)], ["threads"], False)
    # WHEN a tracer asks for the library
    hooks.attach_autograd(build=True)
    # THEN it is compiled
    assert (said, hooks.reads_autograd) == (["threads", "library"], True)
    assert len(world.compilations) == 1
    # AND the next process has it
    later = world.hooks()
    later.attach_autograd(build=False)
    assert (said[2:], later.reads_autograd) == (["library"], True)
    assert len(world.compilations) == 1


def test_never_forbids_compiling(world: World) -> None:
    # GIVEN
    world.environment["PYTRACER_BUILD"] = "never"
    hooks = world.hooks()
    # WHEN
    with pytest.raises(HookError) as error:
        hooks.attach("cpu")
    with pytest.raises(HookError, match="PYTRACER_BUILD=never"):
        hooks.builder.build("cpu", world.cache)
    # THEN
    assert "PYTRACER_BUILD=never" in str(error.value)
    assert "PYTRACER_HOOK_DIR" in str(error.value)
    assert str(world.cache) in str(error.value)
    assert world.compilations == []
    # WHEN the hook exists
    world.put_hook(world.cache)
    hooks.attach("cpu")
    # THEN
    assert len(world.attached) == 1


def test_a_bad_build_mode_is_the_default(world: World, caplog: pytest.LogCaptureFixture) -> None:
    # GIVEN a hook, and a wrong value
    world.put_hook(world.cache)
    world.environment["PYTRACER_BUILD"] = "no"
    # WHEN
    world.hooks().attach("cpu")
    # THEN the hook is used, and the value is reported
    assert len(world.attached) == 1
    assert "PYTRACER_BUILD is 'no'; set it to 'auto'" in caplog.text


def test_no_compiler(world: World) -> None:
    # GIVEN
    del world.environment["CXX"]
    world.environment["PATH"] = str(world.root / "empty")
    # WHEN
    with pytest.raises(HookError) as error:
        world.hooks().attach("cpu")
    # THEN
    assert "no C++ compiler" in str(error.value)
    assert "install g++" in str(error.value)
    assert "pytracer doctor --build" in str(error.value)


def test_failed_build_is_not_repeated_by_the_next_tracer(world: World) -> None:
    # GIVEN
    (world.root / "broken").touch()
    hooks = world.hooks()
    with pytest.raises(HookError) as first:
        hooks.attach("cpu")
    tried = len(world.compilations)
    # WHEN
    with pytest.raises(HookError) as second:
        hooks.attach("cpu")
    # THEN
    assert str(second.value) == str(first.value)
    assert len(world.compilations) == tried
    # WHEN the user names another compiler
    (world.root / "broken").unlink()
    world.environment["CXX"] = f"{world.root / 'c++'} -B."
    hooks.attach("cpu")
    # THEN
    assert len(world.attached) == 1


def test_hook_that_fails_its_probe_is_deleted(world: World) -> None:
    # GIVEN
    def probe(backend: str, path: Path) -> None:
        raise HookError("it crashed")

    # WHEN
    with pytest.raises(HookError, match="it crashed"):
        world.hooks(probe).attach("cpu")
    # THEN
    assert list(world.cache.iterdir()) == []
    assert world.attached == []
