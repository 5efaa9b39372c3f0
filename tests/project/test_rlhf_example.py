"""Tests of examples/rlhf_phases.py on the CPU, and of examples/colour_phases.py."""

import math
import pickle
import random
import runpy
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
import viewed_pickles
from rlhf_example import EXAMPLE, check_files, run_example

from pytracer import Tracer, annotate

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """Return what the example defines."""
    return runpy.run_path(str(EXAMPLE))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("off", marks=pytest.mark.long),
        pytest.param("metrics", marks=pytest.mark.long),
        "applied",
    ],
)
def test_each_phase_is_in_the_snapshots(mode: str, tmp_path: Path) -> None:
    # WHEN the example runs for two steps
    done = run_example(tmp_path, "cpu", mode)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("weight" in done.stdout) == (mode != "off")
    # THEN the second step has written its snapshots, each of the CPU only
    step = check_files(tmp_path, mode).parent
    assert {
        len(pickle.loads(path.read_bytes())["device_traces"]) for path in step.rglob("*.pickle")
    } == {1}


def test_lengths_vary(example: dict[str, Any]) -> None:
    # WHEN several batches are made
    shape, chance = example["Shape"](), random.Random(0)
    batches = [example["make_prompts"](shape, "cpu", chance) for _ in range(4)]
    # THEN rows differ in length, and batches in the length of their longest row
    assert all(len(set(batch.prompts)) > 1 < len(set(batch.responses)) for batch in batches)
    assert len({batch.tokens.shape for batch in batches}) > 1
    # AND the number of sampled tokens is right
    for batch in batches:
        assert batch.is_response.sum(1).tolist() == batch.responses


def test_weights_are_truncated_ratios(example: dict[str, Any]) -> None:
    # GIVEN tokens that are 4, 0.5 and 1 times as likely in training, and one that does not count
    log_probs = torch.tensor([[math.log(4), math.log(0.5), 0.0, 9.0]])
    where = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    weights, metrics = example["importance_weights"](log_probs, torch.zeros(1, 4), where)
    # THEN these are the weights, at most 2, and the metrics report them
    torch.testing.assert_close(weights[:, :3], torch.tensor([[2.0, 0.5, 1.0]]))
    assert metrics["weight"] == pytest.approx(3.5 / 3)
    assert metrics["largest"] == pytest.approx(4)
    assert metrics["truncated"] == pytest.approx(1 / 3)
    assert metrics["effective"] == pytest.approx(3.5**2 / (3 * 5.25))
    kl = (3 - math.log(4)) + (-0.5 - math.log(0.5))
    assert metrics["divergence"] == pytest.approx(kl / 3)


def test_weights_change_the_update_only_where_they_are_applied(example: dict[str, Any]) -> None:
    # GIVEN a step with the same seed in each mode
    shape = example["Shape"](batch=8, mini_batches=2, response=16, vocabulary=64, width=32)
    heads = {}
    for mode in ("off", "metrics", "applied"):
        trainer = example["Trainer"](shape, "cpu", mode, seed=0)
        trainer.step()
        heads[mode] = trainer.actor.head.weight
    # THEN reporting the weights changes nothing, applying them does
    assert torch.equal(heads["metrics"], heads["off"])
    assert not torch.equal(heads["applied"], heads["off"])


def test_an_example_colours_by_phase(tmp_path: Path) -> None:
    # GIVEN a snapshot with an allocation in a phase, and one in none
    with Tracer(tmp_path / "x.pickle", device="cpu"):
        kept = [torch.empty(1000)]
        with annotate("rollout"):
            kept.append(torch.empty(2000))
    # WHEN the example runs on the snapshot
    done = processes.run_python(ROOT / "examples/colour_phases.py", "x.pickle", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    # THEN memory_viz can read the copy: it has the phase, and the "unknown" that memory_viz needs
    path = tmp_path / "coloured.pickle"
    viewed_pickles.check_opcodes(path.read_bytes())
    (trace,) = pickle.loads(path.read_bytes())["device_traces"]
    allocations = [event for event in trace if event["action"] == "alloc"]
    colours = {(event["size"], event["category"]) for event in allocations}
    assert {(4000, "unknown"), (8000, "rollout")} <= colours
    assert {event["category"] for event in trace if event["action"] != "alloc"} == {"unknown"}
