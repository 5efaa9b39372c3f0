"""Test the categories of all blocks of a trace, also of freed ones, against the truth."""

import pickle
from collections import Counter, defaultdict
from pathlib import Path
from threading import Thread
from typing import Any

import life_truth
import pytest
import torch
from contexts import with_context
from life_programs import DISTRIBUTED, PROGRAMS, convolutions, custom_function, gradient_penalty
from synthetic_snapshots import Program, file_metadata
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import pytracer
from pytracer.analysis.device_data import device_data
from pytracer.backends.hook_attach import HOOKS
from pytracer.reading.reader import load

FAST = [convolutions, custom_function, gradient_penalty]
MOST_UNKNOWN = {  # without phases="auto" 0.12, 0.19, 0.23 and 0.2; of a GPT 0.04
    "gpt_autocast": 0.1,  # copies of parameters, in one region of autocast
    "gradient_penalty": 0.1,  # the batch, for which a gradient is requested
    "custom_function": 0.08,  # a tensor in an attribute of `ctx`
    "resnet": 0.22,  # the data set on the CPU; the buffers of convolutions depend on the processor
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            program, id=program.__name__, marks=() if program in FAST else pytest.mark.slow
        )
        for program in PROGRAMS
    ],
)
def test_no_block_has_a_wrong_category(program: Any) -> None:
    assert HOOKS.reads_autograd
    # GIVEN a training, and what each of its blocks was
    # WHEN it is recorded, and snapshots are taken in the middle of forward and backward too
    # THEN no block has a wrong category
    found = life_truth.check(program, "cpu")
    rules, peak = found["rules"], found["peak"]
    print(program.__name__, rules, peak)
    # AND activations and temporary blocks were found, and little is unknown at the peak
    assert rules["activation", "freed_by_node"]
    assert rules["temporary", "within_backward"]
    assert bool(rules["input", "batch"]) == (program.__name__ == "resnet")
    is_of_loader, has_gradient = (program.__name__ == n for n in ("resnet", "gradient_penalty"))
    assert bool(rules["input", "argument"]) == (not is_of_loader and not has_gradient)
    assert bool(rules["gradient", "autograd_grad"]) == has_gradient
    assert rules["output", "result"]
    assert bool(rules["activation", "checkpoint_state"]) == ("checkpointing" in program.__name__)
    # AND so were copies of autocast in a region that had not ended, by those of earlier regions
    assert bool(rules["temporary", "call_site"]) == (program.__name__ == "llama_lora")
    unknown = peak["unknown"] / sum(peak.values())
    assert unknown <= MOST_UNKNOWN.get(program.__name__, 0.02)


@pytest.mark.slow
@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("program", DISTRIBUTED, ids=lambda program: program.__name__)
def test_no_block_of_a_distributed_training_has_a_wrong_category(program: Any) -> None:
    rules = life_truth.check(program, "cpu")["rules"]
    assert rules["activation", "freed_by_node"]
    assert rules["communication", "ddp_bucket" if program.__name__ == "ddp" else "fsdp_gather"]


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))


def _categories(content: dict[str, Any] | bytes) -> dict[tuple[str, str], int]:
    raw = content if isinstance(content, bytes) else pickle.dumps(content, protocol=4)
    found = device_data(load(raw), 0).block_categories
    assert found is not None
    names = [found.kinds[kind] for kind in found.kind.tolist()]
    return {name: names.count(name) for name in names}


def _train(context: Any = "all") -> dict[str, Any]:
    with with_context(pytracer.Tracer(device="cpu"), context) as tracer:
        model = _model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(8, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return tracer.snapshot()


def _lives_with_a_thread(use: Any, *, has_stacks: bool) -> Counter[tuple[str, str, int]]:
    """Count blocks by category, rule and size; another thread uses memory in the backward pass."""

    def meanwhile(_: object) -> None:
        thread = Thread(target=use, args=(1000,))
        thread.start()
        thread.join()

    with pytracer.Tracer(device="cpu", forward_stacks=True, stack_depth=500) as tracer:
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        for _ in range(2):
            x = torch.ones(8, 64)
            for layer in model:
                x = layer(x).square()
                x.register_hook(meanwhile)
            x.sum().backward()
            model.zero_grad()
        content = tracer.snapshot()
    for event in content["device_traces"][-1]:
        if not has_stacks and any(frame["name"] == "_bootstrap" for frame in event["frames"]):
            event["frames"] = []
    data = device_data(load(pickle.dumps(content, protocol=4)), 0)
    found, sizes = data.block_categories, data.history.blocks.requested_bytes.tolist()
    assert found is not None
    kinds = [found.kinds[kind] for kind in found.kind.tolist()]
    return Counter((*kind, size) for kind, size in zip(kinds, sizes, strict=True) if size != 4000)


@pytest.mark.parametrize("has_stacks", [True, False])
def test_other_threads_end_no_backward_pass(has_stacks: bool) -> None:
    # GIVEN two backward passes, in which a thread of Python, or of C++, allocates and frees memory
    alone = _lives_with_a_thread(lambda _: None, has_stacks=has_stacks)
    found = _lives_with_a_thread(torch.empty, has_stacks=has_stacks)
    # THEN the gradients of activations are no activations
    assert alone["temporary", "within_backward", 8 * 64 * 4]
    assert alone["activation", "freed_by_node", 8 * 64 * 4] == 2 * 8
    is_activation = ("activation", "freed_by_node", 8 * 64 * 4)
    assert found[is_activation] == alone[is_activation]
    # AND they are temporary, if no event is from another part of the program
    assert has_stacks or found == alone


class _Ones(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(64)


def _freed(**options: Any) -> dict[int, tuple[bool, str, str]]:
    """Return of each block that a training freed whether it is older than the trace, its category
    and the rule, by how many events before the end it was freed."""
    with pytracer.Tracer(device="cpu", forward_stacks=True, **options) as tracer:
        model = _model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in torch.utils.data.DataLoader(_Ones(), batch_size=8):
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        data = device_data(load(pickle.dumps(tracer.snapshot(), protocol=4)), 0)
    found, lives = data.block_categories, data.history.blocks
    assert found is not None
    ends = (lives.free_requested_event - len(data.trace)).tolist()
    is_older = (lives.alloc_event < 0).tolist()
    rows = zip(ends, is_older, found.kind.tolist(), strict=True)
    return {end: (older, *found.kinds[kind]) for end, older, kind in rows if end < 0}


def test_blocks_older_than_the_trace_have_the_categories_of_younger_ones() -> None:
    # GIVEN a training, recorded as a whole, and with rings that have lost the allocations of blocks
    _freed()
    whole = _freed()
    cut = [_freed(trace_alloc_max_entries=entries) for entries in range(10, 60, 5)]
    older = [(end, *kind) for ring in cut for end, (is_older, *kind) in ring.items() if is_older]
    # THEN what their stacks and their frees tell is the same
    assert {(end, *whole[end][1:]) for end, category, _ in older if category != "unknown"} == {
        kind for kind in older if kind[1] != "unknown"
    }
    assert {rule for _, _, rule in older} >= {"batch", "freed_by_node", "zero_grad"}


def test_the_cpu_needs_no_forward_stacks() -> None:
    # GIVEN a recording without forward stacks, in which the engine's frame shows the backward pass
    found = _categories(_train())
    # THEN the blocks that were freed in it are activations, and those of zero_grad are gradients
    assert found["activation", "freed_by_node"]
    assert found["gradient", "zero_grad"] == 2 * 4


@pytest.mark.parametrize("context", ["alloc", "state"])
def test_without_the_stacks_of_frees_no_life_decides(context: str) -> None:
    found = _categories(_train(context))
    assert {rule for _, rule in found} <= {"module", "no_owner", "no_fact", "optimizer", "grad"}
    assert found["unknown", "no_fact"]


def test_arguments_that_a_distributed_module_moves_are_inputs() -> None:
    # GIVEN an argument that torch moves to a device, and one that the program moves
    utils = "/lib/python3.11/site-packages/torch/distributed/utils.py"
    program = Program()
    program.metadata = {"context": "all"}
    program.alloc(1000, (utils, "to_map", 1), (utils, "_recursive_to", 2), ("train.py", "f", 3))
    program.alloc(2000, ("train.py", "_recursive_to", 1))
    found = device_data(program.snapshot(), 0).block_categories
    assert found is not None
    assert [found.kinds[kind] for kind in found.kind] == [
        ("input", "batch"),
        ("unknown", "no_fact"),
    ]


def test_a_gap_between_steps_ends_all_runs() -> None:
    # GIVEN a file of steps that are not consecutive: what happened between them is not known
    with pytracer.Tracer(device="cpu") as tracer:
        _model()(torch.ones(8, 64))
        content = tracer.snapshot()
    assert _categories(content)["temporary", "within_forward"]
    (trace,) = content["device_traces"]
    for device in content["pytracer"]["devices"]:
        device["steps"] = [[1 + 2 * i, i] for i in range(len(trace))]
    # THEN no block was certainly temporary
    assert ("temporary", "within_forward") not in _categories(content)


def test_files_of_one_phase_have_no_lives(tmp_path: Path) -> None:
    content = _train()
    content["pytracer"]["window"] = {"phase": "forward", "occurrence": 1}
    assert {rule for _, rule in _categories(content)} <= {"module", "no_owner", "no_fact"}


def _sizes_of_distributed(wrap: Any) -> dict[tuple[str, str], Counter[int]]:
    with pytracer.Tracer(device="cpu", forward_stacks=True) as tracer:
        model = wrap(_model())
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.ones(32, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        data = device_data(load(pickle.dumps(tracer.snapshot(), protocol=4)), 0)
    found, history = data.block_categories, data.history
    assert found is not None
    assert history.is_known
    sizes: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for kind, size in zip(
        found.kind.tolist(), history.blocks.requested_bytes.tolist(), strict=True
    ):
        sizes[found.kinds[kind]][size] += 1
    return sizes


LAYER = [64 * 64 * 4, 64 * 4]  # the bytes of a layer's weight and bias


@pytest.mark.slow
@pytest.mark.usefixtures("process_group")
def test_buckets_of_ddp() -> None:
    sizes = _sizes_of_distributed(DistributedDataParallel)
    # THEN the only large blocks of the rule are the buckets, which DDP makes again after a step
    buckets = sizes["communication", "ddp_bucket"]
    assert {size: n for size, n in buckets.items() if size > 256} == {2 * sum(LAYER): 2}
    # AND the gradients are not in them
    assert sizes["gradient", "zero_grad"] == dict.fromkeys(LAYER, 6)
    # AND inputs and results that are needed in backward are activations
    assert sizes["activation", "freed_by_node"] == {32 * 64 * 4: 6}


@pytest.mark.slow
@pytest.mark.usefixtures("process_group")
def test_gathered_parameters_of_fsdp2() -> None:
    def wrap(model: nn.Module) -> nn.Module:
        for layer in (model[0], model[2]):  # type: ignore[index]
            fully_shard(layer)
        return fully_shard(model)

    sizes = _sizes_of_distributed(wrap)
    # THEN each layer's parameters were gathered in each step
    gathered = sizes["communication", "fsdp_gather"]
    assert gathered.keys() == set(LAYER)
    assert min(gathered.values()) >= 3 * 2
    # AND the sharded gradients of a layer, which are in one block, are gradients
    assert sizes["gradient", "zero_grad"] == {sum(LAYER): 6}
    assert sizes["activation", "freed_by_node"] == {32 * 64 * 4: 6}


def kinds_of(program: Program) -> list[tuple[str, str]]:
    found = device_data(program.snapshot(), 0).block_categories
    assert found is not None
    return [found.kinds[kind] for kind in found.kind]


@pytest.mark.parametrize(
    ("peers", "expected"),
    [
        (["activation"], ("activation", "call_site")),
        (["activation", "temporary"], ("unknown", "no_fact")),
    ],
)
def test_blocks_of_one_line_decide_only_together(peers: list[str], expected: Any) -> None:
    # GIVEN blocks of a line in a first step, and one in the second that still exists
    program, line = Program(), ("train.py", "f", 3)
    for category in peers:
        program.own(program.alloc(1000, line), category, "rule", "name")
    begin = len(program.events)
    program.alloc(1000, line)
    program.metadata = file_metadata(current_step=2)
    program.metadata["devices"][0] |= {"steps": [[1, 0], [2, begin]]}
    assert kinds_of(program)[-1] == expected


@pytest.mark.parametrize(
    ("is_in_trace", "expected"),
    [(False, ("gradient", "zero_grad")), (True, ("unknown", "no_fact"))],
)
def test_what_zero_grad_frees(is_in_trace: bool, expected: Any) -> None:
    # GIVEN a block that zero_grad frees, older than the trace, or allocated outside of backward
    optimizer = "/lib/python3.11/site-packages/torch/optim/optimizer.py"
    program = Program()
    program.metadata = file_metadata(context="all")
    address = program.alloc(1000, ("train.py", "f", 3), events=is_in_trace)
    program.free(address)
    for event in program.events[-2:]:
        event["frames"] = [
            {"filename": optimizer, "name": "zero_grad", "line": 1},
            {"filename": "train.py", "name": "main", "line": 5},
        ]
    assert kinds_of(program)[-1] == expected
