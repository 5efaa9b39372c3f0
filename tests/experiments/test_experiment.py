"""Tests of `pytracer experiment` without an accelerator: refusals, and how it runs a program."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import invoke
from processes import environment, run, run_python

import pytracer
from pytracer import child_process
from pytracer.child_process import run_to_end
from pytracer.commands.parallel import Interruption, signals_interrupt
from pytracer.errors import ConfigError, PytracerError
from pytracer.experiments import function_experiment
from pytracer.experiments.experiment_runs import Experiment, balanced_order

OFF, ON = "expandable_segments:False", "expandable_segments:True"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder, without settings of the allocator and without options."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("PYTRACER") or name.endswith("ALLOC_CONF"):
            monkeypatch.delenv(name)


def test_the_order_is_balanced() -> None:
    # GIVEN an even number of repeats
    order = balanced_order(3, 4)
    # THEN each setting runs equally often, and the mean positions of all settings are equal
    assert order[:6] == [(0, 1), (1, 1), (2, 1), (2, 2), (1, 2), (0, 2)]
    places = [[i for i, run in enumerate(order) if run[0] == setting] for setting in range(3)]
    assert {len(setting) for setting in places} == {4}
    assert {sum(setting) for setting in places} == {sum(places[0])}
    # AND without repeats the settings run in the given order
    assert balanced_order(3, 1) == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.slow
def test_without_an_accelerator(tmp_path: Path) -> None:
    # GIVEN a program, and a torch without an accelerator
    command = (sys.executable, "-c", "open('ran', 'w')")
    done = run_python(
        *("-m", "pytracer", "experiment", "--set", ON, "--", *command),
        cwd=tmp_path,
        env=environment(CUDA_VISIBLE_DEVICES=""),
    )
    # THEN one line says so, and nothing is run or left behind
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "finds no accelerator, and torch's allocator of CPU memory has no settings" in line
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "", "x"), 'settings \'\': give "NAME:VALUE", or "current"'),
        (("--set", "expandable_segments", "x"), '"expandable_segments"'),
        (("--set", ON, "--set", OFF, "--set", ON, "x"), f'"{ON}" means the same as "{ON}"'),
        (("--set", ON, "--set", " expandable_segments : True", "x"), "means the same as"),
        (("--set", ON, "--output", "full", "x"), "full already exists"),
        (("--set", ON, "no_such_program", "x"), "cannot run no_such_program: no exec"),
        (("--set", ON, "./full/file", "x"), "cannot run ./full/file: no executable program"),
        (("--set", ON, "--plot", "plot.txt", "x"), "plot.txt is not a file name for a plot"),
    ],
)
def test_refusals(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    result = invoke("experiment", *arguments)
    assert result.exit_code in (1, 2)
    assert message in " ".join(result.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_settings_that_the_environment_has_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", f"max_split_size_mb:100,{ON}")
    with pytest.raises(ConfigError, match=f'"{ON}" means the same as "current"'):
        Experiment(["x"], ["current", ON])
    # AND other settings are merged with these
    experiment = Experiment(["x"], ["current", OFF])
    environments = [experiment._environment(run) for run in experiment.runs]
    assert [environment["PYTORCH_CUDA_ALLOC_CONF"] for environment in environments] == [
        f"max_split_size_mb:100,{ON}",
        f"max_split_size_mb:100,{OFF}",
    ]


def test_tracing_that_the_environment_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def given() -> dict[str, str]:
        experiment = Experiment(["x"], [ON], output="out")
        environment = experiment._environment(experiment.runs[0])
        return {name: text for name, text in environment.items() if name.startswith("PYTRACER")}

    # GIVEN no options, THEN all ranks write at the end, into the run's directory, and steps are
    # counted
    ours = {
        "PYTRACER": "1",
        "PYTRACER_OUTPUT": os.path.abspath("out/01_expandable_segments-True"),
        "PYTRACER_ALL_RANKS": "1",
        "PYTRACER_STEP_FROM": "optimizer",
    }
    assert given() == ours
    # GIVEN options, THEN they are used, except those under which no file would be written at the
    # end
    monkeypatch.setenv("PYTRACER", "1")
    monkeypatch.setenv("PYTRACER_OUTPUT", "elsewhere")
    monkeypatch.setenv("PYTRACER_STACK_DEPTH", "7")
    monkeypatch.setenv("PYTRACER_STEPS", "1,2")
    monkeypatch.setenv("PYTRACER_DISCRETE", "1")
    monkeypatch.setenv("PYTRACER_STEP_FROM", "optimizer:AdamW")
    own = {"PYTRACER_STACK_DEPTH": "7", "PYTRACER_STEP_FROM": "optimizer:AdamW"}
    assert given() == {**ours, **own}
    monkeypatch.setenv("PYTRACER_RANKS", "3")
    del ours["PYTRACER_ALL_RANKS"]
    assert given() == {**ours, **own, "PYTRACER_RANKS": "3"}
    monkeypatch.setenv("PYTRACER_STEP_FROM", "me")
    with pytest.raises(ConfigError, match="PYTRACER_STEP_FROM='me' is unknown"):
        given()
    monkeypatch.setenv("PYTRACER", "0")
    with pytest.raises(ConfigError, match="tracing, which PYTRACER=0 switches off"):
        given()


FUNCTIONS = """
import sys
import pytracer

def outer():
    def inner():
        pass
    return inner

if __name__ == "__main__":
    class Unpicklable:
        def __reduce__(self):
            raise ValueError("not me")
    for function, arguments in ((lambda: 0, ()), (outer(), ()), (print, (Unpicklable(),))):
        try:
            pytracer.experiment(function, ["current"], args=arguments)
        except pytracer.ConfigError as error:
            print(error)
"""


def test_functions_that_other_processes_cannot_import(tmp_path: Path) -> None:
    done = run(FUNCTIONS, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    of_lambda, of_inner, of_arguments = done.stdout.splitlines()
    assert "cannot be called in a new process (Can't pickle <function <lambda>" in of_lambda
    assert "outer.<locals>.inner" in of_inner
    assert of_arguments.startswith("<built-in function print> cannot be called in a new process")
    assert "(not me): give a function at the top level of a module" in of_arguments
    # AND a function that is typed at a prompt
    typed_input = "import pytracer\ndef f(): pass\npytracer.experiment(f, ['current'])"
    done = run_python("-c", typed_input, cwd=tmp_path)
    assert "exists only in this process, because no file defines it" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


def test_settings_are_a_list() -> None:
    for settings in (ON, []):
        with pytest.raises(ConfigError, match=r"settings=.*: give a list"):
            pytracer.experiment(print, settings)


def test_a_call_that_would_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN the process of a call, which imports a main module without a guard
    monkeypatch.setattr(function_experiment, "_is_importing_main", True)
    # WHEN the module calls the experiment again
    with pytest.raises(PytracerError, match='put the call under `if __name__ == "__main__":`'):
        pytracer.experiment(print, [ON])


def test_signals_interrupt() -> None:
    # GIVEN a command that runs with hangups ignored, as under nohup
    before = [signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)]
    # THEN signals that would end the command at once raise an exception
    with signals_interrupt():
        signal.raise_signal(signal.SIGHUP)
        with pytest.raises(Interruption) as raised:
            signal.raise_signal(signal.SIGTERM)
    assert raised.value.code == 128 + signal.SIGTERM
    # AND afterwards the handlers are restored
    assert signal.getsignal(signal.SIGTERM) == before[1]
    assert signal.signal(signal.SIGHUP, before[0]) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", "it wrote no message"),
        ("step 1\rstep 2\n\n", "step 2"),
        ("ValueError: 1\nKeyError: 'a'\n", "KeyError: 'a'"),
        (
            "x\n" * 100_000 + "torch.AcceleratorError: no\n[ERROR] ERR9",
            "torch.AcceleratorError: no",
        ),
        ("[rank3]: m.MyError: b\na.ChildFailedError: \n=====\n", "m.MyError: b"),
        ("no data\npytracer: wrote x.pickle: 1 event\n", "no data"),
        ("[default0]:no data\n[default0]:pytracer: wrote x.pickle\n", "[default0]:no data"),
        ("Killed: 9 \x1b[31m", "Killed: 9 �[31m"),
    ],
)
def test_why_a_run_failed(log: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(log)
    assert child_process.last_exception_in(tmp_path / "log.txt") == reason


def started(program: str, tmp_path: Path) -> list[str]:
    (tmp_path / "program.py").write_text(program)
    return [sys.executable, "program.py"]


def is_alive(pid: int) -> bool:
    """Return whether a process runs, after waiting a moment for its end; a zombie does not run."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        if state == "Z":
            return False
        time.sleep(0.02)
    return True


CHILDREN = """
import subprocess, sys
pids = [
    subprocess.Popen(["sleep", "60"], start_new_session=apart).pid for apart in (False, True)
]
open("pids", "w").write(" ".join(map(str, pids)))
print("started", input.__name__, file=sys.stderr)
print(sys.stdin.read() == "")
"""


@contextlib.contextmanager
def typed_input(text: bytes) -> Iterator[None]:
    """Provide `text` on standard input."""
    before = os.dup(0)
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    os.dup2(reading, 0)
    os.close(reading)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)


def test_a_program_that_ends(tmp_path: Path) -> None:
    # GIVEN a program that starts another one and fails, and input from the user
    log = tmp_path / "log.txt"
    command = started(CHILDREN + "sys.exit(3)", tmp_path)
    with typed_input(b"something\n"):
        exit_code, took_s = run_to_end(command, dict(os.environ), log)
    # THEN its output is logged, it got no input, and no process of its group is left
    assert exit_code == 3
    assert 0 < took_s < 30
    assert sorted(log.read_text().splitlines()) == ["True", "started input"]
    in_group, apart = map(int, (tmp_path / "pids").read_text().split())
    assert not is_alive(in_group)
    os.kill(apart, signal.SIGKILL)


def interrupted(program: str, tmp_path: Path, times: int = 1, number: int = signal.SIGINT) -> float:
    """Send a signal once `ready` exists, and again; return the seconds from then to the end."""
    ready = tmp_path / "ready"
    began = []

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.01)
        began.append(time.monotonic())
        for _ in range(times):
            signal.pthread_kill(threading.main_thread().ident or 0, number)
            time.sleep(0.3)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with signals_interrupt(), pytest.raises(Interruption):
        run_to_end(started(program, tmp_path), dict(os.environ), tmp_path / "log.txt")
    ended = time.monotonic()
    thread.join()
    return ended - began[0]


@pytest.mark.parametrize("in_background", [False, True])
def test_a_program_that_is_interrupted(in_background: bool, tmp_path: Path) -> None:
    # GIVEN a program that takes a moment to end after an interrupt
    program = CHILDREN + (
        "import time\ntry:\n    open('ready', 'w')\n    time.sleep(600)\n"
        "finally:\n    time.sleep(0.3)\n    open('ended', 'w')\n"
    )
    # WHEN the experiment is interrupted, or, in the background, where a shell ignores Ctrl-C,
    # terminated
    if in_background:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            took_s = interrupted(program, tmp_path, number=signal.SIGTERM)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        finally:
            signal.signal(signal.SIGINT, before)
    else:
        took_s = interrupted(program, tmp_path)
    # THEN the program gets this time
    assert took_s < child_process.PATIENCE_S
    assert (tmp_path / "ended").exists()
    assert not is_alive(int((tmp_path / "pids").read_text().split()[0]))
    os.kill(int((tmp_path / "pids").read_text().split()[1]), signal.SIGKILL)


@pytest.mark.parametrize("times", [1, 2], ids=["patience ends", "interrupted again"])
def test_a_program_that_does_not_end(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a program that ignores interrupts, and has a child in another session
    program = CHILDREN + (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "open('ready', 'w')\ntime.sleep(600)\n"
    )
    monkeypatch.setattr(child_process, "PATIENCE_S", 0.5 if times == 1 else 600)
    # THEN it is killed with its children, after a time limit or by another interrupt
    assert interrupted(program, tmp_path, times) < 300
    assert not any(is_alive(int(pid)) for pid in (tmp_path / "pids").read_text().split())
