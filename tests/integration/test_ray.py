"""Ray: actors that the environment has traced, however they come to their end."""

import importlib.util
import json
import pickle
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import installed, run

pytestmark = pytest.mark.slow

SIZE = 1_234_567  # of what each actor allocates

JOB = """
import json, os, sys, time
from pathlib import Path
import ray

output, where, trigger = sys.argv[1:]
variables = {"PYTRACER": "1", "PYTRACER_OUTPUT": output, "PYTRACER_ALL_RANKS": "1"}
variables["PYTRACER_TRIGGER_FILE"] = trigger
if where == "exported":
    os.environ.update(variables)
ray.init(
    num_cpus=2,
    include_dashboard=False,
    runtime_env={"env_vars": variables} if where == "runtime_env" else None,
)

@ray.remote(num_cpus=0.1)
class Worker:
    def work(self):
        import torch
        self.kept = torch.empty(1_234_567, dtype=torch.uint8)
        return os.getpid()

    def rest(self):
        return os.getpid()

    def leave(self):
        ray.actor.exit_actor()

def worker(**variables):
    return Worker.options(runtime_env={"env_vars": variables}).remote()

workers = {name: worker() for name in ("dropped", "left", "terminated", "killed", "idle")}
workers["bad variable"] = worker(PYTRACER_STACK_DEPTH="deep")
workers |= {f"rank{rank}": worker(RANK=str(rank), WORLD_SIZE="2") for rank in range(2)}
pids = {
    name: ray.get(each.rest.remote() if name == "idle" else each.work.remote())
    for name, each in workers.items()
}
print(json.dumps(pids))

# A snapshot on demand, of all.
Path(trigger).touch()
deadline = time.monotonic() + 30
while len(list(Path(output).glob("demand_*/*.pickle"))) < 6 and time.monotonic() < deadline:
    time.sleep(0.1)

workers["left"].leave.remote()
workers["terminated"].__ray_terminate__.remote()
ray.kill(workers["killed"])
del workers
deadline = time.monotonic() + 30
while len(list(Path(output).glob("exit/*.pickle"))) < 5 and time.monotonic() < deadline:
    time.sleep(0.1)
ray.shutdown()
"""


@dataclass(frozen=True)
class Job:
    """What a job has left, by its actors' names."""

    pids: dict[str, int]
    output: Path

    def who(self, pattern: str) -> list[str]:
        """Whose the files are, as their own names say it."""
        names = {str(pid): name for name, pid in self.pids.items()}
        found = []
        for path in self.output.glob(pattern):
            matched = re.fullmatch(r"torch_memory_(.+)_pid(\d+)\.pickle", path.name)
            assert matched is not None
            who, pid = matched.groups()
            assert who.startswith("rank") == names[pid].startswith("rank")
            assert not who.startswith("rank") or who == names[pid]
            found.append(names[pid])
        return sorted(found)


@pytest.fixture(scope="module", params=["runtime_env", "exported"])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Actors that end each in its own way, one that rests, one with a bad variable, two ranks."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    folder = tmp_path_factory.mktemp(request.param)
    output = folder / "profile"
    done = run(
        JOB,
        output,
        request.param,
        folder / "now",
        cwd=folder,
        env=installed(folder, RAY_USAGE_STATS_ENABLED="0"),
    )
    assert done.returncode == 0, done.stderr
    return Job(json.loads(done.stdout.splitlines()[0]), output)


def test_actors_leave_their_files(job: Job) -> None:
    # GIVEN actors that used torch, one that did not, one that cannot be traced, and Ray's processes
    # WHEN they end: nobody holds them any more, they leave, they are told to
    # THEN each that used torch has left a file, with its rank's name if it has one (see `who`)
    # (One that Ray kills mostly has not: none of its code runs any more once the kill arrives.)
    left = [name for name in job.who("exit/*") if name != "killed"]
    assert left == ["dropped", "left", "rank0", "rank1", "terminated"]
    # AND what it did is in there
    for path in job.output.glob("exit/*"):
        (trace,) = pickle.loads(path.read_bytes())["device_traces"]
        (event,) = (each for each in trace if (each["action"], each["size"]) == ("alloc", SIZE))
        assert event["frames"][0]["name"] == "work"


def test_actors_write_on_demand(job: Job) -> None:
    # GIVEN the same job
    # WHEN its trigger file is touched
    # THEN all actors that used torch have written, the one that is killed later too
    written = job.who("demand_*/*")
    assert written == ["dropped", "killed", "left", "rank0", "rank1", "terminated"]
