"""Test builds in folders that are full or noexec, and builds whose process is killed."""

import contextlib
import errno
import logging
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hook_world import World, set_age
from processes import HANG_S

from pytracer import log
from pytracer.backends import hook_build
from pytracer.backends.probe_process import probe_in_child
from pytracer.errors import HookError


@pytest.fixture(autouse=True)
def _nothing_logged_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_logged", set())


Manipulation = Callable[[pytest.MonkeyPatch, Path], None]


def make_noexec(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Report the file system of `folder` as mounted noexec."""
    original = os.statvfs

    def statvfs(path: str) -> os.statvfs_result:
        values = list(original(path))
        if Path(path).is_relative_to(folder):
            values[8] |= os.ST_NOEXEC
        return os.statvfs_result(values)

    patch.setattr(os, "statvfs", statvfs)


def make_full(patch: pytest.MonkeyPatch, folder: Path, error: int = errno.ENOSPC) -> None:
    """Let `fsync` report a full disk in `folder`, as network file systems do."""
    original = os.fsync

    def fsync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder)):
            raise OSError(error, os.strerror(error))
        original(descriptor)

    patch.setattr(os, "fsync", fsync)


def exceed_quota(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let `fsync` report that the user's quota is exceeded."""
    make_full(patch, folder, errno.EDQUOT)


CAUSES = [
    (make_noexec, "mounted noexec"),
    (make_full, "No space left on device"),
    (exceed_quota, "Disk quota exceeded"),
]


@pytest.mark.parametrize(("manipulate", "cause"), CAUSES)
def test_the_private_folder_is_next(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    manipulate: Manipulation,
    cause: str,
) -> None:
    # GIVEN
    manipulate(monkeypatch, world.cache)
    # WHEN two processes start
    with caplog.at_level(logging.WARNING, "pytracer"):
        world.hooks().attach("cpu")
        world.hooks().attach("cpu")
    # THEN the hook is compiled once, and one line names the cause
    assert world.attached == [str(world.private / world.hook_name)] * 2
    assert len(world.compilations) == 1
    (line,) = (text for text in caplog.messages if "compiling the hook" not in text)
    assert f"the hook is kept in {world.private}, because of {world.cache}: " in line
    assert cause in line


@pytest.mark.parametrize(("manipulate", "cause"), CAUSES)
def test_the_message_names_the_cause_and_nothing_is_compiled(
    world: World, monkeypatch: pytest.MonkeyPatch, manipulate: Manipulation, cause: str
) -> None:
    # GIVEN
    manipulate(monkeypatch, world.cache)
    manipulate(monkeypatch, world.private)
    # WHEN
    with pytest.raises(HookError) as error:
        world.hooks().attach("cpu")
    # THEN
    assert str(error.value).count(cause) == 2
    assert "compil" not in str(error.value).partition(";")[0]
    assert world.compilations == []


@pytest.mark.parametrize("folder", ["cache", "named"])
def test_a_hook_on_a_file_system_that_became_noexec(
    world: World, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    # GIVEN
    world.environment["PYTRACER_HOOK_DIR"] = str(world.root / "named")
    directory = world.cache if folder == "cache" else world.root / "named"
    world.put_hook(directory)
    # WHEN
    make_noexec(monkeypatch, directory)
    world.hooks().attach("cpu")
    # THEN
    assert len(world.attached) == 1
    assert not Path(world.attached[0]).is_relative_to(directory)


def test_a_folder_that_becomes_full_during_the_build(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a compiler that does not say why it failed
    def probe(backend: str, path: Path) -> None:
        if path.is_relative_to(world.cache):
            make_full(monkeypatch, world.cache)
            raise HookError("ld returned 1")

    # WHEN
    world.hooks(probe).attach("cpu")
    # THEN
    assert world.attached == [str(world.private / world.hook_name)]


def test_a_compiler_that_fails_runs_once(world: World) -> None:
    # GIVEN
    (world.root / "broken").touch()
    # WHEN
    with pytest.raises(HookError, match="boom"):
        world.hooks().attach("cpu")
    # THEN
    assert {line.partition(" -o ")[2].startswith(str(world.cache)) for line in world.compilations}
    assert not list(world.private.glob(".build-*"))


def fork(work: Callable[[], object]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork in a process with threads
        child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            work()
        os._exit(1)
    return child


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def slow_program(world: World, *names: str) -> list[Path]:
    """Make programs of two processes each, which write their process ids and wait."""
    files = []
    for name in names:
        path, pids = world.root / name, world.root / f"{name}.pids"
        path.write_text(
            f"#!/bin/sh\nsleep 60 &\necho $$ $! > {pids}.new\nmv {pids}.new {pids}\nwait\n"
        )
        path.chmod(0o755)
        files.append(pids)
    return files


@pytest.mark.parametrize("killed", ["compiler", "trial"])
def test_what_a_killed_start_leaves(world: World, killed: str) -> None:
    # GIVEN a start that is killed while the compiler or the hook's trial runs
    (file,) = slow_program(world, killed)
    command = str(world.root / killed)
    environment = {"CXX": command} if killed == "compiler" else {}

    def start() -> None:
        world.environment |= environment
        hooks = world.hooks(lambda backend, hook: probe_in_child(backend, hook, python=[command]))
        hooks.attach("cpu")

    child = fork(start)
    wait_until(file.exists)
    processes = list(map(int, file.read_text().split()))
    assert list(world.cache.glob(".build-*"))
    assert all(map(is_alive, processes))
    # WHEN
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    # THEN the processes that it started end
    wait_until(lambda: not any(map(is_alive, processes)))
    # WHEN the next start builds, later
    set_age(*world.cache.glob(".build-*"), int(hook_build.ABANDONED_S) + 60)
    world.hooks().attach("cpu")
    # THEN its folder is gone (a key is cached if the machine is so slow that its files are old)
    left = [path.name for path in world.cache.iterdir()]
    assert left == [world.hook_name]


def test_a_compiler_that_takes_too_long_ends_with_its_processes(world: World) -> None:
    # GIVEN
    (file,) = slow_program(world, "compiler")
    world.environment["CXX"] = str(world.root / "compiler")
    builder = world.builder()
    builder.compiler.timeout_s = 0.3
    # WHEN
    with pytest.raises(HookError, match=r"compiler'.* timed out after 0\.3 seconds") as error:
        builder.build("cpu", world.cache)
    # THEN
    assert "PPid" not in str(error.value)
    processes = map(int, file.read_text().split())
    wait_until(lambda: not any(map(is_alive, processes)))


def test_a_compiler_that_makes_a_pipe_is_not_waited_for(world: World) -> None:
    # GIVEN
    compiler = world.root / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nmkfifo "$2"\n')
    compiler.chmod(0o755)
    world.environment["CXX"] = str(compiler)
    # WHEN / THEN
    with pytest.raises(HookError, match=r"wrote no library: .* is not a regular file"):
        world.builder().build("cpu", world.cache)
    assert not (world.cache / world.hook_name).exists()


def test_temporary_files_of_running_builds_stay(world: World) -> None:
    # GIVEN the folder of a running build, and what builds left that were killed long ago
    world.cache.mkdir(parents=True)
    running, *gone = (world.cache / f".build-{name}" for name in ("new", "old"))
    for folder in (running, *gone):
        folder.mkdir()
        (folder / "hook.so").touch()
    gone.append(world.cache / ".pytracer-4-00000000.tmp")
    gone[-1].touch()
    for path in gone:
        set_age(path, int(hook_build.ABANDONED_S) + 60)
    # WHEN
    world.hooks().attach("cpu")
    # THEN
    assert {*world.cache.iterdir()} == {running, world.cache / world.hook_name}
