"""Test the callbacks and recipes for the frameworks that train, with the real frameworks."""

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import tools
from processes import Done, installed, run, run_python

pytestmark = pytest.mark.slow

MODEL = """
import sys
import torch
import pytracer

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(4, 1000)
        self.head = torch.nn.Linear(1000, 1)

    def forward(self, x, labels):
        error = self.head(torch.relu(self.hidden(x))).squeeze(-1) - labels
        return {"loss": (error * error).mean()}

data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(12)]
model = Model()
"""

TRANSFORMERS = (
    MODEL
    + """
from transformers import Trainer, TrainingArguments
from pytracer.integrations.transformers import PytracerCallback

arguments = TrainingArguments(
    "checkpoints", per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=3,
    report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False,
)
steps = None if "ranks" in sys.argv else [2]
callback = PytracerCallback(
    "out", device="cpu", phases="auto", steps=steps, metadata={"of": "trainer"}
)
if "broken" in sys.argv:
    def fail(*_): raise OSError("a broken tracer")
    for name in ("__enter__", "step", "__exit__"):
        setattr(pytracer.Tracer, name, fail)
with pytracer.annotate_modules(model):
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[callback])
    trainer.train()
print("steps", trainer.state.global_step, callback.tracer.current_step)
"""
)

LIGHTNING = (
    MODEL
    + """
import warnings
import logging
from PACKAGE import LightningModule, Trainer
from pytracer.integrations.lightning import PytracerCallback

class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model

    def training_step(self, batch, index):
        if "raise" in sys.argv and index == 3:
            raise RuntimeError("a broken batch")
        return self.model(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

callback = PytracerCallback("out", device="cpu", phases="auto", metadata={"of": "lightning"})
trainer = Trainer(
    accelerator="cpu", devices=2 if "ranks" in sys.argv else 1, max_epochs=1, logger=False,
    accumulate_grad_batches=2, callbacks=[callback],
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
with pytracer.annotate_modules(model):
    try:
        trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=2))
    finally:
        print("steps", trainer.global_step, callback.tracer.current_step)
"""
)

ACCELERATE = (
    MODEL
    + """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(data, batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
with pytracer.Tracer("out", device="cpu", step_from="optimizer", phases="auto") as tracer:
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
print("steps", 3, tracer.current_step)
"""
)


def done(program: str, folder: Path, *arguments: str) -> Done:
    env = installed(folder, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    return run(program, *arguments, cwd=folder, env=env)


def done_by_two_ranks(program: str, folder: Path) -> Done:
    (folder / "program.py").write_text(program)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    env = installed(folder, HF_HUB_OFFLINE="1", PYTRACER_ALL_RANKS="1", OMP_NUM_THREADS="1")
    return run_python(*launcher, "program.py", "ranks", cwd=folder, env=env)


def snapshot(folder: Path, pattern: str) -> dict[str, Any]:
    (path,) = folder.glob(pattern)
    content: dict[str, Any] = pickle.loads(path.read_bytes())
    return content


def phases(content: dict[str, Any]) -> set[str]:
    """Return the names of the phases, in which those of modules are innermost."""
    return {each["name"] for each in content["external_annotations"]}


def test_transformers(tmp_path: Path) -> None:
    # GIVEN a training with two batches for each of three steps, and a callback for the second step
    tools.packages("transformers", "accelerate")
    # WHEN it has ended
    result = done(TRANSFORMERS, tmp_path)
    assert result.returncode == 0, result.stderr
    # THEN the tracer has counted the steps of the optimizer
    assert "steps 3 4" in result.stdout
    # AND the file of the step has the phases of the training, and of the modules
    content = snapshot(tmp_path, "out/step2/*.pickle")
    assert content["pytracer"]["metadata"] == {"of": "trainer"}
    assert {"forward", "backward", "hidden", "head", "Model"} <= phases(content)
    # AND the report was printed: of the end, because the last steps were not selected
    assert re.search(r"^ peak +.* at the end$", result.stderr, re.M), result.stderr


def test_a_broken_tracer_does_not_harm_the_training(tmp_path: Path) -> None:
    # GIVEN a tracer whose methods all raise
    tools.packages("transformers", "accelerate")
    # WHEN a training with the callback has ended
    result = done(TRANSFORMERS, tmp_path, "broken")
    # THEN it has all its steps, and the failure was logged once
    assert result.returncode == 0, result.stderr
    assert "steps 3 0" in result.stdout
    assert result.stderr.count("a broken tracer") == 1


@pytest.mark.parametrize(
    "package", ["lightning.pytorch", pytest.param("pytorch_lightning", marks=pytest.mark.long)]
)
def test_lightning(tmp_path: Path, package: str) -> None:
    # GIVEN a training with two batches for each of three steps
    tools.packages(package.split(".")[0])
    # WHEN it has ended
    result = done(LIGHTNING.replace("PACKAGE", package), tmp_path)
    assert result.returncode == 0, result.stderr
    # THEN the tracer has counted the steps of the optimizer
    assert "steps 3 4" in result.stdout
    # AND the snapshot at the end has the phases of the training, and of the modules
    content = snapshot(tmp_path, "out/exit/*.pickle")
    assert content["pytracer"]["metadata"] == {"of": "lightning"}
    assert {"forward", "backward", "optimizer", "hidden", "head"} <= phases(content)
    assert re.search(r"^NO PROBLEM FOUND +cpu$", result.stderr, re.M), result.stderr


def test_lightning_writes_the_snapshot_if_fit_raises(tmp_path: Path) -> None:
    tools.packages("lightning")
    result = done(LIGHTNING.replace("PACKAGE", "lightning.pytorch"), tmp_path, "raise")
    assert result.returncode == 1
    assert "RuntimeError: a broken batch" in result.stderr
    assert "steps 1 2" in result.stdout
    assert "forward" in phases(snapshot(tmp_path, "out/exit/*.pickle"))


@pytest.mark.long
@pytest.mark.parametrize("program", [TRANSFORMERS, LIGHTNING], ids=["transformers", "lightning"])
def test_two_ranks(tmp_path: Path, program: str) -> None:
    # GIVEN a training on two ranks, of which each has half of the batches
    tools.packages(*(["transformers", "accelerate"] if program == TRANSFORMERS else ["lightning"]))
    # WHEN it has ended
    result = done_by_two_ranks(program.replace("PACKAGE", "lightning.pytorch"), tmp_path)
    assert result.returncode == 0, result.stderr
    # THEN both ranks have counted their steps, and have written the snapshot at the end
    steps = set(re.findall(r"steps (\d+) (\d+)", result.stdout))
    assert steps == ({("3", "4")} if program == TRANSFORMERS else {("2", "3")}), result.stdout
    assert result.stdout.count("steps ") == 2
    for rank in range(2):
        content = snapshot(tmp_path, f"out/exit/torch_memory_rank{rank}_pid*.pickle")
        assert content["pytracer"]["rank"] == rank
        assert {"forward", "backward", "hidden", "head"} <= phases(content)
    # AND the report was printed once
    assert len(re.findall(r"^NO PROBLEM FOUND +cpu", result.stderr, re.M)) == 1, result.stderr


def test_accelerate(tmp_path: Path) -> None:
    # GIVEN a loop with two batches for each of three steps, and the recipe of the documentation
    tools.packages("accelerate")
    # WHEN it has ended
    result = done(ACCELERATE, tmp_path)
    assert result.returncode == 0, result.stderr
    # THEN only the steps that change the parameters count
    assert "steps 3 4" in result.stdout
    assert {"forward", "backward", "optimizer"} <= phases(snapshot(tmp_path, "out/exit/*.pickle"))
