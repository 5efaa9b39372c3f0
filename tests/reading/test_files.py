"""Tests of finding snapshots, and of matching the files of two runs."""

from datetime import datetime
from pathlib import Path

import pytest

from pytracer.errors import PytracerError
from pytracer.reading.files import Place, find, match, parse_place
from pytracer.tracing import ranks
from pytracer.tracing.options import Options
from pytracer.tracing.snapshot_files import Files
from pytracer.tracing.step_windows import Window


def make_files(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def pairs(first: Path, second: Path) -> list[tuple[str, str]]:
    found = match(first, second).pairs
    return [
        (left.relative_to(first).as_posix(), right.relative_to(second).as_posix())
        for _, left, right in found
    ]


def test_directories_are_searched_and_sorted_naturally(tmp_path: Path) -> None:
    # GIVEN snapshots in folders, and other files
    snapshots = ["a.pickle", "step2/b.pickle.gz", "step10/c.pickle.zst", "step10/rollout/d.pkl"]
    others = ["notes.txt", "step2/.pytracer-7-x.tmp", "step2/.h.pickle", ".hidden/e.pickle", "z.gz"]
    make_files(tmp_path, *snapshots, *others)
    # WHEN the folder and one of the snapshots are given, THEN each snapshot is found once
    given = tmp_path / "step10/c.pickle.zst"
    expected = ["step10/c.pickle.zst", "a.pickle", "step2/b.pickle.gz", "step10/rollout/d.pkl"]
    assert find([given, tmp_path]) == [tmp_path / name for name in expected]
    # AND a given file is accepted with any name
    assert find([tmp_path / "notes.txt"]) == [tmp_path / "notes.txt"]


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    make_files(tmp_path, "empty/notes.txt")
    with pytest.raises(PytracerError, match=r"nowhere does not exist: give"):
        find([tmp_path / "nowhere"])
    with pytest.raises(PytracerError, match=r"empty contains no snapshots: .* \.pickle\.zst"):
        find([tmp_path / "empty"])


def test_a_name_that_is_too_long_is_named() -> None:
    with pytest.raises(PytracerError, match=r"cannot read x{300}: File name too long"):
        find([Path("x" * 300)])


@pytest.mark.parametrize(
    ("name", "place"),
    [
        (".pickle", Place("d/")),
        ("a\nb.pickle", Place("d/a\nb")),
        ("a\nb.rank3.step2.pickle", Place("d/a\nb", "step", 2, 2, who="rank3")),
        (".rank3.pickle", Place("d/", who="rank3")),
        ("torch_memory_a\nb_pid7.pickle", Place("d", who="a\nb")),
        ("\udcff.pickle", Place("d/\udcff")),
        ("..pickle", Place("d/.")),
        # A number that is too large for a column is part of the name.
        (f"a.step{10**30}.pickle", Place(f"d/a.step{10**30}")),
        (f"a.rank{10**30}.pickle", Place(f"d/a.rank{10**30}")),
    ],
)
def test_unusual_names_have_a_place(name: str, place: Place) -> None:
    found = parse_place(Path("/x/d", name), Path("/x"))
    assert found == place
    assert str(found).startswith("d")


@pytest.mark.parametrize("rank", [3, None])
@pytest.mark.parametrize("output", ["", "my.run.pickle"])
def test_places_of_pytracers_own_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int | None, output: str
) -> None:
    # GIVEN a tracer's output and rank
    monkeypatch.setattr(ranks, "current", lambda: ranks.Rank(rank, 8 if rank is not None else None))
    monkeypatch.setattr(ranks.socket, "gethostname", lambda: "node-7.local")
    options = {"output": str(tmp_path / output), "all_ranks": True, "role": "critic"}
    files = Files(Options.checked(options))
    now = datetime(2026, 1, 2, 3, 4, 5)

    def place_of(path: Path | None) -> Place:
        assert path is not None
        return parse_place(path.with_name(path.name + ".gz"), tmp_path)

    # WHEN it names each kind of file, THEN the place identifies the kind
    program = output.removesuffix(".pickle")
    who = {(3, ""): "rank3", (3, "my.run.pickle"): "rank3", (None, ""): "critic_node-7.local"}.get(
        (rank, output), ""
    )
    exit_kind = "" if output else "exit"
    assert place_of(files.at_the_end()) == Place(program, exit_kind, who=who)
    for again in range(2):  # a repeated step has the same place
        step = files.of_window(Window(4, 4))
        assert ("_2" in step.name) == again
        assert place_of(step) == Place(program, "step", 4, 4, who=who)
    assert place_of(files.of_window(Window(5, 12))) == Place(program, "step", 5, 12, who=who)
    assert place_of(files.of_phase(4, "roll out", 1)) == Place(
        program, "step", 4, 4, "roll_out", who
    )
    assert place_of(files.of_phase(4, "roll out", 2)) == Place(
        program, "step", 4, 4, "roll_out_2", who
    )
    assert place_of(files.out_of_memory(now)) == Place(program, "oom", who=who)
    assert place_of(files.on_demand(now)) == Place(program, "demand", who=who)
    before, between, after = files.by_others()
    killed = files.folder / f"{before}killed{between}20260102-030405-000001{after}"
    assert place_of(killed) == Place(program, "killed", who=who)
    assert place_of(files.at_the_end()).rank == rank


def test_two_runs(tmp_path: Path) -> None:
    # GIVEN two runs in verl's layout; the second lacks one rank's step and has an additional step
    first = make_files(
        tmp_path / "first",
        "step2/torch_memory_rank0_pid10.pickle",
        "step2/torch_memory_rank1_pid11.pickle",
        "step10/torch_memory_rank0_pid10.pickle",
        "step10/rollout/torch_memory_rank0_pid10.pickle",
        "exit/torch_memory_rank0_pid10.pickle",
        "oom_20260101-000000-000001/torch_memory_oom_rank1_pid11.pickle",
        "oom_20260101-000000-000002/torch_memory_oom_rank1_pid11.pickle",
    )
    second = make_files(
        tmp_path / "second",
        "step2/torch_memory_rank0_pid777.pickle.gz",
        "step10/torch_memory_rank0_pid777.pickle",
        "step10/rollout/torch_memory_rank0_pid777.pickle",
        "step11/torch_memory_rank0_pid777.pickle",
        "exit/torch_memory_rank0_pid777.pickle",
        "oom_20270101-000000-000009/torch_memory_oom_rank1_pid778.pickle",
    )
    # WHEN the runs are matched, THEN files match by step, phase, kind and rank, in natural order
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
    # AND files without a match are listed
    matched = match(first, second)
    assert [path.relative_to(first).as_posix() for path in matched.only_first] == [
        "oom_20260101-000000-000002/torch_memory_oom_rank1_pid11.pickle",
        "step2/torch_memory_rank1_pid11.pickle",
    ]
    assert [path.relative_to(second).parts[0] for path in matched.only_second] == ["step11"]
    assert [str(place) for place, *_ in matched.pairs][2:4] == [
        "step 2, rank 0",
        "step 10 rollout, rank 0",
    ]


def test_another_name_and_another_host(tmp_path: Path) -> None:
    # GIVEN a run repeated under another name, THEN its files match
    first = make_files(tmp_path / "a", "base.step1.pickle", "base.rank1.step2.pickle")
    second = make_files(tmp_path / "b", "tuned.rank1.step2.pickle", "tuned.step1.pickle")
    assert len(pairs(first, second)) == 2
    # GIVEN two runs of two programs each, THEN files match by the program's name
    make_files(first, "eval.step1.pickle")
    make_files(second, "eval.step1.pickle")
    assert pairs(first, second) == [("eval.step1.pickle", "eval.step1.pickle")]

    # GIVEN processes without a rank on other hosts, THEN they match in their order
    names = ["exit/torch_memory_{}_pid1.pickle", "exit/torch_memory_{}_pid2.pickle"]
    first = make_files(tmp_path / "c", *(name.format("critic_n1") for name in names))
    second = make_files(tmp_path / "d", *(name.format("critic_n2") for name in names))
    assert pairs(first, second) == [
        (name.format("critic_n1"), name.format("critic_n2")) for name in names
    ]
    # AND if one run has an additional process, none of them can be matched
    make_files(second, "exit/torch_memory_critic_n3_pid3.pickle")
    assert pairs(first, second) == []
    # AND a rank never matches another rank
    first = make_files(tmp_path / "e", "exit/torch_memory_rank1_pid1.pickle")
    second = make_files(tmp_path / "f", "exit/torch_memory_rank2_pid1.pickle")
    assert pairs(first, second) == []
