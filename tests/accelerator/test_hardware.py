"""Try the short form of `make hardware` on the simulated device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "hardware.py"


@pytest.mark.slow
def test_each_kind_of_part_has_a_result(backend: str, tmp_path: Path) -> None:
    # WHEN the script runs its tests and two programs
    command = [sys.executable, str(SCRIPT), "--short", "--device", backend]
    command += ["--output", str(tmp_path)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    # THEN all succeed, and the results say what was found
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "hardware.json").read_text())
    tests, leak, module = found["parts"]
    assert " passed, 0 failed" in tests["result"]
    assert leak["result"].startswith("Harmless leak: ")  # of 4 KiB a step on an empty device
    assert "loops.py" in leak["result"]
    assert module["status"] == 0
    text = (tmp_path / "hardware.md").read_text()
    assert all(f"| {part['part']} | 0 |" in text for part in found["parts"])
