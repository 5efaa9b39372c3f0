"""Which files are snapshots, and what belongs together of two runs."""

from datetime import datetime
from pathlib import Path

import pytest

from pytracer import ranks
from pytracer.config import Options
from pytracer.errors import PytracerError
from pytracer.output import Files
from pytracer.reading.files import Place, find, match, place_of
from pytracer.windows import Window


def made(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def pairs(first: Path, second: Path) -> list[tuple[str, str]]:
    found = match(first, second).pairs
    return [
        (one.relative_to(first).as_posix(), other.relative_to(second).as_posix())
        for _, one, other in found
    ]


def test_directories_are_searched_and_sorted_naturally(tmp_path: Path) -> None:
    # GIVEN snapshots in folders, and what is none
    snapshots = ["a.pickle", "step2/b.pickle.gz", "step10/c.pickle.zst", "step10/rollout/d.pkl"]
    others = ["notes.txt", "step2/.pytracer-7-x.tmp", "step2/.h.pickle", ".hidden/e.pickle", "z.gz"]
    made(tmp_path, *snapshots, *others)
    # WHEN they are looked for, with one of them named too, THEN each is there once
    given = tmp_path / "step10/c.pickle.zst"
    expected = ["step10/c.pickle.zst", "a.pickle", "step2/b.pickle.gz", "step10/rollout/d.pkl"]
    assert find([given, tmp_path]) == [tmp_path / name for name in expected]
    # AND a file that is named is taken, whatever its name
    assert find([tmp_path / "notes.txt"]) == [tmp_path / "notes.txt"]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    made(tmp_path, "empty/notes.txt")
    with pytest.raises(PytracerError, match=r"nowhere does not exist: give"):
        find([tmp_path / "nowhere"])
    with pytest.raises(PytracerError, match=r"empty has no snapshots in it: .* \.pickle\.zst"):
        find([tmp_path / "empty"])


@pytest.mark.parametrize("rank", [3, None])
@pytest.mark.parametrize("output", ["", "my.run.pickle"])
def test_places_of_the_names_that_pytracer_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int | None, output: str
) -> None:
    # GIVEN who names the files of a tracer
    monkeypatch.setattr(ranks, "current", lambda: ranks.Rank(rank, 8 if rank is not None else None))
    monkeypatch.setattr(ranks.socket, "gethostname", lambda: "node-7.local")
    options = {"output": str(tmp_path / output), "all_ranks": True, "role": "critic"}
    files = Files(Options.checked(options))
    now = datetime(2026, 1, 2, 3, 4, 5)

    def of(path: Path | None) -> Place:
        assert path is not None
        return place_of(path.with_name(path.name + ".gz"), tmp_path)

    # WHEN it names each kind of file, THEN the place says which it is
    program = output.removesuffix(".pickle")
    who = {(3, ""): "rank3", (3, "my.run.pickle"): "rank3", (None, ""): "critic_node-7.local"}.get(
        (rank, output), ""
    )
    exit_kind = "" if output else "exit"
    assert of(files.at_the_end()) == Place(program, exit_kind, who=who)
    for again in range(2):  # a step that comes again is the same one
        step = files.of_window(Window(4, 4))
        assert ("_2" in step.name) == again
        assert of(step) == Place(program, "step", 4, 4, who=who)
    assert of(files.of_window(Window(5, 12))) == Place(program, "step", 5, 12, who=who)
    assert of(files.of_phase(4, "roll out", 1)) == Place(program, "step", 4, 4, "roll_out", who)
    assert of(files.of_phase(4, "roll out", 2)) == Place(program, "step", 4, 4, "roll_out_2", who)
    assert of(files.out_of_memory(now)) == Place(program, "oom", who=who)
    assert of(files.on_demand(now)) == Place(program, "demand", who=who)
    assert of(files.at_the_end()).rank == rank


def test_two_runs(tmp_path: Path) -> None:
    # GIVEN two runs in verl's layout; the second lacks a rank's step and has one step more
    first = made(
        tmp_path / "first",
        "step2/torch_memory_rank0_pid10.pickle",
        "step2/torch_memory_rank1_pid11.pickle",
        "step10/torch_memory_rank0_pid10.pickle",
        "step10/rollout/torch_memory_rank0_pid10.pickle",
        "exit/torch_memory_rank0_pid10.pickle",
        "oom_20260101-000000-000001/torch_memory_oom_rank1_pid11.pickle",
        "oom_20260101-000000-000002/torch_memory_oom_rank1_pid11.pickle",
    )
    second = made(
        tmp_path / "second",
        "step2/torch_memory_rank0_pid777.pickle.gz",
        "step10/torch_memory_rank0_pid777.pickle",
        "step10/rollout/torch_memory_rank0_pid777.pickle",
        "step11/torch_memory_rank0_pid777.pickle",
        "exit/torch_memory_rank0_pid777.pickle",
        "oom_20270101-000000-000009/torch_memory_oom_rank1_pid778.pickle",
    )
    # WHEN they are matched, THEN by step, phase, kind and rank, in natural order
    assert pairs(first, second) == [
        ("exit/torch_memory_rank0_pid10.pickle", "exit/torch_memory_rank0_pid777.pickle"),
        (
            "oom_20260101-000000-000001/torch_memory_oom_rank1_pid11.pickle",
            "oom_20270101-000000-000009/torch_memory_oom_rank1_pid778.pickle",
        ),
        ("step2/torch_memory_rank0_pid10.pickle", "step2/torch_memory_rank0_pid777.pickle.gz"),
        (
            "step10/rollout/torch_memory_rank0_pid10.pickle",
            "step10/rollout/torch_memory_rank0_pid777.pickle",
        ),
        ("step10/torch_memory_rank0_pid10.pickle", "step10/torch_memory_rank0_pid777.pickle"),
    ]
    # AND what has no match is named
    matched = match(first, second)
    assert [path.relative_to(first).as_posix() for path in matched.only_first] == [
        "oom_20260101-000000-000002/torch_memory_oom_rank1_pid11.pickle",
        "step2/torch_memory_rank1_pid11.pickle",
    ]
    assert [path.relative_to(second).parts[0] for path in matched.only_second] == ["step11"]
    assert [str(of) for of, *_ in matched.pairs][2:4] == [
        "step 2, rank 0",
        "step 10 rollout, rank 0",
    ]


def test_another_name_and_another_host(tmp_path: Path) -> None:
    # GIVEN a run repeated under another name, THEN its files match
    first = made(tmp_path / "a", "base.step1.pickle", "base.rank1.step2.pickle")
    second = made(tmp_path / "b", "tuned.rank1.step2.pickle", "tuned.step1.pickle")
    assert len(pairs(first, second)) == 2
    # GIVEN two programs of two, THEN their names count
    made(first, "eval.step1.pickle")
    made(second, "eval.step1.pickle")
    assert pairs(first, second) == [("eval.step1.pickle", "eval.step1.pickle")]

    # GIVEN processes without a rank on other hosts, THEN they match in their order
    names = ["exit/torch_memory_{}_pid1.pickle", "exit/torch_memory_{}_pid2.pickle"]
    first = made(tmp_path / "c", *(name.format("critic_n1") for name in names))
    second = made(tmp_path / "d", *(name.format("critic_n2") for name in names))
    assert pairs(first, second) == [
        (name.format("critic_n1"), name.format("critic_n2")) for name in names
    ]
    # AND if there is one more of one, which it is cannot be told
    made(second, "exit/torch_memory_critic_n3_pid3.pickle")
    assert pairs(first, second) == []
    # AND a rank is never another's
    first = made(tmp_path / "e", "exit/torch_memory_rank1_pid1.pickle")
    second = made(tmp_path / "f", "exit/torch_memory_rank2_pid1.pickle")
    assert pairs(first, second) == []
