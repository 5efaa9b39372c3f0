"""Test the functions for `on_snapshot`, with the real packages, in programs of their own."""

import importlib
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tools
from processes import Done, environment, installed, run, without_end_line

import pytracer
from pytracer.integrations import fsspec, helper_process
from pytracer.integrations.helper_process import remote_name
from pytracer.integrations.packages import MissingPackageError

STEPS = """
import pytracer
import torch

kept = []
tracer = pytracer.Tracer().start()  # writes the last file while the interpreter ends
for step in range(1, 4):
    kept.append(torch.ones(step * 100_000))
    tracer.step()
"""

OPTIONS = {"PYTRACER_OUTPUT": "out", "PYTRACER_DEVICE": "cpu"}


def done(program: str, folder: Path, function: str, **variables: str) -> Done:
    name = f"pytracer.integrations.{function}"
    env = installed(folder, **OPTIONS, PYTRACER_ON_SNAPSHOT=name, **variables)
    return run(program, cwd=folder, env=env)


def files(folder: Path) -> dict[str, int]:
    """Return the snapshots in a folder, and the number of allocations of each."""
    found = {}
    for path in sorted(folder.rglob("*.pickle")):
        (trace,) = pickle.loads(path.read_bytes())["device_traces"]
        name = path.relative_to(folder).as_posix()
        found[name] = sum(event["action"] == "alloc" for event in trace)
    return found


@pytest.mark.parametrize("steps", ["1,2", ""], ids=["of steps", "at the end"])
def test_fsspec(tmp_path: Path, steps: str) -> None:
    # GIVEN a job that writes snapshots of steps, or while its interpreter ends
    target = tmp_path / "bucket"
    # WHEN the variables ask for uploads
    (tmp_path / "program.py").write_text(STEPS)
    env = environment(
        **OPTIONS,
        PYTRACER_ON_SNAPSHOT="pytracer.integrations.fsspec:upload",
        PYTRACER_STEPS=steps,
        PYTRACER_UPLOAD_URL=f"file://{target}/run/",
    )
    log = tmp_path / "log"
    with log.open("w") as errors:  # a pipe would make this test wait for the helper process
        command = [sys.executable, "program.py"]
        subprocess.run(command, cwd=tmp_path, env=env, stderr=errors, check=True)
    # THEN the copies are complete at the end of the job, under the names that the files have
    assert without_end_line(log.read_text()) == ""
    copies = files(target / "run" / "out")
    assert copies == files(tmp_path / "out")
    assert len(copies) == (2 if steps else 1)
    # AND fsspec was imported by the other process only
    code = "import sys; import pytracer.integrations.fsspec; print('fsspec' in sys.modules)"
    assert run(code, cwd=tmp_path).stdout == "False\n"


def test_failed_uploads(tmp_path: Path) -> None:
    # GIVEN a URL to which nothing can be written
    (tmp_path / "file").write_text("")
    url = f"file://{tmp_path}/file"
    # WHEN a job uploads three snapshots
    options = {"PYTRACER_STEPS": "1,2,3", "PYTRACER_UPLOAD_URL": url}
    result = done(STEPS, tmp_path, "fsspec:upload", **options)
    # THEN the job has ended well, the first failure is logged, and all are counted
    assert result.returncode == 0
    first, count = result.stderr.splitlines()
    assert first.startswith("pytracer: pytracer.integrations.fsspec failed for ")
    assert "out/step1/" in first
    assert count == "pytracer: 3 of 3 snapshots were not uploaded or logged"
    assert len(files(tmp_path / "out")) == 3


def test_an_upload_that_cannot_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN no URL
    monkeypatch.delenv("PYTRACER_UPLOAD_URL", raising=False)
    output = tmp_path / "x.pickle"
    # WHEN a tracer writes a file
    name = "pytracer.integrations.fsspec:upload"
    with pytracer.Tracer(output, device="cpu", on_snapshot=name) as tracer:
        pass
    # THEN the failure is counted and logged, and the file is there
    assert tracer.stats()["failures"] == 1
    assert "PYTRACER_UPLOAD_URL is not set" in caplog.text
    assert output.exists()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a Python without the packages
    packages = {
        "fsspec:upload": ("fsspec", "fsspec"),
        "wandb:upload": ("wandb", "wandb"),
        "mlflow:upload": ("mlflow", "mlflow-skinny"),
        "tensorboard:add_peaks": ("tensorboard", "tensorboard"),
    }
    monkeypatch.setenv("PYTRACER_UPLOAD_URL", "file:///x")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    # WHEN a function is called
    for name, (module, package) in packages.items():
        home, _, function = name.partition(":")
        call = getattr(importlib.import_module(f"pytracer.integrations.{home}"), function)
        # THEN the error names the command that installs the package
        with pytest.raises(MissingPackageError, match=f"pip install {package}$") as caught:
            call("x.pickle")
        assert f"integrations.{module} needs the package {package}" in str(caught.value)
    # AND so does the import of a callback
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "pytracer.integrations.transformers", raising=False)
    with pytest.raises(ImportError, match=r"pip install transformers$"):
        importlib.import_module("pytracer.integrations.transformers")
    monkeypatch.delitem(sys.modules, "pytracer.integrations.lightning", raising=False)
    with pytest.raises(ImportError, match=r"pip install lightning$"):
        importlib.import_module("pytracer.integrations.lightning")


def test_names_of_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert remote_name("out/step1/a.pickle") == "out/step1/a.pickle"
    assert remote_name(str(tmp_path / "a.pickle")) == "a.pickle"
    assert remote_name("/shared/a.pickle") == "shared/a.pickle"


def test_a_slow_upload_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a helper process that is stopped
    monkeypatch.setattr(helper_process, "_helper", None)
    source = tmp_path / "x.pickle"
    source.write_bytes(b"snapshot")
    helper_process.send(fsspec.__name__, str(source), url=f"file://{tmp_path}/first")
    process = helper_process._helper
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    # WHEN more snapshots are written than its pipe holds
    accepted = []

    def fill() -> None:
        for number in range(10_000):
            helper_process.send(fsspec.__name__, str(source), url=f"file://{tmp_path}/{number}")
            accepted.append(number)

    began = time.monotonic()
    # THEN the surplus is refused, and nothing has waited
    with pytest.raises(pytracer.PytracerError, match="too many snapshots wait"):
        fill()
    assert len(accepted) > 100
    assert time.monotonic() - began < 60
    # AND the end of the job waits a bounded time
    monkeypatch.setattr(helper_process, "warn_once", lambda message: None)
    helper_process.finish(timeout_s=0.1)
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)


@pytest.mark.parametrize("asks_late", [False, True])
def test_the_end_of_the_job_waits(tmp_path: Path, asks_late: bool) -> None:
    # GIVEN slow work, and a job that asks for it before its end, or also while its interpreter ends
    (tmp_path / "slow.py").write_text("""
import pathlib, time

def work(path, name):
    time.sleep(1.5)
    pathlib.Path(name).touch()
""")
    (tmp_path / "program.py").write_text(
        """
import atexit
from pytracer.integrations.helper_process import send

if LATE:
    atexit.register(lambda: send("slow", "x", name="late"))
send("slow", "x", name="early")
""".replace("LATE", str(asks_late))
    )
    # WHEN it has ended
    command = [sys.executable, "program.py"]
    subprocess.run(command, cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL, check=True)
    # THEN the work is done
    assert (tmp_path / "early").exists()
    assert (tmp_path / "late").exists() == asks_late


def test_a_forked_child_has_a_helper_process_of_its_own(tmp_path: Path) -> None:
    # GIVEN a job that uploads a file, forks, and uploads files on both sides
    program = """
import os
from pytracer.integrations import helper_process

def send(name):
    helper_process.send("pytracer.integrations.fsspec", "program.py", url=f"file://{HERE}/{name}")

HERE = os.getcwd()
send("a")
first = helper_process._helper.pid
if os.fork() == 0:
    send("child")
    assert helper_process._helper.pid != first
    helper_process.finish()
    os._exit(0)
assert os.wait()[1] == 0
send("b")
assert helper_process._helper.pid == first
"""
    # WHEN both have ended
    result = run(program, cwd=tmp_path)
    # THEN all files have been uploaded
    assert (result.returncode, result.stderr) == (0, "")
    for name in ("a", "b", "child"):
        assert (tmp_path / name).read_text() == program


@pytest.mark.slow
def test_wandb(tmp_path: Path) -> None:
    # GIVEN a job with a run of W&B, offline
    tools.packages("wandb")
    program = """
import wandb
import torch
import pytracer

run = wandb.init(mode="offline", project="p")
logged = []
log = run.log_artifact
run.log_artifact = lambda artifact: (logged.append(artifact), log(artifact))[1]
with pytracer.Tracer("x.pickle", device="cpu", on_snapshot="pytracer.integrations.wandb:upload"):
    kept = torch.ones(1000)
(artifact,) = logged
print(artifact.type, artifact.name == f"pytracer-{run.id}", [*artifact.manifest.entries])
(entry,) = artifact.manifest.entries.values()
import pathlib
assert pathlib.Path(entry.local_path).read_bytes() == pathlib.Path("x.pickle").read_bytes()
wandb.finish()
tracer = pytracer.Tracer("y.pickle", device="cpu", on_snapshot="pytracer.integrations.wandb:upload")
with tracer:
    pass
print(tracer.stats()["failures"])
"""
    # WHEN a tracer writes a file
    env = installed(tmp_path, WANDB_MODE="offline", WANDB_SILENT="true")
    result = run(program, cwd=tmp_path, env=env)
    # THEN the run has logged it, and a file after the run is reported
    assert result.returncode == 0, result.stderr
    assert "memory_snapshot True ['x.pickle']\n1\n" in result.stdout
    assert "there is no W&B run in this process, so" in result.stderr
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.slow
@pytest.mark.long
def test_mlflow(tmp_path: Path) -> None:
    # GIVEN a job with a run of MLflow, in a folder
    tools.packages("mlflow")
    program = """
import mlflow
import torch
import pytracer

UPLOAD = "pytracer.integrations.mlflow:upload"
mlflow.set_tracking_uri("STORE")
with mlflow.start_run() as run:
    print(run.info.run_id)
    with pytracer.Tracer("x.pickle", device="cpu", on_snapshot=UPLOAD):
        kept = torch.ones(1000)
tracer = pytracer.Tracer("out", device="cpu", on_snapshot=UPLOAD)
tracer.start()  # writes while the interpreter ends
""".replace("STORE", f"file://{tmp_path}/store")
    # WHEN tracers write files, one of them while the interpreter ends
    env = installed(tmp_path, MLFLOW_ALLOW_FILE_STORE="true")
    result = run(program, cwd=tmp_path, env=env)
    assert result.returncode == 0, result.stderr
    # THEN the run has both
    logged = files(tmp_path / "store" / "0" / result.stdout.strip() / "artifacts")
    at_exit = {f"out/{name}": count for name, count in files(tmp_path / "out").items()}
    assert logged == {"x.pickle": 1, **at_exit}
    assert len(logged) == 2


@pytest.mark.slow
def test_tensorboard(tmp_path: Path) -> None:
    # GIVEN a job whose steps keep more and more memory
    tools.packages("tensorboard")
    # WHEN it has written a snapshot for each
    result = done(
        STEPS,
        tmp_path,
        "tensorboard:add_peaks",
        PYTRACER_STEPS="1,2,3",
        PYTRACER_TENSORBOARD_DIR="board",
        RANK="0",
        WORLD_SIZE="1",
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    # THEN TensorBoard reads their peaks
    read = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("board/rank0").Reload()
print(events.Tags()["scalars"])
print([(each.step, each.value) for each in events.Scalars("memory/cpu/peak_allocated_bytes")])
"""
    shown = run(read, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    tags, peaks = shown.stdout.splitlines()
    assert "memory/cpu/peak_allocated_bytes" in tags
    values = dict(eval(peaks))
    assert [*values] == [1, 2, 3]
    assert 400_000 <= values[1] < 500_000
    assert 2_400_000 <= values[3] < 2_500_000
