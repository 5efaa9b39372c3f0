"""Test `pytracer experiment` and `pytracer.experiment()` on a device."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import processes
import pytest
from commands import cells
from processes import HANG_S, Done

MIB = 1 << 20
OFF, ON = "expandable_segments:False", "expandable_segments:True"

# Batches grow, and each leaves a small block. Without expandable segments, the next batch does not
# fit into the segments of the previous ones. The program may use 1 GiB of the device.
TRAINING = """
import json, sys, types, torch
# The first optimizer would import torch's compiler, in 2 seconds.
torch._dynamo = sys.modules["torch._dynamo"] = types.SimpleNamespace(
    disable=lambda function, *_, **__: function, graph_break=lambda: None
)
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
    # A snapshot shows whether the NPU's allocator pads requests only by a small block whose padding
    # changes its size. Without one, sizes are uncertain, and peak_unallocated_bytes a lower bound.
    kept = [block(512)]
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
PRINT_STATISTICS = """
import atexit
def print_statistics():
    stats = device.memory_stats()
    print()
    print(json.dumps({
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "retries": stats["num_alloc_retries"],
        "ooms": stats["num_ooms"],
        "device_allocs": stats.get("num_device_alloc"),
    }))
atexit.register(print_statistics)
print("training")
kept = train(30)
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
    content: dict[str, Any] = json.loads((folder / "out" / "experiment.json").read_text())
    return content


class Finished(NamedTuple):
    """A finished experiment with two settings and two repeats."""

    folder: Path
    done: Done
    report: dict[str, Any]


@pytest.fixture(scope="module")
def finished(
    backend: str, env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Finished:
    folder = tmp_path_factory.mktemp("experiment")
    (folder / "train.py").write_text(TRAINING + PRINT_STATISTICS)
    done = experiment(
        *("--set", OFF, "--set", ON, "--repeat", 2, "--output", "out"),
        *("--", sys.executable, "train.py", backend),
        cwd=folder,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    return Finished(folder, done, report(folder))


def test_out_of_memory_is_a_result(finished: Finished) -> None:
    # GIVEN a program that runs out of memory with one of the settings
    first, second = finished.report["settings"]
    assert (first["settings"], second["settings"]) == (OFF, ON)
    # THEN this is not a failure
    for outcome in first["outcomes"]:
        assert outcome["failure"] is None
        assert (outcome["ooms"], outcome["ended_early"]) == (1, True)
        assert outcome["retries"] >= 1
        kinds = [Path(file).relative_to("out").parts[1] for file in outcome["files"]]
        assert [kind.partition("_")[0] for kind in kinds] == ["log.txt", "exit", "oom"]
    for outcome in second["outcomes"]:
        assert (outcome["ooms"], outcome["ended_early"], outcome["failure"]) == (0, False, None)
    # AND the conclusion has the out-of-memory counts of both settings
    (conclusion,) = finished.report["conclusions"]
    assert conclusion.startswith(f"{ON}: peak reserved is at least ")
    assert conclusion.endswith(f" lower; 0 of 2 runs ran out of memory; with {OFF}, 2 of 2.")
    # AND no note reports unknown values
    assert finished.report["notes"] == []


def reported_unallocated(log: str, backend: str) -> float:
    """Return the unallocated MiB in torch's out-of-memory error."""

    def reported(words: str) -> float:
        (mib,) = set(re.findall(rf"([\d.]+) MiB {words}", log))  # torch_npu writes its error twice
        return float(mib)

    if backend == "cuda":
        return reported("is reserved by PyTorch but unallocated")
    return reported("reserved in total by PyTorch") - reported("already allocated")


def test_the_numbers_equal_torchs(finished: Finished, backend: str) -> None:
    for setting in finished.report["settings"]:
        for outcome in setting["outcomes"]:
            # GIVEN the statistics that the program printed at its end
            log = (finished.folder / outcome["files"][0]).read_text()
            (line,) = (line for line in log.splitlines() if line.startswith("{"))
            # THEN the experiment has the same numbers, if this torch version provides them
            statistics = {
                name: value for name, value in json.loads(line).items() if value is not None
            }
            assert len(statistics) >= 4
            assert statistics == {name: outcome[name] for name in statistics}
            # AND the peak of unallocated bytes is at least the difference of the peaks. It is less
            # than the reserved peak, because the program keeps blocks of each step until its end.
            reserved, allocated = outcome["peak_reserved_bytes"], outcome["peak_allocated_bytes"]
            assert reserved - allocated <= outcome["peak_unallocated_bytes"] < reserved
            assert outcome["lower_bounds"] == []
            # AND at an out-of-memory, it equals the number in torch's error
            if outcome["ooms"]:
                unallocated = outcome["oom_unallocated_bytes"]
                reported = reported_unallocated(log, backend)
                assert unallocated / MIB == pytest.approx(reported, abs=0.011)
                limit = outcome["oom_reserved_bytes"] + outcome["oom_requested_bytes"]
                assert limit > outcome["limit_bytes"] >= outcome["oom_reserved_bytes"]
            else:
                assert outcome["oom_unallocated_bytes"] is None
            assert 0 < outcome["step_us"] < outcome["wall_s"] * 1e6


def test_the_order_and_the_files(finished: Finished, backend: str) -> None:
    # THEN runs were made in a balanced order, one after the other
    content = finished.report
    assert [(run["setting"], run["repeat"]) for run in content["order"]] == [
        *((OFF, 1), (ON, 1), (ON, 2), (OFF, 2))
    ]
    written = []
    for run in content["order"]:
        folder = finished.folder / run["directory"]
        assert folder.parent == finished.folder / "out"
        (path,) = folder.glob("exit/*.pickle")
        metadata = pickle.loads(path.read_bytes())["pytracer"]
        assert metadata["step_from"] == "optimizer SGD"
        written.append(metadata["written_ns"])
    assert written == sorted(written)
    # AND the report is complete
    settled = (content["finished"], content["backend"], content["step_from"])
    assert settled == (True, backend, "optimizer")
    assert content["command"] == [sys.executable, "train.py", backend]
    assert content["environment"]["backends"] == [backend]
    assert {path.name for path in finished.folder.iterdir()} == {"train.py", "out"}


def test_the_output(finished: Finished) -> None:
    # THEN the output has a line for each run and the table, and not the program's output
    assert "training" not in finished.done.stdout + finished.done.stderr
    # torch may warn of libraries that the simulated device preloads
    lines = [line for line in finished.done.stderr.splitlines() if not line.startswith("[W")]
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


def test_a_failed_run_does_not_stop_the_experiment(
    backend: str, env: dict[str, str], tmp_path: Path
) -> None:
    # GIVEN a program that fails under the first setting; under the second, it resets the
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
    # THEN the failure is reported with its reason, and the second setting is run too
    assert done.returncode == 1, done.stderr
    content = json.loads(done.stdout)
    assert content == report(tmp_path)
    (failed,), (outcome,) = (setting["outcomes"] for setting in content["settings"])
    log = "out/01_expandable_segments-False/log.txt"
    assert failed["failure"] == f"exit code 1, ValueError: no luck ({log})"
    assert f"failed: {failed['failure']}" in done.stderr
    assert content["conclusions"] == [f"Nothing can be compared: every run of {OFF} failed."]
    # AND the peak of the second comes from the trace
    (line,) = filter(str.isdigit, (tmp_path / outcome["files"][0]).read_text().splitlines())
    peak = int(line)
    assert outcome["peak_reserved_bytes"] == peak
    assert outcome["device_allocs"] > 0
    # AND a note reports the changed settings, if the file has them
    if backend == "cuda":
        assert f'{ON}: the program itself changed the settings to "{OFF}"' in content["notes"][0]


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
    with RunningExperiment(arguments, tmp_path, env) as process:
        await_file(tmp_path / "hangs", process)
        # THEN the results of finished runs are already written
        before = report(tmp_path)
        assert [len(setting["outcomes"]) for setting in before["settings"]] == [1, 0]
        # WHEN Ctrl-C is pressed
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=HANG_S)
    # THEN the program is ended, and has written its snapshot
    assert process.returncode == 130, stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "hangs").read_text()), 0)
    assert len([*tmp_path.glob("out/02*/exit/*.pickle")]) == 1
    # AND the table has the finished runs
    table = {row[0]: row[1:] for row in cells(stdout) if row[0]}
    assert table["runs"] == ["1", "0"]
    assert table["peak reserved"][0].endswith("MiB")
    assert table["peak reserved"][1] == "-"
    assert f"{ON} cannot be compared: no run of {ON} has ended." in stdout
    assert "Traceback" not in stderr
    assert report(tmp_path) == before
    assert before["finished"] is False


class RunningExperiment:
    """An experiment that runs in the background and is killed at the end."""

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
    end = time.monotonic() + HANG_S
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_typo_is_reported_immediately(backend: str, env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN an unknown setting after a valid one
    arguments = ("--set", "current", "--set", "expandable_segment:True")
    program = (sys.executable, "-c", "open('ran', 'w')")
    done = experiment(*arguments, "--", *program, cwd=tmp_path, env=env)
    # THEN the allocator's error is reported, and no program was run
    assert done.returncode == 1
    assert "expandable_segment" in done.stderr
    assert "Traceback" not in done.stderr
    assert [*tmp_path.iterdir()] == []


@pytest.mark.long
def test_ranks(backend: str, env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN two ranks, the second of which uses more memory
    program = TRAINING + "import os\ntrain(3 + 4 * int(os.environ['RANK']))"
    (tmp_path / "train.py").write_text(program)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = experiment(
        *("--set", "current", "-o", "out", "--", sys.executable, *launcher),
        *("train.py", backend),
        cwd=tmp_path,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    # THEN both write a file, and the numbers are the second rank's
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


@pytest.mark.long
def test_a_function(backend: str, env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN a function of the main module, in a Python without pytracer's start-up hook
    source = {**env, "PYTHONPATH": processes.environment()["PYTHONPATH"]}
    source[f"PYTORCH_{backend.upper()}_ALLOC_CONF"] = OFF
    done = processes.run(CALLS, backend, ON, cwd=tmp_path, env=source)
    assert done.returncode == 0, done.stderr
    # THEN the function ran in a process of its own for each setting, and was measured
    assert done.stdout.splitlines() == [f"{OFF} 1 True None", f"{ON} 0 False None"]
    logs = [path.read_text() for path in sorted(tmp_path.glob("out/*/log.txt"))]
    assert "worked" not in logs[0]
    assert f"worked __mp_main__ {backend}" in logs[1]
    content = report(tmp_path)
    assert (content["program"], content["command"]) == ("__main__.work", None)
