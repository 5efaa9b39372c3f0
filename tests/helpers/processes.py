"""Run Python programs in separate processes, for the tests."""

import atexit
import contextlib
import functools
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warm_python import WarmPython

import pytracer
from pytracer.text import END_LINE

Done = subprocess.CompletedProcess[str]

FORKS_MAY_WARN = ("-W", "ignore::DeprecationWarning")
"""Since Python 3.12, a fork in a process with threads warns, and torch starts threads."""

HANG_S = 900  # the time after which a program hangs. A busy machine is slow, which is no failure


PATH = os.pathsep.join(map(os.path.abspath, sys.path))
"""The folders of the tests' modules, before a test imports what adds others, such as Ray."""

NOT_USUAL = (
    *("PYTRACER", "PYTEST_", "RANK", "SUITES"),
    *("TORCHINDUCTOR_", "TORCH_DEVICE_BACKEND_AUTOLOAD"),  # torch and torch_npu set them
)
"""How the variables begin that the programs of tests do not inherit from the tests."""


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of a user who has set no option of pytracer or pytest.

    The user's programs import the same packages as the tests, and torch uses one thread.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_USUAL)}
    return {**kept, "PYTHONPATH": PATH, "OMP_NUM_THREADS": "1", **changes}


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
    """Reset the ignored and blocked signals that this process inherited, also for its children.

    A shell without job control starts background processes with SIGINT ignored. SIGHUP is not
    reset, because nohup ignores it on purpose.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        is_interrupt = number == signal.SIGINT
        signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


@functools.cache
def warm_python() -> WarmPython:
    """Return the process that is forked for programs; it ends with the tests."""
    warm = WarmPython(USUAL)
    atexit.register(warm.end)
    return warm


def run(program: str, *arguments: object, cwd: Path, **options: Any) -> Done:
    """Run the text of a program, written to a file in `cwd`, to its end, as `run_python` does."""
    return run_python(*_command(program, arguments, cwd)[1:], cwd=cwd, **options)


def run_python(
    *arguments: object,
    cwd: Path,
    env: dict[str, str] | None = None,
    timeout: int = HANG_S,
    new: bool = False,
    is_finalised: bool = False,
) -> Done:
    """Run Python with these arguments to its end; the end line is taken out of its stderr.

    Args:
        arguments: Options of Python, a script or `-m` and a module or `-c` and code, and the
            program's arguments.
        cwd: The program's folder.
        env: Its environment; None: `environment()`.
        timeout: The seconds after which it is killed.
        new: Whether it runs in a new process, in place of a fork of `warm_python()`. A program
            that is started with variables of Python's or torch's import, or with options, always
            does.
        is_finalised: Whether the interpreter is finalised at the end of a fork, as it is in a new
            process.
    """
    command = [*map(str, arguments)]
    if command[:2] == list(FORKS_MAY_WARN):
        command = command[2:]
    env = environment() if env is None else env
    changes = _changes(env)
    if new or changes is None or (command[0].startswith("-") and command[0] not in ("-c", "-m")):
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    else:
        done = warm_python().run(command, str(cwd), changes, timeout, is_finalised)
    done.stderr = without_end_line(done.stderr)
    return done


READ_LATE = (
    *("PYTORCH_", "PYTRACER", "SIMULATED_CAPACITY_MB", "SIMULATED_NVML"),
    *("RANK", "WORLD_SIZE", "COLUMNS"),
    *("TORCH_CUBLAS_WORKSPACE_CACHE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE"),
    *("HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"),  # of packages that torch does not import
    *("DEVICE", "EARLY", "ENTRIES", "OUTPUT", "PART", "PATIENT", "REMEDY"),  # of programs of tests
)
"""How the variables begin that a program, or `warm_python.prepare`, reads after torch's import."""


USUAL = environment()
"""The environment of `warm_python()`: that of the tests, before one of them changes it."""


def _changes(env: dict[str, str]) -> dict[str, str | None] | None:
    """Return how `env` differs from `USUAL`; None: also in what is read with torch's import."""
    changed = {
        name: env.get(name)
        for name in USUAL.keys() | env.keys()
        if env.get(name) != USUAL.get(name)
    }
    return changed if all(name.startswith(READ_LATE) for name in changed) else None


def without_end_line(text: str) -> str:
    """Remove the line that names the snapshot at the program's end, which has its own tests."""
    return re.sub(rf"^{re.escape(END_LINE)}.*\n", "", text, flags=re.MULTILINE)


@contextlib.contextmanager
def start(program: str, *, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the program as `run` does, with pipes; kill it on leaving the `with` statement."""
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
    return [sys.executable, *FORKS_MAY_WARN, file.name, *map(str, arguments)]


def installed(folder: Path, **changes: str) -> dict[str, str]:
    """Return the environment of a user who has installed pytracer.

    When the tests run from a source tree, `folder` gets files that imitate an installation.
    """
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
