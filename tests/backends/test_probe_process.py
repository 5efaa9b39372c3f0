"""Test the trial of a hook in a child process."""

import functools
import sys
from pathlib import Path

import pytest
from hook_world import World

from pytracer.backends.hook_build import Probe
from pytracer.backends.probe_process import NOT_TRIED, PASSED, REFUSED, probe_in_child
from pytracer.errors import HookError


def probe_with(world: World, script: str, timeout_s: float = 60.0) -> Probe:
    """Return a probe whose interpreter is a shell script."""
    child = world.root / "python"
    child.write_text(f"#!/bin/sh\n{script}\n")
    child.chmod(0o755)
    return functools.partial(probe_in_child, python=[str(child)], timeout_s=timeout_s)


def test_probe_runs_untraced_with_this_process_modules(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    write = f'echo "$PYTRACER $PYTHONPATH $@" > {world.root}/call'
    probe = probe_with(world, f"{write}; echo {PASSED}")
    monkeypatch.setattr(sys, "path", ["", "/somewhere"])
    # WHEN
    probe("cpu", world.root / "hook.so")
    # THEN
    call = f"0 {Path.cwd()}:/somewhere -m pytracer.backends.hook_probe cpu {world.root}/hook.so\n"
    assert (world.root / "call").read_text() == call


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("kill -SEGV $$", r"died of SIGSEGV \(it wrote no message\)"),
        ("echo first >&2; echo last words >&2; kill -ABRT $$", r"died of SIGABRT \(last words\)"),
        ("echo HookError: no >&2; exit 9", r"exited with code 9 \(HookError: no\)"),
        (f"echo first >&2; echo no mood >&2; exit {REFUSED}", r"^no mood$"),
        ("exec sleep 60", r"took longer than 1 s"),
        ("exit 0", r"exited with code 0 \(it wrote no message\)"),  # a library may call exit()
        ("printf '\\033[2J%01000d' 0 >&2; exit 9", r"code 9 \(�\[2J0{280,300}…\)"),
    ],
)
def test_the_error_reports_how_the_child_ended(world: World, script: str, message: str) -> None:
    # GIVEN
    probe = probe_with(world, script, timeout_s=1)
    # WHEN / THEN
    with pytest.raises(HookError, match=message):
        world.builder(probe).build("cpu", world.cache)
    assert list(world.cache.iterdir()) == []


def test_probe_that_cannot_start(world: World) -> None:
    # GIVEN a program that embeds Python
    python = [str(world.root / "no-python")]
    # WHEN / THEN
    with pytest.raises(HookError, match="could not start"):
        probe_in_child("cpu", world.root / "hook.so", python=python)


def test_a_device_that_cannot_be_tried_does_not_forbid_the_hook(world: World) -> None:
    # GIVEN a device whose memory is full, or that another process uses exclusively
    probe = probe_with(world, f"echo CUDA error: busy >&2; exit {NOT_TRIED}")
    # WHEN / THEN
    assert world.builder(probe).build("cpu", world.cache).is_file()


def test_the_running_interpreter_is_used(world: World) -> None:
    # WHEN a file that is not a library is tried, THEN this interpreter's loader refuses it
    hook = world.root / "hook.so"
    hook.write_text("not a library")
    with pytest.raises(HookError, match=r"hook\.so.*(file too short|invalid ELF header)"):
        probe_in_child("cpu", hook)
