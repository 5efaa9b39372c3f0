"""Tests of the rank of a process, and of the files that it writes."""

import logging
import os
import re
import socket
from datetime import datetime
from itertools import count
from pathlib import Path

import pytest
from processes import run

from pytracer.tracing import ranks
from pytracer.tracing import snapshot_files as names_of_files
from pytracer.tracing.options import Options
from pytracer.tracing.ranks import Rank
from pytracer.tracing.snapshot_files import FIRST_PROCESS, Files
from pytracer.tracing.step_windows import Window

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
        ("SLURM_PROCID=0", Rank(None, None)),  # the script of a batch job, not a process of srun
        # torchrun under srun: the inner launcher's variables are used
        ("RANK=9 WORLD_SIZE=16 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2", Rank(9, 16)),
    ],
)
def test_launchers(monkeypatch: pytest.MonkeyPatch, variables: str, rank: Rank) -> None:
    for item in variables.split():
        monkeypatch.setenv(*item.split("="))
    assert ranks.current() == rank


def test_a_process_group_without_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a program that sets its ranks itself
    import torch.distributed

    ranks.remember_group()
    monkeypatch.setattr(ranks, "_last_group", None)
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    assert ranks.current() == Rank(0, 1)
    # WHEN it destroys the group, THEN its rank is still known
    torch.distributed.destroy_process_group()
    assert ranks.current() == Rank(0, 1)


@pytest.mark.parametrize(
    ("variables", "group", "rank"),
    [
        ("RANK=1 WORLD_SIZE=4", Rank(2, 4), Rank(1, 4)),
        ("RANK=1 WORLD_SIZE=4", Rank(0, 2), Rank(1, 4)),  # an engine's own group within a job
        (
            "RANK=0 WORLD_SIZE=1",
            Rank(5, 8),
            Rank(5, 8),
        ),  # the group's rank is the number of the node
        ("RANK=0", Rank(5, 8), Rank(5, 8)),
        ("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2", Rank(5, 8), Rank(5, 8)),
    ],
)
def test_the_larger_of_two_worlds(
    monkeypatch: pytest.MonkeyPatch, variables: str, group: Rank, rank: Rank
) -> None:
    monkeypatch.setattr(ranks, "_last_group", group)
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
        ({"ranks": "all"}, {None, 0, 1, 2}),
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


def write(some: Files, path: Path | None) -> None:
    """Write a file as a tracer does."""
    assert path is not None
    with some.writing(path):
        path.touch()
    some.written(path)


def fail_to_write(some: Files, path: Path | None) -> None:
    """Fail to write a file, as on a full disk."""
    assert path is not None
    with pytest.raises(OSError, match="disk"), some.writing(path):
        raise OSError("the disk is full")


def seconds_of(folder: Path) -> list[int]:
    """Return the seconds in the names of all timed files; check that no folder is empty."""
    assert all(any(path.iterdir()) for path in folder.rglob("*") if path.is_dir())
    found = [path for path in folder.rglob("*.pickle") if path.is_file()]
    return sorted(int(re.findall(r"-1200(\d\d)-", str(path))[0]) for path in found)


OUTPUTS = pytest.mark.parametrize("output", ["folder", "x.pickle"])


@OUTPUTS
def test_a_file_is_deleted_only_after_its_replacement_exists(
    tmp_path: Path, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN as many files as the limit allows
    some = files(tmp_path / output, max_oom_snapshots=2, keep_last=2)
    for name in (some.out_of_memory, some.on_demand):
        for second in range(2):
            write(some, name(NOW.replace(second=second)))
    before = seconds_of(tmp_path)
    # WHEN further files cannot be written, THEN the existing files are kept
    fail_to_write(some, some.out_of_memory(NOW.replace(second=2)))
    fail_to_write(some, some.on_demand(NOW.replace(second=2)))
    assert seconds_of(tmp_path) == before
    # WHEN further files can be written, THEN each exists before another file is deleted
    unlink = Path.unlink

    def checked(path: Path, missing_ok: bool) -> None:
        assert seconds_of(tmp_path) == [0, 0, 1, 1, 3]
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", checked)
    write(some, some.out_of_memory(NOW.replace(second=3)))
    assert seconds_of(tmp_path) == [0, 0, 1, 3]


def test_a_failed_write_removes_only_the_folders_that_were_made_for_it(tmp_path: Path) -> None:
    # GIVEN a folder of the user, and a folder that has another file
    some = files(tmp_path / "mine" / "out")
    (tmp_path / "mine").mkdir()
    # WHEN the first file cannot be written, THEN the folders made for it are deleted
    fail_to_write(some, some.of_phase(1, "forward", 1))
    assert [*tmp_path.rglob("*")] == [tmp_path / "mine"]
    # AND folders that are not empty, or existed before, are kept
    write(some, some.of_window(Window(1, 1)))
    fail_to_write(some, some.of_phase(1, "forward", 1))
    assert len([*(tmp_path / "mine/out/step1").iterdir()]) == 1
    (tmp_path / "mine/out/exit").mkdir()
    fail_to_write(some, some.at_the_end())
    assert (tmp_path / "mine/out/exit").is_dir()


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


def test_names_next_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names() -> list[str]:
        monkeypatch.setattr(names_of_files, "_claimed", {})
        at_file = files(tmp_path / "x.y.pickle", all_ranks=True)
        paths = (at_file.at_the_end(), at_file.out_of_memory(NOW), at_file.on_demand(NOW))
        return [path.name for path in paths if path]

    time = "20261121-120000-123456"
    base_names = ["x.y.pickle", f"x.y.oom-{time}.pickle", f"x.y.demand-{time}.pickle"]
    assert names() == base_names
    # One of several ranks, and the only rank
    monkeypatch.setenv("RANK", "7")
    assert names() == [name.replace("x.y", "x.y.rank7") for name in base_names]
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert names() == base_names
    # A process and a process that it started, without ranks, with the same output or another
    monkeypatch.delenv("RANK")
    monkeypatch.setenv(FIRST_PROCESS, f"None:{PID}:{tmp_path / 'x.y.pickle'}")
    assert names() == base_names
    monkeypatch.setenv(FIRST_PROCESS, f"None:{PID + 1}:{tmp_path / 'z.pickle'}")
    assert names() == base_names
    monkeypatch.setenv(FIRST_PROCESS, f"None:{PID + 1}:{tmp_path / 'x.y.pickle'}")
    assert names() == [name.replace("x.y", f"x.y.pid{PID}") for name in base_names]
    # One of several ranks, started by the launcher and by a process of the same rank
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert names() == [name.replace("x.y", "x.y.rank7") for name in base_names]
    monkeypatch.setenv(FIRST_PROCESS, f"7:{PID + 1}:{tmp_path / 'x.y.pickle'}")
    assert names() == [name.replace("x.y", f"x.y.rank7.pid{PID}") for name in base_names]


def test_names_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names(some: Files) -> list[str]:
        paths = [some.of_window(Window(3, 3)), some.of_window(Window(1, 2, False))]
        paths += [some.of_phase(3, "actor_update", occurrence) for occurrence in (1, 2)]
        return [path.relative_to(tmp_path).as_posix() for path in paths]

    # GIVEN a rank, WHEN it writes files of a step, a window, and a phase that occurs twice
    monkeypatch.setenv("RANK", "7")
    file = f"torch_memory_rank7_pid{PID}"
    expected = ["step3", "steps1-2", "step3/actor_update", "step3/actor_update_2"]
    in_directory, at_file = files(tmp_path), files(tmp_path / "x.y.pickle")
    # THEN in a folder they have verl's names, and with an output file its name is part of theirs
    assert names(in_directory) == [f"{place}/{file}.pickle" for place in expected]
    dotted = [place.replace("/", ".") for place in expected]
    assert names(at_file) == [f"x.y.rank7.{place}.pickle" for place in dotted]
    # AND when the steps repeat, or another tracer has the same steps, no file is overwritten
    assert names(in_directory) == [f"{place}/{file}_2.pickle" for place in expected]
    assert names(in_directory) == [f"{place}/{file}_3.pickle" for place in expected]
    assert names(files(tmp_path)) == [f"{place}/{file}_4.pickle" for place in expected]
    again = [*names(at_file), *names(files(tmp_path / "x.y.pickle"))]
    assert again[:2] == [f"x.y.rank7.{place}_2.pickle" for place in dotted[:2]]
    assert again[4:6] == [f"x.y.rank7.{place}_3.pickle" for place in dotted[:2]]
    assert len({*again}) == 8
    assert not {*again} & {f"x.y.rank7.{place}.pickle" for place in dotted}


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


def test_one_file_for_two_tracers_and_for_a_second_recording(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN a tracer that has written its file
    def end(some: Files) -> str:
        path = some.at_the_end()
        assert path is not None
        assert some.at_the_end() == path  # one recording has one file
        write(some, path)
        return path.name

    some = files(tmp_path / "x.pickle")
    with caplog.at_level(logging.WARNING, "pytracer"):
        names = [end(some)]
        # WHEN it starts again, and others have the same output, THEN each snapshot has its own name
        some.begin(make=False)
        names += [end(some), *(end(files(tmp_path / "x.pickle")) for _ in range(2))]
    assert names == ["x.pickle", "x_2.pickle", "x_3.pickle", "x_4.pickle"]
    # AND one message names the file of the second snapshot
    (message,) = caplog.messages
    assert f"{tmp_path / 'x.pickle'} already has a snapshot of this process" in message
    assert str(tmp_path / "x_2.pickle") in message
    # AND the name of a file that was not written can be used again
    some = files(tmp_path / "y.pickle")
    fail_to_write(some, some.at_the_end())
    assert end(files(tmp_path / "y.pickle")) == "y.pickle"


def test_forked_children_of_a_process_that_has_written(tmp_path: Path) -> None:
    # GIVEN a program that has written a snapshot, and children that it forks
    program = """
import os
from pytracer import Tracer

def write(name):
    with Tracer(name, device="cpu"):
        pass

def fork():
    child = os.fork()
    if child == 0:
        write("x.pickle")
        write("own.pickle")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return child

write("x.pickle")
children = fork(), fork()
write("x.pickle")
print(*children)
"""
    # WHEN all write to the same output, THEN each has its own file, and only their number is logged
    done = run(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in tmp_path.glob("x*.pickle")}
    pids = done.stdout.split()
    assert names == {"x.pickle", "x_2.pickle", *(f"x.pid{pid}.pickle" for pid in pids)}
    assert done.stderr.count("already has a snapshot of this process") == 1
    # AND a name that the parent has not used is unchanged
    assert (tmp_path / "own.pickle").exists()


def test_two_recordings_of_two_tracers_in_one_directory(tmp_path: Path) -> None:
    first, second = files(tmp_path, role="r"), files(tmp_path, role="r")
    found = []
    for _ in range(2):
        for some in (second, first):
            some.begin(make=False)
            found.append(some.at_the_end())
    assert len({*found}) == 4
    again = [re.findall(r"_pid\d+(.*)\.pickle", str(path))[0] for path in found]
    assert again == ["_2", "", "_3", "_4"]


def test_the_users_function_gets_every_path(tmp_path: Path) -> None:
    got: list[str] = []
    files(tmp_path, on_snapshot=got.append).written(tmp_path / "x.pickle")
    files(tmp_path, on_snapshot="os.path:basename").written(tmp_path / "x.pickle")
    assert got == [str(tmp_path / "x.pickle")]
    with pytest.raises(ModuleNotFoundError):
        files(tmp_path, on_snapshot="no_such_module:f").written(tmp_path / "x.pickle")
