"""What is in the files of torchtitan and Megatron, with pytracer in place of torch's recorder?"""

from pathlib import Path

import pytest
from framework_jobs import job, needs

pytestmark = pytest.mark.slow


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
