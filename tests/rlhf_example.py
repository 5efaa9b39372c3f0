"""examples/rlhf_phases.py as a program, and what its files say; for the tests of all devices."""

import pickle
from pathlib import Path

import processes
import viewers

EXAMPLE = Path(__file__).parents[1] / "examples" / "rlhf_phases.py"
PHASES = {
    "rollout",
    "actor_log_probs",
    "reference_log_probs",
    "critic_values",
    "reward",
    "critic_update",
    "actor_update",
}


def run_example(folder: Path, device: str, mode: str, timeout: int) -> processes.Done:
    """Two steps of it."""
    options = [f"--device={device}", "--steps=2", f"--rollout-is={mode}"]
    return processes.run_python(EXAMPLE, *options, cwd=folder, timeout=timeout)


def phases(path: Path) -> set[str]:
    """Those of the first device's allocations, outside of which the prompts are made."""
    trace = pickle.loads(path.read_bytes())["device_traces"][0]
    return {event["user_metadata"] for event in trace if event["action"] == "alloc"} - {""}


def check_files(folder: Path, mode: str) -> Path:
    """Checks what the run has left: a snapshot of its second step, in which all phases have
    allocated, and one of each of the outermost, with what is nested in it. Returns the first.
    """
    expected = PHASES | ({"rollout_is"} if mode != "off" else set())
    (step,) = (folder / "runs" / "rlhf").iterdir()
    (whole,) = step.glob("*.pickle")
    assert step.name == "step2"
    assert phases(whole) == expected | {"optimizer"}
    viewers.check_opcodes(whole.read_bytes())
    viewers.check_snapshot(pickle.loads(whole.read_bytes()))
    own = {path.parent.name: phases(path) for path in step.glob("*/*.pickle")}
    nested = {"actor_update": {"optimizer"}, "critic_update": {"optimizer"}}
    if mode != "off":
        nested["rollout"] = {"rollout_is"}
    assert own == {phase: {phase} | nested.get(phase, set()) for phase in expected}
    return whole
