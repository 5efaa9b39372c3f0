"""Dry runs: what a program needs on a device that is not there."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import pytracer
from pytracer import ConfigError, PytracerError
from pytracer.fitting.largest import largest
from pytracer.reading.reader import load
from pytracer.text import size

MIB = 1 << 20

TRAINING = """
    import sys, torch
    torch.manual_seed(0)
    batch = int(sys.argv[sys.argv.index("--batch") + 1])
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(10):
        loss = model(torch.randn(batch, 1024, device=DEVICE)).pow(2).mean()
        loss.backward()
        if loss.item() < -1:
            break
        optimizer.step()
        optimizer.zero_grad()
        torch.save(model.state_dict(), "weights.pt")
        print(step, torch.DEVICE.max_memory_allocated(), torch.DEVICE.max_memory_reserved())
"""

RANKS = """
    import os, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    torch.DEVICE.set_device(rank)
    model = DistributedDataParallel(torch.nn.Linear(1024, 1024).to(DEVICE), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters())
    while True:
        model(torch.randn(8, 1024, device=DEVICE)).sum().backward()
        objects = [None] * dist.get_world_size()
        dist.all_gather_object(objects, dist.get_rank())
        assert objects == [13] * 16
        optimizer.step()
"""

ENDLESS = """
    import torch
    done = torch.zeros(1, device=DEVICE)
    while not done:
        done += 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def program(folder: Path, text: str, backend: str) -> str:
    text = textwrap.dedent(text).replace("torch.DEVICE", f"torch.{backend}")
    (folder / "train.py").write_text(text.replace("DEVICE", repr(backend)))
    return "train.py"


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "pytracer", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def model_of(backend: str) -> str:
    return {"cuda": "h100", "npu": "ascend910b2"}[backend]


def test_a_program_that_fits(folder: Path, backend: str) -> None:
    # GIVEN a training, which prints its peaks
    script = program(folder, TRAINING, backend)
    # WHEN it is run on a device that is not there
    done = run_command("run", "--dry-run", model_of(backend), script, "--batch", "64")
    # THEN it is stopped in its third step, and the peak is that which torch says of the one before
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[:2]] == ["0", "1"]
    _, allocated, reserved = map(int, done.stdout.splitlines()[1].split())
    assert f"FITS  at least {size(allocated)} of" in done.stdout
    assert f"reserved {size(reserved)} (" in done.stdout
    assert "after 3 steps of the optimizer" in done.stdout
    # THEN the line is named that reads a value to decide, and no other
    assert re.search(r"train.py:10 if loss.item\(\) < -1:", done.stdout)
    # THEN no checkpoint of zeros is written, which is said, and nothing is left but a recording
    assert not (folder / "weights.pt").exists()
    assert "2 checkpoints not written" in done.stdout
    (path,) = (each for each in folder.rglob("*") if each.is_file() and each.name != script)
    assert load(path).metadata.device(0).statistics is not None


def test_a_program_that_does_not_fit(folder: Path, backend: str) -> None:
    # GIVEN a training, and a device that has too little memory for it
    script = program(folder, TRAINING, backend)
    # WHEN it is run there
    found = pytracer.dry_run(
        [script, "--batch", "16384"],
        device=model_of(backend),
        device_memory_bytes=512 * MIB,
        context_memory_bytes=100 * MIB,
    )
    # THEN the answer is that of an out-of-memory error
    assert not found.fits
    assert found.answer.kind == "oom"
    assert "device 512 MiB" in " ".join(found.answer.texts("free"))
    assert found.peak_reserved_bytes <= 412 * MIB


SURVIVOR = """
    import sys, torch
    from unittest.mock import Mock
    torch._dynamo = sys.modules["torch._dynamo"] = Mock(disable=lambda step, *_, **__: step)
    weights = [torch.zeros(4, device=DEVICE, requires_grad=True) for _ in range(2)]
    optimizers = [torch.optim.SGD([each]) for each in weights]
    try:
        torch.zeros(1 << 50, device=DEVICE)
    except torch.OutOfMemoryError:
        pass
    with open("own.pt", "wb") as file:
        torch.save(weights, file)
    if sys.argv[1] == "fails":
        raise ValueError("labels are wrong")
    if sys.argv[1] == "trains":
        for number in range(5):
            for optimizer in optimizers:
                sum(weights).sum().backward()
                optimizer.step()
            print("round", number, flush=True)
"""


def test_a_program_that_survives(folder: Path) -> None:
    # GIVEN a program that goes on after an out-of-memory error, with two optimizers, of which the
    # first would import torch's compiler, in 2 seconds
    script = program(folder, SURVIVOR, "cuda")
    # WHEN it trains, THEN it fits, it is stopped when both have made three steps, and the answer
    # is not that of the error; a file that it has opened gets no zeros
    found = pytracer.dry_run([script, "trains"], output="trains")
    assert found.fits
    assert found.answer.texts("why") == ["memory ran out 1 time, and the program went on"]
    assert not found.answer.texts("do", "held")
    assert re.findall(r"round \d", (folder / "trains/log.txt").read_text()) == [
        "round 0",
        "round 1",
    ]
    assert (folder / "own.pt").stat().st_size == 0
    # WHEN it is not stopped, THEN it runs to its end
    pytracer.dry_run([script, "trains"], output="all", stop_after_steps=0)
    assert "round 4" in (folder / "all/log.txt").read_text()
    # WHEN it gives up, THEN it does not fit
    assert not pytracer.dry_run([script, "ends"]).fits
    # WHEN it fails for another reason, THEN that is not called a want of memory
    with pytest.raises(PytracerError, match="not because memory ran out: ValueError: labels are"):
        pytracer.dry_run([script, "fails"])
    # WHEN the folder has recordings, THEN they are not taken for those of another run
    with pytest.raises(ConfigError, match="give a new or empty folder"):
        pytracer.dry_run([script, "ends"], output="trains")


def test_one_of_many_ranks(folder: Path, backend: str) -> None:
    # GIVEN a program of many ranks that never ends
    script = program(folder, RANKS, backend)
    # WHEN one of them is run
    device = model_of(backend)
    found = pytracer.dry_run([script], device=device, world_size=16, rank=13, time_limit_s=100)
    # THEN it sees all ranks, and its recording is of this one
    assert (found.fits, found.world_size) == (True, 16)
    assert [load(Path(path)).metadata.rank for path in found.paths] == [13]
    # THEN what collectives take is not known
    assert found.unknown == ["buffers of collective communication"]


def test_all_ranks_together(folder: Path) -> None:
    # GIVEN a program whose ranks send objects to each other
    script = program(folder, RANKS.replace("[13] * 16", "[0, 1]"), "cuda")
    # WHEN all run together, THEN each gets the others' objects
    found = pytracer.dry_run([script], world_size=2, together=True, time_limit_s=100)
    assert found.fits
    assert sorted(load(Path(path)).metadata.rank for path in found.paths) == [0, 1]


def test_a_program_that_states_its_ranks(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import torch\n"
        "address = 'tcp://127.0.0.1:1'\n"
        "torch.distributed.init_process_group('nccl', address, rank=3, world_size=4)\n"
        "torch.distributed.all_reduce(torch.zeros(8, device='cuda'))\n"
    )
    found = pytracer.dry_run(["train.py"])
    assert (found.world_size, found.unknown) == (4, ["buffers of collective communication"])


def test_a_program_that_waits_for_a_value(folder: Path, backend: str) -> None:
    # GIVEN a program that waits for a value, which a simulated device does not compute
    script = program(folder, ENDLESS, backend)
    # WHEN it is run, THEN it is stopped, and the answer has the line
    found = pytracer.dry_run([script], device=model_of(backend), time_limit_s=1)
    assert any("time limit, at train.py:" in text for text in found.answer.texts("ended"))
    assert (found.values[0].place, found.values[0].decides) == ("train.py:4", True)


def test_the_largest_size(folder: Path) -> None:
    # GIVEN a program that needs 32 MiB for each part of its batch, and 32 MiB more
    (folder / "fill.py").write_text(
        "import sys, torch\n"
        "kept = [torch.empty(32 << 20, dtype=torch.uint8, device='cuda')"
        " for _ in range(int(sys.argv[1]) + 1)]\n"
    )
    # WHEN the largest batch is searched for on a device of 128 MiB
    found = largest(
        ["fill.py", "{batch}"], "batch", device_memory_bytes=128 * MIB, context_memory_bytes=0
    )
    # THEN it is that for which there is memory
    assert found.value == found.without_flushes == 3
    assert found.runs[3].peak_reserved_bytes == 128 * MIB
    assert not found.runs[4].fits
    assert found.answer.verdict == "FITS  up to batch=3"


def test_several_sizes_and_devices(folder: Path) -> None:
    # GIVEN a training
    script = program(folder, TRAINING, "cuda")
    # WHEN it is run at a size that fits one device alone
    arguments = ("--on", "t4,h100", "--at", "batch=1000000", "--", script, "--batch", "{batch}")
    done = run_command("fit", *arguments)
    # THEN the table has both, and the exit code says that one is too small
    assert done.returncode == 4, done.stderr
    rows = [line for line in done.stdout.splitlines() if "batch=1,000,000" in line]
    assert ["does not fit" in row for row in rows] == [True, False]
    assert "FITS" in done.stdout


def test_a_program_that_fails(folder: Path) -> None:
    (folder / "wrong.py").write_text("import torch; torch.zeros(1, device='cuda'); {}['key']")
    with pytest.raises(PytracerError, match="not because memory ran out: KeyError: 'key'"):
        pytracer.dry_run(["wrong.py"])
    (folder / "cpu.py").write_text("import torch; torch.zeros(1)")
    with pytest.raises(PytracerError, match="used no device"):
        pytracer.dry_run(["cpu.py"])
    (folder / "killed.py").write_text(
        "import os, torch; torch.cuda.init(); os.kill(os.getpid(), 9)"
    )
    with pytest.raises(PytracerError, match="signal 9 ended it"):
        pytracer.dry_run(["killed.py"])


def test_values_that_a_thread_without_python_reads(folder: Path, backend: str) -> None:
    # GIVEN a program whose backward pass reads a size, in a thread of torch
    text = "import torch\nx = torch.zeros(8, device=DEVICE, requires_grad=True)\n"
    script = program(folder, f"{text}x[x > 0].sum().backward()\nprint(x)\n", backend)
    # WHEN it is run, THEN the forward pass's line is named, not the print, and no error is printed
    found = pytracer.dry_run([script], device=model_of(backend), output=folder / "out")
    assert [value.place for value in found.values if value.decides] == ["train.py:3"]
    assert (folder / "out/log.txt").read_text().count("Exception") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "h10"}, "did you mean h100"),
        ({"rank": 2, "world_size": 2}, "rank=2 of 2 ranks: the first rank is 0"),
        ({"context_memory_bytes": 10**12}, "the device has"),
        ({"output": "snapshot.pickle"}, "give a new or empty folder"),
        ({"stop_after_steps": -1}, "must be 0 or more"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pytracer.dry_run(["train.py"], **arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot run nothing"):
        pytracer.dry_run(["nothing"])


def test_an_option_without_its_device() -> None:
    done = run_command("run", "--world-size", "8", "train.py")
    assert done.returncode == 2
    assert "--world-size needs --dry-run DEVICE" in done.stderr
    done = run_command("fit", "--on", "h100", "--largest", "batch", "train.py")
    assert done.returncode != 0
    assert "the command has no {batch}" in done.stderr


def test_the_how_tos_example(folder: Path) -> None:
    # GIVEN the test of the how-to, which has seen a program
    page = (Path(__file__).parents[2] / "docs/how-to/dry-run.md").read_text()
    found = re.search(r'```python title="(test_memory.py)"\n(.*?)```', page, re.DOTALL)
    assert found is not None
    (folder / found[1]).write_text(found[2])
    text = "import torch\ntorch.zeros({} << 20, dtype=torch.uint8, device='cuda')\n"
    command = [sys.executable, "-P", "-m", "pytest", "-q", found[1]]
    (folder / "train.py").write_text(text.format(100))
    assert subprocess.run(command, check=False).returncode == 0
    # WHEN the program takes 6 % more, THEN the test fails
    (folder / "train.py").write_text(text.format(106))
    assert subprocess.run(command, check=False).returncode == 1


def test_tokens_that_are_spread_over_experts(folder: Path, backend: str) -> None:
    # GIVEN a program that gives each expert its tokens, in the usual ways
    text = """
        import torch
        x = torch.empty(4096, 256, device=DEVICE)
        _, chosen = torch.empty(4096, 8, device=DEVICE).topk(2)
        for expert in torch.ones(8, device=DEVICE).nonzero():
            token, _ = torch.where(chosen == expert)
            mask = (chosen == expert).any(-1)
            print(int(expert), len(x[token]), len(x[mask]), len(x[x > 0]))
        print(*torch.ones(8, device=DEVICE).long().tolist())
        """
    # WHEN it is run
    script = program(folder, text, backend)
    found = pytracer.dry_run([script], device=model_of(backend), output="out")
    # THEN each gets as many, another mask is empty and named, and the answer says so
    lines = (folder / "out/log.txt").read_text().splitlines()
    assert lines[:9] == [*(f"{n} 1024 1024 0" for n in range(8)), " ".join(["1024"] * 8)]
    assert [value.place for value in found.values if value.decides] == ["train.py:8"]
    assert "which 2 of 8 experts each token gets (spread evenly here)" in found.unknown
