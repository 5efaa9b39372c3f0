"""Test that one process of a node builds a hook while the others wait for it."""

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest
from hook_world import OtherBuilder, World

from pytracer.errors import HookError


def test_waiting_is_bounded(world: World) -> None:
    # GIVEN a builder that never ends
    builder = OtherBuilder(world)
    # WHEN
    begin = time.monotonic()
    with pytest.raises(HookError, match=r"another process has been building.*more than 0.3 s"):
        world.hooks(wait_s=0.3).attach("cpu")
    # THEN
    assert 0.3 <= time.monotonic() - begin < 60
    assert world.compilations == []
    builder.finish()


def test_a_missing_lock_package_does_not_prevent_the_build(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    monkeypatch.setitem(sys.modules, "filelock", None)
    # WHEN
    world.hooks().attach("cpu")
    # THEN
    assert world.attached == [str(world.cache / world.hook_name)]


@pytest.mark.parametrize("failing", ["acquire", "release"])
@pytest.mark.parametrize(
    "failure", [OSError("no locks"), NotImplementedError("no flock"), UserWarning("a soft lock")]
)
def test_a_lock_that_fails_does_not_prevent_the_build(
    world: World, monkeypatch: pytest.MonkeyPatch, failing: str, failure: Exception
) -> None:
    # GIVEN
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(filelock.FileLock, failing, fail)
    # WHEN
    world.hooks().attach("cpu")
    # THEN
    assert world.attached == [str(world.cache / world.hook_name)]


def test_a_lock_that_fails_while_waiting_does_not_prevent_the_build(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a lock that another process holds, and that fails when this process waits for it
    def acquire(_: object, timeout: float | None = None, blocking: bool = True) -> None:
        raise filelock.Timeout("the lock") if not blocking else NotImplementedError("no flock")

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    # WHEN
    world.hooks().attach("cpu")
    # THEN
    assert len(world.compilations) == 1


def test_waiter_takes_the_builders_hook(world: World) -> None:
    # GIVEN
    builder = OtherBuilder(world)

    def build() -> None:
        world.put_hook(world.cache)
        builder.finish()

    timer = threading.Timer(0.3, build)
    timer.start()
    # WHEN
    world.hooks().attach("cpu")
    timer.join()
    # THEN
    assert world.attached == [str(world.cache / world.hook_name)]
    assert world.compilations == []


def test_waiter_takes_over_the_builders_failure(world: World) -> None:
    # GIVEN
    builder = OtherBuilder(world)
    timer = threading.Timer(0.3, builder.finish, ["the compiler is broken"])
    timer.start()
    # WHEN
    with pytest.raises(HookError, match="the compiler is broken"):
        world.hooks().attach("cpu")
    timer.join()
    # THEN
    assert world.compilations == []
    # WHEN a later process attaches, which does not have to wait
    world.hooks().attach("cpu")
    # THEN it builds, and the reason of the earlier failure is deleted
    assert len(world.compilations) == 1
    assert not builder.reason_file.exists()


def test_builder_leaves_its_failure_to_the_waiters(world: World) -> None:
    # GIVEN
    (world.root / "broken").touch()
    # WHEN
    with pytest.raises(HookError) as error:
        world.hooks().attach("cpu")
    # THEN
    reason_file = world.private / Path(world.hook_name).with_suffix(".so.failed")
    assert reason_file.read_text() == str(error.value)


def test_waiter_builds_if_the_builder_was_killed(world: World) -> None:
    # GIVEN
    builder = OtherBuilder(world)
    timer = threading.Timer(0.3, builder.finish)
    timer.start()
    # WHEN
    world.hooks().attach("cpu")
    timer.join()
    # THEN
    assert len(world.compilations) == 1


@pytest.fixture
def children() -> Iterator[list[int]]:
    """Collect the process ids of forked children, which are killed at the end."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def fork_a_sleeper() -> int:
    """Fork a child that sleeps for a minute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork in a process with threads
        child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    return child


def test_a_child_forked_during_a_build_does_not_keep_the_lock(
    world: World, children: list[int]
) -> None:
    # GIVEN a build during which another thread forks a process, as a DataLoader does
    def probe(backend: str, path: Path) -> None:
        children.append(fork_a_sleeper())

    world.hooks(probe).attach("cpu")
    (world.cache / world.hook_name).unlink()
    # WHEN another process builds while the child lives
    world.hooks(wait_s=0.3).attach("cpu")
    # THEN it does not wait for the child
    assert len(world.compilations) == 2
    os.waitpid(children[0], os.WNOHANG)


def test_the_child_of_a_killed_builder_does_not_keep_the_lock(
    world: World, children: list[int]
) -> None:
    # GIVEN a builder that forks a child, and is killed in the middle of the build
    read, write = os.pipe()

    def probe(backend: str, path: Path) -> None:
        os.write(write, str(fork_a_sleeper()).encode())
        time.sleep(0.5)  # until the child has run
        os.kill(os.getpid(), signal.SIGKILL)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        builder = os.fork()
    if builder == 0:
        world.hooks(probe).attach("cpu")
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(builder, 0)[1]) == signal.SIGKILL
    children.append(int(os.read(read, 20)))
    os.close(read)
    os.close(write)
    # WHEN another process builds while the child lives
    world.hooks(wait_s=0.3).attach("cpu")
    # THEN it does not wait for the child
    assert len(world.compilations) == 2
    assert Path(f"/proc/{children[0]}").exists()
