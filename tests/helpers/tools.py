"""Programs and packages that only some tests need, and that `make dev` does not install.

If its tool is missing, a test is skipped. With REQUIRE_TOOLS=1, which `.ci/run` sets, it fails.
"""

import importlib.util
import os
import shutil
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it if tools are required."""
    if os.environ.get("REQUIRE_TOOLS") == "1":
        pytest.fail(f"{reason} (REQUIRE_TOOLS=1 forbids to skip the test)", pytrace=False)
    pytest.skip(reason)


def program(*names: str) -> str:
    """Return the path of a program that has one of these names; the first is Debian's package."""
    path = next(filter(None, map(shutil.which, names)), None)
    return path or missing(f"{names[0]} is not installed: apt-get install {names[0]}")


def packages(*names: str, source: str = "tests/integrations/requirements.txt") -> None:
    """Check that packages are installed, without importing them: programs of tests do that."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            missing(f"{name} is not installed: {source} lists it")
