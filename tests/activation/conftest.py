"""The environment of the programs of these tests."""

import processes
import pytest
from unmodified_programs import Env


@pytest.fixture
def env(tmp_path_factory: pytest.TempPathFactory) -> Env:
    return processes.installed(tmp_path_factory.mktemp("installed"))
