"""Test the explanation of a file: what happened, who holds memory and for how long, what to try."""

from collections.abc import Sequence
from typing import Any

import pytest
from synthetic_snapshots import SEGMENT, Program, file_metadata

from pytracer.analysis import explain
from pytracer.analysis.answer import Answer, Line, log_lines, text_lines
from pytracer.analysis.answer_words import answer_of
from pytracer.analysis.oom.reasons import FREED
from pytracer.text import size

MIB, GIB = 2**20, 2**30
KIB = 2**10

MODEL = ("model.py", "forward", 31)
TORCH = ("/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", "_call_impl", 1)
NATIVE = ("??", "torch::autograd::Engine::run()", 0)


def program_of_steps() -> Program:
    """Return a program that runs out of memory in step 4, with blocks of all steps."""
    program = Program()
    program.metadata = file_metadata(oom={"device": 0, "requested_bytes": 40 * MIB})
    steps = []
    for step in range(1, 5):
        steps.append([step, len(program.events)])
        program.alloc(300 * KIB, MODEL, TORCH, NATIVE, ("train.py", "main", 7))
        if step < 3:
            program.alloc(KIB, ("setup.py", "load", 2))
    temporary = program.alloc(400 * KIB, ("train.py", "temporary", 9))
    program.free(temporary)
    program.out_of_memory(40 * MIB, 10 * MIB)
    program.metadata["devices"][0] |= {"steps": steps, "overwritten": 0}
    return program


def test_who_holds_memory_and_for_how_long() -> None:
    # GIVEN a program that keeps a block of each step
    (found,) = explain(program_of_steps().snapshot())
    # THEN the call sites are those at the out-of-memory, with callers outside torch
    model, setup = found.holders
    assert found.held_at == "oom"
    assert model.site.call_site == MODEL
    assert model.site.count == 4
    assert [caller.filename for caller in model.callers] == ["train.py"]
    assert found.held_bytes == 4 * 300 * KIB + 2 * KIB
    assert model.share == pytest.approx(1200 / 1202)
    # AND the ages are those of their oldest and newest block, in steps
    assert (model.oldest_age, model.newest_age) == (3, 0)
    assert (setup.oldest_age, setup.newest_age) == (3, 2)
    # AND the answer names the step
    assert answer_of(found).where == "cuda:0, step 4"


def test_what_was_held_at_the_out_of_memory_before() -> None:
    # GIVEN a program that runs out of memory twice, and keeps one of two blocks of the first time
    program = Program()
    program.alloc(300 * KIB, MODEL)
    dropped = program.alloc(400 * KIB, MODEL)
    program.out_of_memory(40 * MIB, 10 * MIB)
    (first,) = explain(program.snapshot())
    program.free(dropped)
    program.alloc(500 * KIB, MODEL)
    program.out_of_memory(40 * MIB, 10 * MIB)
    (second,) = explain(program.snapshot())
    # THEN the second time names what was kept
    assert (first.held_before_bytes, second.held_before_bytes) == (None, 300 * KIB)
    assert (
        "This is the last of 2 such errors in the recording; at the previous one, 300 KiB were held"
        in answer_of(second).texts("why")
    )


def test_what_to_change_in_the_program_is_not_left_out() -> None:
    remedies = [Line("do", "look at kept"), Line("do", "export A=1", "x " * 99, is_command=True)]
    # AND names of holders that alone would fill the answer
    lines = [Line(role, "kept by a.b[…] " * 30) for role in ("why", "held", *20 * ["lines"])]
    found = "\n".join(text_lines(Answer("oom", "", "", [*lines, *remedies, *remedies[1:]])))
    assert "look at kept" in found
    assert found.count("export A=1") == 1


def test_call_sites_that_are_left_out_are_said() -> None:
    # GIVEN an answer that fits into 20 lines of 200 columns, but not of 80
    whys = [Line("why", "some words " * 14) for _ in range(5)]
    sites = [Line("lines", f"train.py:{i} work " * 5, size_bytes=MIB) for i in range(3)]
    answer = Answer("oom", "OUT OF MEMORY", "", [*whys, *sites])
    assert not any("which --all shows" in line for line in text_lines(answer, 200))
    # THEN a narrow terminal says that call sites are missing, and the first stays
    found = "\n".join(text_lines(answer, 80))
    assert "train.py:0 work" in found
    assert "train.py:1 work" not in found
    assert " and others, which --all shows" in found
    # AND two that fit are not replaced
    two = "\n".join(text_lines(Answer("oom", "OUT OF MEMORY", "", [*whys, *sites[:2]]), 80))
    assert "train.py:1 work" in two
    assert "which --all shows" not in two


def test_the_lines_of_a_log() -> None:
    (found,) = explain(program_of_steps().snapshot())
    verdict, asked, free, why, held, lines, do = log_lines(answer_of(found))
    assert verdict == "OUT OF MEMORY: the request is too large (cuda:0, step 4)"
    assert asked == "asked: 40 MiB (unknown)"
    assert free.startswith("free: 10 MiB on the device + ")
    assert why.startswith("why: 40 MiB is more than all the free memory")
    assert held == "held: 1.174 MiB at that moment"
    assert lines.startswith(
        "lines: 1.172 MiB model.py:31 forward ← train.py:7 main (0-3 steps old); 2 KiB"
    )
    assert do.startswith("do: This line asks for 40 MiB: check tensor shapes")


@pytest.mark.parametrize(
    ("holders", "expected"),
    [
        (["losses[0] of main()", "losses[1] of main()"], "losses[…] of main()"),
        (["losses[0] of main()", "", ""], None),
        (["losses[0] of main()", ""], "losses[0] of main()"),
        (["losses[0] of main()", "x of main()", "y of main()"], None),
        (["", ""], None),
    ],
)
def test_what_keeps_half_of_the_bytes_of_a_call_site(
    holders: list[str], expected: str | None
) -> None:
    # GIVEN the blocks of a line, and more memory of another line with one holder
    program = Program()
    for item in range(8):
        program.hold(program.alloc(KIB, ("train.py", "other", 1)), f"other[{item}] of main()")
    for holder in holders:
        address = program.alloc(KIB, MODEL)
        if holder:
            program.hold(address, holder)
    (found,) = explain(program.snapshot())
    other, model = found.holders
    assert (other.kept_by, model.kept_by) == ("other[…] of main()", expected)
    # AND the log has it
    (lines,) = (line for line in log_lines(answer_of(found)) if line.startswith("lines: "))
    assert lines.endswith(f"(kept by `{expected[:9]}` of main())" if expected else "forward")


@pytest.mark.parametrize(
    ("category", "holder", "is_shown"),
    [
        ("activation", "x of Block.forward()", False),
        ("activation", "outputs[3] of main()", True),
        ("unknown", "x of main()", True),
    ],
)
def test_what_a_forward_pass_keeps_by_itself_is_not_shown(
    category: str, holder: str, is_shown: bool
) -> None:
    program = Program()
    address = program.alloc(KIB, MODEL)
    program.own(address, category, "rule", "name")
    program.hold(address, holder)
    (found,) = explain(program.snapshot())
    assert found.holders[0].kept_by == (holder if is_shown else None)


LOOK = "Look at `losses[…]` of main(), which keeps 4 KiB"
MLP = ("/venv/lib/python3.11/site-packages/llama/model.py", "mlp", 3)
LAYER = ("/venv/lib/python3.11/site-packages/llama/model.py", "layer", 2)
WRAPPER = ("/venv/lib/python3.11/site-packages/llama/wrapper.py", "call", 1)
STEP, MAIN = ("train.py", "step", 7), ("train.py", "main", 9)


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        ([MLP, LAYER, WRAPPER, STEP, MAIN], "llama/model.py:3 mlp ← :2 layer ← train.py:7 step"),
        ([MLP, LAYER, WRAPPER], "llama/model.py:3 mlp ← :2 layer ← llama/wrapper.py:1 call"),
        (
            [MLP, STEP, LAYER, MAIN],
            "llama/model.py:3 mlp ← train.py:7 step ← llama/model.py:2 layer",
        ),
        (
            [STEP, WRAPPER, LAYER, MAIN],
            "train.py:7 step ← llama/wrapper.py:1 call ← llama/model.py:2 layer",
        ),
    ],
)
def test_a_line_of_the_users_code_is_shown(stack: list[Any], expected: str) -> None:
    # GIVEN memory of a package's line, and an out-of-memory at it
    program = Program()
    program.metadata = file_metadata(oom={"device": 0, "requested_bytes": 40 * MIB})
    program.alloc(KIB, *stack)
    program.out_of_memory(40 * MIB, 0, *stack)
    (found,) = explain(program.snapshot())
    # THEN the chain has the innermost line of the user's own code, if there is any
    (asked,), (line,) = answer_of(found).texts("asked"), answer_of(found).texts("lines")
    assert (asked, line) == (expected, expected)


@pytest.mark.parametrize(("blocks", "is_much"), [(8, True), (9, False)])
def test_what_keeps_much_is_named_first(blocks: int, is_much: bool) -> None:
    # GIVEN a program that has two blocks in a list, one of no category in a dict, and others
    program = Program()
    program.metadata = file_metadata(oom={"device": 0, "requested_bytes": 40 * MIB})
    for block in range(blocks):
        address = program.alloc(4 * KIB, MODEL)
        if block < 2:
            program.own(address, "activation", "saved_by_node", "MmBackward0.self")
            program.hold(address, f"losses[{block}] of main()")
        elif block == 7:
            program.hold(address, "cache['x'] of main()")
    program.out_of_memory(40 * MIB, MIB)
    (found,) = explain(program.snapshot())
    assert [verdict.kind for verdict in found.verdicts] == ["too large"]
    # THEN what has no category has the name of what keeps it
    (held,) = answer_of(found).texts("held")
    parts = (
        f"unknown {4 * blocks - 12} KiB · activations 8 KiB · kept by `cache['x']` of main(): 4 KiB"
    )
    assert held == f"{4 * blocks} KiB at that moment: {parts}"
    # AND the object that keeps a quarter of all is where to look first
    look = "Look at `losses[…]` of main(), which keeps 8 KiB: it keeps graphs. "
    assert found.suggestions[0].why.startswith(look) == is_much


@pytest.mark.parametrize(("kept", "is_named"), [(1, False), (2, True)])
def test_little_memory_without_a_category_has_no_name(kept: int, is_named: bool) -> None:
    program = Program()
    program.metadata = file_metadata()
    for block in range(15):
        address = program.alloc(KIB, MODEL)
        if block < kept:
            program.hold(address, "cache of main()")
        elif block > 2:
            program.own(address, "activation", "saved_by_node", "MmBackward0.self")
    (held,) = answer_of(explain(program.snapshot())[0]).texts("held")
    assert ("kept by `cache` of main(): 2 KiB" in held) == is_named
    # Memory that is kept without a category is not unknown
    assert ("kept by other objects 1 KiB" in held) == (not is_named)
    assert f"unknown {3 - kept} KiB" in held


@pytest.mark.parametrize(
    ("holder", "category", "expected"),
    [
        ("losses[0] of main()", "activation", f"{LOOK}: it keeps graphs. Store"),
        ("losses[0].keys of main()", "unknown", f"{LOOK}: drop what"),
        (
            "losses (inside a deque) of main()",
            "unknown",
            f"{LOOK}: drop what".replace("[…]`", "` (inside a deque)"),
        ),
        ("losses of main()", "activation", None),
        ("losses[0] of UNet.forward()", "activation", None),  # a forward pass that runs
        ("losses[0] of f(), which the traceback of error of main() keeps", "activation", None),
    ],
)
def test_where_to_look(holder: str, category: str, expected: str | None) -> None:
    program = Program()
    program.metadata = file_metadata(oom={"device": 0, "requested_bytes": 40 * MIB})
    for item in range(2):
        address = program.alloc(2 * KIB, MODEL)
        program.own(address, category, "rule", "name")
        program.hold(address, holder.replace("[0]", f"[{item}]"))
    program.out_of_memory(40 * MIB, 0)
    (found,) = explain(program.snapshot())
    looks = [each.why for each in found.suggestions if each.why.startswith("Look at")]
    assert len(looks) == (expected is not None)
    if expected is not None:
        assert looks[0].startswith(expected)


@pytest.mark.parametrize(("steps", "is_named"), [(1, False), (4, True)])
def test_models_of_a_list_that_grows(steps: int, is_named: bool) -> None:
    # GIVEN a list that keeps parameters: of a model's layers, or of a model of each step
    program, boundaries = Program(), []
    for step in range(steps):
        boundaries.append([step + 1, len(program.events)])
        for item in range(step * 4 // steps, (step + 1) * 4 // steps):
            address = program.alloc(MIB, MODEL)
            program.own(address, "parameter", "module", "weight")
            program.hold(address, f"models[{item}].weight of main()")
    program.metadata = file_metadata(oom={"device": 0, "requested_bytes": 40 * MIB})
    program.metadata["devices"][0]["steps"] = boundaries
    program.out_of_memory(40 * MIB, 0)
    (found,) = explain(program.snapshot())
    # THEN only the models that come one after the other may be dropped
    drops = [each.why for each in found.suggestions if "drop what" in each.why]
    told = "Look at `models[…]` of main(), which keeps 4 MiB of models and optimizers: drop what "
    assert [drop.startswith(told) for drop in drops] == [True] * is_named


@pytest.mark.parametrize(
    ("passes", "losses", "is_named"), [(3, 3, True), (2, 2, False), (3, 1, False)]
)
def test_a_variable_that_keeps_graphs(passes: int, losses: int, is_named: bool) -> None:
    # GIVEN a variable that keeps what layers saved, in passes or in a loop, and their losses
    program = Program()
    program.metadata = file_metadata(oom={"device": 0, "requested_bytes": 40 * MIB})
    for line in [*[MODEL] * 4 * passes, *[("loss.py", "loss_of", 1)] * losses]:
        address = program.alloc(KIB, line)
        program.own(address, "activation", "saved_by_node", "MmBackward0.self")
        program.hold(address, "total of main()")
    program.out_of_memory(40 * MIB, 0)
    (found,) = explain(program.snapshot())
    # THEN it is where to look if each of three passes has its own loss
    looks = [each.why for each in found.suggestions if each.why.startswith("Look at")]
    expected = f"Look at `total` of main(), which keeps {4 * passes + losses} KiB: it keeps graphs"
    assert [look.startswith(expected) for look in looks] == [True] * is_named


SCORES = 600 * KIB  # so that the blocks of a test fill a segment
CROSS_ENTROPY = ("/venv/lib/python3.11/site-packages/torch/nn/functional.py", "cross_entropy", 1)
LOSS_IN_PARTS = "Compute the loss in chunks: with this request, blocks of the logits' size take "


@pytest.mark.parametrize(
    ("requested", "functions", "owner", "expected"),
    [
        # Half of the size, the size, and the request, but not the parameter and the other block.
        (SCORES, [CROSS_ENTROPY, ("train.py", "main", 1)], "", (1 + 2 + 2) * SCORES // 2),
        (SCORES, [("loss.py", "ForCausalLMLoss", 1)], "", (1 + 2 + 2) * SCORES // 2),
        (SCORES, [MODEL, ("train.py", "compute_loss", 1)], "", 0),
        (SCORES, [("functional.py", "mse_loss", 1)], "", 0),
        (SCORES, [MODEL], "", 0),
        (SCORES, [MODEL, CROSS_ENTROPY], "", (1 + 2 + 2) * SCORES // 2),
        (SCORES, [MODEL], "LogSoftmaxBackward0.result", (1 + 2 + 2) * SCORES // 2),
        (SCORES, [*[MODEL] * 3, CROSS_ENTROPY], "", (1 + 2 + 2) * SCORES // 2),
        (SCORES, [*[MODEL] * 4, CROSS_ENTROPY], "", 0),  # too far from the request
        (40 * MIB, [MODEL], "LogSoftmaxBackward0.result", 0),  # little of 41 MiB
        (40 * MIB, [CROSS_ENTROPY], "", 40 * MIB),
    ],
)
def test_the_scores_of_a_loss(
    requested: int, functions: list[Any], owner: str, expected: int
) -> None:
    # GIVEN a program that is out of memory, with scores of 16 and of 32 bits
    program = Program()
    program.metadata = file_metadata(oom={"device": 0, "requested_bytes": requested})
    program.own(program.alloc(SCORES, MODEL), "parameter", "module", "embedding")
    program.alloc(SCORES // 4, MODEL)
    for size_bytes in (SCORES // 2, SCORES):
        address = program.alloc(size_bytes, MODEL)
    program.own(address, "activation", "saved_by_node", owner or "MmBackward0.self")
    program.out_of_memory(requested, 0, *functions)
    # WHEN / THEN
    (found,) = explain(program.snapshot())
    texts = [each.why for each in found.suggestions]
    if expected:
        assert f"{LOSS_IN_PARTS}{size(expected)}." in texts
    else:
        assert not any("loss" in text for text in texts)


@pytest.mark.parametrize(
    ("of_first", "callers"), [(8, ["first", "main"]), (7, []), (2, ["second", "main"])]
)
def test_callers_are_those_of_most_bytes(of_first: int, callers: list[str]) -> None:
    # GIVEN a line that two functions call, of which the first has some of ten blocks
    program = Program()
    main = ("train.py", "main", 9)
    for block in range(10):
        name = "first" if block < of_first else "second"
        program.alloc(KIB, MODEL, ("train.py", name, 3), main)
    # THEN a caller is named if it has at least 80 % of the line's bytes
    (found,) = explain(program.snapshot())
    (holder,) = found.holders
    assert [frame.name for frame in holder.callers] == callers


def test_blocks_older_than_the_trace_have_no_age() -> None:
    program = Program()
    program.metadata = file_metadata(oom={"device": 0, "requested_bytes": MIB})
    program.alloc(300 * KIB, MODEL, events=False)
    program.alloc(300 * KIB, MODEL)
    second = len(program.events)
    program.alloc(300 * KIB, MODEL)
    program.out_of_memory(40 * MIB, 10 * MIB)
    program.metadata["devices"][0] |= {"steps": [[7, 0], [8, second]], "overwritten": 3}
    (found,) = explain(program.snapshot())
    (holder,) = found.holders
    assert (holder.site.count, holder.oldest_age, holder.newest_age) == (3, None, 0)


@pytest.mark.parametrize(
    ("backend", "torch", "settings", "expected"),
    [
        ("cuda", "2.8.0", None, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ("cuda", "2.13.0", None, "PYTORCH_ALLOC_CONF=expandable_segments:True"),
        (
            "cuda",
            "2.13.0",
            "max_split_size_mb:64,expandable_segments:False,roundup_power2_divisions:[256:1,>:2]",
            "PYTORCH_CUDA_ALLOC_CONF='max_split_size_mb:64,expandable_segments:True,"
            "roundup_power2_divisions:[256:1,>:2]'",
        ),
        (  # torch_npu refuses the two together
            "npu",
            "2.13.0",
            "max_split_size_mb:64",
            "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True",
        ),
    ],
)
def test_the_line_to_paste(backend: str, torch: str, settings: str | None, expected: str) -> None:
    # GIVEN a device that is fragmented: 300 segments with half of their memory free
    program = Program()
    program.metadata = file_metadata(oom={"device": 0, "requested_bytes": 2 * MIB})
    program.metadata |= {"backends": [backend, "cpu"], "settings": {backend: settings}}
    program.metadata["torch"] = torch
    for _ in range(300):
        program.alloc(MIB + 512, MODEL)
    program.out_of_memory(MIB, MIB)
    # WHEN it is explained
    (found,) = explain(program.snapshot())
    # THEN the first suggestion keeps the program's settings
    assert [verdict.kind for verdict in found.verdicts] == ["fragmented"]
    assert found.suggestions[0].command == f"export {expected}"
    assert found.suggestions[0].evidence == "untested"
    assert found.suggestions[1].command == "pytracer recommend made.pickle"


@pytest.mark.parametrize(
    ("used", "settings", "is_freed"),
    [
        (MIB, "", True),
        (MIB + 512, "", False),  # what is free is in no piece that fits
        (MIB, "max_split_size_mb:64", False),  # which may keep a piece whole
    ],
)
def test_memory_that_became_free_meanwhile(used: int, settings: str, is_freed: bool) -> None:
    # GIVEN a segment of 2 MiB with one block, and a request of 1 MiB that failed
    program = Program()
    program.metadata = file_metadata(oom={"device": 0, "requested_bytes": MIB})
    program.settings = {"PYTORCH_CUDA_ALLOC_CONF": settings}
    program.alloc(used, MODEL)
    program.out_of_memory(MIB, 0, MODEL)
    (found,) = explain(program.snapshot())
    assert ([verdict.kind for verdict in found.verdicts] == [FREED]) == is_freed


@pytest.mark.parametrize(
    ("requested", "in_message", "backend", "amount"),
    [
        (MIB, 2 * MIB, "cuda", "1 MiB, needs a new segment of 2 MiB"),
        (MIB + 512, 20 * MIB, "npu", "1 MiB, needs a new segment of 20 MiB"),
        (
            5 * MIB,
            40 * MIB,
            "cuda",
            "5 MiB, needs a new segment of 40 MiB",
        ),  # with large_segment_size_mb
        (12 * MIB, 12 * MIB, "cuda", "12 MiB"),
        (4 * GIB - 1, 4 * GIB, "cuda", "4 GiB"),
        (MIB, MIB, "cpu", "1 MiB"),
    ],
)
def test_the_request_and_the_segment_of_torchs_message(
    requested: int, in_message: int, backend: str, amount: str
) -> None:
    # GIVEN an error whose message names the segment that the allocator needed
    program = Program()
    program.metadata = file_metadata(oom={"device": 0, "requested_bytes": in_message})
    program.metadata["backends"] = [backend]
    program.metadata["devices"][0]["is_cpu"] = backend == "cpu"
    if backend == "cpu":
        program.metadata["oom"]["device"] = -1
    program.alloc(MIB, MODEL)
    program.out_of_memory(requested, 0, MODEL)
    (found,) = explain(program.snapshot())
    # THEN the answer has both sizes, in the log, in the terminal and in the headline
    answer = answer_of(found)
    site = "model.py:31 forward"
    assert f"asked: {amount} {site}" in "\n".join(log_lines(answer))
    assert f"asked   {amount}  {site}" in str(answer)
    assert f"; asked {amount} at {site}" in answer.headline


@pytest.mark.parametrize(("later", "is_known"), [("alloc", True), ("free_requested", False)])
def test_whether_the_program_went_on(later: str, is_known: bool) -> None:
    # GIVEN a file with events after the out-of-memory
    program = Program()
    program.metadata = file_metadata()
    address = program.alloc(MIB, MODEL)
    program.out_of_memory(8 * MIB, 0, MODEL)
    if later == "alloc":
        program.alloc(MIB // 2, MODEL)
    else:
        program.free(address)
    (found,) = explain(program.snapshot())
    # THEN only an allocation shows that the program went on
    assert found.oom is not None
    assert found.oom.has_allocated_since == is_known
    assert ("the program continued afterwards" in answer_of(found).texts("why")) == is_known


@pytest.mark.parametrize("pauses", [(), (10, 11, 12), range(200, 300)])
def test_growth_without_steps_is_not_that_of_the_clock(pauses: Sequence[int]) -> None:
    # GIVEN a program without steps that keeps a block of each request, some of which take long
    program = Program()
    for request in range(300):
        program.advance(1_000_000 if request in pauses else 10)
        program.free(program.alloc(1024 * KIB, ("serve.py", "score", 3)))
        program.hold(program.alloc(1024 * KIB, ("serve.py", "answer", 9)), "kept[…] of main()")
    program.out_of_memory(SEGMENT, 0, ("serve.py", "answer", 9))
    # WHEN it is explained THEN the answer is the same
    assert [verdict.kind for verdict in explain(program.snapshot())[0].verdicts] == ["kept growing"]
