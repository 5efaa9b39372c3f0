"""Lookup, trust, key and the building of hooks, with a make-believe torch and compiler."""

import fcntl
import json
import os
import re
import stat
import sys
import threading
import time
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import pytracer
from pytracer import cli_hooks, doctor, hook_compile, hook_places, hooks
from pytracer.errors import HookError

PROBE = hooks.probe
STRANGER = 12345  # nobody's user id

# Writes what a compiler would, says how it was called, and fails while `broken` or an old compiler.
COMPILER = """#!/bin/sh
echo "$@" >> "{log}"
while [ $# -gt 0 ]; do
  case "$1" in
    -std=c++20) if [ -e "{old}" ]; then echo "error: unrecognized option '$1'" >&2; exit 1; fi ;;
    -o) output=$2 ;;
  esac
  shift
done
if [ -e "{broken}" ]; then
  printf 'cpu.cpp: In function\\ncpu.cpp:3:1: error: boom\\nmore\\n' >&2
  echo half > "$output"
  exit 1
fi
echo hook > "$output"
"""


@dataclass
class World:
    """A torch, a compiler and every folder of the lookup, all under one temporary folder."""

    root: Path
    torch: hook_compile.Torch

    @property
    def source(self) -> Path:
        return self.root / "source"

    @property
    def include(self) -> Path:
        return self.torch.root / "include"

    @property
    def cache(self) -> Path:
        return self.root / "xdg" / "pytracer"

    @property
    def private(self) -> Path:
        return self.root / "tmp" / f"pytracer-{os.geteuid()}"

    @property
    def package(self) -> Path:
        return self.root / "package" / "_prebuilt_hooks"

    @property
    def compilations(self) -> list[str]:
        log = self.root / "compiler.log"
        return log.read_text().splitlines() if log.exists() else []

    def files(self) -> set[Path]:
        return {path for path in self.root.rglob("*") if path.name != "compiler.log"}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path, hook_compile.Torch("9.9.0", tmp_path / "torch", True))
    for path, text in {
        world.source / "hook.h": "#define ABI 1\n",
        world.source / "hooks/cpu.cpp": '#include <c10/core/A.h>\n#include "../hook.h"\n',
        world.include / "c10/core/A.h": "#include <vector>\n#  include <c10/core/B.h>\n",
        world.include / "c10/core/B.h": '#include "near.h"\n#include <c10/core/A.h>\n',
        world.include / "c10/core/near.h": "int near;\n",
        world.include / "c10/core/unrelated.h": "int unrelated;\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "tmp").mkdir()
    compiler = tmp_path / "c++"
    compiler.write_text(
        COMPILER.format(
            log=tmp_path / "compiler.log", old=tmp_path / "old", broken=tmp_path / "broken"
        )
    )
    compiler.chmod(0o755)
    for name in ("PYTRACER_BUILD", "PYTRACER_HOOK_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(hook_compile, "running_torch", lambda: world.torch)
    monkeypatch.setattr(hook_compile, "package_dirs", lambda: [])
    (tmp_path / "csrc").symlink_to(world.source)  # as in a checkout
    monkeypatch.setattr(hook_compile, "__file__", str(tmp_path / "package" / "x.py"))
    monkeypatch.setattr(hook_places, "package_dirs", lambda: [tmp_path / "package"])
    monkeypatch.setattr(hooks, "probe", lambda backend, path: None)
    new_process(monkeypatch)
    return world


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stands in for the core; the paths that were handed to it."""
    paths: list[str] = []
    core = types.ModuleType("pytracer._core")
    core.attach_hook = lambda path: paths.append(path) or True  # type: ignore[attr-defined]
    core.frame_walk_problem = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setattr(pytracer, "_core", core, raising=False)
    monkeypatch.setitem(sys.modules, "pytracer._core", core)
    return paths


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets what this process has attached and tried."""
    monkeypatch.setattr(hooks, "_ready", set())
    monkeypatch.setattr(hooks, "_failures", {})


def put_hook(directory: Path) -> Path:
    """Lays a hook for the running torch into `directory`, as `build` would."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / hook_compile.file_name("cpu")
    path.write_text("a hook")
    path.chmod(0o755)
    return path


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `path` another user's: truly where we may, else by looking through others' eyes."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, STRANGER)
        return
    seen = Path.lstat

    def lstat(self: Path) -> os.stat_result:
        info = list(seen(self))
        if self == path:
            info[stat.ST_UID] = STRANGER
        return os.stat_result(info)

    monkeypatch.setattr(Path, "lstat", lstat)


# The key


@pytest.mark.parametrize(
    "path",
    [
        "source/hooks/cpu.cpp",
        "source/hook.h",
        "torch/include/c10/core/A.h",
        "torch/include/c10/core/B.h",
        "torch/include/c10/core/near.h",
    ],
)
def test_key_changes_with_everything_the_hook_includes(world: World, path: str) -> None:
    # GIVEN
    before = hook_compile.key("cpu")
    # WHEN a vendor patches a header, or we change the hook
    with (world.root / path).open("a") as file:
        file.write("// patched\n")
    # THEN
    assert hook_compile.key("cpu") != before


def test_key_changes_with_the_machine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    before = hook_compile.key("cpu")
    # WHEN
    monkeypatch.setattr("platform.machine", lambda: "another")
    # THEN
    assert hook_compile.key("cpu") != before


def test_key_changes_with_the_standard_librarys_abi(world: World) -> None:
    # GIVEN
    before = hook_compile.key("cpu")
    # WHEN
    world.torch = replace(world.torch, cxx11_abi=False)
    # THEN
    assert hook_compile.key("cpu") != before


def test_key_ignores_other_headers_the_version_and_the_install_path(world: World) -> None:
    # GIVEN
    before = hook_compile.key("cpu")
    # WHEN
    (world.include / "c10/core/unrelated.h").write_text("changed")
    moved = world.root / "elsewhere"
    world.torch.root.rename(moved)
    world.torch = replace(world.torch, version="1.0", root=moved)
    # THEN
    assert hook_compile.key("cpu") == before


def test_file_name_holds_backend_and_key(world: World) -> None:
    # WHEN
    key = hooks.key("cpu")
    # THEN
    assert 16 <= len(key) <= 20
    assert set(key) <= set("0123456789abcdef")
    assert hook_compile.file_name("cpu") == f"pytracer_cpu-{key}.so"


def test_missing_headers_are_named(world: World) -> None:
    # GIVEN
    world.torch = replace(world.torch, root=world.root / "bare")
    # WHEN
    with pytest.raises(HookError) as error:
        hooks.find("cpu")
    # THEN
    assert str(world.root / "bare/include/c10") in str(error.value)
    assert "install torch" in str(error.value)


def test_missing_sources_are_named(world: World) -> None:
    # GIVEN
    (world.source / "hook.h").unlink()
    # WHEN / THEN
    with pytest.raises(
        HookError, match=r"sources are missing.*_hook_source.*install torch-pytracer"
    ):
        hooks.find("cpu")


def test_an_installed_package_brings_its_sources(world: World) -> None:
    # GIVEN what CMake installs, beside a stranger's folder that is called csrc
    installed = world.root / "package" / "_hook_source"
    (installed / "hooks").mkdir(parents=True)
    (installed / "hook.h").write_text("")
    (installed / "hooks" / "cpu.cpp").write_text("")
    # WHEN / THEN
    assert hook_compile.source_dir("cpu") == installed


def test_sources_may_lie_in_another_folder_of_the_package(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN an editable install whose modules and files are apart
    (world.root / "csrc").unlink()
    (world.root / "site").mkdir()
    world.source.rename(world.root / "site" / "_hook_source")
    # WHEN
    monkeypatch.setattr(hook_compile, "package_dirs", lambda: [world.root / "site"])
    # THEN
    assert hook_compile.source_dir("cpu") == world.root / "site" / "_hook_source"


@pytest.mark.parametrize("backend", ["cuda", "npu", "abacus"])
def test_backend_without_a_hook_is_refused(world: World, attached: list[str], backend: str) -> None:
    # WHEN
    with pytest.raises(HookError) as error:
        hooks.attach(backend)
    # THEN
    assert "records the CPU allocator only" in str(error.value)
    assert repr(backend) in str(error.value)
    assert attached == []


# The lookup


def test_lookup_order(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a hook in every place
    monkeypatch.setenv("PYTRACER_HOOK_DIR", str(world.root / "image"))
    directories = [world.root / "image", world.package, world.cache, world.private]
    paths = [put_hook(directory) for directory in directories]
    # WHEN each found one is taken away
    found = []
    for _ in paths:
        hook = hooks.find("cpu")
        assert hook is not None
        found.append(hook)
        hook.path.unlink()
    # THEN
    assert [hook.path for hook in found] == paths
    assert [hook.place for hook in found] == [
        "PYTRACER_HOOK_DIR",
        "the package",
        "the user's cache",
        "the private temporary folder",
    ]
    assert hooks.find("cpu") is None


def test_find_writes_nothing(world: World) -> None:
    # GIVEN
    before = world.files()
    # WHEN
    assert hooks.find("cpu") is None
    # THEN
    assert world.files() == before
    assert world.compilations == []


def test_hook_of_another_torch_is_not_found(world: World) -> None:
    # GIVEN
    old = put_hook(world.cache)
    # WHEN torch is upgraded
    (world.include / "c10/core/B.h").write_text("virtual void annotate();")
    # THEN
    assert hooks.find("cpu") is None
    assert old.exists()


def test_relative_cache_home_is_ignored(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    # WHEN
    directories = [place.directory for place in hook_places.places()]
    # THEN
    assert world.root / "home/.cache/pytracer" in directories


def test_a_cache_behind_a_link_of_the_users_is_used(world: World) -> None:
    # GIVEN a home whose cache lies on a scratch disk
    scratch = world.root / "scratch"
    put_hook(scratch / "pytracer")
    (world.root / "xdg").symlink_to(scratch)
    # WHEN
    found = hooks.find("cpu")
    # THEN
    assert found is not None
    assert found.path.parent == scratch / "pytracer"


def foreign(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_away(path, monkeypatch)


def group_writable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(0o775)


def world_writable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(0o757)


def symlinked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = path.with_name("real")
    path.rename(real)
    path.symlink_to(real)


Spoil = Callable[[Path, pytest.MonkeyPatch], None]


@pytest.mark.parametrize("spoil", [foreign, group_writable, world_writable, symlinked])
@pytest.mark.parametrize("place", ["cache", "private"])
def test_file_of_doubtful_origin_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, place: str, spoil: Spoil
) -> None:
    # GIVEN
    path = put_hook(getattr(world, place))
    assert hooks.find("cpu") is not None
    # WHEN
    spoil(path, monkeypatch)
    # THEN
    assert hooks.find("cpu") is None


@pytest.mark.parametrize(
    ("place", "spoil"),
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
def test_folder_of_doubtful_origin_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, place: str, spoil: Spoil
) -> None:
    # GIVEN
    path = put_hook(getattr(world, place))
    assert hooks.find("cpu") is not None
    # WHEN
    spoil(path.parent, monkeypatch)
    # THEN it is not read from, and not built into
    assert hooks.find("cpu") is None
    assert hook_places.destination().directory != path.parent


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (foreign, f"belongs to another user ({STRANGER})"),
        (world_writable, "mode 757 lets other users in"),
        (symlinked, "is a symbolic link"),
    ],
)
def test_refused_folder_is_explained(
    world: World, monkeypatch: pytest.MonkeyPatch, spoil: Spoil, problem: str
) -> None:
    # GIVEN no other place to build
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    world.private.mkdir(mode=0o700)
    # WHEN
    spoil(world.private, monkeypatch)
    # THEN
    with pytest.raises(HookError, match=re.escape(f"{world.private}: i")) as error:
        hook_places.destination()
    assert problem in str(error.value)


def test_private_folder_is_ours_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    # WHEN
    hooks.build("cpu", hook_places.destination().directory)
    # THEN
    assert stat.S_IMODE(world.private.stat().st_mode) == 0o700
    # WHEN others are let in to read
    world.private.chmod(0o755)
    # THEN
    assert hooks.find("cpu") is None


def test_named_folder_is_trusted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a folder that the administrator filled
    path = put_hook(world.root / "image")
    give_away(path, monkeypatch)
    path.chmod(0o775)
    # WHEN
    monkeypatch.setenv("PYTRACER_HOOK_DIR", str(path.parent))
    # THEN
    assert hooks.find("cpu") == hooks.Found("cpu", path, "PYTRACER_HOOK_DIR")


# Attaching


def test_attach_hands_over_the_hook_once(world: World, attached: list[str]) -> None:
    # GIVEN
    path = put_hook(world.cache)
    # WHEN
    hooks.attach("cpu")
    hooks.attach("cpu")
    # THEN
    assert attached == [str(path)]
    assert world.compilations == []


def test_attach_builds_a_missing_hook_into_the_cache(
    world: World, attached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    image = world.root / "image"
    image.mkdir()
    monkeypatch.setenv("PYTRACER_HOOK_DIR", str(image))
    # WHEN
    hooks.attach("cpu")
    # THEN
    assert attached == [str(world.cache / hook_compile.file_name("cpu"))]
    assert list(image.iterdir()) == []
    assert not world.package.exists()
    # WHEN another process comes
    new_process(monkeypatch)
    hooks.attach("cpu")
    # THEN
    assert len(world.compilations) == 1


def test_failed_attach_is_tried_again(
    world: World, attached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    put_hook(world.cache)

    def refuse(path: str) -> None:
        raise HookError("no")

    with monkeypatch.context() as patch:
        patch.setattr(hooks.load_core(), "attach_hook", refuse)
        with pytest.raises(HookError, match="no"):
            hooks.attach("cpu")
    # WHEN
    hooks.attach("cpu")
    # THEN
    assert len(attached) == 1


def test_missing_core_is_a_hook_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    put_hook(world.cache)
    monkeypatch.delattr(pytracer, "_core", raising=False)
    monkeypatch.setitem(sys.modules, "pytracer._core", None)
    # WHEN / THEN
    with pytest.raises(HookError, match=r"core cannot be imported.*install torch-pytracer again"):
        hooks.attach("cpu")


def test_unreadable_headers_are_a_hook_error(
    world: World, attached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    def read_bytes(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    # WHEN / THEN
    with pytest.raises(HookError, match="Permission denied"):
        hooks.attach("cpu")


# Building


def test_never_forbids_compiling(
    world: World, attached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    monkeypatch.setenv("PYTRACER_BUILD", "never")
    # WHEN
    with pytest.raises(HookError) as error:
        hooks.attach("cpu")
    with pytest.raises(HookError, match="PYTRACER_BUILD=never"):
        hooks.build("cpu", world.cache)
    # THEN
    assert "PYTRACER_BUILD=never" in str(error.value)
    assert "PYTRACER_HOOK_DIR" in str(error.value)
    assert str(world.cache) in str(error.value)
    assert world.compilations == []
    # WHEN the hook is there
    put_hook(world.cache)
    hooks.attach("cpu")
    # THEN
    assert len(attached) == 1


def test_bad_build_mode_is_named(
    world: World, attached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    put_hook(world.cache)
    monkeypatch.setenv("PYTRACER_BUILD", "no")
    # WHEN / THEN
    with pytest.raises(HookError, match=r"PYTRACER_BUILD is 'no'; set it to 'auto'.*'never'"):
        hooks.attach("cpu")
    assert attached == []


def test_no_compiler(world: World, attached: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(world.root / "empty"))
    # WHEN
    with pytest.raises(HookError) as error:
        hooks.attach("cpu")
    # THEN
    assert "no C++ compiler" in str(error.value)
    assert "install g++" in str(error.value)
    assert "pytracer build-hooks" in str(error.value)


def test_cxx_that_cannot_be_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    # WHEN / THEN
    with pytest.raises(HookError, match="CXX is 'no-such-compiler -O3'"):
        hook_compile.find_compiler()


@pytest.mark.parametrize("name", ["c++", "g++", "clang++"])
def test_compiler_from_the_path(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    # GIVEN
    directory = world.root / "bin"
    directory.mkdir()
    (directory / name).symlink_to(world.root / "c++")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(directory))
    # WHEN / THEN
    assert hook_compile.find_compiler() == [str(directory / name)]


def test_command_line(world: World) -> None:
    # WHEN
    hooks.build("cpu", world.cache)
    # THEN
    arguments = world.compilations[0].split()
    lib = world.torch.root / "lib"
    expected = {"-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-std=c++20", "-lc10"}
    expected |= {"-D_GLIBCXX_USE_CXX11_ABI=1", f"-I{world.include}", f"-L{lib}"}
    assert expected | {f"-Wl,-rpath,{lib}"} <= set(arguments)


def test_old_compiler_gets_the_older_standard(world: World) -> None:
    # GIVEN
    (world.root / "old").touch()
    # WHEN
    path = hooks.build("cpu", world.cache)
    # THEN
    assert path.exists()
    assert "-std=c++17" in world.compilations[1]


def test_compile_error_is_quoted_and_leaves_nothing(world: World) -> None:
    # GIVEN
    (world.root / "broken").touch()
    # WHEN
    with pytest.raises(HookError) as error:
        hooks.build("cpu", world.cache)
    # THEN
    assert "cpu.cpp:3:1: error: boom" in str(error.value)
    assert "torch 9.9.0" in str(error.value)
    assert "PYTRACER_HOOK_DIR" in str(error.value)
    assert list(world.cache.iterdir()) == []


def test_error_of_the_older_standard_is_quoted_for_an_old_compiler(world: World) -> None:
    # GIVEN
    (world.root / "old").touch()
    (world.root / "broken").touch()
    # WHEN / THEN
    with pytest.raises(HookError, match="error: boom"):
        hooks.build("cpu", world.cache)


def test_failed_build_is_not_repeated_by_the_next_tracer(
    world: World, attached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    (world.root / "broken").touch()
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
    monkeypatch.setenv("CXX", f"{world.root / 'c++'} -B.")
    hooks.attach("cpu")
    # THEN
    assert len(attached) == 1


def test_hook_gets_its_name_after_its_probe(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    target = world.cache / hook_compile.file_name("cpu")
    probed: list[Path] = []

    def probe(backend: str, path: Path) -> None:
        assert path.exists()
        assert not target.exists()
        probed.append(path)

    monkeypatch.setattr(hooks, "probe", probe)
    # WHEN, with a umask that lets the group write
    old_mask = os.umask(0o002)
    try:
        assert hooks.build("cpu", world.cache) == target
        target.rename(world.root / "first")
        assert hooks.build("cpu", world.cache) == target
    finally:
        os.umask(old_mask)
    # THEN each had a name of its own on the same file system, and only the hook is left
    assert len(set(probed)) == 2
    assert all(world.cache in path.parents for path in probed)
    assert list(world.cache.iterdir()) == [target]
    assert hooks.find("cpu") is not None


def test_hook_that_fails_its_probe_is_deleted(
    world: World, attached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    def probe(backend: str, path: Path) -> None:
        raise HookError("it crashed")

    monkeypatch.setattr(hooks, "probe", probe)
    # WHEN
    with pytest.raises(HookError, match="it crashed"):
        hooks.attach("cpu")
    # THEN
    assert list(world.cache.iterdir()) == []
    assert attached == []


def test_compiler_needs_no_temporary_folder_but_ours(world: World) -> None:
    # GIVEN
    compiler = world.root / "c++"
    compiler.write_text(compiler.read_text() + f'echo "$TMPDIR" > {world.root / "tmpdir"}\n')
    # WHEN
    hooks.build("cpu", world.cache)
    # THEN
    assert str(world.cache) in (world.root / "tmpdir").read_text()


def test_unwritable_cache_falls_back_to_the_private_folder(
    world: World, attached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    # WHEN
    hooks.attach("cpu")
    # THEN
    assert attached == [str(world.private / hook_compile.file_name("cpu"))]


def test_nowhere_to_write_names_both_folders(
    world: World, attached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    monkeypatch.setenv("TMPDIR", "/dev/null/tmp")
    # WHEN
    with pytest.raises(HookError) as error:
        hooks.attach("cpu")
    # THEN
    assert "/dev/null/cache/pytracer: Not a directory" in str(error.value)
    assert f"/dev/null/tmp/pytracer-{os.geteuid()}: Not a directory" in str(error.value)
    assert "pytracer build-hooks" in str(error.value)
    assert "PYTRACER_HOOK_DIR" in str(error.value)


def test_without_a_node_local_folder_the_cache_is_still_built_into(
    world: World, attached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    monkeypatch.setenv("TMPDIR", "/dev/null/tmp")
    # WHEN
    hooks.attach("cpu")
    # THEN
    assert attached == [str(world.cache / hook_compile.file_name("cpu"))]


def test_build_into_an_unwritable_folder(world: World) -> None:
    # WHEN / THEN
    with pytest.raises(HookError, match=r"cannot write /dev/null/out.*Not a directory"):
        hooks.build("cpu", Path("/dev/null/out"))


# The probe


def make_child(world: World, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Replaces the Python that runs the probe."""
    monkeypatch.setattr(hooks, "probe", PROBE)
    child = world.root / "python"
    child.write_text(f"#!/bin/sh\n{script}\n")
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))


def test_probe_runs_untraced_with_our_modules(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    make_child(world, monkeypatch, f'echo "$PYTRACER $PYTHONPATH $@" > {world.root}/said')
    monkeypatch.setattr(sys, "path", ["", "/somewhere"])
    # WHEN
    hooks.probe("cpu", world.root / "hook.so")
    # THEN
    said = f"0 {Path.cwd()}:/somewhere -m pytracer.hook_probe cpu {world.root}/hook.so\n"
    assert (world.root / "said").read_text() == said


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("kill -SEGV $$", r"died of SIGSEGV \(it wrote no message\)"),
        ("echo first >&2; echo last words >&2; kill -ABRT $$", r"died of SIGABRT \(last words\)"),
        ("echo HookError: no >&2; exit 9", r"exited with code 9 \(HookError: no\)"),
        (f"echo first >&2; echo no mood >&2; exit {hooks.REFUSED}", r"^no mood$"),
        ("exec sleep 60", r"took longer than 1 s"),
    ],
)
def test_probe_tells_how_the_child_ended(
    world: World, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    # GIVEN
    make_child(world, monkeypatch, script)
    monkeypatch.setattr(hooks, "PROBE_SECONDS", 1)
    # WHEN / THEN
    with pytest.raises(HookError, match=message):
        hooks.build("cpu", world.cache)
    assert list(world.cache.iterdir()) == []


def test_probe_that_cannot_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a program that embeds Python
    monkeypatch.setattr(hooks, "probe", PROBE)
    monkeypatch.setattr(sys, "executable", str(world.root / "no-python"))
    # WHEN / THEN
    with pytest.raises(HookError, match="could not start"):
        hooks.probe("cpu", world.root / "hook.so")


# One builder a node


class Builder:
    """Another process that holds the lock; flock tells open files apart, not processes."""

    def __init__(self, world: World) -> None:
        world.private.mkdir(mode=0o700, exist_ok=True)
        name = f"{hook_compile.file_name('cpu')}.lock"
        self.lock = (world.private / name).open("a+")
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def finish(self, failure: str = "") -> None:
        self.lock.write(failure)
        self.lock.close()


def test_waiting_is_bounded(
    world: World, attached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a builder that never ends
    monkeypatch.setattr(hooks, "WAIT_SECONDS", 0.3)
    builder = Builder(world)
    # WHEN
    begin = time.monotonic()
    with pytest.raises(HookError, match=r"another process has been building.*more than 0.3 s"):
        hooks.attach("cpu")
    # THEN
    assert 0.3 <= time.monotonic() - begin < 5
    assert world.compilations == []
    builder.finish()


def test_waiter_takes_the_builders_hook(world: World, attached: list[str]) -> None:
    # GIVEN
    builder = Builder(world)

    def build() -> None:
        put_hook(world.cache)
        builder.finish()

    timer = threading.Timer(0.3, build)
    timer.start()
    # WHEN
    hooks.attach("cpu")
    timer.join()
    # THEN
    assert attached == [str(world.cache / hook_compile.file_name("cpu"))]
    assert world.compilations == []


def test_waiter_takes_over_the_builders_failure(
    world: World, attached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    builder = Builder(world)
    timer = threading.Timer(0.3, builder.finish, ["the compiler is broken"])
    timer.start()
    # WHEN
    with pytest.raises(HookError, match="the compiler is broken"):
        hooks.attach("cpu")
    timer.join()
    # THEN
    assert world.compilations == []
    # WHEN a later process comes, who need not wait
    new_process(monkeypatch)
    hooks.attach("cpu")
    # THEN it tries anew, and the old reason is gone
    assert len(world.compilations) == 1
    assert Path(builder.lock.name).read_text() == ""


def test_builder_leaves_its_failure_to_the_waiters(world: World, attached: list[str]) -> None:
    # GIVEN
    (world.root / "broken").touch()
    # WHEN
    with pytest.raises(HookError) as error:
        hooks.attach("cpu")
    # THEN
    lock = world.private / f"{hook_compile.file_name('cpu')}.lock"
    assert lock.read_text() == str(error.value)


def test_waiter_builds_if_the_builder_was_killed(world: World, attached: list[str]) -> None:
    # GIVEN
    builder = Builder(world)
    timer = threading.Timer(0.3, builder.finish)
    timer.start()
    # WHEN
    hooks.attach("cpu")
    timer.join()
    # THEN
    assert len(world.compilations) == 1


# The doctor and the commands


@pytest.fixture
def clinic(world: World, attached: list[str], monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(doctor, "running_torch", lambda: world.torch)
    return world


def examined() -> doctor.BackendReport:
    reports = doctor.examine()
    assert [report.backend for report in reports] == list(hooks.BACKENDS)
    json.dumps([asdict(report) for report in reports])
    return reports[0]


def test_doctor_finds_the_hook(clinic: World) -> None:
    # GIVEN
    path = put_hook(clinic.cache)
    # WHEN / THEN
    assert examined() == doctor.BackendReport(
        "cpu", True, "9.9.0", str(path), "the user's cache", "ready"
    )


def test_doctor_tells_what_the_first_tracer_will_do(clinic: World) -> None:
    # WHEN
    report = examined()
    # THEN
    assert report.available
    assert report.hook is None
    assert str(clinic.root / "c++") in report.message
    assert str(clinic.cache) in report.message
    assert clinic.compilations == []


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PYTRACER_BUILD": "never"}, "PYTRACER_BUILD=never"),
        ({"PYTRACER_BUILD": "maybe"}, "PYTRACER_BUILD is 'maybe'"),
        ({"CXX": "", "PATH": "/dev/null"}, "no C++ compiler"),
        ({"XDG_CACHE_HOME": "/dev/null/a", "TMPDIR": "/dev/null/b"}, "/dev/null/b"),
    ],
)
def test_doctor_names_what_is_missing(
    clinic: World, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    # GIVEN
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    # WHEN
    report = examined()
    # THEN
    assert not report.available
    assert message in report.message


def test_doctor_says_what_accelerators_lack(clinic: World) -> None:
    # GIVEN a torch for the CPU
    # WHEN
    cpu, cuda, npu = doctor.examine()
    # THEN
    assert cpu.available
    assert not cuda.available
    assert "is built without CUDA; install a CUDA build of torch" in cuda.message
    assert not npu.available
    assert "torch_npu is not installed" in npu.message


def test_doctor_tries_the_hook_it_finds(clinic: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    path = put_hook(clinic.cache)

    def probe(backend: str, path: Path) -> None:
        raise HookError("died of SIGSEGV")

    monkeypatch.setattr(hooks, "probe", probe)
    # WHEN
    report = examined()
    # THEN
    assert not report.available
    assert report.hook == str(path)
    assert "SIGSEGV" in report.message


@pytest.mark.parametrize("failure", [HookError("torch is not installed"), RuntimeError("bug")])
def test_doctor_never_raises(
    clinic: World, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    # GIVEN
    def fail(*_: object) -> None:
        raise failure

    if isinstance(failure, HookError):
        monkeypatch.setattr(doctor, "running_torch", fail)
    monkeypatch.setattr(hooks, "find", fail)
    monkeypatch.setattr(hooks.load_core(), "frame_walk_problem", fail)
    # WHEN
    report, interpreter = examined(), doctor.examine_interpreter()
    # THEN
    assert not report.available
    assert str(failure) in report.message
    assert not interpreter.stacks
    assert str(failure) in interpreter.message


def test_doctor_without_the_core(clinic: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    put_hook(clinic.cache)
    monkeypatch.delattr(pytracer, "_core")
    monkeypatch.setitem(sys.modules, "pytracer._core", None)
    # WHEN / THEN
    assert "core cannot be imported" in examined().message
    assert "core cannot be imported" in doctor.examine_interpreter().message


def test_doctor_on_an_unsupported_interpreter(
    clinic: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    assert doctor.examine_interpreter().stacks
    monkeypatch.setattr(hooks.load_core(), "frame_walk_problem", lambda: "unknown CPython 3.99")
    # WHEN
    report = doctor.examine_interpreter()
    # THEN
    assert not report.stacks
    assert report.message == "unknown CPython 3.99"


def test_torch_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    monkeypatch.setitem(sys.modules, "torch", None)
    # WHEN / THEN
    with pytest.raises(HookError, match="torch is not installed"):
        hook_compile.running_torch()


@pytest.mark.parametrize(
    "failure", ["raise OSError('libgomp.so.1: not found')", "import a_missing_module"]
)
def test_torch_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    # GIVEN
    (tmp_path / "torch.py").write_text(failure)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    # WHEN / THEN
    with pytest.raises(HookError, match=r"importing torch failed .*(libgomp|a_missing_module)"):
        hook_compile.running_torch()


def test_build_hooks_prints_where_they_went(clinic: World) -> None:
    # WHEN
    result = CliRunner().invoke(cli_hooks.build_hooks, [])
    # THEN
    path = clinic.cache / hook_compile.file_name("cpu")
    assert (result.exit_code, result.output) == (0, f"cpu: {path}\n")
    assert path.exists()
    # WHEN
    result = CliRunner().invoke(cli_hooks.build_hooks, ["--output", str(clinic.root / "image")])
    # THEN
    assert result.exit_code == 0
    assert (clinic.root / "image" / path.name).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "/dev/null/out"], "cannot write /dev/null/out"),
        (["--backend", "cuda"], "records the CPU allocator only"),
    ],
)
def test_build_hooks_says_why_it_failed(clinic: World, arguments: list[str], message: str) -> None:
    # WHEN
    result = CliRunner().invoke(cli_hooks.build_hooks, arguments)
    # THEN
    assert result.exit_code == 1
    assert message in result.output


def test_doctor_command(clinic: World) -> None:
    # GIVEN
    path = put_hook(clinic.cache)
    # WHEN
    table = CliRunner().invoke(cli_hooks.doctor, [])
    to_stdout = CliRunner().invoke(cli_hooks.doctor, ["--json"])
    to_file = CliRunner().invoke(cli_hooks.doctor, ["--json", str(clinic.root / "report.json")])
    to_nowhere = CliRunner().invoke(cli_hooks.doctor, ["--json", "/dev/null/report.json"])
    # THEN
    assert table.exit_code == 0
    assert "ready" in table.output
    report = json.loads(to_stdout.output)
    assert report["backends"][0]["hook"] == str(path)
    assert report["interpreter"]["stacks"] is True
    assert json.loads((clinic.root / "report.json").read_text()) == report
    assert to_file.output == ""
    assert to_nowhere.exit_code == 1
    assert "cannot write /dev/null/report.json" in to_nowhere.output


def test_a_device_that_cannot_be_tried_does_not_forbid_the_hook(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a device that is full, or another process's alone
    make_child(world, monkeypatch, f"echo CUDA error: busy >&2; exit {hooks.NOT_TRIED}")
    # WHEN / THEN
    assert hooks.build("cpu", world.cache).is_file()


def test_one_kind_of_accelerator_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    monkeypatch.setattr(hooks, "_ready", {"cpu", "cuda"})
    # WHEN / THEN
    with pytest.raises(HookError, match="cuda and npu in one process: pytracer records one kind"):
        hooks.attach("npu")
