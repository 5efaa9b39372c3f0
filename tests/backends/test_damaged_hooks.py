"""Test that a compiled hook whose bytes changed is never loaded, but compiled again."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hook_world import World

from pytracer import log
from pytracer.backends.hook_folders import sealed
from pytracer.errors import HookError


@pytest.fixture(autouse=True)
def _nothing_logged_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_logged", set())


@pytest.fixture
def library() -> bytes:
    return Path(sys.modules["_ctypes"].__file__ or "").read_bytes()


def zeroed_page(content: bytes) -> bytes:
    return content[:4096] + bytes(4096) + content[8192:]


def one_bit(content: bytes) -> bytes:
    return content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]


def truncated(content: bytes) -> bytes:
    return content[:-1]


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def without_hash(content: bytes) -> bytes:
    return content[: content.rindex(b"\npytracer-sha256:")]


def zeroed_hash(content: bytes) -> bytes:
    return content[:-64] + bytes(64)


def empty(_: bytes) -> bytes:
    return b""


@pytest.mark.parametrize(
    "damage", [zeroed_page, one_bit, truncated, half, without_hash, zeroed_hash, empty]
)
@pytest.mark.parametrize("folder", ["cache", "private", "named"])
def test_a_damaged_hook_is_compiled_again(
    world: World,
    library: bytes,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[bytes], bytes],
    folder: str,
) -> None:
    # GIVEN a hook in a folder, whose bytes change
    (world.root / "named").mkdir(mode=0o755)
    world.environment["PYTRACER_HOOK_DIR"] = str(world.root / "named")
    directory = {"cache": world.cache, "private": world.private}.get(folder, world.root / "named")
    path = world.put_hook(directory)
    path.write_bytes(sealed(library))
    assert world.builder().find("cpu") is not None
    path.write_bytes(damage(sealed(library)))
    # WHEN
    with caplog.at_level(logging.WARNING, "pytracer"):
        world.hooks().attach("cpu")
        world.hooks().attach("cpu")
    # THEN it is compiled once, and one line says why
    assert world.attached == [str(world.cache / world.hook_name)] * 2
    assert len(world.compilations) == 1
    (line,) = (text for text in caplog.messages if "compiling the hook" not in text)
    assert f"the hook {path} is not loaded: it is damaged" in line


def test_a_damaged_hook_where_compiling_is_forbidden(world: World) -> None:
    # GIVEN
    path = world.put_hook(world.cache)
    path.write_bytes(zeroed_page(path.read_bytes() * 1000))
    world.environment["PYTRACER_BUILD"] = "never"
    # WHEN / THEN
    with pytest.raises(HookError, match="PYTRACER_BUILD=never"):
        world.hooks().attach("cpu")
    assert world.attached == []
