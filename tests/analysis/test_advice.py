"""Test the adviser: one advice for one file, a leak first, and nothing that was set already."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from allocator_workloads import content
from reference_allocator import Allocator
from simulated_recordings import Recorded, random_requests
from synthetic_snapshots import Program, file_metadata

from pytracer import show
from pytracer.analysis import explain
from pytracer.analysis.allocator_rules import UNIT_BYTES
from pytracer.analysis.holder_names import look_at, marked
from pytracer.analysis.oom.reasons import FRAGMENTED, LEAK
from pytracer.reading import load
from pytracer.recommendation import recommend
from pytracer.simulator.trials import try_settings
from pytracer.tracing import oom_answer
from pytracer.variables import with_settings

MIB = 1 << 20


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")


def written(
    path: Path,
    workload: Callable[[Allocator], None],
    requested_mib: int,
    free_mib: int,
    **device: Any,
) -> Path:
    """Write the file of a program that ends because this much was requested, and this much free."""
    made = content(workload)
    made["pytracer"] |= {"oom": {"device": 0, "requested_bytes": requested_mib * MIB}}
    made["pytracer"]["devices"][0] |= device
    for event in made["device_traces"][0]:  # a line for each size
        line = event["size"] // MIB
        event["frames"] = [{"filename": "train.py", "name": "step", "line": line}]
    oom = {"action": "oom", "device_free": free_mib * MIB, "size": requested_mib * MIB}
    rest = {"stream": 0, "pool_id": (0, 0), "time_us": 1, "frames": []}
    made["device_traces"][0].append({**oom, **rest})
    path.write_bytes(pickle.dumps(made))
    return path


def pinned_segments(allocator: Allocator) -> None:
    """Leave 35 MiB free in each of 20 segments."""
    for address in [allocator.malloc(80 * MIB) for _ in range(20)]:
        allocator.free(address)
    for _ in range(20):
        allocator.malloc(45 * MIB)


def test_settings_are_read_as_the_allocator_reads_them() -> None:
    change = {"expandable_segments": "True"}
    own = "max_split_size_mb: 64, roundup_power2_divisions:[256:1, >:4]"
    assert with_settings(own, change, "cuda") == (
        "max_split_size_mb:64,roundup_power2_divisions:[256:1,>:4],expandable_segments:True"
    )
    assert with_settings(own, change, "npu") == (
        "roundup_power2_divisions:[256:1,>:4],expandable_segments:True"
    )
    # AND nothing is kept of a text that no allocator can read
    assert with_settings("max_split_size_mb:64,b", change, "cuda") == "expandable_segments:True"


def tries(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the first command that the log, `show` and `recommend` advise for this file."""
    logged: list[str] = []
    monkeypatch.setattr(oom_answer, "report", lambda message, *_: logged.append(message))
    oom_answer.explain(path, 0)
    commands = {
        "log": logged[0].partition("\ndo: ")[2].rpartition("; ")[2].partition(" (")[0],
        "show": next(line.text for line in show(path).lines if line.is_command),
        "recommend": recommend(path).command,
    }
    is_next_run = "PYTRACER_"  # what a further recording needs is no answer to this one
    return {name: "" if is_next_run in text else text for name, text in commands.items()}


def test_all_answers_name_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = 0
    for seed in range(12):
        # GIVEN a random program that ran out of memory
        rows = random_requests(seed, waits=False)
        peak = Recorded(rows, "").peak_allocated_bytes
        made = Recorded(rows, "", int(peak * 1.05) // UNIT_BYTES * UNIT_BYTES)
        if not made.ran_out:
            continue
        path = tmp_path / f"{seed}.pickle"
        path.write_bytes(pickle.dumps(made.content()))
        # WHEN the log and the commands answer
        answers = tries(path, monkeypatch)
        # THEN all name the same settings, or all others refer to `recommend`, or to the holders
        if answers["log"].startswith("export"):
            assert len(set(answers.values())) == 1
            named += 1
        else:
            command = answers.pop("recommend")
            assert len(set(answers.values())) == 1
            assert answers["log"].startswith(f"pytracer recommend {path}") or (not command)
    assert named >= 3


def test_settings_that_are_known_not_to_help_are_not_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN free memory in pieces of 18 MiB, with a block of 2 MiB in each page of 20 MiB
    def pinned_pages(allocator: Allocator) -> None:
        for address in [allocator.malloc(400 * MIB) for _ in range(4)]:
            allocator.free(address)
        pairs = [(allocator.malloc(18 * MIB), allocator.malloc(2 * MIB)) for _ in range(80)]
        for large, _ in pairs:
            allocator.free(large)

    path = written(tmp_path / "oom.pickle", pinned_pages, 600, 100)
    (found,) = explain(load(path), 0, try_settings)
    assert [verdict.kind for verdict in found.verdicts] == [FRAGMENTED]
    assert found.fitting_settings == []
    # THEN no settings are named: expandable segments cannot give a page back either
    answers = tries(path, monkeypatch)
    del answers["recommend"]
    assert set(answers.values()) == {f"pytracer recommend {path}"}


def test_settings_that_were_not_simulated_are_called_untested(tmp_path: Path) -> None:
    path = written(tmp_path / "oom.pickle", pinned_segments, 200, 50)
    (simulated,), (untested,) = explain(load(path), 0, try_settings), explain(load(path), 0)
    for found, evidence in (
        (simulated, "simulated: this allocation succeeds"),
        (untested, "untested"),
    ):
        first = found.suggestions[0]
        assert first.command == "export PYTORCH_ALLOC_CONF=expandable_segments:True"
        assert first.evidence == evidence


def test_a_leak_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a program that keeps 45 MiB of each of 20 steps, each in a segment of 80 MiB, until
    # 400 MiB do not fit any more, which expandable segments would find
    steps: list[list[int]] = []

    def leaking(allocator: Allocator) -> None:
        for address in [allocator.malloc(80 * MIB) for _ in range(20)]:
            allocator.free(address)
        for step in range(1, 21):
            steps.append([step, len(allocator.events)])
            allocator.malloc(45 * MIB)
            allocator.free(allocator.malloc(30 * MIB))
        steps.append([21, len(allocator.events)])

    path = written(tmp_path / "oom.pickle", leaking, 400, 50, steps=steps)
    (found,) = explain(load(path), 0, try_settings)
    assert LEAK in [verdict.kind for verdict in found.verdicts]
    assert found.fitting_settings
    # THEN all answers name the leak's command first, and settings only afterwards
    assert set(tries(path, monkeypatch).values()) == {f"pytracer show {path} --leaks"}
    done = recommend(path)
    assert (done.kind, done.recommended) == ("leak", None)
    assert done.answer.startswith("Leak: 900 MiB have piled up, 45 MiB a step")
    assert "expandable_segments:True" in done.why


@pytest.mark.parametrize(("asked_mib", "may_help"), [(1, True), (3, False)])
def test_no_settings_are_searched_for_what_no_device_has(asked_mib: int, may_help: bool) -> None:
    # GIVEN a device of 201 MiB, of which 200 MiB are allocated
    program = Program()
    program.metadata = file_metadata()
    for _ in range(100):
        program.alloc(2 * MIB, ("train.py", "step", 3))
    program.out_of_memory(asked_mib * MIB, MIB)
    (found,) = explain(program.snapshot())
    assert [verdict.kind for verdict in found.verdicts] == ["nearly exhausted"]
    # THEN a search for settings is only advised if all fits into it
    assert any("recommend" in one.command for one in found.suggestions) == may_help


def test_settings_that_are_set_are_not_advised() -> None:
    # GIVEN a program with expandable segments, much of whose memory is not allocated
    program = Program()
    program.metadata = file_metadata()
    program.settings = {"expandable_segments": True}
    for _ in range(300):
        program.alloc(MIB + 512, ("train.py", "step", 3))
    (found,) = explain(program.snapshot())
    assert found.suggestions[0].command == "pytracer recommend made.pickle"
    # THEN nothing is advised that it has
    assert not [one for one in found.suggestions if "expandable_segments" in one.command]


def test_steps_are_not_advised_where_they_are_taken_from_the_optimizer() -> None:
    # GIVEN a program that ran out of memory before the first step of its optimizer
    program = Program()
    for step_from, is_advised in (("framework", True), ("optimizer", False)):
        program.metadata = file_metadata(step_from=step_from, current_step=1)
        program.alloc(MIB, ("train.py", "step", 3))
        (found,) = explain(program.snapshot())
        advised = [one for one in found.suggestions if "STEP_FROM" in one.command]
        assert bool(advised) == is_advised


def test_a_larger_ring_is_not_advised_where_nothing_was_lost(tmp_path: Path) -> None:
    # GIVEN a complete recording, in which an allocation failed that had enough memory
    path = written(tmp_path / "oom.pickle", pinned_segments, 200, 900)
    found = recommend(path)
    # THEN the answer is not to record more events
    assert found.kind == "can't tell"
    assert "TRACE_ALLOC_MAX_ENTRIES" not in found.why
    assert "--capacity" in found.why


@pytest.mark.parametrize(
    ("holder", "where"),
    [
        ("inner of numbers(), which batches of main() keeps", "`batches` of main()"),
        (
            "self.q of load(), which a temporary value of main() keeps",
            "`self.q` of load(), which keeps 2",
        ),
        ("x of f(), which the traceback of last_exc of module sys keeps", "`x` of f()"),
    ],
)
def test_where_to_look_has_a_name(holder: str, where: str) -> None:
    assert look_at(holder, ", which keeps 2 GiB").startswith(f"look at {where}")


def test_a_name_is_read_in_one_pass_whatever_a_file_says() -> None:
    name = "a" + ".1" * 50_000
    assert marked(f"{name}!") == f"{name}!"  # trying it in two ways would double the time with each


def test_the_remedy_fits_what_keeps_graphs() -> None:
    of_graph = look_at("losses[…] of main()", is_graph=True)
    assert of_graph.endswith("Store .item() or .detach(), or call backward() on each loss")
    cached = look_at("mask (inside a _lru_cache_wrapper)[…] of f()")
    assert cached == (
        "look at the lru_cache of `mask` of f(): give it a small maxsize, or call cache_clear()"
    )


@pytest.mark.parametrize(
    ("settings", "is_rounded"), [({}, False), ({"roundup_power2_divisions": {"512": 2}}, True)]
)
def test_a_setting_that_rounds_a_request_up(settings: Any, is_rounded: bool) -> None:
    # GIVEN a request of 768 MiB, which is too large, and that 514 MiB would be rounded up to
    program = Program()
    program.settings = settings
    program.out_of_memory(768 * MIB, 700 * MIB)
    (found,) = explain(program.snapshot())
    # THEN the setting is named
    told = "Remove roundup_power2_divisions: it may have rounded a smaller request up to 768 MiB."
    assert (told in [one.why for one in found.suggestions]) == is_rounded
