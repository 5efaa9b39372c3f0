"""Which changes avoid memory that a program need not take, with their bytes?"""

from typing import Any

import pytest
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis.blocks import held_at
from pytracer.analysis.device_data import device_data
from pytracer.analysis.oom.avoidable_memory import avoidable

KIB = 2**10
TORCH = "/venv/lib/python3.11/site-packages/torch"
TRAIN = ("train.py", "main", 3)
LOAD = (f"{TORCH}/serialization.py", "restore_location", 1)
SAFE = ("/venv/lib/python3.11/site-packages/safetensors/torch.py", "load_file", 1)
UPDATE = (f"{TORCH}/optim/adam.py", "_multi_tensor_adam", 1)
STEP = (f"{TORCH}/optim/optimizer.py", "wrapper", 1)
CALL = (f"{TORCH}/nn/modules/module.py", "_call_impl", 1)
BACKWARD = (f"{TORCH}/autograd/graph.py", "_engine_run_backward", 1)
FUSED = "Create the optimizer with fused=True"


def found(blocks: list[tuple[Any, ...]], *request: Any, backend: str = "cuda") -> list[str]:
    """Return the changes for blocks of an earlier step, and a request of 40 KiB in this one.

    Of each block: KiB, frame, category, and its owner's name.
    """
    program = Program()
    for kib, frame, category, *name in blocks:
        address = program.alloc(kib * KIB, frame, TRAIN)
        if category:
            program.own(address, category, "rule", *name or ["name"])
    steps = [[1, 0], [2, len(program.events)]]
    program.out_of_memory(40 * KIB, 0, *request, TRAIN)
    program.metadata = file_metadata(current_step=2, backends=[backend])
    program.metadata["devices"][0] |= {"steps": steps, "overwritten": 0}
    data = device_data(program.snapshot(), 0)
    return avoidable(held_at(data, len(program.events)))


@pytest.mark.parametrize("frame", [LOAD, SAFE])
def test_a_checkpoint_on_the_device(frame: tuple[Any, ...]) -> None:
    blocks = [(100, frame, ""), (50, frame, "parameter"), (100, TRAIN, "parameter")]
    (text,) = found(blocks)
    assert "map_location" in text
    assert "on the device, its tensors take 100 KiB" in text
    # AND one in a model, or a small one, is none
    assert not found([(100, frame, "parameter"), (5, frame, "")])


def test_lists_of_an_update() -> None:
    blocks = [(100, UPDATE, ""), (400, UPDATE, "optimizer_state")]
    (text,) = found(blocks, UPDATE, STEP)
    assert text.startswith(f"{FUSED} or foreach=False: ")
    assert "at least 140 KiB of temporary" in text
    # AND where the update of one parameter does not fit, foreach=False does not help
    (text,) = found(blocks[1:], UPDATE, STEP)
    assert text.startswith(f"{FUSED}: ")


def test_gradients_of_the_step_before() -> None:
    blocks = [(100, TRAIN, "gradient"), (100, TRAIN, "parameter")]
    (text,) = found(blocks, CALL)
    assert "100 KiB of the previous step's gradients are" in text
    # AND the backward pass and the optimizer need them, and others may be no forward pass
    assert found(blocks, BACKWARD) == found(blocks, STEP) == found(blocks) == []


def test_a_model_that_no_optimizer_steps() -> None:
    gradients = [(100, TRAIN, "gradient", f"grad of Net#2.{name}.weight") for name in "ab"]
    of_other = [(90, TRAIN, "gradient", "grad of Net#1.a.weight")]
    states = [(50, TRAIN, "optimizer_state", "exp_avg of Net#1.a.weight")]
    (text,) = found(gradients + states)
    assert "No optimizer has state for Net#2. " in text
    assert "requires_grad_(False) saves 200 KiB of gradients" in text
    # AND its gradients are none that zero_grad() drops
    texts = found([*gradients, *of_other, *states], CALL)
    assert len(texts) == 2
    assert "90 KiB of the previous step's gradients are" in texts[0]
    # AND an optimizer may have no states
    assert not found(gradients)
    # AND a name may have braces
    (text,) = found([(100, TRAIN, "gradient", "grad of {Net}.a.weight"), *states])
    assert "No optimizer has state for {Net}. " in text


def test_files_without_an_out_of_memory_error_have_none() -> None:
    program = Program()
    program.alloc(100 * KIB, LOAD)
    assert avoidable(held_at(device_data(program.snapshot(), 0), 1)) == []
    assert avoidable(held_at(device_data(program.snapshot(), 0), None)) == []
