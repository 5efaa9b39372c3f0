"""`pytracer experiment` without an accelerator: what it refuses, and how it runs a program."""

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
from pytracer import child_process, experiments
from pytracer.child_process import run_to_end
from pytracer.cli_comparison import Interruption, signals_interrupt
from pytracer.errors import ConfigError, PytracerError
from pytracer.experiments import Experiment, balanced

OFF, ON = "expandable_segments:False", "expandable_segments:True"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no settings of the allocator, and no options."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("PYTRACER") or name.endswith("ALLOC_CONF"):
            monkeypatch.delenv(name)


def test_the_order_is_balanced() -> None:
    # GIVEN an even number of repeats
    order = balanced(3, 4)
    # THEN each setting is run as often, and its mean place is that of the others
    assert order[:6] == [(0, 1), (1, 1), (2, 1), (2, 2), (1, 2), (0, 2)]
    places = [[i for i, run in enumerate(order) if run[0] == each] for each in range(3)]
    assert {len(each) for each in places} == {4}
    assert {sum(each) for each in places} == {sum(places[0])}
    # AND without repeats they come as they were given
    assert balanced(3, 1) == [(0, 1), (1, 1), (2, 1)]


def test_without_an_accelerator(tmp_path: Path) -> None:
    # GIVEN a program, and torch without a device
    command = (sys.executable, "-c", "open('ran', 'w')")
    done = run_python(
        *("-m", "pytracer", "experiment", "--set", ON, "--", *command),
        cwd=tmp_path,
        env=environment(CUDA_VISIBLE_DEVICES=""),
    )
    # THEN that is said in a line, and nothing is run or left behind
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "finds no accelerator, and torch's allocator of CPU memory has no settings" in line
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("x",), "Missing option '--set'"),
        (("--set", ON), "Missing argument 'COMMAND...'"),
        (("--set", ON, "--repeat", "0", "x"), "0 is not in the range x>=1"),
        (("--set", "", "x"), 'settings \'\': give "NAME:VALUE", or "current"'),
        (("--set", "expandable_segments", "x"), '"expandable_segments"'),
        (("--set", ON, "--set", OFF, "--set", ON, "x"), f'"{ON}" are the same settings as "{ON}"'),
        (("--set", ON, "--set", " expandable_segments : True", "x"), "are the same settings as"),
        (("--set", ON, "--step-from", "me", "x"), "step_from='me' is unknown"),
        (("--set", ON, "--output", "full", "x"), "full is there already"),
        (("--set", ON, "no_such_program", "x"), "cannot run no_such_program: no such program"),
        (("--set", ON, "./full/file", "x"), "cannot run ./full/file: no such program"),
        (("--set", ON, "--plot", "plot.txt", "x"), "plot.txt is no name of a plot"),
        (("--set", ON, "--json", "a.pickle", "x"), "'a.pickle' is named as a snapshot"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    result = invoke("experiment", *arguments)
    assert result.exit_code in (1, 2)
    assert told in " ".join(result.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_settings_that_the_environment_has_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", f"max_split_size_mb:100,{ON}")
    with pytest.raises(ConfigError, match=f'"{ON}" are the same settings as "current"'):
        Experiment(["x"], ["current", ON])
    # AND others are merged with these
    experiment = Experiment(["x"], ["current", OFF])
    environments = [experiment._environment(each) for each in experiment.runs]
    assert [each["PYTORCH_CUDA_ALLOC_CONF"] for each in environments] == [
        f"max_split_size_mb:100,{ON}",
        f"max_split_size_mb:100,{OFF}",
    ]


def test_tracing_that_the_environment_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def given(**options: str) -> dict[str, str]:
        experiment = Experiment(["x"], [ON], output="out", **options)  # type: ignore[arg-type]
        environment = experiment._environment(experiment.runs[0])
        return {name: text for name, text in environment.items() if name.startswith("PYTRACER")}

    # GIVEN nothing, THEN all ranks write at the end, into the run's directory, and steps are known
    ours = {
        "PYTRACER": "1",
        "PYTRACER_OUTPUT": os.path.abspath("out/01_expandable_segments-True"),
        "PYTRACER_ALL_RANKS": "1",
        "PYTRACER_STEP_FROM": "optimizer",
    }
    assert given() == ours
    assert given(step_from="framework") == {**ours, "PYTRACER_STEP_FROM": "framework"}
    # GIVEN options, THEN they count, but those by which nothing would be written at the end
    monkeypatch.setenv("PYTRACER", "1")
    monkeypatch.setenv("PYTRACER_OUTPUT", "elsewhere")
    monkeypatch.setenv("PYTRACER_STACK_DEPTH", "7")
    monkeypatch.setenv("PYTRACER_STEPS", "1,2")
    monkeypatch.setenv("PYTRACER_DISCRETE", "1")
    monkeypatch.setenv("PYTRACER_STEP_FROM", "optimizer:AdamW")
    own = {"PYTRACER_STACK_DEPTH": "7", "PYTRACER_STEP_FROM": "optimizer:AdamW"}
    assert given() == {**ours, **own}
    assert given(step_from="optimizer") == {**ours, "PYTRACER_STACK_DEPTH": "7"}
    monkeypatch.setenv("PYTRACER_RANKS", "3")
    del ours["PYTRACER_ALL_RANKS"]
    assert given() == {**ours, **own, "PYTRACER_RANKS": "3"}
    monkeypatch.setenv("PYTRACER", "0")
    with pytest.raises(ConfigError, match="PYTRACER=0 switches off the tracing"):
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


def test_functions_that_no_other_process_has(tmp_path: Path) -> None:
    done = run(FUNCTIONS, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    of_lambda, of_inner, of_arguments = done.stdout.splitlines()
    assert "cannot be called in a new process (Can't pickle <function <lambda>" in of_lambda
    assert "outer.<locals>.inner" in of_inner
    assert of_arguments.startswith("<built-in function print> cannot be called in a new process")
    assert "(not me): give a function at the top level of a module" in of_arguments
    # AND what is typed at a prompt
    typed = "import pytracer\ndef f(): pass\npytracer.experiment(f, ['current'])"
    done = run_python("-c", typed, cwd=tmp_path)
    assert "is known to this process alone, for no file defines it" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


def test_settings_are_a_list() -> None:
    for settings in (ON, []):
        with pytest.raises(ConfigError, match=r"settings=.*: give a list"):
            pytracer.experiment(print, settings)


def test_a_call_that_would_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN the process of a call, which imports a main module that is not guarded
    monkeypatch.setattr(experiments, "_is_starting", True)
    # WHEN that asks for the experiment again
    with pytest.raises(PytracerError, match='put it under `if __name__ == "__main__":`'):
        pytracer.experiment(print, [ON])


def testsignals_interrupt() -> None:
    # GIVEN a command whose shell has it ignore hangups, as nohup does
    before = [signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)]
    # THEN what would end the command at once raises
    with signals_interrupt():
        signal.raise_signal(signal.SIGHUP)
        with pytest.raises(Interruption) as raised:
            signal.raise_signal(signal.SIGTERM)
    assert raised.value.number == signal.SIGTERM
    # AND afterwards all is as it was
    assert signal.getsignal(signal.SIGTERM) == before[1]
    assert signal.signal(signal.SIGHUP, before[0]) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("", "it said nothing"),
        ("step 1\rstep 2\n\n", "step 2"),
        ("ValueError: 1\nKeyError: 'a'\n", "KeyError: 'a'"),
        (
            "x\n" * 100_000 + "torch.AcceleratorError: no\n[ERROR] ERR9",
            "torch.AcceleratorError: no",
        ),
        ("[rank3]: m.MyError: b\na.ChildFailedError: \n=====\n", "m.MyError: b"),
        ("Killed: 9 \x1b[31m", "Killed: 9 �[31m"),
    ],
)
def test_why_a_run_failed(said: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(said)
    assert experiments._reason(tmp_path / "log.txt") == reason


def started(program: str, tmp_path: Path) -> list[str]:
    (tmp_path / "program.py").write_text(program)
    return [sys.executable, "program.py"]


def is_alive(pid: int) -> bool:
    """Soon; a zombie is not, whom nobody may have looked after yet."""
    end = time.monotonic() + 2
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
def typed(text: bytes) -> Iterator[None]:
    """On standard input."""
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
    # GIVEN a program that leaves another one running, and fails; somebody who types
    log = tmp_path / "log.txt"
    command = started(CHILDREN + "sys.exit(3)", tmp_path)
    with typed(b"something\n"):
        exit_code, took_s = run_to_end(command, dict(os.environ), log)
    # THEN its output is there, it had none to read, and nothing of its group is left
    assert exit_code == 3
    assert 0 < took_s < 30
    assert sorted(log.read_text().splitlines()) == ["True", "started input"]
    in_group, apart = map(int, (tmp_path / "pids").read_text().split())
    assert not is_alive(in_group)
    os.kill(apart, signal.SIGKILL)


def interrupted(program: str, tmp_path: Path, times: int = 1) -> float:
    """Ctrl-C as soon as `ready` is there, and again; how long it took from then on, in seconds."""
    ready = tmp_path / "ready"
    began = []

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.01)
        began.append(time.monotonic())
        for _ in range(times):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.3)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_to_end(started(program, tmp_path), dict(os.environ), tmp_path / "log.txt")
    ended = time.monotonic()
    thread.join()
    return ended - began[0]


def test_a_program_that_is_interrupted(tmp_path: Path) -> None:
    # GIVEN a program that takes a moment to end when it is interrupted
    program = CHILDREN + (
        "import time\ntry:\n    open('ready', 'w')\n    time.sleep(60)\n"
        "finally:\n    time.sleep(0.3)\n    open('ended', 'w')\n"
    )
    # THEN it has that time
    assert interrupted(program, tmp_path) < 5
    assert (tmp_path / "ended").exists()
    assert not is_alive(int((tmp_path / "pids").read_text().split()[0]))
    os.kill(int((tmp_path / "pids").read_text().split()[1]), signal.SIGKILL)


@pytest.mark.parametrize("times", [1, 2], ids=["patience ends", "interrupted again"])
def test_a_program_that_does_not_end(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a program that heeds no interrupt, and has a child in a session of its own
    program = CHILDREN + (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "open('ready', 'w')\ntime.sleep(60)\n"
    )
    monkeypatch.setattr(child_process, "PATIENCE_S", 0.5 if times == 1 else 60)
    # THEN it is killed with its children, when patience ends or by another interrupt
    assert interrupted(program, tmp_path, times) < 5
    assert not any(is_alive(int(pid)) for pid in (tmp_path / "pids").read_text().split())
