"""The front end's folder with its packages, for tests that need them."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
import tools

WEB = Path(__file__).parents[2] / "web"
TIMEOUT_S = 180


@pytest.fixture(scope="session")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy web/ and install its locked packages, which needs npm and its registry."""
    npm = tools.program("npm")
    folder = tmp_path_factory.mktemp("checkout") / "web"
    shutil.copytree(WEB, folder, ignore=shutil.ignore_patterns("node_modules", "build"))
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"]
    environment = {**os.environ, "npm_config_update_notifier": "false"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        tools.missing(f"npm cannot install the packages of web/ within {TIMEOUT_S} s")
    if done.returncode != 0:
        last = (done.stderr.strip() or "npm ci failed").splitlines()[-1]
        # A lock file that does not fit is an error of ours; all others are of the registry.
        assert "EUSAGE" not in done.stderr, done.stderr
        tools.missing(f"npm cannot install the packages of web/: {last}")
    return folder


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser.driver() as running:
        yield running


@pytest.fixture(scope="module")
def chromium(driver: Any) -> Iterator[Any]:
    with browser.started(driver) as started:
        yield started


@pytest.fixture(scope="module")
def firefox(driver: Any) -> Iterator[Any]:
    with browser.started(driver, "firefox") as started:
        yield started


@pytest.fixture
def each_browser(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)
