"""Test which compiler is used, its command line, and how its errors are quoted."""

import os
from pathlib import Path

import pytest
from hook_world import World

from pytracer.backends import hook_compile
from pytracer.backends.hook_compile import HookCompiler
from pytracer.errors import HookError


def test_cxx_that_cannot_be_run(world: World) -> None:
    # GIVEN
    world.environment["CXX"] = "no-such-compiler -O3"
    # WHEN / THEN
    with pytest.raises(HookError, match="CXX is 'no-such-compiler -O3'"):
        world.compiler().find_command()


@pytest.mark.parametrize("name", ["c++", "g++", "clang++"])
def test_compiler_from_the_path(world: World, name: str) -> None:
    # GIVEN
    directory = world.root / "bin"
    directory.mkdir()
    (directory / name).symlink_to(world.root / "c++")
    del world.environment["CXX"]
    world.environment["PATH"] = str(directory)
    # WHEN / THEN
    assert world.compiler().find_command() == [str(directory / name)]


def test_command_line(world: World) -> None:
    # WHEN
    world.builder().build("cpu", world.cache)
    # THEN
    arguments = world.compilations[0].split()
    lib = world.torch.root / "lib"
    expected = {"-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-std=c++20", "-lc10"}
    expected |= {"-D_GLIBCXX_USE_CXX11_ABI=1", f"-I{world.include}", f"-L{lib}"}
    assert expected | {f"-Wl,-rpath,{lib}"} <= set(arguments)


@pytest.mark.parametrize(("release", "is_found"), [("9.9.0", True), ("9.8.1", False)])
def test_headers_of_a_distribution(world: World, release: str, is_found: bool) -> None:
    # GIVEN a torch whose package has no headers, and headers of a release in another folder
    conda = world.root / "conda"
    conda.mkdir()
    world.include.rename(conda / "include")
    header = conda / "include/torch/headeronly/version.h"
    header.parent.mkdir(parents=True)
    parts = zip(("MAJOR", "MINOR", "PATCH"), release.split("."), strict=True)
    header.write_text("".join(f"#define TORCH_VERSION_{part} {n}\n" for part, n in parts))
    world.environment["CONDA_PREFIX"] = str(conda)
    # WHEN a hook is compiled, THEN the headers are found if they are of torch's release
    if is_found:
        world.builder().build("cpu", world.cache)
        assert f"-I{conda / 'include'} " in world.compilations[0]
        return
    with pytest.raises(HookError, match="or its development package"):
        world.builder().build("cpu", world.cache)


class PatchedCompiler(HookCompiler):
    """A compiler that looks up headers in a folder of patched ones first."""

    def __init__(self, patched: Path) -> None:
        super().__init__()
        self._patched = patched

    def include_dirs(self, backend: str) -> list[Path]:
        return [self._patched, *super().include_dirs(backend)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "builds"),
    [
        pytest.param("SEGMENT_MAP,", "RESIZED, SEGMENT_MAP,", False, marks=pytest.mark.long),
        ("ALLOC,", "NOTHING, ALLOC,", False),
        (" OOM", " OOM, LATER", True),
    ],
)
def test_a_torch_with_another_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, builds: bool
) -> None:
    # GIVEN the running torch's headers, with an action that pytracer does not know
    headers = HookCompiler().include_dirs("cuda")
    names = ("c10/core/CachingDeviceAllocator.h", "c10/cuda/CUDACachingAllocator.h")
    paths = [path for path in names if "enum Action {" in (headers[0] / path).read_text()]
    before, begin, enumerators = (headers[0] / paths[0]).read_text().partition("enum Action {")
    assert old in enumerators
    patched = tmp_path / "include" / paths[0]
    patched.parent.mkdir(parents=True)
    patched.write_text(before + begin + enumerators.replace(old, new, 1))
    compiler = PatchedCompiler(tmp_path / "include")
    monkeypatch.setattr(hook_compile, "STANDARDS", hook_compile.STANDARDS[:1])
    arguments = (compiler.find_command(), "cuda", tmp_path / "hook.so", ["-fsyntax-only"])
    # WHEN the hook is compiled
    if builds:
        # THEN it compiles if the new action is the last one, and events of this action are ignored
        compiler.compile(*arguments)
        return
    # AND it does not compile if events would be mislabelled
    with pytest.raises(HookError) as raised:
        compiler.compile(*arguments)
    assert "an action that this pytracer does not know; install a newer pytracer" in str(
        raised.value
    )


@pytest.mark.slow
def test_a_torch_whose_header_of_workspaces_does_not_compile(tmp_path: Path) -> None:
    # GIVEN a torch whose header needs another header of the CUDA toolkit
    patched = tmp_path / "include" / "ATen/cuda/CUDAContextLight.h"
    patched.parent.mkdir(parents=True)
    patched.write_text("#include <cublas_of_the_future.h>\n")
    compiler = PatchedCompiler(tmp_path / "include")
    # WHEN / THEN the hook compiles without this part
    arguments = (compiler.find_command(), "cuda", tmp_path / "hook.so", ["-O1"])
    compiler.compile(*arguments)
    assert b"handle_stream_to_workspace" not in (tmp_path / "hook.so").read_bytes()
    # AND for the torch as it is, the hook has it
    HookCompiler().compile(*arguments)
    assert b"handle_stream_to_workspace" in (tmp_path / "hook.so").read_bytes()


def test_old_compiler_gets_the_older_standard(world: World) -> None:
    # GIVEN
    (world.root / "old").touch()
    # WHEN
    path = world.builder().build("cpu", world.cache)
    # THEN
    assert path.exists()
    assert "-std=c++17" in world.compilations[1]


def test_compile_error_is_quoted_and_no_file_is_left(world: World) -> None:
    # GIVEN
    (world.root / "broken").touch()
    # WHEN
    with pytest.raises(HookError) as error:
        world.builder().build("cpu", world.cache)
    # THEN
    assert "cpu.cpp:3:1: error: boom" in str(error.value)
    assert "torch 9.9.0" in str(error.value)
    assert "PYTRACER_HOOK_DIR" in str(error.value)
    assert list(world.cache.iterdir()) == []


def test_a_compile_error_is_quoted_in_a_short_line_for_any_terminal(world: World) -> None:
    # GIVEN a compiler that writes a long line with terminal control codes
    (world.root / "c++").write_text("#!/bin/sh\nprintf 'error: \\033[2J%01000d' 0 >&2; exit 1\n")
    # WHEN
    with pytest.raises(HookError) as error:
        world.builder().build("cpu", world.cache)
    # THEN
    assert "failed: error: �[2J000" in str(error.value)
    assert "0" * 300 not in str(error.value)


def test_error_of_the_older_standard_is_quoted_for_an_old_compiler(world: World) -> None:
    # GIVEN
    (world.root / "old").touch()
    (world.root / "broken").touch()
    # WHEN / THEN
    with pytest.raises(HookError, match="error: boom"):
        world.builder().build("cpu", world.cache)


def test_a_compiler_that_hangs_is_ended(world: World) -> None:
    # GIVEN
    (world.root / "c++").write_text("#!/bin/sh\nexec sleep 60\n")
    builder = world.builder()
    builder.compiler.timeout_s = 0.5
    # WHEN / THEN
    with pytest.raises(HookError, match=r"C\+\+ compiler failed: .*timed out after 0\.5 seconds"):
        builder.build("cpu", world.cache)


def test_hook_gets_its_name_after_its_probe(world: World) -> None:
    # GIVEN
    target = world.cache / world.hook_name
    probed: list[Path] = []

    def probe(backend: str, path: Path) -> None:
        assert path.exists()
        assert not target.exists()
        probed.append(path)

    # WHEN, with a umask that lets the group write
    old_mask = os.umask(0o002)
    try:
        assert world.builder(probe).build("cpu", world.cache) == target
        target.rename(world.root / "first")
        assert world.builder(probe).build("cpu", world.cache) == target
    finally:
        os.umask(old_mask)
    # THEN each build used a temporary name of its own on the same file system, and only the hook
    # is left
    assert len(set(probed)) == 2
    assert all(world.cache in path.parents for path in probed)
    assert list(world.cache.iterdir()) == [target]
    assert world.builder().find("cpu") is not None


def test_compiler_uses_a_temporary_folder_inside_the_cache(world: World) -> None:
    # GIVEN
    compiler = world.root / "c++"
    compiler.write_text(compiler.read_text() + f'echo "$TMPDIR" > {world.root / "tmpdir"}\n')
    # WHEN
    world.builder().build("cpu", world.cache)
    # THEN
    assert str(world.cache) in (world.root / "tmpdir").read_text()


def test_build_into_an_unwritable_folder(world: World) -> None:
    # WHEN / THEN
    with pytest.raises(HookError, match=r"cannot write /dev/null/out.*Not a directory"):
        world.builder().build("cpu", Path("/dev/null/out"))
