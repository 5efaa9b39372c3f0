"""Run examples/rlhf_phases.py and check the files that it writes, for the tests of all devices."""

import pickle
from pathlib import Path

import processes
import viewed_pickles
import viewers

EXAMPLE = Path(__file__).parents[2] / "examples" / "rlhf_phases.py"
PHASES = {
    "rollout",
    "actor_log_probs",
    "reference_log_probs",
    "critic_values",
    "reward",
    "critic_update",
    "actor_update",
}


def run_example(folder: Path, device: str, mode: str) -> processes.Done:
    """Run two steps of the example."""
    options = [f"--device={device}", "--steps=2", f"--rollout-is={mode}"]
    return processes.run_python(EXAMPLE, *options, cwd=folder)


def phases(path: Path) -> set[str]:
    """Return the phases of the first device's allocations; the prompts are allocated outside."""
    trace = pickle.loads(path.read_bytes())["device_traces"][0]
    return {event["user_metadata"] for event in trace if event["action"] == "alloc"} - {""}


def check_files(folder: Path, mode: str) -> Path:
    """Check the files of the run and return the snapshot of the second step.

    All phases have allocations in the snapshot of the second step. Each outermost phase also has a
    snapshot of its own, with the phases nested in it.
    """
    expected = PHASES | ({"rollout_is"} if mode != "off" else set())
    (step,) = (folder / "runs" / "rlhf").iterdir()
    (snapshot,) = step.glob("*.pickle")
    assert step.name == "step2"
    assert phases(snapshot) == expected | {"optimizer"}
    viewed_pickles.check_opcodes(snapshot.read_bytes())
    viewers.check_snapshot(pickle.loads(snapshot.read_bytes()))
    by_phase = {path.parent.name: phases(path) for path in step.glob("*/*.pickle")}
    nested = {"actor_update": {"optimizer"}, "critic_update": {"optimizer"}}
    if mode != "off":
        nested["rollout"] = {"rollout_is"}
    assert by_phase == {phase: {phase} | nested.get(phase, set()) for phase in expected}
    return snapshot
