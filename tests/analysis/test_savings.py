"""What remedies would save, and how far a forward pass was, from files with known answers."""

from dataclasses import replace
from pathlib import Path

import pytest
from sized_programs import training, write
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis import explain
from pytracer.analysis.blocks import held_at
from pytracer.analysis.categories import CategoryUsage, Owner, categories_of
from pytracer.analysis.device_data import device_data
from pytracer.analysis.oom.savings import lowering, recomputed_bytes
from pytracer.analysis.oom.unfinished_pass import Unfinished, layers_of, unfinished
from pytracer.analysis.ooms import out_of_memories
from pytracer.reading import load
from pytracer.simulator.trials import try_settings
from pytracer.text import parsed_size

KIB = 2**10
MIB = 2**20
GIB = 2**30


def usage(**sizes: int) -> list[CategoryUsage]:
    return [CategoryUsage(name, size, size, 1, 0, []) for name, size in sizes.items()]


def test_half_the_batch_does_not_halve_weights() -> None:
    # GIVEN activations of which half are weights that the program has merged
    merged = Owner("AddmmBackward0.mat2", GIB, GIB, 1)
    (activations,) = usage(activation=2 * GIB)
    texts = lowering([replace(activations, owners=[merged])], is_needed=True)
    assert texts == ["By estimate, half the batch saves 512 MiB, checkpointing up to 2 GiB."]


LAYERS = Unfinished("", 6 * GIB, layers=8, layers_bytes=8 * GIB, start_bytes=GIB)
STEADY = {"parameter": GIB, "gradient": GIB, "optimizer_state": 2 * GIB}


@pytest.mark.parametrize(
    ("sizes", "progress", "total", "expected"),
    [
        ({"activation": GIB}, None, 0, "half the batch saves 512 MiB, checkpointing up to 1 GiB."),
        (
            {"activation": GIB, "temporary": 3 * GIB, "optimizer_state": 4 * GIB},
            None,
            0,
            "half the batch saves 2 GiB, checkpointing up to 1 GiB, an 8-bit or sharded optimizer "
            "3 GiB.",
        ),
        ({"optimizer_state": 4 * GIB}, None, 0, "an 8-bit or sharded optimizer saves 3 GiB."),
        # 1 GiB before the layers, half of their 8 GiB and a quarter of this: 6 GiB of 95 %.
        (
            {"activation": GIB, **STEADY},
            LAYERS,
            int(6 * GIB / 0.95) + 1,
            "half of this batch fits, checkpointing saves up to 7 GiB, an 8-bit or sharded "
            "optimizer 1.5 GiB.",
        ),
        (
            {"activation": GIB, **STEADY},
            LAYERS,
            int(6 * GIB / 0.95) - 1,
            "a third of this batch fits, checkpointing saves up to 7 GiB, an 8-bit or sharded "
            "optimizer 1.5 GiB.",
        ),
        # In a first step, gradients and states are to come: 3 GiB more.
        (
            {"activation": GIB, "parameter": GIB},
            LAYERS,
            int(6 * GIB / 0.95) + 1,
            "1/6 of this batch fits, checkpointing saves up to 7 GiB.",
        ),
        (
            {"activation": GIB, "parameter": GIB},
            LAYERS,
            4 * GIB,
            "half the batch saves 4 GiB, checkpointing up to 7 GiB.",
        ),
    ],
)
def test_what_is_saved(
    sizes: dict[str, int], progress: Unfinished | None, total: int, expected: str
) -> None:
    (text,) = lowering(usage(**sizes), progress, total, is_needed=True)
    assert text == f"By estimate, {expected}"


def test_little_is_not_named() -> None:
    assert lowering(usage(unknown=GIB, activation=40 * MIB), is_needed=True) == [
        "The program must hold less: a smaller batch."
    ]
    # AND what the program does not have is no remedy
    for sizes, expected in (
        ({"parameter": GIB}, "a smaller or sharded model."),
        ({"parameter": GIB, "optimizer_state": 2 * GIB}, "a smaller optimizer."),
        ({"activation": GIB}, "a smaller batch, checkpointing."),
    ):
        found = lowering(usage(**sizes), missing_bytes=9 * GIB, is_needed=True)
        assert found == [f"The program must hold less: {expected}"]
    # At a peak, one kind of memory is no reason to say something.
    assert lowering(usage(unknown=GIB, activation=GIB)) == []
    assert len(lowering(usage(optimizer_state=GIB, activation=GIB))) == 1


@pytest.mark.parametrize(("missing", "is_named"), [(3 * GIB // 2, True), (3 * GIB // 2 + 1, False)])
def test_too_little_is_not_named(missing: int, is_named: bool) -> None:
    # GIVEN 1 GiB of activations and 512 MiB of states that could be saved
    sizes = {"activation": GIB, "optimizer_state": 2 * GIB // 3 + 1}
    for is_needed in (False, True):
        texts = lowering(usage(**sizes), missing_bytes=missing, is_needed=is_needed)
        assert ("By estimate" in "".join(texts)) == is_named
        assert len(texts) == is_named or is_needed


def test_what_checkpoints_keep_is_not_saved() -> None:
    owners = [Owner("checkpoint.argument", GIB, GIB, 1), Owner("MmBackward0.self", GIB, GIB, 1)]
    (text,) = lowering([CategoryUsage("activation", 2 * GIB, 0, 2, 0, owners)], is_needed=True)
    assert text == "By estimate, half the batch saves 1 GiB, checkpointing up to 1 GiB."


# --- how far a forward pass was -------------------------------------------------------------------

ATTENTION, MLP, NORM = (("model.py", "forward", line) for line in (1, 2, 3))


def model(layers: int = 8, name: str = "layers.{}.weight", last_kib: int = 2) -> Program:
    """Return a program that has made a model of 2 KiB a layer."""
    program = Program()
    for number in range(layers):
        size = last_kib if number == layers - 1 else 2
        address = program.alloc(size * KIB, ("model.py", "__init__", 1))
        program.own(address, "parameter", "module", name.format(number))
    return program


def layer(program: Program, more_kib: int = 0) -> None:
    """Run a layer that keeps 21 KiB, and needs 3 more in between."""
    program.own(program.alloc(8 * KIB, ATTENTION), "activation", "saved_by_node", "x")
    temporary = program.alloc(3 * KIB, ATTENTION)
    for _ in range(2):
        program.own(program.alloc(4 * KIB, NORM), "activation", "saved_by_node", "x")
    program.free(temporary)
    program.alloc((5 + more_kib) * KIB, MLP)


def progress_of(program: Program) -> Unfinished | None:
    program.out_of_memory(8 * KIB, 0, ATTENTION)
    program.metadata = program.metadata or file_metadata()
    data = device_data(program.snapshot(), 0)
    (oom,) = out_of_memories(data)
    return unfinished(data, oom, categories_of(held_at(data, oom.event + 1)))


@pytest.mark.parametrize("done", [3, 5])
def test_the_layer_of_a_forward_pass(done: int) -> None:
    program = model()
    program.alloc(10 * KIB, ("model.py", "embed", 1))
    for _ in range(done):
        layer(program)
    found = progress_of(program)
    # THEN 26 KiB are there before the layers, and each keeps 21
    assert found is not None
    assert found.text.startswith(
        f"The forward pass was in layer {done} of 8 (layers). Each layer keeps 21 KiB, so the rest "
    )
    assert (found.layers, found.layers_bytes) == (8, 8 * 21 * KIB)
    assert found.start_bytes == 26 * KIB
    assert found.more_bytes == (8 - done) * 21 * KIB


@pytest.mark.parametrize(
    ("program", "layers", "more_kib"),
    [
        (model(), [2], 0),  # too few to know what all keep
        (model(), [8], 0),  # all of them
        (model(), [9], 0),  # another forward pass
        (model(), [2, 3], 4),  # not alike
        (model(name="layer{}.weight"), [3], 0),
        (model(3), [3], 0),
        (model(last_kib=3), [3], 0),  # as the stages of a Swin transformer
    ],
)
def test_a_forward_pass_of_which_too_little_is_known(
    program: Program, layers: list[int], more_kib: int
) -> None:
    for number, count in enumerate(layers):
        for _ in range(count):
            layer(program, number * more_kib)
    assert progress_of(program) is None


def test_another_model_that_is_made_is_no_forward_pass() -> None:
    program = model()
    for _ in range(5):
        program.alloc(2 * KIB, ("model.py", "__init__", 2))
        program.alloc(2 * KIB, ("model.py", "__init__", 3))
    assert progress_of(program) is None


def test_whole_forward_passes_are_no_layers() -> None:
    # GIVEN a list that keeps the result of a forward pass of 8 layers, in the fourth pass
    program = model()
    for _ in range(3):
        for _ in range(8):
            program.own(program.alloc(4 * KIB, NORM), "activation", "saved_by_node", "x")
        program.alloc(8 * KIB, ATTENTION)
    assert progress_of(program) is None


def test_the_states_of_an_optimizer() -> None:
    # GIVEN 8 parameters with gradients, and the states of 3, of which the last has one of two
    program = model()
    for number in range(8):
        address = program.alloc(2 * KIB, ("train.py", "backward", 1))
        program.own(address, "gradient", "grad", f"grad of layers.{number}.weight")
    for number, name in [(0, "a"), (0, "b"), (1, "a"), (1, "b"), (2, "a")]:
        address = program.alloc(2 * KIB, ("train.py", "step", 1))
        program.own(address, "optimizer_state", "optimizer", f"{name} of layers.{number}.weight")
    found = progress_of(program)
    assert found is not None
    assert found.text.startswith(
        "The optimizer had created its state for 3 of 8 parameters; the rest need about"
    )
    assert found.more_bytes == (16 - 5) * 2 * KIB
    assert found.layers == 0
    # AND in a later step, parameters without states are those of another optimizer
    program.metadata = file_metadata(current_step=2)
    program.metadata["devices"][0] |= {"steps": [[1, 0], [2, 9]], "overwritten": 0}
    program.events.pop()
    assert progress_of(program) is None


@pytest.mark.parametrize(
    ("kib", "last_kib", "is_known"),
    [(20, 22, True), (20, 23, False), (2048, 3276, True), (2048, 3277, False)],
)
def test_layers_whose_parameters_are_alike(kib: int, last_kib: int, is_known: bool) -> None:
    sizes = {f"layers.{number}.weight": kib * KIB for number in range(7)}
    found = layers_of({**sizes, "layers.7.weight": last_kib * KIB})
    assert found == (("layers", 8) if is_known else None)


@pytest.mark.parametrize(("head_kib", "is_known"), [(16, True), (17, False)])
def test_layers_are_half_of_the_model(head_kib: int, is_known: bool) -> None:
    program = model()  # of 16 KiB
    address = program.alloc(head_kib * KIB, ("model.py", "__init__", 2))
    program.own(address, "parameter", "module", "head.weight")
    for _ in range(3):
        layer(program)
    assert (progress_of(program) is not None) == is_known


@pytest.mark.parametrize(("more_bytes", "is_known"), [(512 * 2, True), (512 * 3, False)])
def test_how_much_layers_may_differ(more_bytes: int, is_known: bool) -> None:
    # GIVEN layers that keep 60 KiB, but the second 1 KiB more, or 1.5
    program = model()
    for number in range(4):
        program.alloc(8 * KIB, ("model.py", "forward", 1))
        address = program.alloc(52 * KIB + more_bytes * (number == 1), ("model.py", "forward", 2))
        program.own(address, "activation", "saved_by_node", "x")
    assert (progress_of(program) is not None) == is_known


@pytest.mark.parametrize(("activation", "is_named"), [(50 * MIB, True), (49 * MIB, False)])
def test_a_twentieth_is_named(activation: int, is_named: bool) -> None:
    (text,) = lowering(
        usage(unknown=1000 * MIB - activation, activation=activation), is_needed=True
    )
    assert ("checkpointing saves" in text) == is_named


def checkpointed(regions: int, rest: int, kept: str) -> list[CategoryUsage]:
    """Return a model of 8 layers, of which some regions are checkpointed; and other activations."""
    parameters = [Owner(f"layers.{number}.weight", MIB, MIB, 1) for number in range(8)]
    activations = [Owner("GeluBackward0.self", rest, rest, 3)]
    activations += [Owner(kept, regions * MIB, regions * MIB, regions)] * (regions > 0)
    return [
        CategoryUsage("parameter", 8 * MIB, 8 * MIB, 8, 0, parameters),
        CategoryUsage("activation", rest + regions * MIB, rest, regions + 3, 0, activations),
    ]


@pytest.mark.parametrize("kept", ["checkpoint.argument", "CheckpointFunctionBackward.tensors"])
@pytest.mark.parametrize(
    ("regions", "recomputed", "saved"),
    [
        (0, 0, "4 MiB"),
        (2, 0, "4 MiB"),  # two of eight layers
        (8, 0, ""),  # all of them
        (3, 4 * MIB, ""),  # the fourth layer is recomputed
        (3, 3 * MIB, "1 MiB"),
    ],
)
def test_what_is_checkpointed_already(kept: str, regions: int, recomputed: int, saved: str) -> None:
    usages = checkpointed(regions, 4 * MIB, kept)
    (text,) = lowering(usages, is_needed=True, recomputed_bytes=recomputed)
    assert (f"checkpointing up to {saved}" if saved else "") in text
    assert ("checkpointing" in text) == bool(saved)


def test_a_forward_pass_of_checkpoints() -> None:
    # GIVEN a forward pass in which each layer keeps the argument of its checkpoint
    for regions, is_advised in ((5, False), (0, True)):
        usages = checkpointed(regions, 4 * MIB, "checkpoint.argument")
        (text,) = lowering(usages, LAYERS, is_needed=True)
        assert ("checkpointing" in text) == is_advised


def test_what_a_recomputation_keeps() -> None:
    # GIVEN an activation of a forward pass, and one of its recomputation by a checkpoint
    engine = ("/site-packages/torch/autograd/graph.py", "_engine_run_backward", 824)
    checkpoint = ("/site-packages/torch/utils/checkpoint.py", "unpack_hook", 1100)
    program = Program()
    for kib, stack in ((1, [NORM]), (2, [NORM, checkpoint, engine]), (4, [NORM, engine])):
        program.own(program.alloc(kib * KIB, *stack), "activation", "saved_by_node", "x")
    program.alloc(8 * KIB, NORM, checkpoint, engine)
    data = device_data(program.snapshot(), 0)
    assert recomputed_bytes(held_at(data, None)) == 2 * KIB


@pytest.mark.parametrize("is_recomputed", [False, True])
def test_activations_without_names(is_recomputed: bool) -> None:
    # GIVEN activations of which no name says whether a checkpoint keeps them, as at a peak
    engine = ("/site-packages/torch/autograd/graph.py", "_engine_run_backward", 824)
    checkpoint = ("/site-packages/torch/utils/checkpoint.py", "unpack_hook", 1100)
    program = Program()
    again = [checkpoint] if is_recomputed else []
    for kib, stack in ((4, [NORM]), (2, [NORM, *again, engine])):
        program.own(program.alloc(kib * KIB, *stack), "activation", "saved_by_node", "")
    held = held_at(device_data(program.snapshot(), 0), None)
    # THEN those of a program that recomputes may all be kept by checkpoints
    assert recomputed_bytes(held) == (6 * KIB if is_recomputed else 0)


def test_what_checkpoints_keep_is_no_reason_for_more() -> None:
    # GIVEN almost nothing but what checkpoints keep
    (text,) = lowering(checkpointed(3, 0, "checkpoint.argument"), missing_bytes=GIB, is_needed=True)
    assert text == "The program must hold less: a smaller or sharded model, a smaller batch."


@pytest.mark.parametrize(("room_mib", "length"), [(140, 1024), (200, 1024), (400, 2048)])
def test_the_input_that_fits_by_simulation(room_mib: int, length: int, tmp_path: Path) -> None:
    # GIVEN steps, and one with a longer input for which there is no memory
    path, before = tmp_path / "1.pickle", [64, 96, 128, 64]
    assert write(path, training, room_mib << 20, batch=4, length=[*before, length]).ran_out
    (explanation,) = explain(load(path), try_settings=try_settings)
    texts = [suggestion.why for suggestion in explanation.suggestions]
    (text,) = [text for text in texts if "n input fits if this line" in text]
    fitting_bytes = parsed_size(text.removesuffix(" (simulated).").rsplit("up to ", 1)[1])
    # THEN more than before fits, AND so does what is named: attention requests 64 times the square
    fitting = int((fitting_bytes / 64) ** 0.5)
    assert fitting > 1.5 * max(before)
    run = write(path, training, room_mib << 20, batch=4, length=[*before, fitting])
    assert not run.ran_out


def test_no_input_that_fits_is_named_without_earlier_steps(tmp_path: Path) -> None:
    path = tmp_path / "1.pickle"
    assert write(path, training, 140 << 20, batch=4, length=[64, 1024]).ran_out
    (explanation,) = explain(load(path), try_settings=try_settings)
    assert not any("input fits" in suggestion.why for suggestion in explanation.suggestions)
