"""Provide the `world` fixture, in which the tests of this folder use hooks."""

from pathlib import Path

import pytest
from hook_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
