"""Test the verdicts of `pytracer show` on programs that run out of memory for a known reason.

The oracle is the program itself: under expandable segments, on a larger device, or without the
memory of others.
"""

import re
from pathlib import Path

import processes
import pytest
from amount import amount

from pytracer.analysis import explain
from pytracer.analysis.answer import Answer
from pytracer.analysis.answer_words import answer_of
from pytracer.analysis.explanation import Explanation
from pytracer.analysis.oom.reasons import (
    EXCEPTION,
    EXHAUSTED,
    FRAGMENTED,
    FREED,
    GARBAGE,
    LARGER_INPUT,
    LEAK,
    LIMIT,
    OTHER_POOL,
    OTHERS,
    REPLACED,
    STREAMS,
    TOO_LARGE,
    UNKNOWN,
)
from pytracer.reading import load
from pytracer.simulator.trials import try_settings

PROGRAM = Path(__file__).parent / "oom_programs.py"
CAPACITY_MIB = 4 << 10

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("simulated_device")]


def run(backend: str, folder: Path, *names: object, **more: str) -> dict[str, str]:
    """Run programs in a process, and return the result of each."""
    env = processes.environment(**{"SIMULATED_CAPACITY_MB": str(CAPACITY_MIB), **more})
    done = processes.run_python(PROGRAM, backend, *names, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


def expandable(backend: str) -> dict[str, str]:
    return {f"PYTORCH_{backend.upper()}_ALLOC_CONF": "expandable_segments:True"}


def explained(folder: Path, name: object) -> Explanation:
    """Return the explanation of a program's out-of-memory."""
    (path,) = folder.glob(f"{name}/oom_*/*.pickle")
    found = explain(load(path))[0]
    assert found.is_oom_file
    return found


def kinds(explanation: Explanation) -> list[str]:
    return [verdict.kind for verdict in explanation.verdicts]


EXPECTED = {
    "fragmented": [FRAGMENTED],
    "nearly_fits": [UNKNOWN],
    "too_large": [TOO_LARGE],
    "too_large_in_a_fragmented_device": [TOO_LARGE],
    "library": [OTHERS],
    "small_library": [EXHAUSTED],
    "limit": [LIMIT],
    "other_stream": [FRAGMENTED],
    "other_pool": [UNKNOWN],
}


@pytest.mark.parametrize("entries", [100_000, 48])
def test_known_reasons(backend: str, tmp_path: Path, entries: int) -> None:
    # WHEN programs run out of memory, also if the ring has lost the beginning
    names = [*EXPECTED] if backend == "cuda" else [*EXPECTED][:-1]  # torch_npu's pools differ
    results = run(backend, tmp_path, *names, OUTPUT=str(tmp_path), ENTRIES=str(entries))
    assert results == dict.fromkeys(names, "failed")
    found = {name: explained(tmp_path, name) for name in names}
    # THEN the verdicts are the known ones
    assert {name: kinds(found[name]) for name in names} == {name: EXPECTED[name] for name in names}
    for explanation in found.values():
        # AND the line of the allocation that failed, and those that hold memory, are known
        assert explanation.oom is not None
        assert explanation.oom.call_site is not None
        assert explanation.oom.call_site.filename == str(PROGRAM)
        assert explanation.held_at == "oom"
        assert explanation.holders[0].site.call_site is not None
    # AND what was freed after the last one does not count as the program's going on
    (at_end,) = tmp_path.glob("too_large/exit/*.pickle")
    assert "the program continued afterwards" not in answer_of(explain(load(at_end))[0]).texts(
        "why"
    )


def test_the_programs_confirm_the_verdicts(backend: str, tmp_path: Path) -> None:
    # WHEN the programs run under expandable segments, THEN only those pass that were fragmented
    of_kind = {
        kind: [name for name, expected in EXPECTED.items() if expected == [kind]]
        for kind in (FRAGMENTED, TOO_LARGE)
    }
    results = run(
        backend, tmp_path, *of_kind[FRAGMENTED], *of_kind[TOO_LARGE], **expandable(backend)
    )
    for kind, names in of_kind.items():
        expected = "passed" if kind == FRAGMENTED else "failed"
        assert [results[name] for name in names] == [expected] * len(names)
    # AND on a larger device, those pass that were too large
    larger = run(backend, tmp_path, *of_kind[TOO_LARGE], SIMULATED_CAPACITY_MB="16384")
    assert set(larger.values()) == {"passed"}


@pytest.mark.parametrize("is_silent", [True, False])
def test_memory_of_others(backend: str, tmp_path: Path, is_silent: bool) -> None:
    # GIVEN a device of which another process holds 2.5 GiB, and a driver that reports the memory
    # of this process, or does not
    if is_silent and backend == "npu":
        pytest.skip("the simulated DCMI always answers")
    more = {"NO_NVML": "1"} if is_silent else {}
    traced = {"OUTPUT": str(tmp_path), "SIMULATED_OTHERS_MB": "2560", **more}
    assert run(backend, tmp_path, "neighbour", **traced) == {"neighbour": "failed"}
    # THEN the verdict is the other process
    explanation = explained(tmp_path, "neighbour")
    assert kinds(explanation) == [OTHERS]
    text = explanation.verdicts[0].text
    # Of this process, the simulated driver counts 300 MiB that are not used memory of the device.
    assert ("Other processes hold 2.207 GiB" in text) == (not is_silent)
    assert ("the driver did not report which" in text) == is_silent
    # AND the program passes without that process
    assert run(backend, tmp_path, "neighbour") == {"neighbour": "passed"}


REMEDIES = {
    "garbage": (
        GARBAGE,
        "Unreachable objects that refer to each other keep 3.418 GiB.",
        "gc.collect() would free 3.418 GiB: only objects that refer to each other keep this memory",
    ),
    "retry": (
        EXCEPTION,
        "The failed functions' local variables, kept by an exception, hold 3.906 GiB.",
        "Retry outside the `except` block, where the exception is gone: it keeps 3.906 GiB.",
    ),
    "longest_batch": (
        LARGER_INPUT,
        "In the 4 steps before, this line requested at most 45 MiB at once. Now it requested",
        "Limit the size of one step's input (for example, its longest sequence), or split",
    ),
    "concatenated": (
        REPLACED,
        "with larger ones since the recording began, from 40 MiB to",
        "If `torch.cat` extends one tensor in a loop, allocate its final size once",
    ),
    "freed_too_late": (
        FREED,
        "2.91 GiB are free in one piece that the request could use. Another stream",
        "Retry outside the `except` block",
    ),
    "cached_pool": (
        OTHER_POOL,
        "1.953 GiB are free in the memory pool (0, 1), which accelerator/oom_programs.py:",
        "Before this line, drop the CUDA graphs or MemPools that own these pools",
    ),
    "workspaces_of_streams": (
        STREAMS,
        "streams that the program used one after the other, most of it for accelerator/oom_",
        "Create the stream once, and reuse it.",
    ),
}
"""The programs that pass if they do what pytracer says: the kind, a part of the verdict's text, and
how the first suggestion begins."""

KEPT_BY = {
    "garbage": "a reference cycle of dict['me'], which gc.collect() would free",
    "retry": "kept[…] of attempt(), which the traceback of the handled exception keeps",
    "concatenated": "kept of concatenated()",
}


def test_the_advice_helps(backend: str, tmp_path: Path) -> None:
    # WHEN programs fail for a reason that another program would not have
    # torch_npu's pools differ, and streams have no workspaces.
    names = [*REMEDIES] if backend == "cuda" else [*REMEDIES][:-2]
    failed = run(backend, tmp_path, *names, OUTPUT=str(tmp_path))
    assert failed == dict.fromkeys(names, "failed")
    for name in names:
        path = sorted(tmp_path.glob(f"{name}/oom_*/*.pickle"))[-1]
        (explanation,) = explain(load(path), try_settings=try_settings)
        # THEN the reason is known, the advice, and who keeps the memory
        kind, text, advice = REMEDIES[name]
        assert kinds(explanation) == [kind]
        assert text in explanation.verdicts[0].text
        assert explanation.suggestions[0].why.startswith(advice)
        if name in KEPT_BY:
            assert explanation.holders[0].kept_by == KEPT_BY[name]
    # AND the programs pass that do what is advised
    passed = run(backend, tmp_path, *names, REMEDY="1")
    assert passed == dict.fromkeys(names, "passed")


def test_an_exception_that_keeps_pieces_is_no_reason(backend: str, tmp_path: Path) -> None:
    # WHEN a failed attempt keeps half of the memory, in pieces that are too small
    name = "retry_in_pieces"
    assert run(backend, tmp_path, name, OUTPUT=str(tmp_path)) == {name: "failed"}
    path = sorted(tmp_path.glob(f"{name}/oom_*/*.pickle"))[-1]
    (explanation,) = explain(load(path), try_settings=try_settings)
    # THEN the exception is not the reason
    assert kinds(explanation) == [EXHAUSTED]
    # AND that is true: the program fails without the exception, too
    assert run(backend, tmp_path, name, REMEDY="1") == {name: "failed"}


def test_how_far_a_forward_pass_was(backend: str, tmp_path: Path) -> None:
    # GIVEN programs whose forward pass runs out of memory, and the same on a larger device
    names = ("deep_forward", "deep_training")
    failed = run(backend, tmp_path, *names, OUTPUT=str(tmp_path))
    assert failed == dict.fromkeys(names, "failed")
    larger = {"SIMULATED_CAPACITY_MB": "16384", "OUTPUT": str(tmp_path / "larger")}
    assert run(backend, tmp_path, names[0], **larger) == {names[0]: "passed"}
    (whole,) = tmp_path.glob(f"larger/{names[0]}/exit/*.pickle")
    peak = explain(load(whole))[0].sample.allocated_bytes
    for name in names:
        # THEN the answer says in which layer it was, and how much more the others need
        explanation = explained(tmp_path, name)
        assert kinds(explanation) == [EXHAUSTED]
        text = explanation.verdicts[0].text
        assert "The forward pass was in layer 6 of 12 (layers). Each layer keeps 576 MiB" in text
        assert explanation.oom is not None
        assert explanation.oom.sample is not None
        (more,) = re.findall(r"needs about ([\d.]+) GiB more", text)
        needs = explanation.oom.sample.allocated_bytes + float(more) * 2**30
        assert needs == pytest.approx(peak, rel=0.02)
        # AND the part of the batch that fits, with which the program passes
        advice = "By estimate, a quarter of this batch fits, checkpointing saves up to"
        assert explanation.suggestions[0].why.startswith(advice)
    assert run(backend, tmp_path, *names, REMEDY="4") == dict.fromkeys(names, "passed")


@pytest.mark.parametrize("name", ["first_step_of_an_optimizer", "first_step_of_a_second_optimizer"])
def test_how_far_an_optimizer_was(backend: str, tmp_path: Path, name: str) -> None:
    # WHEN the first step of an optimizer runs out of memory, also if another one has stepped
    assert run(backend, tmp_path, name, OUTPUT=str(tmp_path)) == {name: "failed"}
    explanation = explained(tmp_path, name)
    # THEN the answer says how much more all of its states need
    text = explanation.verdicts[0].text
    assert "The optimizer had created its state for 8 of 24 parameters" in text
    # The second state of the eighth parameter may be missing, too.
    assert re.search(r"about 2(\.062)? GiB more", text)
    # AND that is true: 3 GiB of parameters and gradients, 3 GiB of states, and some for a step
    larger = run(backend, tmp_path, name, SIMULATED_CAPACITY_MB=str((6 << 10) + 512))
    assert larger == {name: "passed"}


def answer_at_end(backend: str, folder: Path, name: str, **more: str) -> Answer:
    """Return the answer about a program that does not run out of memory."""
    assert run(backend, folder, name, OUTPUT=str(folder), **more) == {name: "passed"}
    (path,) = folder.glob(f"{name}/exit/*.pickle")
    return answer_of(explain(load(path))[0])


@pytest.mark.parametrize("has_remedy", [False, True])
def test_streams_that_are_not_used_any_more(backend: str, tmp_path: Path, has_remedy: bool) -> None:
    # WHEN each of 8 steps has a stream of its own
    more = {"REMEDY": "1"} if has_remedy else {}
    answer = answer_at_end(backend, tmp_path, "streams_of_steps", **more)
    # THEN the memory of all but the last two is cached for nothing
    if has_remedy:
        assert answer.verdict == "NO PROBLEM FOUND"
        return
    assert answer.verdict == "CACHED ON 6 IDLE STREAMS"
    assert "reserved 2.344 GiB in step 8, of which" in answer.texts("peak")[1]
    assert answer.texts("why")[0].startswith(
        "1.758 GiB are cached on 6 streams that the program no longer uses, most of it for "
        "accelerator/oom_programs.py:"
    )
    assert "Make streams once, and use the same ones in each step." in answer.texts("do")


def test_streams_that_are_used_again_much_later(backend: str, tmp_path: Path) -> None:
    answer = answer_at_end(backend, tmp_path, "streams_in_turn")
    assert answer.verdict == "CACHED ON 10 IDLE STREAMS"
    (why,) = answer.texts("why")
    assert why.startswith("1000 MiB are cached on 10 streams that the program used one after the")
    assert answer.texts("do")[0] == "Create the stream once, and reuse it."


@pytest.mark.parametrize("work_at_once", [False, True])
def test_streams_of_a_program_without_steps(
    backend: str, tmp_path: Path, work_at_once: bool
) -> None:
    # WHEN a program without steps uses 12 streams, one after the other, or three at a time
    more = {"REMEDY": "1"} if work_at_once else {}
    answer = answer_at_end(backend, tmp_path, "streams_of_calls", **more)
    # THEN only in the first case one stream would have been enough
    if work_at_once:
        assert answer.verdict == "NO PROBLEM FOUND"
        return
    assert answer.verdict == "CACHED ON 12 IDLE STREAMS"
    (why,) = answer.texts("why")
    assert why.startswith(
        "1.172 GiB are cached on 12 streams that the program used one after the other, most of it"
    )
    assert answer.texts("do")[0] == "Create the stream once, and reuse it."


@pytest.mark.usefixtures("simulated_device")
@pytest.mark.parametrize("has_remedy", [False, True])
def test_freed_blocks_that_a_stream_uses(backend: str, tmp_path: Path, has_remedy: bool) -> None:
    # WHEN a stream is slow to use blocks that the program has freed
    more = {"REMEDY": "1"} if has_remedy else {}
    name = "blocks_that_another_stream_uses"
    answer = answer_at_end(backend, tmp_path, name, SIMULATED_PENDING_QUERIES="8", **more)
    # THEN the answer names how much waits for it, and which lines made and freed it
    if has_remedy:
        assert answer.verdict == "NO PROBLEM FOUND"
        return
    assert answer.verdict == "FREED MEMORY WAITS FOR A STREAM"
    (why,) = answer.texts("why")
    found = re.search(
        r"([\d.]+) GiB were freed while .* most of it for .*:(\d+) make, freed by .*:(\d+) ", why
    )
    assert found is not None, why
    waiting, made, freed = found.groups()
    blocks = float(waiting) * 1024 / 100
    assert blocks == pytest.approx(round(blocks), abs=0.1)
    lines = PROGRAM.read_text().splitlines()
    assert "torch.empty" in lines[int(made) - 1]
    assert lines[int(freed) - 1].strip() == "del block"
    # AND what to do in place of it, with which nothing waits
    assert "current_stream().wait_stream(other)" in answer.texts("do")[0]


def test_a_leak(backend: str, tmp_path: Path) -> None:
    # GIVEN a program that keeps memory of each step, and one that keeps that of the last steps
    names = ("leaking", "not_leaking")
    results = run(backend, tmp_path, *names, OUTPUT=str(tmp_path))
    assert results == dict.fromkeys(names, "failed")
    # THEN only the first one leaks, and the line is named
    leak, innocent = (explained(tmp_path, name) for name in names)
    assert kinds(leak) == [LEAK]
    assert ", 60 MiB a step since step 1, kept by " in leak.verdicts[0].text
    assert "oom_programs.py" in leak.verdicts[0].text
    assert leak.suggestions[0].why.startswith("Look at `kept[…]` of train(): drop what")
    assert leak.suggestions[1].command.endswith(" --leaks")
    assert kinds(innocent) == [TOO_LARGE]
    # AND a larger device helps the second one, but the first one only for some steps
    larger = run(backend, tmp_path, *names, SIMULATED_CAPACITY_MB="5632")
    assert larger == {"leaking": "failed", "not_leaking": "passed"}


def test_expandable_segments_are_not_suggested_twice(backend: str, tmp_path: Path) -> None:
    # GIVEN a program that runs out of memory only with expandable segments
    assert run(backend, tmp_path, "pinned_pages") == {"pinned_pages": "passed"}
    run(backend, tmp_path, "pinned_pages", OUTPUT=str(tmp_path), **expandable(backend))
    explanation = explained(tmp_path, "pinned_pages")
    # THEN the verdict does not promise that they help
    assert kinds(explanation) == [UNKNOWN]
    assert "Expandable segments are on" in explanation.verdicts[0].text
    commands = [suggestion.command for suggestion in explanation.suggestions]
    assert not any("expandable_segments:True" in command for command in commands)


def test_the_file_at_the_end_of_a_program_that_survived(backend: str, tmp_path: Path) -> None:
    # WHEN a program survives an out-of-memory by fragmentation, and writes a file at its end
    assert run(backend, tmp_path, "survived", OUTPUT=str(tmp_path)) == {"survived": "passed"}
    (at_end,) = tmp_path.glob("survived/exit/*.pickle")
    # THEN both files have the verdict, and name the same holders
    earlier, later = explained(tmp_path, "survived"), explain(load(at_end))[0]
    assert kinds(earlier) == [FRAGMENTED]
    # An NPU's file does not show how the allocator rounded sizes, if no block is left at the end.
    assert kinds(later) == [FRAGMENTED if backend == "cuda" else UNKNOWN]
    assert not later.is_oom_file
    assert "the program continued afterwards" in answer_of(later).texts("why")
    sites = [[holder.site.call_site for holder in one.holders] for one in (earlier, later)]
    assert sites[0] == sites[1]


SEEDS = range(100, amount(108, 150))


def test_random_programs(backend: str, tmp_path: Path) -> None:
    # GIVEN programs that allocate and free at random until memory runs out, in other ways under
    # expandable segments and on a larger device
    def failures(**more: str) -> dict[int, float]:
        """Return the number of the allocation that failed of each seed."""
        results = run(backend, tmp_path, *SEEDS, **more)
        numbers = {int(seed): float(number) for seed, number in results.items()}
        return {seed: number if number >= 0 else float("inf") for seed, number in numbers.items()}

    recorded = failures(OUTPUT=str(tmp_path), ENTRIES="300")
    joined, larger = failures(**expandable(backend)), failures(SIMULATED_CAPACITY_MB="65536")
    found: dict[str, list[int]] = {FRAGMENTED: [], EXHAUSTED: [], TOO_LARGE: [], UNKNOWN: []}
    for seed in SEEDS:
        (kind,) = kinds(explained(tmp_path, seed))
        found[kind].append(seed)
    # THEN each verdict is confirmed by the same program
    assert [seed for seed in found[FRAGMENTED] if joined[seed] <= recorded[seed]] == []
    assert [seed for seed in found[TOO_LARGE] if joined[seed] > recorded[seed]] == []
    needs_more = [*found[TOO_LARGE], *found[EXHAUSTED]]
    assert [seed for seed in needs_more if larger[seed] <= recorded[seed]] == []
    # AND most programs get a verdict
    assert min(len(found[FRAGMENTED]), len(needs_more)) > len(SEEDS) // 10, found
    assert len(found[UNKNOWN]) < len(SEEDS) // 2
