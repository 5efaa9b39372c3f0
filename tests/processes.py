"""Python programs in processes of their own, for the tests."""

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytracer

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
    return run_python(*_command(program, arguments, cwd)[1:], cwd=cwd, env=env, timeout=timeout)


def run_python(
    *arguments: object, cwd: Path, env: dict[str, str] | None = None, timeout: int = 120
) -> Done:
    """Runs Python with these arguments, to its end."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=environment() if env is None else env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@contextlib.contextmanager
def start(program: str, *, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Starts what `run` runs, with pipes; it is killed if it still runs at the end."""
    pipe = subprocess.PIPE
    command = _command(program, (), cwd)
    with subprocess.Popen(
        command, cwd=cwd, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _command(program: str, arguments: tuple[object, ...], cwd: Path) -> list[str]:
    file = cwd / "program.py"
    file.write_text(program)
    # From 3.12 on a fork is warned of where there are threads; torch has some.
    options = ["-W", "ignore::DeprecationWarning"]
    return [sys.executable, *options, file.name, *map(str, arguments)]


def installed(folder: Path, **changes: str) -> dict[str, str]:
    """The same of a user who has installed pytracer; from a source tree, `folder` pretends that."""
    if importlib.util.find_spec("_torch_pytracer") is None:
        root = Path(pytracer.__file__).parents[1]
        about = folder / "torch_pytracer-0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Name: torch-pytracer\nVersion: 0\n")
        project = (root / "pyproject.toml").read_text()
        (entry,) = re.findall(r'entry-points."torch.backends"\]\npytracer = "(.+)"', project)
        (about / "entry_points.txt").write_text(f"[torch.backends]\npytracer = {entry}\n")
        startup = str(root / "startup")
        (folder / "sitecustomize.py").write_text(
            f"import site\nsite.addpackage({startup!r}, 'torch_pytracer.pth', None)\n"
        )
        path = os.pathsep.join((str(folder), startup, environment()["PYTHONPATH"]))
        changes = {"PYTHONPATH": path, **changes}
    return environment(**changes)
