"""examples/rlhf_phases.py on an accelerator: run as a program, and what its files say."""

import subprocess
import sys
from pathlib import Path

import processes
import viewers

from pytracer.reading import load

EXAMPLE = Path(__file__).parents[2] / "examples" / "rlhf_phases.py"
PHASES = {
    "rollout",
    "actor_log_probs",
    "reference_log_probs",
    "critic_values",
    "reward",
    "rollout_is",
    "critic_update",
    "actor_update",
}


def phases(path: Path) -> set[str]:
    """Those of the first device's allocations, outside of which the prompts are made."""
    trace = load(path)["device_traces"][0]
    return {event["user_metadata"] for event in trace if event["action"] == "alloc"} - {""}


def test_each_phase_is_in_the_snapshots(backend: str, tmp_path: Path) -> None:
    # WHEN the example runs for two steps on the device
    options = [f"--device={backend}", "--steps=2", "--rollout-is=applied"]
    done = subprocess.run(
        [sys.executable, EXAMPLE, *options],
        cwd=tmp_path,
        env=processes.environment(),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # THEN the second has left a snapshot, in which all phases have allocated
    (step,) = (tmp_path / "runs" / "rlhf").iterdir()
    (whole,) = step.glob("*.pickle")
    assert step.name == "step2"
    assert phases(whole) == PHASES | {"optimizer"}
    snapshot = load(whole)
    assert snapshot["pytracer"]["backends"] == [backend]
    viewers.check_opcodes(whole.read_bytes())
    viewers.check_snapshot(snapshot)
    # AND the backward's, from autograd's thread, which has no frames, are of the phase it began in
    update = [
        event["user_metadata"]
        for event in snapshot["device_traces"][0]
        if event["action"] == "alloc" and not event["frames"]
    ]
    assert {*update} == {"actor_update", "critic_update"}
    # AND each of the outermost has one of its own, with what is nested in it
    nested = {
        "rollout": {"rollout_is"},
        "actor_update": {"optimizer"},
        "critic_update": {"optimizer"},
    }
    own = {path.parent.name: phases(path) for path in step.glob("*/*.pickle")}
    assert own == {phase: {phase} | nested.get(phase, set()) for phase in PHASES}
