"""examples/rlhf_phases.py on an accelerator: run as a program, and what its files say."""

import pickle
from pathlib import Path

from rlhf_example import check_files, run_example


def test_each_phase_is_in_the_snapshots(backend: str, tmp_path: Path) -> None:
    # WHEN the example runs for two steps on the device
    done = run_example(tmp_path, backend, "applied", timeout=250)
    assert done.returncode == 0, done.stderr
    # THEN the second has left its snapshots, of the device
    snapshot = pickle.loads(check_files(tmp_path, "applied").read_bytes())
    assert snapshot["pytracer"]["backends"] == [backend]
    # AND the backward's, from autograd's thread, which has no frames, are of the phase it began in
    update = [
        event["user_metadata"]
        for event in snapshot["device_traces"][0]
        if event["action"] == "alloc" and not event["frames"]
    ]
    assert {*update} == {"actor_update", "critic_update"}
