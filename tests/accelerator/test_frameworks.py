"""Test unmodified frameworks from PyPI with pytracer in place of torch's recorder."""

import importlib.util
import json
import pickle
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from processes import environment, installed, run

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "verl.md"

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
dump = getattr(torch, backend).memory._dump_snapshot
kept = []
for step, workers in ((1, (chosen, unchosen)), (2, (chosen,)), (3, (window,)), (4, (window,))):
    for worker in workers:
        worker.profiler.start(role="train", profile_step=step)
    kept.append(allocate(step * 1_000_000))
    for _ in range(500):
        workers[0].update(step * 100_000)
    if step == 2 and recorder == "pytracer":
        dump("own.pickle")
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

TORCHTITAN = """
import sys
import torch
backend, recorder = sys.argv[1:]
if backend == "npu":
    import torch_npu
if recorder == "pytracer":
    import pytracer
    pytracer.patch_torch()

from torchtitan.tools.profiler import Profiler

torch.distributed.init_process_group(
    "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
)
config = Profiler.Config(enable_memory_snapshot=True, memory_snapshot_freq=2)
try:
    with Profiler(config, base_folder="out") as profiler:
        for step in range(1, 4):
            held = torch.empty(step * 1_000_000, dtype=torch.uint8, device=backend)
            profiler.step()
        torch.empty(1 << 50, dtype=torch.uint8, device=backend)
except torch.OutOfMemoryError:
    pass
else:
    raise AssertionError
"""

MEGATRON = """import pickle, sys
import torch
backend, recorder = sys.argv[1:]
if recorder == "pytracer":
    import pytracer
    pytracer.patch_torch()

# What Megatron-LM's model_provider does for --record-memory-history.
torch.cuda.memory._record_memory_history(
    True, trace_alloc_max_entries=100000, trace_alloc_record_context=True
)
def observer(device, alloc, device_alloc, device_free):
    torch.cuda.memory._dump_snapshot("oom_rank-0_snapshot.pickle")
torch._C._cuda_attach_out_of_memory_observer(observer)

from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

torch.distributed.init_process_group(
    "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
)
parallel_state.initialize_model_parallel()
config = TransformerConfig(
    num_layers=2, hidden_size=64, num_attention_heads=4, use_cpu_initialization=True,
    perform_initialization=False, bias_dropout_fusion=False, bias_activation_fusion=False,
    masked_softmax_fusion=False, apply_rope_fusion=False,
)
model = GPTModel(config, get_gpt_layer_local_spec(normalization="LayerNorm"), 128, 32).cuda()
tokens = torch.zeros(2, 32, dtype=torch.int64, device="cuda")
mask = torch.ones(1, 1, 32, 32, dtype=torch.bool, device="cuda")
tensor_parallel.model_parallel_cuda_manual_seed(0)
loss = model(tokens, tokens, mask, labels=tokens).sum()
loss.backward()
with open("snapshot.pickle", "wb") as file:
    pickle.dump(torch.cuda.memory._snapshot(), file)
try:
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
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


def needs(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; the Makefile's FRAMEWORKS have it")


@dataclass(frozen=True)
class Job:
    """The folder with the files of a job."""

    folder: Path

    def files(self, pattern: str = "out/**/*.pickle") -> list[str]:
        """List files, with N for the process id and TIME for dates."""
        names = sorted(str(path.relative_to(self.folder)) for path in self.folder.glob(pattern))
        return [
            re.sub(r"oom_[\d-]+", "oom_TIME", re.sub(r"pid\d+", "pidN", name)) for name in names
        ]

    def path(self, pattern: str) -> Path:
        (path,) = self.folder.glob(pattern)
        return path

    def snapshot(self, pattern: str) -> dict[str, Any]:
        snapshot: dict[str, Any] = pickle.loads(self.path(pattern).read_bytes())
        return snapshot

    def events(self, pattern: str, *actions: str) -> list[dict[str, Any]]:
        return [
            event
            for trace in self.snapshot(pattern)["device_traces"]
            for event in trace
            if event["action"] in actions
        ]

    def blocks(self, pattern: str) -> Iterator[dict[str, Any]]:
        """Yield the allocated blocks."""
        for segment in self.snapshot(pattern)["segments"]:
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    yield block


def job(program: str, folder: Path, backend: str, recorder: str) -> Job:
    done = run(program, backend, recorder, cwd=folder, env=environment(RANK="3"))
    assert done.returncode == 0, done.stderr
    return Job(folder)


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


def test_a_file_pickled_by_verl_is_no_larger_than_pytracers(steps: Job) -> None:
    # GIVEN a step's file by verl (on an NPU it pickles `_snapshot()`), and pytracer's own dump
    verl_bytes, pytracer_bytes = (
        steps.path(name).stat().st_size for name in ("out/step2/*", "own.pickle")
    )
    # WHEN their sizes are compared
    # THEN verl's is no larger, except for the size of an event more or less
    assert verl_bytes <= 1.1 * pytracer_bytes


def test_verls_roles_are_phases(steps: Job) -> None:
    # GIVEN methods under `DistProfiler.annotate(role="actor_update")`, and code outside them
    # WHEN a step's file is read
    snapshot = steps.snapshot("out/step1/*")
    # THEN allocations inside the methods have the phase of that name, the others have none
    phases = {
        event["size"]: event["user_metadata"]
        for event in snapshot["device_traces"][0]
        if event["action"] == "alloc"
    }
    assert phases[100_000] == "actor_update"
    assert phases[1_000_000] == ""


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


def test_torchtitan(backend: str, tmp_path: Path) -> None:
    # GIVEN a job that takes a snapshot at each second step, and runs out of memory after the third
    needs("torchtitan")
    # WHEN it has ended
    left = job(TORCHTITAN, tmp_path, backend, "pytracer")
    # THEN torchtitan's two files exist
    folder = "out/profiling/memory_snapshot"
    regular, at_exit = left.files()
    assert regular == f"{folder}/step_000000000002/000000_step_2.pickle"
    assert at_exit == f"{folder}/step_000000000003_exit/000000_step_3.pickle"
    # AND they have all events, which torchtitan never clears, with Python frames
    for file, sizes in ((regular, {1, 2}), (at_exit, {1, 2, 3})):
        allocations = left.events(file, "alloc")
        assert {event["size"] for event in allocations} == {size * 1_000_000 for size in sizes}
        assert {event["frames"][0]["name"] for event in allocations} == {"<module>"}
    assert len(left.events(at_exit, "oom")) == 1


@pytest.mark.long
def test_megatron(backend: str, tmp_path: Path) -> None:
    # GIVEN a model of Megatron-core, and the calls of Megatron-LM's `--record-memory-history`
    needs("megatron")
    if backend != "cuda":
        pytest.skip("Megatron-LM calls torch.cuda")
    # WHEN it computes a forward and a backward, and runs out of memory
    left = job(MEGATRON, tmp_path, backend, "pytracer")
    # THEN Megatron-LM's two files exist, with the frames of Megatron's modules
    for file in ("snapshot.pickle", "oom_rank-0_snapshot.pickle"):
        places = {
            (Path(frame["filename"]).name, frame["name"])
            for event in left.events(file, "alloc")
            for frame in event["frames"]
        }
        assert {("transformer_layer.py", "forward"), ("gpt_model.py", "forward")} <= places
        assert left.snapshot(file)["pytracer"]["stand_in"]["max_entries"] == 100_000
    assert len(left.events("oom_rank-0_snapshot.pickle", "oom")) == 1


@pytest.mark.long
def test_verls_workers_under_ray(backend: str, tmp_path: Path) -> None:
    # GIVEN a job of verl's own controller with workers on two ranks, each with a device
    needs("verl")
    # WHEN it is started with the command of docs/how-to/verl.md
    steps, _, _ = commands()
    done = run(
        WORKERS,
        backend,
        *steps,
        "global_profiler.save_path=out",
        "global_profiler.global_tool_config.torch_memory.stack_depth=2",
        "actor_rollout_ref.actor.profiler.all_ranks=True",
        cwd=tmp_path,
        env=installed(tmp_path, RAY_USAGE_STATS_ENABLED="0"),
    )
    assert done.returncode == 0, done.stderr
    # THEN each rank has a file for each step
    left = Job(tmp_path)
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
    # GIVEN verl's own controller and workers on two ranks, whose profilers are switched off
    needs("verl")
    variables = {
        "PYTRACER": "1",
        "PYTRACER_OUTPUT": str(tmp_path / "out"),
        "PYTRACER_STEPS": "2,3",
        "PYTRACER_MEMORY_SNAPSHOT_NUM_STEPS": "2",
        "PYTRACER_ALL_RANKS": "1",
    }
    # WHEN environment variables trace them
    env_vars = ", ".join(f'{name}: "{value}"' for name, value in variables.items())
    done = run(
        WORKERS,
        backend,
        "global_profiler.steps=[1,2,3]",
        f"+ray_kwargs.ray_init.runtime_env.env_vars={{{env_vars}}}",
        cwd=tmp_path,
        env=installed(tmp_path, RAY_USAGE_STATS_ENABLED="0"),
    )
    assert done.returncode == 0, done.stderr
    # THEN each rank has a file for the window of two steps of the controller
    left = Job(tmp_path)
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
