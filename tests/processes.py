"""Python programs in processes of their own, for the tests."""

import os
import subprocess
import sys
from pathlib import Path

Done = subprocess.CompletedProcess[str]


def environment(**changes: str) -> dict[str, str]:
    """A user who imports what we import and has set no option, on one thread of torch's."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTRACER") and name != "RANK"
    }
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **changes}


def run(
    program: str,
    *arguments: object,
    cwd: Path,
    env: dict[str, str] | None = None,
    timeout: int = 120,
) -> Done:
    """Runs a program's text, as a file in `cwd`, to its end."""
    file = cwd / "program.py"
    file.write_text(program)
    # From 3.12 on a fork is warned of where there are threads; torch has some.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", file.name]
    return subprocess.run(
        [*command, *map(str, arguments)],
        cwd=cwd,
        env=environment() if env is None else env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
