"""Do the documented command lines and variables trace the workers of verl's jobs?"""

import json
import re
import shlex
from pathlib import Path

import pytest
from framework_jobs import Job, needs
from processes import installed, run

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "verl.md"


PROFILERS_OFF = """
import os, sys
import torch
backend = sys.argv[1]
if backend == "npu":
    import torch_npu

from verl.utils.profiler import DistProfiler, ProfilerConfig

class Worker:
    def __init__(self):
        self.profiler = DistProfiler(int(os.environ["RANK"]), ProfilerConfig(enable=False))

    @DistProfiler.annotate(role="actor_update")
    def update(self, size):
        return torch.empty(size, dtype=torch.uint8, device=backend)

actor, critic = Worker(), Worker()
for step in (1, 2, 5):
    for worker in (actor, critic):
        worker.profiler.start(role="train", profile_step=step)
    for worker in (actor, critic):
        worker.update(step * 1_000_000)
        worker.profiler.stop(run_command=step == 5)
    actor.update(step * 100_000)
"""

WORKERS = """
import os, sys
import ray, torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_name
from verl.utils.profiler import DistProfiler, DistProfilerExtension

class Trainer(Worker, DistProfilerExtension):
    def __init__(self, config):
        Worker.__init__(self)
        tool = omega_conf_to_dataclass(config.tool_config.torch_memory)
        profiler = DistProfiler(self.rank, omega_conf_to_dataclass(config), tool)
        DistProfilerExtension.__init__(self, profiler)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @DistProfiler.annotate(role="actor_update")
    def update(self, size):
        self.kept = torch.empty(size + self.rank, dtype=torch.uint8, device=get_device_name())

@ray.remote(num_cpus=1)
class TaskRunner:
    def run(self, backend, config):
        pool = RayResourcePool([2], use_gpu=True, max_colocate_count=1)
        trainer = RayClassWithInitArgs(ray.remote(Trainer), config.actor_rollout_ref.actor.profiler)
        workers = RayWorkerGroup(pool, trainer, device_name=backend)
        for step in config.global_profiler.steps:
            workers.start_profile(role="train", profile_step=step)
            workers.update(step * 1_000_000)
            workers.stop_profile()

backend, *overrides = sys.argv[1:]
with initialize_config_module("verl.trainer.config", version_base=None):
    config = compose("ppo_trainer", overrides)
ray.init(
    "local",  # not a cluster that another test run has started
    num_cpus=4,
    **({"num_gpus": 2} if backend == "cuda" else {"resources": {"NPU": 2}}),
    include_dashboard=False,
    runtime_env=OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env),
)
runner = TaskRunner.remote()
ray.get(runner.run.remote(backend, config))
"""


COMPOSE = """
import json, sys
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from ray.runtime_env import RuntimeEnv
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.utils.config import omega_conf_to_dataclass

TOOL = ("trace_alloc_max_entries", "stack_depth", "memory_snapshot_num_steps")

for overrides in json.loads(sys.argv[1]):
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides)
    # The same steps as in verl's run_ppo and its workers.
    runtime = get_ppo_ray_runtime_env(config)
    runtime = OmegaConf.merge(runtime, config.ray_kwargs.ray_init.runtime_env)
    runtime = RuntimeEnv(env_vars=OmegaConf.to_container(runtime)["env_vars"])
    profiler = omega_conf_to_dataclass(config.actor_rollout_ref.actor.profiler)
    tool = profiler.tool_config["torch_memory"]
    print(json.dumps({
        "env_vars": runtime["env_vars"],
        "steps": list(config.global_profiler.steps or []),
        "ranks": list(profiler.ranks),
        **{name: getattr(profiler, name) for name in ("tool", "enable", "save_path", "all_ranks")},
        **{name: getattr(tool, name) for name in TOOL},
    }))
"""


def workers(folder: Path, backend: str, *overrides: str) -> Job:
    """Run a job of verl's own controller with workers on two ranks, each with a device."""
    needs("verl")
    env = installed(folder, RAY_USAGE_STATS_ENABLED="0")
    done = run(WORKERS, backend, *overrides, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return Job(folder)


@pytest.mark.long
def test_verls_workers_under_ray(backend: str, tmp_path: Path) -> None:
    # WHEN it is started with the command of docs/how-to/verl.md
    steps, _, _ = commands()
    left = workers(
        tmp_path,
        backend,
        *steps,
        "global_profiler.save_path=out",
        "global_profiler.global_tool_config.torch_memory.stack_depth=2",
        "actor_rollout_ref.actor.profiler.all_ranks=True",
    )
    # THEN each rank has a file for each step
    assert left.files() == [
        f"out/step{step}/torch_memory_rank{rank}_pidN.pickle"
        for step in (1, 2, 5)
        for rank in (0, 1)
    ]
    # AND the file has the step's allocation, recorded by pytracer
    for rank in (0, 1):
        (event,) = left.events(f"out/step2/*_rank{rank}_*", "alloc")
        assert event["size"] == 2_000_000 + rank
        assert event["user_metadata"] == "actor_update"
        assert event["frames"][0]["name"] == "update"
        assert len(event["frames"]) == 2


@pytest.mark.long
def test_verls_steps_under_ray(backend: str, tmp_path: Path) -> None:
    # GIVEN workers whose profilers are switched off
    variables = {
        "PYTRACER": "1",
        "PYTRACER_OUTPUT": str(tmp_path / "out"),
        "PYTRACER_STEPS": "2,3",
        "PYTRACER_MEMORY_SNAPSHOT_NUM_STEPS": "2",
        "PYTRACER_ALL_RANKS": "1",
    }
    # WHEN environment variables trace them
    env_vars = ", ".join(f'{name}: "{value}"' for name, value in variables.items())
    setting = f"+ray_kwargs.ray_init.runtime_env.env_vars={{{env_vars}}}"
    left = workers(tmp_path, backend, "global_profiler.steps=[1,2,3]", setting)
    # THEN each rank has a file for the window of two steps of the controller
    assert left.files() == [f"out/steps2-3/torch_memory_rank{rank}_pidN.pickle" for rank in (0, 1)]
    for rank in (0, 1):
        events = left.events(f"out/steps2-3/*_rank{rank}_*", "alloc")
        assert [event["size"] for event in events] == [2_000_000 + rank, 3_000_000 + rank]


def test_verls_steps_without_its_profiler(backend: str, tmp_path: Path) -> None:
    # GIVEN a worker of verl with two roles, whose profilers are switched off
    needs("verl")
    # WHEN the environment selects some of its steps, and its roles
    env = installed(
        tmp_path,
        RANK="3",
        PYTRACER="1",
        PYTRACER_OUTPUT="out",
        PYTRACER_RANKS="3",
        PYTRACER_STEPS="2,5",
        PYTRACER_DISCRETE="1",
    )
    done = run(PROFILERS_OFF, backend, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "pytracer" not in done.stderr
    # THEN there is a file for each step, and for each occurrence of a role in it
    left = Job(tmp_path)
    assert left.files() == [
        f"out/step{step}{part}/torch_memory_rank3_pidN.pickle"
        for step in (2, 5)
        for part in ("/actor_update", "/actor_update_2", "")
    ]
    # AND it has the events between the first profiler's start and the last one's end
    for step in (2, 5):
        for part, count in (("", 2), ("/actor_update", 1), ("/actor_update_2", 1)):
            events = left.events(f"out/step{step}{part}/*.pickle", "alloc")
            assert [event["size"] for event in events] == [step * 1_000_000] * count
            assert {event["user_metadata"] for event in events} == {"actor_update"}


def commands() -> list[list[str]]:
    """Return the arguments of verl's command lines in docs/how-to/verl.md."""
    blocks = re.findall(
        r"^(?: {4})?python -m verl.trainer.main_ppo((?: .*\n)+)", DOCUMENT.read_text(), re.M
    )
    return [
        [argument for argument in shlex.split(block.replace("\\\n", " ")) if argument != "..."]
        for block in blocks
    ]


@pytest.mark.long
def test_the_document_describes_this_verl(tmp_path: Path) -> None:
    # GIVEN the commands of docs/how-to/verl.md
    needs("verl")
    # WHEN verl builds its configuration from each
    done = run(COMPOSE, json.dumps(commands()), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    steps, window, traced = map(json.loads, done.stdout.splitlines())
    # THEN it has the documented values
    assert (steps["tool"], steps["enable"], steps["steps"]) == ("torch_memory", True, [1, 2, 5])
    assert (steps["all_ranks"], steps["ranks"]) == (False, [])
    assert steps["save_path"] == "/shared/run7"
    assert steps["env_vars"]["PYTRACER_PATCH_TORCH"] == "1"
    assert (window["memory_snapshot_num_steps"], window["ranks"]) == (2, [0, 8])
    assert window["save_path"] == "outputs/profile"
    assert traced["enable"] is False
    assert traced["env_vars"]["PYTRACER_OUTPUT"] == "/shared/run7"
    defaults = ("trace_alloc_max_entries", "stack_depth", "memory_snapshot_num_steps")
    assert [traced[name] for name in defaults] == [100_000, 32, 1]
