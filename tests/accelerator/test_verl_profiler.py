"""What has verl's own profiler in its files, with pytracer in place of torch's recorder?"""

from pathlib import Path

import pytest
from framework_jobs import Job, job, needs

pytestmark = pytest.mark.slow


VERL = """
import os, sys
import torch
backend, recorder = sys.argv[1:]
if backend == "npu":
    import torch_npu
if recorder == "pytracer":
    import pytracer
    pytracer.patch_torch()

from verl.utils.profiler import DistProfiler, ProfilerConfig
from verl.utils.profiler.config import TorchMemoryToolConfig

def allocate(size, depth=10):
    if depth:
        return allocate(size, depth - 1)
    return torch.empty(size, dtype=torch.uint8, device=backend)

class Worker:
    def __init__(self, tool=None, tool_config=None, **options):
        config = TorchMemoryToolConfig(stack_depth=3, **(tool_config or {}))
        options = {"enable": True, "save_path": "out", "tool_config": config, **options}
        self.profiler = DistProfiler(
            int(os.environ["RANK"]), ProfilerConfig(tool="torch_memory", **options)
        )

    @DistProfiler.annotate(role="actor_update")
    def update(self, size):
        return allocate(size)
"""

STEPS = (
    VERL
    + """
chosen = Worker(ranks=[3])
unchosen = Worker(ranks=[0], save_path="unchosen")
window = Worker(all_ranks=True, tool_config={"memory_snapshot_num_steps": 2})
kept = []
for step, workers in ((1, (chosen, unchosen)), (2, (chosen,)), (3, (window,)), (4, (window,))):
    for worker in workers:
        worker.profiler.start(role="train", profile_step=step)
    kept.append(allocate(step * 1_000_000))
    for _ in range(500):
        workers[0].update(step * 100_000)
    for worker in workers:
        worker.profiler.stop()
"""
)

OUT_OF_MEMORY = (
    VERL
    + """
# PYTRACER=1 would do the same, into verl's save_path.
tracer = pytracer.Tracer("out").start()
worker = Worker(all_ranks=True)
worker.profiler.start(profile_step=1)
held = worker.update(3_000_000)
try:
    worker.update(1 << 50)
except torch.OutOfMemoryError:
    pass
else:
    raise AssertionError
tracer.stop()
"""
)


@pytest.fixture(scope="module")
def steps(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Run verl's real profiler with pytracer."""
    needs("verl")
    return job(STEPS, tmp_path_factory.mktemp("steps"), backend, "pytracer")


def test_verl_gets_the_requested_stack_depth(backend: str, steps: Job, tmp_path: Path) -> None:
    # GIVEN a job of verl with `stack_depth=3`, recorded by torch and by pytracer
    torch_job = job(STEPS, tmp_path, backend, "torch")
    for recorded, depths in ((torch_job, range(12, 1000)), (steps, range(3, 4))):
        # WHEN the file of a step is read
        allocations = recorded.events("out/step1/*", "alloc")
        # THEN torch, whose function has no such argument, kept all frames; pytracer kept three
        assert {len(event["frames"]) for event in allocations} <= {*depths}
    # AND these three are the innermost
    assert {event["frames"][0]["name"] for event in allocations} == {"allocate"}
    assert steps.snapshot("out/step1/*")["pytracer"]["stack_depth"] == 3


def test_verl_finds_its_files_under_its_own_names(steps: Job) -> None:
    # GIVEN a job on rank 3, with roles that profile rank 3, rank 0, and all ranks in a window
    # WHEN it has ended
    # THEN the selected ranks have their files, under verl's own names
    assert steps.files() == [
        "out/step1/torch_memory_rank3_pidN.pickle",
        "out/step2/torch_memory_rank3_pidN.pickle",
        "out/steps3-4/torch_memory_rank3_pidN.pickle",
    ]
    assert steps.files("unchosen/**/*.pickle") == []


def test_verl_clears_the_history_between_steps(steps: Job) -> None:
    # GIVEN a job that keeps a block of each step
    # WHEN the file of its second step is read
    file = "out/step2/*"
    events = steps.events(file, "alloc", "free_requested", "free_completed")
    # THEN it has only the events of that step
    assert {event["size"] for event in events} == {2_000_000, 200_000}
    assert len(events) == 1 + 3 * 500
    # AND the live block of the first step has the stack of its allocation
    alive = {block["requested_size"]: block for block in steps.blocks(file)}
    assert {*alive} == {1_000_000, 2_000_000}
    for block in alive.values():
        assert [frame["name"] for frame in block["frames"]] == ["allocate"] * 3


def test_verl_and_the_environment_write_one_oom_file(backend: str, tmp_path: Path) -> None:
    # GIVEN a job of verl, which observes OOMs, in a process that pytracer traces too
    needs("verl")
    # WHEN its memory runs out
    left = job(OUT_OF_MEMORY, tmp_path, backend, "pytracer")
    # THEN there is one file, in the folder that both would use
    (file,) = left.files("out/oom_*/*")
    assert file == "out/oom_TIME/torch_memory_oom_rank3_pidN.pickle"
    # AND it has the failed request and the blocks that held the memory
    (oom,) = left.events("out/oom_*/*", "oom")
    assert oom["size"] >= 1 << 50
    assert 3_000_000 in {block["requested_size"] for block in left.blocks("out/oom_*/*")}
