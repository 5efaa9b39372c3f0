"""Who a process is, and which of the files are its to write."""

import os
import socket
from datetime import datetime
from itertools import count
from pathlib import Path

import pytest

from pytracer import ranks
from pytracer.config import Options
from pytracer.output import FIRST_PROCESS, Files
from pytracer.ranks import Rank
from pytracer.windows import Window

NOW = datetime(2026, 11, 21, 12, 0, 0, 123456)
PID = os.getpid()
LAUNCHERS = (
    *("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE"),
    *("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


def files(output: Path, **options: object) -> Files:
    return Files(Options.checked({"output": output, **options}))


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ("", Rank(None, None)),
        ("RANK=3 WORLD_SIZE=8", Rank(3, 8)),
        ("RANK=3", Rank(3, None)),
        ("RANK= WORLD_SIZE=8", Rank(None, None)),
        ("RANK=three", Rank(None, None)),
        ("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4", Rank(2, 4)),
        ("PMI_RANK=2 PMI_SIZE=4", Rank(2, 4)),
        ("MV2_COMM_WORLD_RANK=2 MV2_COMM_WORLD_SIZE=4", Rank(2, 4)),
        ("SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=16", Rank(5, 16)),
        ("SLURM_PROCID=0", Rank(None, None)),  # a batch job's script, not one of srun's
        # torchrun under srun: the inner launcher is the one that counts
        ("RANK=9 WORLD_SIZE=16 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2", Rank(9, 16)),
    ],
)
def test_launchers(monkeypatch: pytest.MonkeyPatch, variables: str, rank: Rank) -> None:
    for item in variables.split():
        monkeypatch.setenv(*item.split("="))
    assert ranks.current() == rank


def test_a_process_group_without_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a program that names its ranks itself
    import torch.distributed

    ranks.remember_group()
    monkeypatch.setattr(ranks, "_of_group", None)
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    assert ranks.current() == Rank(0, 1)
    # WHEN it destroys the group, as it should, THEN its rank is still known
    torch.distributed.destroy_process_group()
    assert ranks.current() == Rank(0, 1)


@pytest.mark.parametrize(
    ("variables", "group", "rank"),
    [
        ("RANK=1 WORLD_SIZE=4", Rank(2, 4), Rank(1, 4)),
        ("RANK=1 WORLD_SIZE=4", Rank(0, 2), Rank(1, 4)),  # an engine's own group, within a job
        ("RANK=0 WORLD_SIZE=1", Rank(5, 8), Rank(5, 8)),  # the number of the node
        ("RANK=0", Rank(5, 8), Rank(5, 8)),
        ("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2", Rank(5, 8), Rank(5, 8)),
    ],
)
def test_the_wider_of_two_worlds(
    monkeypatch: pytest.MonkeyPatch, variables: str, group: Rank, rank: Rank
) -> None:
    monkeypatch.setattr(ranks, "_of_group", group)
    for item in variables.split():
        monkeypatch.setenv(*item.split("="))
    assert ranks.current() == rank


@pytest.mark.parametrize(
    ("options", "writers"),
    [
        ({}, {None, 0}),
        ({"ranks": []}, {None, 0}),
        ({"ranks": [1, 2]}, {None, 1, 2}),
        ({"all_ranks": True}, {None, 0, 1, 2}),
        ({"ranks": [1], "all_ranks": True}, {None, 0, 1, 2}),
    ],
)
def test_ranks_that_write_at_the_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, object],
    writers: set[int | None],
) -> None:
    for rank in (None, 0, 1, 2):
        monkeypatch.setenv("RANK", "" if rank is None else str(rank))
        some = files(tmp_path, **options)
        assert (some.at_the_end() is not None) == (rank in writers)
        assert some.are_wanted() == (rank in writers)


def test_ranks_that_write_when_memory_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in ("", "0", "1"):
        monkeypatch.setenv("RANK", rank)
        assert files(tmp_path).out_of_memory(NOW) is not None
        assert (files(tmp_path, oom_ranks=[1]).out_of_memory(NOW) is None) == (rank == "0")


def test_no_more_snapshots_of_an_out_of_memory_than_asked_for(tmp_path: Path) -> None:
    some = files(tmp_path, max_oom_snapshots=2)
    assert [some.out_of_memory(NOW) is not None for _ in range(4)] == [True, True, False, False]
    assert some.oom_snapshots == 2


def test_names_in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = count()

    def names(**options: object) -> list[str]:
        directory = tmp_path / str(next(number))
        some = files(directory, all_ranks=True, **options)
        paths = (some.at_the_end(), some.out_of_memory(NOW))
        return [path.relative_to(directory).as_posix() for path in paths if path]

    host = socket.gethostname()
    time = "20261121-120000-123456"
    assert names() == [
        f"exit/torch_memory_{host}_pid{PID}.pickle",
        f"oom_{time}/torch_memory_oom_{host}_pid{PID}.pickle",
    ]
    assert names(role="critic")[0] == f"exit/torch_memory_critic_{host}_pid{PID}.pickle"
    monkeypatch.setenv("RANK", "7")
    assert names(role="critic") == [
        f"exit/torch_memory_rank7_pid{PID}.pickle",
        f"oom_{time}/torch_memory_oom_rank7_pid{PID}.pickle",
    ]


def test_names_beside_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names() -> list[str]:
        beside = files(tmp_path / "x.y.pickle", all_ranks=True)
        paths = (beside.at_the_end(), beside.out_of_memory(NOW), beside.on_demand(NOW))
        return [path.name for path in paths if path]

    time = "20261121-120000-123456"
    plain = ["x.y.pickle", f"x.y.oom-{time}.pickle", f"x.y.demand-{time}.pickle"]
    assert names() == plain
    # One of several ranks, and one that is alone
    monkeypatch.setenv("RANK", "7")
    assert names() == [name.replace("x.y", "x.y.rank7") for name in plain]
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert names() == plain
    # A process, and one that it started, without a rank, with the same output or another
    monkeypatch.delenv("RANK")
    monkeypatch.setenv(FIRST_PROCESS, f"None:{PID}:{tmp_path / 'x.y.pickle'}")
    assert names() == plain
    monkeypatch.setenv(FIRST_PROCESS, f"None:{PID + 1}:{tmp_path / 'z.pickle'}")
    assert names() == plain
    monkeypatch.setenv(FIRST_PROCESS, f"None:{PID + 1}:{tmp_path / 'x.y.pickle'}")
    assert names() == [name.replace("x.y", f"x.y.pid{PID}") for name in plain]
    # One of several ranks: started by their launcher, and by one of the same rank
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert names() == [name.replace("x.y", "x.y.rank7") for name in plain]
    monkeypatch.setenv(FIRST_PROCESS, f"7:{PID + 1}:{tmp_path / 'x.y.pickle'}")
    assert names() == [name.replace("x.y", f"x.y.rank7.pid{PID}") for name in plain]


def test_names_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names(some: Files) -> list[str]:
        paths = [some.of_window(Window(3, 3)), some.of_window(Window(1, 2, False))]
        paths += [some.of_phase(3, "actor_update", occurrence) for occurrence in (1, 2)]
        return [path.relative_to(tmp_path).as_posix() for path in paths]

    # GIVEN a rank, WHEN it writes files of a step, of a window, and of a phase that occurs twice
    monkeypatch.setenv("RANK", "7")
    file = f"torch_memory_rank7_pid{PID}"
    expected = ["step3", "steps1-2", "step3/actor_update", "step3/actor_update_2"]
    in_directory, beside = files(tmp_path), files(tmp_path / "x.y.pickle")
    # THEN they have verl's names, and beside a file names of their own
    assert names(in_directory) == [f"{each}/{file}.pickle" for each in expected]
    dotted = [each.replace("/", ".") for each in expected]
    assert names(beside) == [f"x.y.rank7.{each}.pickle" for each in dotted]
    # AND when the steps come again, or another tracer has the same, none is overwritten
    assert names(in_directory) == [f"{each}/{file}_2.pickle" for each in expected]
    assert names(in_directory) == [f"{each}/{file}_3.pickle" for each in expected]
    assert names(files(tmp_path)) == [f"{each}/{file}_4.pickle" for each in expected]
    again = [*names(beside), *names(files(tmp_path / "x.y.pickle"))]
    assert again[:2] == [f"x.y.rank7.{each}_2.pickle" for each in dotted[:2]]
    assert again[4:6] == [f"x.y.rank7.{each}_3.pickle" for each in dotted[:2]]
    assert len({*again}) == 8
    assert not {*again} & {f"x.y.rank7.{each}.pickle" for each in dotted}


@pytest.mark.parametrize(
    ("phase", "name"),
    [
        ("généré 2", "généré_2"),
        ("a/../b", "a_.._b"),
        ("..", "phase"),
        ("/", "_"),
        ("", "phase"),
        ("\0\udcff\n", "_"),
        ("字" * 200, "字" * 50),
    ],
)
def test_a_phase_s_name_in_a_file_s(tmp_path: Path, phase: str, name: str) -> None:
    path = files(tmp_path).of_phase(1, phase, 1)
    assert path.relative_to(tmp_path).parts[:2] == ("step1", name)
    path.parent.mkdir(parents=True)
    path.touch()


def test_the_first_process_of_each_rank_claims_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.pickle"
    monkeypatch.setenv(FIRST_PROCESS, "")
    assert files(path).claim_first()
    assert os.environ[FIRST_PROCESS] == f"None:{PID}:{path}"
    monkeypatch.setenv(FIRST_PROCESS, f"None:{PID + 1}:{path}")
    assert not files(path).claim_first()
    monkeypatch.setenv("RANK", "3")
    assert files(path).claim_first()
    assert os.environ[FIRST_PROCESS] == f"3:{PID}:{path}"


def test_two_tracers_of_a_process_in_one_directory(tmp_path: Path) -> None:
    names = [files(tmp_path, role="r").at_the_end() for _ in range(2)]
    host = socket.gethostname()
    assert [path.name for path in names if path] == [
        f"torch_memory_r_{host}_pid{PID}.pickle",
        f"torch_memory_r_{host}_pid{PID}_2.pickle",
    ]


def test_only_the_last_snapshots_on_demand_are_kept(tmp_path: Path) -> None:
    for output in (tmp_path / "directory", tmp_path / "file" / "x.pickle"):
        some = files(output, keep_last=2)
        for second in range(4):
            path = some.on_demand(NOW.replace(second=second))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            some.written(path)
        kept = sorted(path for path in output.parent.rglob("*demand-*0[0-3]-*"))
        assert len([path for path in output.parent.rglob("*.pickle") if path.is_file()]) == 2
        assert kept == [path for path in kept if "-120002-" in str(path) or "-120003-" in str(path)]


def test_the_users_function_gets_every_path(tmp_path: Path) -> None:
    got: list[str] = []
    files(tmp_path, on_snapshot=got.append).written(tmp_path / "x.pickle")
    files(tmp_path, on_snapshot="os.path:basename").written(tmp_path / "x.pickle")
    assert got == [str(tmp_path / "x.pickle")]
    with pytest.raises(ModuleNotFoundError):
        files(tmp_path, on_snapshot="no_such_module:f").written(tmp_path / "x.pickle")
