"""Test Ray actors that environment variables trace, and the ways in which actors end."""

import json
import pickle
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import installed, run, run_python

pytestmark = pytest.mark.slow

SIZE = 1_234_567  # the size of each actor's allocation
RANKS = {"left": "rank0", "terminated": "rank1"}

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
    "local",  # not a cluster that another test run has started
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

workers = {name: worker() for name in ("dropped", "killed", "idle")}
workers["bad variable"] = worker(PYTRACER_STACK_DEPTH="deep")
workers["left"] = worker(RANK="0", WORLD_SIZE="2")
workers["terminated"] = worker(RANK="1", WORLD_SIZE="2")
asked = [(actor.rest if name == "idle" else actor.work).remote() for name, actor in workers.items()]
pids = dict(zip(workers, ray.get(asked)))
print(json.dumps(pids))

# Request a snapshot of all actors.
Path(trigger).touch()
deadline = time.monotonic() + 300
while len(list(Path(output).glob("demand_*/*.pickle"))) < 5 and time.monotonic() < deadline:
    time.sleep(0.1)

workers["left"].leave.remote()
workers["terminated"].__ray_terminate__.remote()
ray.kill(workers["killed"])
del workers
deadline = time.monotonic() + 300
ended = 0
while ended < 4 and time.monotonic() < deadline:
    time.sleep(0.1)
    files = Path(output).glob("exit/*.pickle")
    ended = sum(f"pid{pids['killed']}." not in file.name for file in files)  # it may leave one, too
ray.shutdown()
"""


@dataclass(frozen=True)
class Job:
    """The process ids of a job's actors by name, and the folder of their snapshots."""

    pids: dict[str, int]
    output: Path

    def actors(self, pattern: str) -> list[str]:
        """Return the names of the actors that wrote the files, and check the files' names."""
        names = {str(pid): name for name, pid in self.pids.items()}
        found = []
        for path in self.output.glob(pattern):
            matched = re.fullmatch(r"torch_memory_(.+)_pid(\d+)\.pickle", path.name)
            assert matched is not None
            role, pid = matched.groups()
            rank = role if role.startswith("rank") else None
            assert rank == RANKS.get(names[pid])
            found.append(names[pid])
        return sorted(found)


@pytest.fixture(
    scope="module", params=["runtime_env", pytest.param("exported", marks=pytest.mark.long)]
)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Run actors with different ends, two with a rank, an idle one, and one with a bad variable."""
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
    # WHEN they end: the last reference is dropped, they exit, or they are terminated
    # THEN each that used torch has written a file, with its rank in the name if it has a rank
    # (A killed actor mostly has not, because none of its code runs after the kill.)
    left = [name for name in job.actors("exit/*") if name != "killed"]
    assert left == ["bad variable", "dropped", "left", "terminated"]
    # AND the file has the actor's allocation
    for path in job.output.glob("exit/*"):
        (trace,) = pickle.loads(path.read_bytes())["device_traces"]
        (event,) = (event for event in trace if (event["action"], event["size"]) == ("alloc", SIZE))
        assert event["frames"][0]["name"] == "work"


def test_actors_write_on_demand(job: Job) -> None:
    # GIVEN the same job
    # WHEN its trigger file is touched
    # THEN all actors that used torch have written a file, including the one that is killed later
    written = job.actors("demand_*/*")
    assert written == ["bad variable", "dropped", "killed", "left", "terminated"]


def test_workers_that_ray_ends_did_not_crash(job: Job) -> None:
    # GIVEN the same job, whose end ended the actor that was killed, or one that still ran
    # WHEN its folder is shown, THEN the files of what Ray ended say so
    shown = run_python("-m", "pytracer", "show", job.output, cwd=job.output.parent)
    assert shown.returncode == 0, shown.stderr
    left = [*job.output.glob("killed_*/*.pickle")]
    for path in left:
        assert pickle.loads(path.read_bytes())["pytracer"]["killed"]["is_ray_worker"] is True
    assert left or "killed" in job.actors("exit/*")
    assert "KILLED OR CRASHED" not in shown.stdout
