"""`python bench` runs every benchmark that there is."""

import re
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def test_every_script_is_run() -> None:
    # GIVEN the scripts that measure
    scripts = {path.stem for path in BENCH.glob("*.py") if '["--worker"]' in path.read_text()}
    # WHEN asked what there is
    done = subprocess.run(
        [sys.executable, str(BENCH), "--help"], capture_output=True, text=True, check=True
    )
    # THEN it is those
    (named,) = re.findall(r"\bof: ([\w,\s]+)\n\n", done.stdout)
    assert scripts == {"".join(name.split()) for name in named.split(",")}


def test_what_there_is_not_is_refused() -> None:
    for arguments in (["no_such"], ["--device", "cuda", "reading"]):
        done = subprocess.run(
            [sys.executable, str(BENCH), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stderr
        assert arguments[-1] in done.stderr
