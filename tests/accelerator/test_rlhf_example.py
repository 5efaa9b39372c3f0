"""Test examples/rlhf_phases.py on an accelerator: run it as a program, and check its files."""

import pickle
from pathlib import Path

from rlhf_example import check_files, run_example


def test_each_phase_has_a_snapshot(backend: str, tmp_path: Path) -> None:
    # WHEN the example runs for two steps on the device
    done = run_example(tmp_path, backend, "applied")
    assert done.returncode == 0, done.stderr
    # THEN the second step has written snapshots of the device
    snapshot = pickle.loads(check_files(tmp_path, "applied").read_bytes())
    assert snapshot["pytracer"]["backends"] == [backend]
    # AND the backward's allocations on autograd's thread, without frames, have the right phase
    update = [
        event["user_metadata"]
        for event in snapshot["device_traces"][0]
        if event["action"] == "alloc" and not event["frames"]
    ]
    assert {*update} == {"actor_update", "critic_update"}
