"""Test what a process that is killed at a random moment leaves of an accelerator's memory."""

from pathlib import Path

import killed_programs
import pytest
from amount import amount


@pytest.mark.parametrize("seed", range(amount(2, 600)))
def test_a_killed_process_leaves_what_it_had_recorded(
    seed: int, backend: str, tmp_path: Path
) -> None:
    # Event by event, and live block by live block, but for what was in flight
    killed_programs.check(tmp_path, seed, backend, is_changing=bool(seed % 2))
