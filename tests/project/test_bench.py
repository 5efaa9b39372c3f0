"""Tests of `python bench`, which runs every benchmark."""

import re
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def test_every_script_is_run() -> None:
    # GIVEN the scripts that measure something
    texts = {path.stem: path.read_text() for path in BENCH.glob("*.py")}
    form = r'__name__(.|\n)*(\["--worker"\]|start\(main)|\ndef measured\('
    scripts = {name for name, text in texts.items() if re.search(form, text)}
    # WHEN the help lists the benchmarks
    done = subprocess.run(
        [sys.executable, str(BENCH), "--help"], capture_output=True, text=True, check=True
    )
    # THEN it lists these scripts
    (named,) = re.findall(r"\bof: ([\w,\s]+)\n\n", done.stdout)
    assert scripts == {"".join(name.split()) for name in named.split(",")}


def test_an_unknown_benchmark_is_refused() -> None:
    for arguments in (["no_such"], ["--device", "cuda", "reading"]):
        done = subprocess.run(
            [sys.executable, str(BENCH), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stderr
        assert arguments[-1] in done.stderr
