"""The command line, the demo behind it, and the example, as somebody types them."""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import viewers
from click.testing import CliRunner

import pytracer
from pytracer.cli import main
from pytracer.errors import PytracerError
from pytracer.reading import load
from pytracer.reading.about import about_device
from pytracer.reading.sites import sites_in_the_end
from pytracer.reading.stats import stats

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def env() -> dict[str, str]:
    """Imports what we import; one thread, so as not to wait for busy cores."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTRACER")}
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def run(*arguments: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_commands_are_there() -> None:
    with click.Context(main) as context:
        assert main.list_commands(context) == [
            *("build-hooks", "demo", "diff", "doctor", "experiment", "export"),
            *("replay", "run", "stats"),
        ]


def test_version_of_the_module_run_as_a_program(env: dict[str, str], tmp_path: Path) -> None:
    done = run("-m", "pytracer", "--version", env=env, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"pytracer, version {pytracer.__version__}\n"


def test_help_does_not_wait_for_torch(env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN an interpreter in which torch cannot be imported
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was imported')")
    env["PYTHONPATH"] = str(tmp_path) + os.pathsep + env["PYTHONPATH"]
    # WHEN help is asked for, THEN it comes
    done = run("-m", "pytracer", "demo", "--help", env=env, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--steps" in done.stdout


def test_demo(env: dict[str, str], tmp_path: Path) -> None:
    # WHEN the demo runs for a few steps
    done = run("-m", "pytracer", "demo", "--steps", "8", env=env, cwd=tmp_path)

    # THEN it leaves a snapshot that viewers open, named as it says
    assert (done.returncode, done.stderr) == (0, "")
    path = tmp_path / "pytracer_demo.pickle"
    viewers.check_opcodes(path.read_bytes())
    viewers.check_snapshot(pickle.loads(path.read_bytes()))
    assert "segments: " in viewers.run_memory_viz(path, "stats")
    assert f"python -m torch.cuda._memory_viz stats {path.name}" in done.stdout

    # AND the loss falls
    told = re.search(r"loss (\S+) → (\S+) in 8 steps", done.stdout)
    assert told is not None
    first, last = map(float, told.groups())
    assert last < 0.8 * first

    # AND the model and the optimizer's state are still there at the end, the activations are not
    snapshot = load(path)
    (device,) = stats(snapshot).devices
    peak, end = device.peak_allocated, device.end
    assert peak is not None
    assert 0 < end.allocated_bytes < peak.allocated_bytes
    parameters = 421_440
    assert 4 * 4 * parameters <= end.allocated_bytes < 4.2 * 4 * parameters

    # AND what is printed is what is in the file: the peak, and the sites, largest first
    assert f"peak {peak.allocated_bytes / 2**20:.4g} MiB, after event {peak.event};" in done.stdout
    sites = device.sites[:10]
    printed = re.findall(r"│ +([\d.]+ [KM]?i?B) │ +(\d+) │ (\S+):(\d+) (\S+) +│", done.stdout)
    found = [(s.count, s.call_site.line, s.call_site.name) for s in sites if s.call_site]
    assert [(int(count), int(line), name) for _, count, _, line, name in printed] == found
    assert sum(file == "pytracer/demo.py" for _, _, file, _, _ in printed) >= 8
    recorded = about_device(snapshot, 0)["recorded"]
    assert f"{recorded} events recorded, 0 overwritten" in done.stdout


def test_demo_on_a_machine_without_a_hook(env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN a user with no hook and no permission to build one
    env |= {"PYTRACER_BUILD": "never", "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    env |= {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    # WHEN the demo runs
    done = run("-m", "pytracer", "demo", "--steps", "1", env=env, cwd=tmp_path)
    # THEN it fails with one line of its own, which says why
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert re.search(r"^Error: nothing was recorded: .*PYTRACER_BUILD.*\n\Z", done.stderr, re.M)


def test_the_example(env: dict[str, str], tmp_path: Path) -> None:
    # WHEN the example runs somewhere
    done = run(str(EXAMPLES / "train_transformer.py"), env=env, cwd=tmp_path)
    # THEN it leaves the snapshot it names there
    assert (done.returncode, done.stderr) == (0, "")
    assert "snapshot.pickle" in done.stdout
    sites = sites_in_the_end(load(tmp_path / "snapshot.pickle"), 0)
    assert any(s.call_site and s.call_site.filename.endswith(".py") for s in sites)
    assert any(frame.filename.endswith("train_transformer.py") for frame in sites[0].frames)


@pytest.mark.parametrize("steps", ["0", "-3", "many"])
def test_steps_that_make_no_sense(steps: str) -> None:
    result = CliRunner().invoke(main, ["demo", "--steps", steps])
    assert result.exit_code == 2
    assert "--steps" in result.output
    assert steps in result.output


@pytest.mark.parametrize(
    ("output", "message"),
    [("demo.json", "output='demo.json': the demo writes"), ("file/x.pickle", "cannot be written")],
)
def test_an_output_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, message: str
) -> None:
    # GIVEN a folder in which `file` is a file
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    # WHEN the demo is to write there, THEN one line says what is wrong
    result = CliRunner().invoke(main, ["demo", "--output", output])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert message in result.output
    assert result.output.count("\n") == 1


def test_an_error_of_ours_is_a_line_and_any_other_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a command that fails in the way it was told
    def fail(error: Exception) -> None:
        raise error

    # WHEN it fails on purpose, THEN one line says so
    command = click.Command("fail", callback=lambda: fail(PytracerError("no such thing: 7")))
    monkeypatch.setitem(main.commands, "fail", command)
    result = CliRunner().invoke(main, ["fail"])
    assert (result.exit_code, result.output) == (1, "Error: no such thing: 7\n")

    # WHEN it is a defect, THEN nothing hides it
    command = click.Command("fail", callback=lambda: fail(ValueError("a defect")))
    monkeypatch.setitem(main.commands, "fail", command)
    assert isinstance(CliRunner().invoke(main, ["fail"]).exception, ValueError)
