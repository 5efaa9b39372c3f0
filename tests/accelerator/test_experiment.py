"""`pytracer experiment` and `pytracer.experiment()` on a device."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import processes
import pytest
from commands import cells
from processes import Done

OFF, ON = "expandable_segments:False", "expandable_segments:True"

# Batches that grow, with something small that stays of each: where segments do not expand, there is
# no room for the next batch in those of the ones before. Of the device there is 1 GiB to be had.
TRAINING = """
import json, sys, torch
backend = sys.argv[1]
if backend == "npu":
    import torch_npu
device = getattr(torch, backend)
MIB = 1 << 20

def block(size):
    return torch.empty(size, dtype=torch.uint8, device=backend)

def train(steps):
    device.set_per_process_memory_fraction((1 << 30) / device.mem_get_info()[1])
    weights = torch.nn.Linear(8, 8, device=backend)
    optimizer = torch.optim.SGD(weights.parameters())
    kept = []
    for step in range(steps):
        size = (20 + 3 * step) * MIB + 1000
        batch = block(size)
        kept.append(block(2 * MIB - 5000))
        activations = block(size // 2)
        weights(torch.ones(8, 8, device=backend)).sum().backward()
        optimizer.step()
        del batch, activations
    return kept
"""
TELLS = """
import atexit
def tell():
    told = device.memory_stats()
    print()
    print(json.dumps({
        "peak_reserved_bytes": told["reserved_bytes.all.peak"],
        "peak_allocated_bytes": told["allocated_bytes.all.peak"],
        "retries": told["num_alloc_retries"],
        "ooms": told["num_ooms"],
        "device_allocs": told.get("num_device_alloc"),
    }))
atexit.register(tell)
print("training")
train(30)
"""


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    kept = processes.installed(tmp_path_factory.mktemp("installed"), COLUMNS="80")
    return {name: text for name, text in kept.items() if not name.endswith("ALLOC_CONF")}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "pytracer", "experiment", *map(str, arguments)]


def experiment(*arguments: object, cwd: Path, env: dict[str, str]) -> Done:
    return processes.run_python(*command(*arguments)[1:], cwd=cwd, env=env)


def report(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "out" / "experiment.json").read_text())
    return told


class Finished(NamedTuple):
    """An experiment of two settings and two repeats."""

    folder: Path
    done: Done
    report: dict[str, Any]


@pytest.fixture(scope="module")
def finished(
    backend: str, env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Finished:
    folder = tmp_path_factory.mktemp("experiment")
    (folder / "train.py").write_text(TRAINING + TELLS)
    done = experiment(
        *("--set", OFF, "--set", ON, "--repeat", 2, "--output", "out", "--json", "report.json"),
        *("--", sys.executable, "train.py", backend),
        cwd=folder,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    return Finished(folder, done, report(folder))


def test_out_of_memory_is_a_result(finished: Finished) -> None:
    # GIVEN a program that runs out of memory under one of the settings, by an exception
    first, second = finished.report["settings"]
    assert (first["settings"], second["settings"]) == (OFF, ON)
    # THEN that is no failure
    for outcome in first["outcomes"]:
        assert outcome["failure"] is None
        assert (outcome["ooms"], outcome["ended_early"]) == (1, True)
        assert outcome["retries"] >= 1
        kinds = [Path(file).relative_to("out").parts[1] for file in outcome["files"]]
        assert [kind.partition("_")[0] for kind in kinds] == ["log.txt", "exit", "oom"]
    for outcome in second["outcomes"]:
        assert (outcome["ooms"], outcome["ended_early"], outcome["failure"]) == (0, False, None)
    # AND the conclusion says both
    (told,) = finished.report["conclusions"]
    assert told.startswith(f"{ON}: peak reserved at least ")
    assert told.endswith(f" less; no out-of-memory, where {OFF} had it in 2 of 2.")
    # AND there is no note of what is not known
    assert finished.report["notes"] == []


def test_the_numbers_are_those_that_torch_tells(finished: Finished) -> None:
    for setting in finished.report["settings"]:
        for outcome in setting["outcomes"]:
            # GIVEN what the program printed at its end
            log = (finished.folder / outcome["files"][0]).read_text()
            (line,) = (line for line in log.splitlines() if line.startswith("{"))
            # THEN it is what the experiment has, as far as this torch tells
            told = {name: value for name, value in json.loads(line).items() if value is not None}
            assert len(told) >= 4
            assert told == {name: outcome[name] for name in told}
            peaks = outcome["peak_reserved_bytes"], outcome["peak_allocated_bytes"]
            assert outcome["fragmentation_bytes"] == peaks[0] - peaks[1]
            assert 0 < outcome["step_us"] < outcome["wall_s"] * 1e6


def test_the_order_and_the_files(finished: Finished, backend: str) -> None:
    # THEN runs were made in a balanced order, one after the other
    told = finished.report
    assert [(run["setting"], run["repeat"]) for run in told["order"]] == [
        *((OFF, 1), (ON, 1), (ON, 2), (OFF, 2))
    ]
    written = []
    for run in told["order"]:
        folder = finished.folder / run["directory"]
        assert folder.parent == finished.folder / "out"
        (path,) = folder.glob("exit/*.pickle")
        about = pickle.loads(path.read_bytes())["pytracer"]
        assert about["step_from"] == "optimizer SGD"
        written.append(about["written_ns"])
    assert written == sorted(written)
    # AND the report is complete, and in both places
    assert (told["finished"], told["backend"], told["step_from"]) == (True, backend, "optimizer")
    assert told["command"] == [sys.executable, "train.py", backend]
    assert told["environment"]["backends"] == [backend]
    assert json.loads((finished.folder / "report.json").read_text()) == told
    assert {path.name for path in finished.folder.iterdir()} == {"train.py", "out", "report.json"}


def test_what_is_printed(finished: Finished) -> None:
    # THEN nothing of the program's, a line for each run, and the table
    assert "training" not in finished.done.stdout + finished.done.stderr
    # torch may warn of what the simulated device is loaded with
    lines = [each for each in finished.done.stderr.splitlines() if not each.startswith("[W")]
    assert [line.partition(":")[0] for line in lines[:4]] == [
        *(f"{i} expandable_segments" for i in ("1/4", "2/4", "3/4", "4/4"))
    ]
    assert ["out of memory" in line for line in lines[:4]] == [True, False, False, True]
    assert "out/experiment.json" in lines[4]
    table = {row[0]: row[1:] for row in cells(finished.done.stdout) if row[0]}
    assert table["runs"] == ["2", "2"]
    assert table["out of memory"] == ["in 2 of 2 runs", "no"]
    tables = [line for line in finished.done.stdout.splitlines() if line[:1] in set("┏┃┡│└")]
    assert max(map(len, tables)) <= 80
    assert finished.report["conclusions"][0] in finished.done.stdout


def test_a_run_that_fails_and_others(backend: str, env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN a program that fails under the first setting, and under the second one resets the
    # allocator's statistics and changes its settings
    program = TRAINING + (
        "import os\n"
        "train(6)\n"
        f"if '{OFF}' in os.environ['PYTORCH_{backend.upper()}_ALLOC_CONF']:\n"
        "    raise ValueError('no luck')\n"
        "peak = device.memory_stats()['reserved_bytes.all.peak']\n"
        "device.empty_cache()\n"
        "device.reset_peak_memory_stats()\n"
        "device.reset_accumulated_memory_stats()\n"
        f"device.memory._set_allocator_settings('{OFF}')\n"
        "print(peak)\n"
    )
    (tmp_path / "train.py").write_text(program)
    done = experiment(
        *("--set", OFF, "--set", ON, "-o", "out", "--json", "--", sys.executable, "-W", "ignore"),
        *("train.py", backend),
        cwd=tmp_path,
        env=env,
    )
    # THEN the failure is told with its reason, the other is run all the same
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert told == report(tmp_path)
    (failed,), (other,) = (setting["outcomes"] for setting in told["settings"])
    log = "out/01_expandable_segments-False/log.txt"
    assert failed["failure"] == f"exit code 1, ValueError: no luck ({log})"
    assert f"failed: {failed['failure']}" in done.stderr
    assert told["conclusions"] == [f"Nothing is compared: no run of {OFF} ended well."]
    # AND of the other the trace still knows the peak
    peak = int((tmp_path / other["files"][0]).read_text().splitlines()[-1])
    assert other["peak_reserved_bytes"] == peak
    assert other["device_allocs"] > 0
    # AND that it was not what was asked for in the end, where the file tells
    if backend == "cuda":
        assert f'{ON}: the program set "{OFF}" by itself' in told["notes"][0]


def test_an_interrupted_experiment(backend: str, env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN a program that hangs in its second run
    program = TRAINING + (
        "import os, time\n"
        "kept = train(6)\n"
        f"if '{ON}' in os.environ['PYTORCH_{backend.upper()}_ALLOC_CONF']:\n"
        "    open('pid', 'w').write(str(os.getpid()))\n"
        "    os.rename('pid', 'hangs')\n"
        "    time.sleep(100)\n"
    )
    (tmp_path / "train.py").write_text(program)
    arguments = ("--set", OFF, "--set", ON, "-o", "out", "--", sys.executable, "train.py", backend)
    with started(arguments, tmp_path, env) as process:
        await_file(tmp_path / "hangs", process)
        # THEN what is over by then is there, whatever happens
        before = report(tmp_path)
        assert [len(setting["outcomes"]) for setting in before["settings"]] == [1, 0]
        # WHEN Ctrl-C comes
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=120)
    # THEN the program is ended, and has left its snapshot
    assert process.returncode == 130, stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "hangs").read_text()), 0)
    assert len([*tmp_path.glob("out/02*/exit/*.pickle")]) == 1
    # AND the table is of what was over
    table = {row[0]: row[1:] for row in cells(stdout) if row[0]}
    assert table["runs"] == ["1", "0"]
    assert table["peak reserved"][0].endswith("MiB")
    assert table["peak reserved"][1] == "-"
    assert f"{ON} is not compared: no run of {ON} is over." in stdout
    assert "Traceback" not in stderr
    assert report(tmp_path) == before
    assert before["finished"] is False


class started:  # noqa: N801
    """An experiment that goes on; it is killed in the end."""

    def __init__(self, arguments: tuple[object, ...], cwd: Path, env: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command(*arguments), cwd=cwd, env=env, stdout=pipe, stderr=pipe, text=True
        )

    def __enter__(self) -> "subprocess.Popen[str]":
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def await_file(path: Path, process: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + 100
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_typo_is_told_at_once(backend: str, env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN a setting that is none, after one that is
    arguments = ("--set", "current", "--set", "expandable_segment:True")
    program = (sys.executable, "-c", "open('ran', 'w')")
    done = experiment(*arguments, "--", *program, cwd=tmp_path, env=env)
    # THEN the allocator's error says so, and nothing was run
    assert done.returncode == 1
    assert "expandable_segment" in done.stderr
    assert "Traceback" not in done.stderr
    assert [*tmp_path.iterdir()] == []


def test_ranks(backend: str, env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN two ranks of which the second takes more
    program = TRAINING + "import os\ntrain(3 + 4 * int(os.environ['RANK']))"
    (tmp_path / "train.py").write_text(program)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    done = experiment(
        *("--set", "current", "-o", "out", "--", *launcher, "train.py", backend),
        cwd=tmp_path,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    # THEN both leave a file, and the numbers are the second's
    (setting,) = report(tmp_path)["settings"]
    (outcome,) = setting["outcomes"]
    files = [tmp_path / file for file in outcome["files"][1:]]
    statistics = [
        pickle.loads(file.read_bytes())["pytracer"]["devices"][0]["statistics"] for file in files
    ]
    assert len(files) == 2
    assert statistics[0]["peak_reserved_bytes"] < statistics[1]["peak_reserved_bytes"]
    assert outcome["peak_reserved_bytes"] == statistics[1]["peak_reserved_bytes"]


CALLS = (
    TRAINING
    + """
import pytracer

def work(steps, *, word):
    kept = train(steps)
    print(word, __name__, backend)

if __name__ == "__main__":
    comparison = pytracer.experiment(
        work, ["current", sys.argv[2]], args=[30], kwargs={"word": "worked"}, output="out"
    )
    for setting in comparison.settings:
        (outcome,) = setting.outcomes
        print(setting.settings, outcome.ooms, outcome.ended_early, outcome.failure)
"""
)


def test_a_function(backend: str, env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN a function of the main module, in a Python where nothing starts tracing by itself
    source = {**env, "PYTHONPATH": processes.environment()["PYTHONPATH"]}
    source[f"PYTORCH_{backend.upper()}_ALLOC_CONF"] = OFF
    done = processes.run(CALLS, backend, ON, cwd=tmp_path, env=source)
    assert done.returncode == 0, done.stderr
    # THEN it was called in a process of its own for each setting, and what it takes is measured
    assert done.stdout.splitlines() == [f"{OFF} 1 True None", f"{ON} 0 False None"]
    logs = [path.read_text() for path in sorted(tmp_path.glob("out/*/log.txt"))]
    assert "worked" not in logs[0]
    assert f"worked __mp_main__ {backend}" in logs[1]
    told = report(tmp_path)
    assert (told["program"], told["command"]) == ("__main__.work", None)
