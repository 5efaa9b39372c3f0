"""Test three ranks under torchrun, traced by environment variables; one runs out of memory."""

import pickle
from pathlib import Path

import pytest
from processes import installed, run_python

LAUNCHER = ("-m", "torch.distributed.run", "--standalone")  # selects a free port
RANKS = 3
PROGRAM = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

def train():
    global weights
    weights = torch.ones(10_000 + rank)

train()
for step in range(3):
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    assert total.item() == 3
    if rank == 2:
        try:
            torch.empty(2**60, dtype=torch.uint8)
        except RuntimeError as error:
            assert "memory" in str(error)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_one_rank_of_three_runs_out_of_memory(tmp_path: Path) -> None:
    # GIVEN a job without any use of pytracer
    env = installed(tmp_path, PYTRACER="1", PYTRACER_MAX_OOM_SNAPSHOTS="2")
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    # WHEN rank 2 runs out of memory at each of three steps
    done = run_python(*LAUNCHER, f"--nproc-per-node={RANKS}", program, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    # THEN rank 2 has written the maximum number of snapshots, rank 0 one at the exit, no other any
    profile = tmp_path / "outputs" / "profile"
    found = sorted(profile.rglob("*"))
    files = [path for path in found if path.is_file()]
    assert [path.parent.name.split("_")[0] for path in files] == ["exit", "oom", "oom"]
    names = [path.name.rpartition("_pid")[0] for path in files]
    assert names == ["torch_memory_rank0", *["torch_memory_oom_rank2"] * 2]
    # AND each has the record of its own rank
    for path, rank in zip(files, (0, 2, 2), strict=True):
        snapshot = pickle.loads(path.read_bytes())
        assert snapshot["pytracer"]["rank"] == rank
        sizes = [segment["total_size"] for segment in snapshot["segments"]]
        assert 4 * (10_000 + rank) in sizes
        events = [event["action"] for trace in snapshot["device_traces"] for event in trace]
        assert ("oom" in events) == (rank == 2)
        assert ("oom" in snapshot["pytracer"]) == (rank == 2)
    assert done.stderr.count("out of memory: ") == 2
