"""Test `pytracer show --leaks` on trainings that leak and on trainings that only look so."""

import json
import pickle
import textwrap
from pathlib import Path

import processes
import pytest
from commands import invoke
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis import find_leaks
from pytracer.analysis.leaks import several_files
from pytracer.analysis.leaks.several_files import examine
from pytracer.reading import load
from pytracer.reading.to_json import SCHEMA_VERSION, to_json

TRAIN = ("/home/me/train.py", "train_step", 41)
MAIN = ("/home/me/train.py", "main", 90)
MIB = 1 << 20


def training(steps: int, holder: str = "", **metadata: object) -> Program:
    """Return a program that keeps 1 MiB of each step, and frees 512 KiB in each step."""
    program = Program()
    boundaries = []
    for step in range(1, steps + 1):
        boundaries.append([step, len(program.events)])
        address = program.alloc(MIB, TRAIN, MAIN)
        if holder:
            program.hold(address, holder)
        program.free(program.alloc(MIB // 2, ("/home/me/model.py", "forward", 7), TRAIN, MAIN))
    program.metadata = file_metadata(current_step=steps + 1, **metadata)
    program.metadata["devices"][0]["steps"] = boundaries
    return program


@pytest.mark.parametrize(
    ("holder", "advice"),
    [
        ("", "find what keeps the memory"),
        ("no Python tensor", "find what keeps the memory"),
        ("no Python tensor, perhaps a process that received it", "let the processes that receive"),
        ("log['x'] of main()", "look at `log['x']` of main(): drop what"),
        ("a reference cycle of A, which gc.collect() would free", "call gc.collect(), or"),
    ],
)
def test_the_advice_follows_from_what_keeps_the_memory(
    tmp_path: Path, holder: str, advice: str
) -> None:
    path = training(30, holder).write(tmp_path / "a.pickle")
    assert f"What to do: {advice}" in invoke("show", "--leaks", path).output


def test_json_has_what_python_returns(tmp_path: Path) -> None:
    path = training(30).write(tmp_path / "a.pickle")
    document = json.loads(invoke("show", "--leaks", path, "--json").stdout)
    report = find_leaks(load(path))
    assert document == {"schema_version": SCHEMA_VERSION, "errors": [], **to_json(vars(report))}
    assert (report.verdict, report.devices[0].growths[0].held_bytes) == ("leak", 30 * MIB)


def test_a_file_without_steps_cannot_tell(tmp_path: Path) -> None:
    program = training(30)
    del program.metadata["devices"][0]["steps"]
    output = invoke("show", "--leaks", program.write(tmp_path / "a.pickle")).output
    assert output.startswith(
        "Can't tell whether there is a leak, because the file has no steps: call tracer.step() at "
        "the end of each step. The largest growth is "
    )
    assert "from me/train.py:41 train_step" in output.splitlines()[0]
    assert output.splitlines()[-1] == "    export PYTRACER_STEP_FROM=optimizer"
    # AND so cannot a file of another recorder
    program.metadata = {}
    output = invoke("show", "--leaks", program.write(tmp_path / "b.pickle")).output
    assert output.startswith("Can't tell whether there is a leak, because the file has no steps")
    assert output.splitlines()[-1] == "    export PYTRACER=1"


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_few_steps_cannot_tell(steps: int, tmp_path: Path) -> None:
    output = invoke("show", "--leaks", training(steps).write(tmp_path / "a.pickle")).output
    assert output.startswith("Can't tell whether there is a leak, because ")
    assert "8 are needed" in output or "only 5 steps" in output
    # AND steps that it has are not asked for, but more of them
    assert "What to do: record more steps in one file" in output


def test_a_leak_is_found_on_the_ranks_that_have_it(tmp_path: Path) -> None:
    # GIVEN files of four ranks, of which rank 2 leaks
    paths = []
    for rank in range(4):
        program = training(30, rank=rank, pid=100 + rank)
        if rank != 2:
            for address in list(program._alive):
                program.free(address)
            program.metadata["devices"][0]["steps"].append([31, len(program.events) - 1])
        paths.append(program.write(tmp_path / f"rank{rank}.pickle"))
    # THEN the first line names the rank
    first, second, *_ = invoke("show", "--leaks", *paths).output.splitlines()
    assert first.startswith("rank 2 of 4: Leak: 1 MiB a step since step 1, from ")
    assert second.startswith("ranks 0-1, 3 of 4: ")
    # AND of roles with equal ranks, it names the file
    for role in ("actor", "rollout"):
        program = training(30 if role == "actor" else 5, rank=0, pid=7, role=role)
        program.write(tmp_path / "roles" / f"{role}.pickle")
    first, *_ = invoke("show", "--leaks", tmp_path / "roles").output.splitlines()
    assert first.startswith(f"{tmp_path / 'roles' / 'actor.pickle'} cuda:0 of 2 recordings: Leak: ")
    # AND if all leak, that is one line
    paths = [
        training(30, rank=rank, pid=rank).write(tmp_path / f"all{rank}.pickle") for rank in range(4)
    ]
    assert invoke("show", "--leaks", *paths).output.startswith(
        "ranks 0-3 of 4: Leak: 1 MiB a step "
    )


def test_state_that_an_optimizer_makes_late_is_no_leak(tmp_path: Path) -> None:
    # GIVEN a training in which one more layer is trained in each step, so that its gradient and its
    # optimizer's state stay from then on
    program = """
        import torch, pytracer

        layers = [torch.nn.Linear(64, 64) for _ in range(40)]
        for layer in layers:
            layer.requires_grad_(False)
        optimizer = torch.optim.Adam([p for layer in layers for p in layer.parameters()])
        with pytracer.Tracer("a.pickle", device="cpu") as tracer:
            for layer in layers:
                layer.requires_grad_(True)
                x = torch.ones(64)
                for each in layers:
                    x = each(x)
                x.sum().backward()
                optimizer.step()
                tracer.step()
    """
    done = processes.run_python("-c", textwrap.dedent(program), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # THEN nobody is accused
    assert not invoke("show", "--leaks", tmp_path / "a.pickle").output.startswith("Leak")


@pytest.mark.slow
@pytest.mark.long
def test_one_of_four_processes_leaks(tmp_path: Path) -> None:
    # GIVEN four processes of a job, of which rank 2 keeps memory
    for rank in range(4):
        name = "list_of_activations" if rank == 2 else "nothing_kept"
        variables = {"PYTRACER": "1", "RANK": str(rank), "WORLD_SIZE": "4"}
        env = processes.environment(**variables, PYTRACER_ALL_RANKS="1")
        done = processes.run_python("-m", "corpus", name, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
    # THEN the first line names the rank
    first, *_ = invoke("show", "--leaks", tmp_path).output.splitlines()
    assert first.startswith("rank 2 of 4: Leak: ")
    # AND so does the function
    report = find_leaks(*map(load, sorted(tmp_path.rglob("*.pickle"))))
    assert [device.rank for device in report.devices if device.verdict == "leak"] == [2]


def test_devices_of_one_process_are_named(tmp_path: Path) -> None:
    content = training(30).content()
    content["device_traces"].insert(
        0, [{"action": "oom", "size": 1, "device_free": 0, "stream": 0}]
    )
    for segment in content["segments"]:
        segment["device"] = 1
    content["pytracer"]["devices"][0]["index"] = 1
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(content, protocol=4))
    first, second, *_ = invoke("show", "--leaks", path).output.splitlines()
    assert first.startswith("cuda:1 of 2 devices: Leak: 1 MiB a step since step 1, from ")
    assert second.startswith("cuda:0 of 2 devices: Can't tell whether there is a leak, because")


def dumps(folder: Path, count: int) -> list[Path]:
    """Write a file after each of `count` steps of one process, each with its own step only."""
    program, paths = Program(), []
    for step in range(1, count + 1):
        program.events.clear()
        program.alloc(MIB, TRAIN, MAIN)
        program.free(program.alloc(MIB // 2, ("/home/me/model.py", "forward", 7), TRAIN, MAIN))
        program.metadata = file_metadata(current_step=step, written_ns=step)
        program.metadata["devices"][0]["steps"] = [[step, 0]]
        paths.append(program.write(folder / f"step{step}.pickle"))
    return paths


def test_little_is_kept_of_the_blocks_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = dumps(tmp_path, 12)
    # GIVEN the file of step 12, with a block of each step
    (kept,) = examine(load(paths[-1])).alive.values()
    # THEN 24 bytes are kept of each
    assert sum(column.nbytes for column in vars(kept).values()) == 24 * 12
    # AND files with too many blocks are not compared, which is said
    monkeypatch.setattr(several_files, "MOST_BLOCKS", 11)
    (device,) = find_leaks(*map(load, paths)).devices
    assert device.verdict == "unknown"
    assert "step12.pickle has more than 11 blocks" in device.reason


def test_files_of_steps_are_compared(tmp_path: Path) -> None:
    # GIVEN twelve files of one step each, in any order
    paths = dumps(tmp_path, 12)
    output = invoke("show", "--leaks", *reversed(paths)).output
    # THEN the blocks that stay from file to file are found
    assert output.startswith(
        "Leak: 1 MiB a step since step 1 or before, from me/train.py:41 train_step, called from "
        "me/train.py:90 main."
    )
    assert "the final states of 12 files" in output
    # AND a few files do not tell
    output = invoke("show", "--leaks", *paths[:4]).output
    assert output.startswith(
        "Can't tell whether there is a leak, because 4 files are too few to compare their final"
    )
    assert "from me/train.py:41 train_step" in output.splitlines()[0]


def test_a_file_without_devices(tmp_path: Path) -> None:
    # GIVEN a file without any event or segment, of a process that could not record
    empty = Program()
    empty.metadata = file_metadata(untraced="CUDA is not recorded: no hook.", devices=[])
    path = empty.write(tmp_path / "empty.pickle")
    # WHEN commands are asked about it, THEN each says what the file lacks, and why
    sentence = "the file has no events and no segments: CUDA is not recorded: no hook"
    for command in (
        ["show"],
        ["show", "--leaks"],
        ["show", "--fragmentation"],
        ["diff", path],
        ["export", "--to", "collapsed"],
    ):
        result = invoke(*command, path)
        assert result.exit_code == ("--fragmentation" in command)
        assert sentence[1:] in " ".join((result.output + result.stderr).split()), command
    (device,) = find_leaks(load(path)).devices
    assert (device.verdict, device.reason) == ("unknown", sentence)
    # AND a file of another recorder names the remedy
    empty.metadata = {}
    (device,) = find_leaks(empty.snapshot()).devices
    assert '"pytracer doctor"' in device.reason
    # AND next to other files of the process, such a file does not count
    program = training(30)
    empty.metadata = file_metadata(devices=[])
    report = find_leaks(program.snapshot(), empty.snapshot(), empty.snapshot())
    assert [device.verdict for device in report.devices] == ["leak"]
    # AND several such files are one answer
    report = find_leaks(empty.snapshot(), empty.snapshot())
    assert [device.verdict for device in report.devices] == ["unknown"]
