"""Run an attack in a separate process, and describe the run: machine, versions, commit."""

import ast
import contextlib
import datetime
import importlib
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attack import Budget

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results"
CUDA_PYTHON = ROOT / ".venv-cuda-2.12.1/bin/python"
GRACE_SECONDS = 180.0  # the time to finish the last case on a busy machine
KEPT_FAILURES = 50

for _folder in (HERE, ROOT / "tests/devices", ROOT / "tests/helpers", ROOT / "tests"):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))


def names() -> list[str]:
    """Return the names of all attacks, in order."""
    return sorted(path.stem for path in (HERE / "attacks").glob("[a-z]*.py"))


@dataclass(frozen=True)
class Facts:
    """The description of an attack in its source."""

    title: str
    device: str
    seconds: float


def facts(name: str) -> Facts:
    """Read an attack's source without running the attack's imports."""
    source = ast.parse((HERE / "attacks" / f"{name}.py").read_text())
    values = {
        target.id: ast.literal_eval(node.value)
        for node in source.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in ("DEVICE", "SECONDS")
    }
    title = (ast.get_docstring(source) or name).splitlines()[0]
    return Facts(title, values["DEVICE"], values["SECONDS"])


def run_here(name: str, seconds: float, seed: int, file: Path) -> None:
    """Run an attack in this process, and write its outcome and this process's versions."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        module = importlib.import_module(f"attacks.{name}")
        outcome = module.attack(Budget(seconds, seed, Path(folder)))
    found = {"promise": module.PROMISE, **asdict(outcome), "environment": environment()}
    found["figures"] = {name: round(value, 3) for name, value in outcome.figures.items()}
    file.write_text(json.dumps(found))


def run_in_process(
    name: str, seconds: float, seed: int, folder: Path, cuda_python: Path
) -> dict[str, Any] | str:
    """Run an attack in a child process.

    Returns:
        The entry of the result file, or why the attack cannot run on this machine.
    """
    attack = facts(name)
    python: Sequence[str] = [sys.executable]
    if attack.device == "cuda":
        if not cuda_python.exists():
            return f"there is no {cuda_python} (make test-cuda-2.12.1 makes it)"
        python = [str(ROOT / "tests/devices/simulate"), "cuda", str(cuda_python)]
    file = folder / "outcome.json"
    command = [*python, str(HERE), name, "--here", "--seconds", str(seconds), "--seed", str(seed)]
    scratch = folder / "scratch"
    scratch.mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTRACER")}
    begin = time.monotonic()
    env = {**kept, "TMPDIR": str(scratch)}
    problem = _run([*command, "--json", str(file)], env, seconds, file)
    entry: dict[str, Any] = {
        "title": attack.title,
        "promise": "",
        "device": attack.device,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "seed": seed,
        "seconds": seconds,
        "took_seconds": round(time.monotonic() - begin, 1),
        **{"tried": 0, "unit": "cases", "failures": [], "figures": {}, "skipped": []},
        "environment": environment(),
    }
    if file.exists():
        entry |= json.loads(file.read_text())
    if problem is None and entry["tried"] == 0 and not entry["skipped"]:
        problem = "the attack has tried nothing"
    if problem is not None:
        entry["failures"].append(problem)
    entry["failed"] = len(entry["failures"])
    del entry["failures"][KEPT_FAILURES:]
    return entry


def _run(command: list[str], env: dict[str, str], seconds: float, file: Path) -> str | None:
    """Run a command that writes a file; return the problem of its process, or None."""
    with (
        tempfile.TemporaryFile("w+", errors="replace") as output,
        subprocess.Popen(
            command, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        ) as process,
    ):
        try:
            status = process.wait(2 * seconds + GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return f"the attack did not end within {2 * seconds + GRACE_SECONDS:.0f} s"
        finally:  # also ends processes that the attack has started and left
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if status == 0 and file.exists():
            return None
        output.seek(0)
        last = (output.read().strip().splitlines() or ["no message"])[-1]
        return f"the attack's process ended with status {status}: {last}"


def commit() -> str | None:
    """Return the commit of the sources, with a "+" if they were changed; None if unknown."""
    head = _git("rev-parse", "--short", "HEAD")
    generated = [":!tests/reliability/results"]
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *generated)
    return f"{head}+" if head and changes else head


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def environment() -> dict[str, Any]:
    """Return the machine and the versions, without importing torch."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    versions = {}
    for name, distribution in (("torch", "torch"), ("pytracer", "torch-pytracer")):
        try:
            versions[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **versions,
    }
