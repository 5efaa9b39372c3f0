"""Test the recipes of two how-to pages with the real packages, in their own programs."""

import importlib
import re
import socket
import sys
from pathlib import Path

import pytest
import tools
from processes import installed, run, run_python

HOW_TO = Path(__file__).parents[2] / "docs/how-to"
RECIPES = (HOW_TO / "frameworks.md").read_text() + (HOW_TO / "maintainers.md").read_text()

JOB = """
import pytracer
import torch

kept = []
with pytracer.Tracer("out", device="cpu", steps="1-3", all_ranks=True) as tracer:
    for step in range(1, 4):
        kept.append(torch.ones(step * 100_000))
        tracer.step()
print(tracer.stats()["failures"])
"""


def recipe(folder: Path, name: str) -> None:
    """Write the recipe of a name into a folder; its bucket is a folder next to it."""
    (text,) = re.findall(rf'^```python title="{name}.py"\n(.*?)^```$', RECIPES, re.M | re.S)
    (folder / f"{name}.py").write_text(text.replace("s3://", f"file://{folder}/"))


def output_of(program: str, folder: Path, function: str = "", **variables: str) -> str:
    """Return what a program prints that passes its snapshots to a function of a recipe."""
    if function:
        recipe(folder, function.partition(":")[0])
        variables["PYTRACER_ON_SNAPSHOT"] = function
    result = run(program, cwd=folder, env=installed(folder, **variables))
    assert result.returncode == 0, result.stderr
    return result.stdout


def files(folder: Path) -> dict[str, bytes]:
    """Return the snapshots in a folder by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.pickle")
    }


def test_fsspec(tmp_path: Path) -> None:
    tools.packages("fsspec")
    # WHEN a job writes the files of its steps THEN the bucket has copies of them
    assert output_of(JOB, tmp_path, "to_bucket:upload") == "0\n"
    copies = files(tmp_path / "bucket/out")
    assert copies == files(tmp_path / "out")
    assert len(copies) == 3


@pytest.mark.slow
def test_wandb(tmp_path: Path) -> None:
    tools.packages("wandb")
    # GIVEN a job with a run of W&B, offline
    job = f"""
import wandb
run = wandb.init(mode="offline", project="p")
logged = []
log = run.log_artifact
run.log_artifact = lambda artifact: (logged.append(artifact), log(artifact))[1]
{JOB}
print(*(each.type for each in logged), logged[0].name == f"pytracer-{{run.id}}")
print(*(name[:9] for each in logged for name in each.manifest.entries))
wandb.finish()
with pytracer.Tracer("late.pickle", device="cpu") as tracer:
    pass
print(tracer.stats()["failures"])
"""
    # THEN the run has the three files, and a file after the run is counted as a failure
    printed = output_of(job, tmp_path, "to_wandb:upload", WANDB_SILENT="true")
    assert printed == f"0\n{'memory_snapshot ' * 3}True\nout/step1 out/step2 out/step3\n1\n"
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.slow
@pytest.mark.long
def test_mlflow(tmp_path: Path) -> None:
    tools.packages("mlflow")
    # GIVEN a job with a run of MLflow, in a folder
    job = f"""
import mlflow
mlflow.set_tracking_uri("file://{tmp_path}/store")
with mlflow.start_run() as run:
    {JOB.replace(chr(10), chr(10) + "    ")}
"""
    # THEN the run has the three files
    store = {"MLFLOW_ALLOW_FILE_STORE": "true"}
    assert output_of(job, tmp_path, "to_mlflow:upload", **store) == "0\n"
    logged = sorted(files(tmp_path / "store").values())
    assert logged == sorted(files(tmp_path / "out").values())
    assert len(logged) == 3


@pytest.mark.slow
def test_tensorboard(tmp_path: Path) -> None:
    tools.packages("tensorboard")
    assert output_of(JOB, tmp_path, "to_tensorboard:add_peaks") == "0\n"
    # THEN TensorBoard reads the peaks of the steps, which keep more and more memory
    read = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from pathlib import Path
found = {}
for path in Path("../runs/pytracer").iterdir():
    events = EventAccumulator(str(path)).Reload()
    for each in events.Scalars("cpu/peak_bytes"):
        found[each.step] = each.value
print(*found)
print(*(found[step] for step in (1, 2, 3)))
"""
    steps, peaks = output_of(read, tmp_path / "out").splitlines()
    assert {*steps.split()} == {"1", "2", "3"}
    first, _, last = map(float, peaks.split())
    assert 400_000 <= first < 500_000
    assert 2_400_000 <= last < 2_500_000


@pytest.mark.slow
def test_opentelemetry(tmp_path: Path) -> None:
    tools.packages("opentelemetry", "opentelemetry.sdk")
    recipe(tmp_path, "to_opentelemetry")
    # GIVEN a provider with a reader, and the recipe's gauge
    job = """
import pytracer
import torch
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
import to_opentelemetry

with pytracer.Tracer(device="cpu", output=None):
    kept = torch.ones(1_000_000)
    (metric,) = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
(point,) = metric.data.data_points
print(metric.name, metric.unit, point.attributes, point.value >= kept.nbytes)
"""
    # THEN the reader gets the memory of the CPU's blocks
    assert output_of(job, tmp_path) == "pytracer_allocated_bytes By {'device': 'cpu'} True\n"


@pytest.mark.slow
def test_the_debug_server(tmp_path: Path) -> None:
    # GIVEN a job of two ranks that records memory as a framework would, and torch's debug server
    tools.packages("aiohttp", "jinja2", "tabulate")
    recipe(tmp_path, "memory_recording")
    recipe(tmp_path, "memory_on_debug_server")
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "job.py").write_text(f"""
import time, torch, torch.distributed as distributed, urllib.request
from memory_on_debug_server import start
from memory_recording import memory_recording

distributed.init_process_group("gloo")
with memory_recording(), memory_recording("out", device="cpu", step_from="none") as tracer:
    kept = torch.ones((1 + distributed.get_rank()) * 1_000_000)
    start(tracer, port={port})
    while distributed.get_rank() == 0:
        try:
            print(urllib.request.urlopen("http://localhost:{port}/memory").read().decode())
            break
        except OSError:
            time.sleep(0.1)
    distributed.barrier()
""")
    # WHEN a rank asks for the page, while the other one waits in a collective
    ranks = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "job.py")
    done = run_python(*ranks, cwd=tmp_path, env=installed(tmp_path, OMP_NUM_THREADS="1"))
    assert done.returncode == 0, done.stderr
    # THEN it has the answer of each rank
    assert re.findall(r"^ peak +(.+)", done.stdout, re.M) == ["3.815 MiB", "7.629 MiB"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a Python without the packages, WHEN a callback is imported
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    # THEN the error names the command that installs the package
    for name in ("transformers", "lightning"):
        monkeypatch.delitem(sys.modules, f"pytracer.integrations.{name}", raising=False)
        with pytest.raises(ImportError, match=rf"pip install {name}$") as caught:
            importlib.import_module(f"pytracer.integrations.{name}")
        assert f"integrations.{name} needs the package {name}" in str(caught.value)
