"""The answer on growing memory says who keeps it, how fast it grows, and when memory runs out."""

from typing import Any

import pytest
from leaking_programs import LINE, MODEL, OTHER, SIZE, keep, observed, recorded
from synthetic_snapshots import Program

from pytracer.analysis import explain, find_leaks
from pytracer.analysis.answer_words import answer_of
from pytracer.analysis.holder_names import bound_of
from pytracer.analysis.leaks.results import answer, leaks_of, remedy


@pytest.mark.parametrize(
    ("category", "rule", "name", "kept_by"),
    [
        ("optimizer_state", "optimizer", "exp_avg of layers.{}.weight", None),
        ("gradient", "grad", "grad of layers.{}.weight", None),
        ("workspace", "cublas", "cuBLAS workspace", ""),
        ("parameter", "module", "adapters.{}.weight", "the model's adapters.[…].weight"),
        ("buffer", "module", "memories.{}", "the model's memories.[…]"),
        # More than the parameter's own size accounts for.
        ("optimizer_state", "optimizer", "history of weight", "state['history'] of an optimizer"),
        ("optimizer_state", "optimizer", "old_dirs of weight", None),  # LBFGS has a bound
        ("optimizer_state", "optimizer", "history of another.weight", None),  # of unknown size
        ("gradient", "grad", "grad of weight", "weight.grad of the model"),
    ],
)
def test_growth_of_an_owner(category: str, rule: str, name: str, kept_by: str | None) -> None:
    # GIVEN memory that grows, and that has an owner at the end: gradients and states come late, but
    # a program that makes streams without end has ever more workspaces, and a model can grow
    def step(program: Program, number: int) -> None:
        program.own(program.alloc(SIZE, LINE), category, rule, name.format(number))

    def begin(program: Program) -> None:
        program.own(program.alloc(SIZE, MODEL), "parameter", "module", "weight")

    device = observed(step, begin=begin)
    assert device.verdict == ("none" if kept_by is None else "leak")
    # AND the parameters are named
    assert (f"kept by {kept_by}." in answer(device).replace("`", "")) == bool(kept_by)


class ReplacedParameters:
    """A model of 80 parameters, of which each step replaces another one, as weights are synced."""

    def __init__(self) -> None:
        self._parameters: list[int] = []

    def begin(self, program: Program) -> None:
        self._parameters = [program.alloc(SIZE, MODEL) for _ in range(80)]

    def replace(self, program: Program, number: int, line: Any) -> None:
        program.free(self._parameters[number])
        self._parameters[number] = program.alloc(SIZE, line)

    def end(self, program: Program) -> None:
        for number, address in enumerate(self._parameters):
            program.own(address, "parameter", "module", f"layers.{number}.weight")


def test_a_leak_next_to_parameters_that_are_replaced() -> None:
    # GIVEN a list that grows, and a model of which each step replaces another parameter
    model = ReplacedParameters()

    def step(program: Program, number: int) -> None:
        model.replace(program, number, OTHER)
        program.alloc(SIZE, LINE)

    # THEN the list alone is the leak, because the model does not grow
    device = observed(step, begin=model.begin, end=model.end)
    assert device.bytes_per_step == SIZE
    (leak,) = leaks_of(device)
    assert leak.frames[0] == LINE


@pytest.mark.parametrize("verdict", ["none", "leak"])
def test_a_collection_of_modules(verdict: str) -> None:
    # GIVEN modules that are made in each step, of which the last 20 are kept, or all
    kept: list[int] = []

    def step(program: Program, number: int) -> None:
        kept.append(program.alloc(SIZE, LINE))
        if verdict == "none" and len(kept) > 20:
            program.free(kept.pop(0))

    def end(program: Program) -> None:
        for number, address in enumerate(kept):
            program.own(address, "parameter", "module", f"Linear#{number}.weight")

    # THEN only the second is a leak
    assert observed(step, end=end).verdict == verdict


def test_a_buffer_that_is_replaced_by_larger_ones() -> None:
    kept: list[int] = []

    def step(program: Program, number: int) -> None:
        kept.append(program.alloc(number * 4096, LINE))
        if len(kept) > 1:
            program.free(kept[-2])

    def end(program: Program) -> None:
        program.own(kept[-1], "buffer", "module", "bank")

    device = observed(step, end=end)
    assert (device.verdict, device.growths[0].kind) == ("leak", "replaced")
    assert device.growths[0].kept_by == "the model's bank"


@pytest.mark.parametrize(
    ("every", "expected"), [(1, "losses[…] of main()"), (2, "losses[…] of main()"), (3, None)]
)
def test_what_keeps_a_leak(every: int, expected: str | None) -> None:
    # GIVEN memory that grows, of which a list keeps one block of a few
    def step(program: Program, number: int) -> None:
        address = program.alloc(SIZE, LINE)
        if number % every == 0:
            program.hold(address, f"losses[{number}] of main()")

    # THEN the answer names the list if it keeps at least half of the bytes
    device = observed(step)
    assert device.growths[0].kept_by == expected
    assert ("train_step, kept by `losses[…]` of main()." in answer(device)) == (
        expected is not None
    )

    # AND where lines leak, what keeps at least half of their memory
    def several(program: Program, number: int) -> None:
        step(program, number)
        program.alloc(SIZE, MODEL)
        program.hold(program.alloc(4 * SIZE, OTHER), "x of main()")

    assert "2 other lines, kept by `x` of main()." in answer(observed(several))


@pytest.mark.parametrize(("category", "is_named"), [("activation", True), ("unknown", False)])
def test_what_keeps_a_chain_of_graphs(category: str, is_named: bool) -> None:
    # GIVEN a sum of losses, of whose graphs only the newest were read
    def step(program: Program, number: int) -> None:
        found = category if number > 50 or number % 2 else "unknown"
        program.own(address := program.alloc(SIZE, LINE), found, "saved_by_node", "")
        if number > 50:
            program.hold(address, "total of main()")

    # THEN it keeps the others, too, if these have no owner
    assert observed(step).growths[0].kept_by == ("total of main()" if is_named else None)


@pytest.mark.parametrize("lost", [0, 90])
def test_the_growth_of_a_queue(lost: int) -> None:
    # GIVEN a queue that gets three blocks in each step, of which two are taken
    queue: list[int] = []

    def step(program: Program, number: int, *, events: bool = True) -> None:
        for _ in range(3):
            queue.append(program.alloc(SIZE, LINE, events=events))
            program.hold(queue[-1], "ready of main()")
        for _ in range(2 if events else 0):
            program.free(queue.pop(0))

    def begin(program: Program) -> None:
        for number in range(lost // 3):  # before the first step of the file
            step(program, number, events=False)

    (growth,) = observed(step, first=lost + 1, steps=lost + 120, begin=begin).growths
    assert (growth.verdict, growth.bytes_per_step) == ("leak", SIZE)
    assert (growth.first_step, growth.is_older) == ((92, True) if lost else (1, False))
    assert growth.kept_by == "ready of main()"


@pytest.mark.parametrize(
    ("second", "is_named"),
    [
        ("target[{}] of main()", True),
        ("preds[{}] of main()", False),  # the same list
        ("a reference cycle of Node, which gc.collect() would free", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_what_keeps_the_rest_of_a_leak(parts: int, second: str, is_named: bool) -> None:
    # GIVEN two lines whose memory is kept: one list has most of it
    def step(program: Program, number: int) -> None:
        program.hold(program.alloc(parts * SIZE, LINE), f"preds[{number}] of main()")
        address = program.alloc(SIZE, OTHER)
        if second:
            program.hold(address, second.format(number))

    # THEN what keeps the rest is named if that is a quarter
    device = observed(step)
    expected = (
        "look at `preds[…]` of main() and `target[…]` of main(): drop what you no longer need"
    )
    assert remedy(leaks_of(device)).startswith(expected) == (is_named and parts < 4)
    text = "kept by `preds[…]` of main() and by `target[…]` of main()."
    assert (text in answer(device)) == (is_named and parts < 4)


@pytest.mark.parametrize(("has_holders", "expected"), [(True, SIZE / 2), (False, SIZE)])
def test_the_rate_of_a_line_that_serves_a_bounded_cache_too(
    has_holders: bool, expected: float
) -> None:
    # GIVEN a line whose blocks are in a cache of 20 steps, and every second one in a list for ever
    blocks: list[int] = []

    def step(program: Program, number: int) -> None:
        blocks.append(program.alloc(SIZE, LINE))
        if len(blocks) > 20 and len(blocks) % 2:
            program.free(blocks[len(blocks) - 21])

    def end(program: Program) -> None:
        for number, address in enumerate(blocks):
            if has_holders and (number % 2 or number >= len(blocks) - 20):
                name = "kept" if number % 2 else "cache"
                program.hold(address, f"{name}[{number}] of main()")

    # THEN the growth is that of the list, if it is known
    device = observed(step, steps=30, end=end)
    assert device.verdict == "leak"
    assert device.bytes_per_step == expected


@pytest.mark.parametrize(
    ("free_bytes", "kept_bytes", "is_harmless"),
    [(10**9, 512, True), (4 * 10**8, 512, False), (None, 512, True), (None, 1024, False)],
)
def test_a_leak_that_will_never_matter(
    free_bytes: int | None, kept_bytes: int, is_harmless: bool
) -> None:
    # GIVEN a leak, and memory for more or fewer than a million further steps
    program = recorded(lambda program, number: program.alloc(kept_bytes, LINE))
    if free_bytes is not None:
        program.metadata["devices"][0] |= {"free_bytes": free_bytes, "reserved_bytes": 0}
    snapshot = program.snapshot()
    (device,) = find_leaks(snapshot).devices
    # THEN it is a leak all the same, but the file has no problem
    assert device.verdict == "leak"
    assert device.is_harmless == is_harmless
    assert answer(device).startswith("Harmless leak: " if is_harmless else "Leak: ")
    shown = answer_of(explain(snapshot)[0])
    assert shown.kind == ("none" if is_harmless else "leak")
    assert is_harmless == any("harmless: " in text for text in shown.texts("leak"))


MIB = 1 << 20


def training(program: Program, number: int) -> None:
    """Keep 1 MiB of a step, whose peak is 9 MiB higher; in each fifth step 12 MiB."""
    program.alloc(MIB, LINE)
    for address in [program.alloc(MIB, OTHER) for _ in range(9 + 3 * (number % 5 == 0))]:
        program.free(address)


def step_that_runs_out(limit_bytes: int) -> int:
    """Run `training` without end, and return the first step whose peak is above the limit."""
    held = 0
    for number in range(1, 10_000):
        held += MIB
        if held + (9 + 3 * (number % 5 == 0)) * MIB > limit_bytes:
            return number
    raise AssertionError


@pytest.mark.parametrize(
    ("total", "others", "fraction"), [(100, 0, 1.0), (100, 39, 1.0), (100, 0, 0.5), (100, 60, 0.5)]
)
def test_the_step_in_which_memory_runs_out(total: int, others: int, fraction: float) -> None:
    # GIVEN a device, of which others hold a part and of which the process may use a fraction
    limit = min(total - others, int(total * fraction)) * MIB
    program = recorded(training, steps=20)
    reserved = sum(segment["total_size"] for segment in program.content()["segments"])
    program.metadata["devices"][0] |= {
        "total_bytes": total * MIB,
        "free_bytes": (total - others) * MIB - reserved,
        "reserved_bytes": reserved,
        "statistics": {"memory_fraction": fraction},
    }
    # WHEN the recording ends long before memory runs out
    (device,) = find_leaks(program.snapshot()).devices
    # THEN the answer names the step whose peak is above the limit, or one of the same five
    expected = step_that_runs_out(limit)
    assert device.exhausted_step is not None
    assert expected - 5 < device.exhausted_step <= expected
    assert f"Memory would run out at about step {device.exhausted_step}." in answer(device)


def test_the_step_in_which_memory_ran_out() -> None:
    # GIVEN a program that ran out of memory in step 61, and whose device has much free memory
    program = recorded(keep, end=lambda program: program.out_of_memory(1 << 40, 1 << 36))
    (device,) = find_leaks(program.snapshot()).devices
    # THEN no later step is named
    assert (device.verdict, device.oom_step, device.exhausted_step) == ("leak", 61, None)
    assert answer(device).endswith(" Memory ran out in step 61.")
    # AND an out-of-memory that the program survived is no end: here, in step 1
    program = recorded(keep, begin=lambda program: program.out_of_memory(1 << 40, 1 << 36))
    (device,) = find_leaks(program.snapshot()).devices
    assert (device.verdict, device.oom_step) == ("leak", None)
    assert device.exhausted_step is not None


@pytest.mark.parametrize("is_model", [False, True])
def test_only_what_is_no_parameter_may_be_kept_by_a_graph(is_model: bool) -> None:
    # GIVEN one list that keeps the memory of two lines: graphs, or copies of a model
    def step(program: Program, number: int) -> None:
        for line, name in ((LINE, "weight"), (OTHER, "bias")):
            address = program.alloc(SIZE, line)
            program.hold(address, f"kept[{number}] of main()")
            if is_model:
                program.own(address, "parameter", "module", name)

    # THEN only of a graph the answer says how to drop it
    found = leaks_of(observed(step))
    assert found[0].is_of_model == is_model
    assert ("it keeps graphs" in remedy(found)) != is_model


@pytest.mark.parametrize(("free_mib", "verdict"), [(None, "none"), (100, "none"), (5, "leak")])
def test_a_container_with_a_bound(free_mib: int | None, verdict: str) -> None:
    # GIVEN a container that has 60 of at most 300 items of 64 KiB: 15 MiB more when it is full
    holder = "memory (inside a deque, 60 of at most 300)[{}] of main()"

    def step(program: Program, number: int) -> None:
        program.hold(program.alloc(SIZE, LINE), holder.format(number))

    program = recorded(step)
    if free_mib is not None:
        total = {"total_bytes": 1 << 30, "free_bytes": free_mib * MIB}
        reserved = sum(segment["total_size"] for segment in program.content()["segments"])
        program.metadata["devices"][0] |= total | {"reserved_bytes": reserved}
    (device,) = find_leaks(program.snapshot()).devices
    # THEN it leaks only if the full container does not fit
    assert device.verdict == verdict
    name = "kept by `memory` (inside a deque, 60 of at most 300)[…] of main()"
    assert name in answer(device)
    # AND the answer says how much it will take, and else what to do
    if verdict == "none":
        assert f"the growth has a bound: it ends at about 18.75 MiB, {name}." in answer(device)
        assert device.releases[0].most_bytes == 60 * SIZE
    else:
        text = "let `memory` (inside a deque, 60 of at most 300)[…] of main() keep fewer items"
        assert remedy(leaks_of(device)).startswith(text)


@pytest.mark.parametrize(
    ("holders", "kept_by"),
    [
        # Attributes with several names, and with a name for each item
        ("box.a[{0}] box.b[{0}] box.c[{0}]", "box.…[…] of main()"),
        ("box.x{0}.y", "box.… of main()"),
        # A tree
        ("t.a[<tuple>].v[{0}] t.a[<tuple>].a[<tuple>].v t.a[{0}].a[0].a[0].v", "t.a[…] of main()"),
        ("net._modules['0'].h[{0}]", "net.0.h[…] of main()"),
        # One that has half of the memory
        ("box.a[{0}] box.a[{0}] box.b[{0}]", "box.a[…] of main()"),
        # Different variables
        ("a[{0}] b[{0}] c.d[{0}]", None),
    ],
)
def test_attributes_with_several_names(holders: str, kept_by: str | None) -> None:
    def step(program: Program, number: int) -> None:
        names = holders.format(number).split()
        program.hold(program.alloc(SIZE, LINE), f"{names[number % len(names)]} of main()")

    device = observed(step)
    assert device.verdict == "leak"
    assert device.growths[0].kept_by == kept_by
    assert kept_by is None or f"kept by `{kept_by.replace(' of', '` of')}" in answer(device)


def test_lines_of_one_function() -> None:
    def step(program: Program, number: int) -> None:
        for line in (10, 12):
            program.alloc(SIZE * line, LINE, ("/home/me/train.py", "main", line))

    assert answer(observed(step)).startswith(
        "Leak: 1.375 MiB a step since step 1, from me/train.py:41 train_step, called from "
        "me/train.py:12 main and 1 other line."
    )


@pytest.mark.parametrize(
    ("holder", "bound"),
    [
        ("memory (inside a deque, 60 of at most 300)", (60, 300)),
        ("state.memory (inside a list, 4 of at most 16) of main()", (4, 16)),
        # There may be more and more of such containers.
        ("requests[…].states (inside a list, 4 of at most 16) of main()", None),
        ("box.… (inside a deque, 4 of at most 16) of main()", None),
        ("losses[…] of main()", None),
    ],
)
def test_the_bound_of_a_holder(holder: str, bound: tuple[int, int] | None) -> None:
    assert bound_of(holder) == bound


@pytest.mark.parametrize(
    ("requests", "of_request", "verdict"),
    [
        (240, 2, f"MEMORY KEPT GROWING: by {240 * SIZE // 2**20} MiB"),
        (120, 2, "NO PROBLEM FOUND"),  # a cache that is full after half of the time
        (240, 0, "NO PROBLEM FOUND"),  # a model that is loaded
    ],
)
def test_memory_that_grows_without_steps(requests: int, of_request: int, verdict: str) -> None:
    # GIVEN a program without steps, such as a server, that keeps something of its first requests
    program = Program()
    for number in range(240):
        for _ in range(of_request):
            program.free(program.alloc(SIZE, OTHER))
        if number < requests:
            program.alloc(SIZE, LINE)
    (found,) = explain(program.snapshot())
    answered = answer_of(found)
    # THEN the answer names the line if the memory grew all the time, while more was freed
    assert answered.verdict == verdict
    (why,) = answered.texts("leak")
    assert why == "can't tell, because the recording has no steps"
    assert (answered.lines[0].role == "from") == (verdict != "NO PROBLEM FOUND")


@pytest.mark.parametrize(
    ("kept", "passes", "is_named"), [(SIZE, 240, True), (SIZE, 1, False), (512, 240, False)]
)
def test_memory_that_grew_until_it_ran_out(kept: int, passes: int, is_named: bool) -> None:
    # GIVEN a server without steps, one pass of a model, and a server that keeps little
    forward = ("/venv/torch/nn/modules/module.py", "_call_impl", 1)
    program = Program()
    for _ in range(120):
        program.alloc(SIZE, MODEL)
    for number in range(240):
        program.alloc(kept, LINE)
        if number < passes:
            program.free(program.alloc(SIZE, OTHER, forward))
    program.out_of_memory(16 * SIZE, 0, LINE)
    (found,) = explain(program.snapshot())
    # THEN the line is named, and nothing else is advised
    assert (found.verdicts[0].kind == "kept growing") == is_named
    advice = [each.why.startswith("Find what keeps the memory") for each in found.suggestions]
    assert (advice == [True]) == is_named


@pytest.mark.parametrize(("kept", "is_said"), [(4 * SIZE, True), (SIZE // 16, False)])
def test_what_stays_between_steps(kept: int, is_said: bool) -> None:
    # GIVEN an attribute with the outputs of the last step, which the next one replaces
    last: list[int] = []

    def step(program: Program, number: int) -> None:
        last.append(program.alloc(kept, LINE))
        program.hold(last[-1], "self.last of main()")
        program.free(program.alloc(SIZE, MODEL))
        if number > 1:
            program.free(last.pop(0))

    (found,) = explain(recorded(step).snapshot())
    text = "were kept from one step to the next, kept by `self.last` of main()"
    assert any(text in line for line in answer_of(found).texts("peak")) == is_said
