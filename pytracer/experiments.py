"""Experiments: one program, run under several settings of the allocator.

Each run is a new process that is traced, and what it leaves when it ends tells how it was. The
order is balanced: a machine that gets slower, hotter or fuller while the experiment goes on would
otherwise favour the setting that comes first. So every other repeat goes through the settings
backwards, which makes their mean places in the order equal where the repeats are of even number.
"""

import json
import os
import pickle
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from pytracer import settings as allocator
from pytracer.child_process import last_exception, run_to_end
from pytracer.comparison import Comparison, Outcome, Setting
from pytracer.comparison_report import report
from pytracer.config import OF_STEPS, SWITCH, switched_off, variable
from pytracer.config_checks import check_step_from
from pytracer.errors import ConfigError, PytracerError
from pytracer.reading.text import printable
from pytracer.run_files import RunFiles, read_run

CURRENT = "current"
"""As a setting: those that the environment has, and no others."""

REPORT, LOG = "experiment.json", "log.txt"

_LOG_TAIL_BYTES = 2**16
_MAX_NAME = 50


@dataclass(frozen=True)
class Run:
    """One of an experiment's.

    Attributes:
        setting: The index of its setting.
        repeat: From 1.
        directory: Where its snapshots and its log go.
    """

    setting: int
    repeat: int
    directory: Path


def balanced(settings: int, repeat: int) -> list[tuple[int, int]]:
    """The order of runs, as pairs of a setting's index and a repeat, from 1."""
    order: list[tuple[int, int]] = []
    for each in range(1, repeat + 1):
        forward = range(settings)
        order += ((setting, each) for setting in (forward if each % 2 else reversed(forward)))
    return order


class Experiment:
    """The runs of one program.

    Attributes:
        comparison: Of the runs that are over.
        output: The directory that they write into.
        runs: All, in the order in which they are to be run.
        step_from: Who tells that a step is over.
    """

    def __init__(
        self,
        command: Sequence[str],
        settings: Sequence[str],
        *,
        repeat: int = 1,
        output: str | os.PathLike[str] | None = None,
        step_from: str | None = None,
        name: str | None = None,
    ) -> None:
        """Runs nothing yet.

        Args:
            command: The program and its arguments.
            settings: Changes to the allocator's settings that the environment has, or `CURRENT`.
            repeat: How often each is run.
            output: The directory to write into; None: a new one, named by the time.
            step_from: Who tells that a step is over (see `Tracer`); None: what the environment
                says, or else an optimizer.
            name: What the report calls the program; None: its command.

        Raises:
            ConfigError: A setting is malformed or comes twice, `output` is there and not empty, or
                tracing is switched off.
        """
        if repeat < 1:
            raise ConfigError(f"repeat={repeat}: give 1 or more")
        if switched_off():
            raise ConfigError(
                f"{SWITCH}=0 switches off the tracing that an experiment is: unset it"
            )
        if step_from is not None:
            check_step_from("step_from", step_from)
        self._command = list(command)
        self.step_from = step_from or os.environ.get(variable("step_from")) or "optimizer"
        self._variables = _variables(settings)
        self.output = Path(
            f"experiment_{datetime.now():%Y%m%d-%H%M%S}" if output is None else output
        )
        if self.output.exists() and (not self.output.is_dir() or any(self.output.iterdir())):
            raise ConfigError(f"{self.output} is there already: give another directory, or none")
        self.comparison = Comparison([Setting(name, "") for name in settings])
        self.runs = [
            Run(setting, each, self.output / f"{i:02}_{_file_name(settings[setting])}")
            for i, (setting, each) in enumerate(balanced(len(settings), repeat), 1)
        ]
        self.comparison.about = {
            "kind": "experiment",
            "program": name or shlex.join(command),
            "command": None if name else list(command),
            "repeat": repeat,
            "step_from": self.step_from,
            "started": datetime.now().astimezone().isoformat(timespec="seconds"),
            "order": [
                {
                    "setting": settings[run.setting],
                    "repeat": run.repeat,
                    "directory": str(run.directory),
                }
                for run in self.runs
            ],
            "finished": False,
            "backend": None,
            "environment": None,
        }

    def prepare(self) -> None:
        """Has each setting tried by the allocator, in a process that does nothing else.

        Raises:
            ConfigError: The allocator refuses one.
            PytracerError: There is no accelerator, no such program, or no writing into the output.
        """
        if shutil.which(self._command[0]) is None:
            raise PytracerError(
                f"cannot run {self._command[0]}: no such program is there, or may be run"
            )
        for setting, given in zip(self.comparison.settings, self._variables, strict=True):
            backend = allocator.check_in_new_process(_change(setting.name))
            if backend is None:
                raise PytracerError(
                    f"{sys.executable} finds no accelerator, and torch's allocator of CPU memory "
                    "has no settings to compare: run the experiment where the program's device is"
                )
            self.comparison.about["backend"] = backend
            general = given.get("PYTORCH_ALLOC_CONF", "")
            setting.settings = given.get(f"PYTORCH_{backend.upper()}_ALLOC_CONF", general)
        try:
            self.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PytracerError(f"cannot make {self.output}: {error.strerror}") from error
        self._write()

    def run(self, run: Run) -> Outcome:
        """Runs the program once, to its end (see `run_to_end`).

        Raises:
            PytracerError: It cannot be started, or nothing can be written.
        """
        try:
            run.directory.mkdir()
            exit_code, wall_s = run_to_end(
                self._command, self._environment(run), run.directory / LOG
            )
        except OSError as error:
            raise PytracerError(
                f"cannot run {printable(shlex.join(self._command))}: {error.strerror}"
            ) from error
        told = read_run(run.directory)
        outcome = _outcome(run, exit_code, wall_s, told)
        self.comparison.settings[run.setting].outcomes.append(outcome)
        self._note(run, outcome, told)
        self.comparison.about["finished"] = run == self.runs[-1]
        self._write()
        return outcome

    def _environment(self, run: Run) -> dict[str, str]:
        """What counts is written at the end, in whose place selected steps would be written."""
        given = {
            name: text for name, text in os.environ.items() if name not in map(variable, OF_STEPS)
        }
        given |= self._variables[run.setting]
        given |= {SWITCH: "1", variable("output"): os.path.abspath(run.directory)}
        given[variable("step_from")] = self.step_from
        if not given.get(variable("ranks")):
            given.setdefault(variable("all_ranks"), "1")
        return given

    def _note(self, run: Run, outcome: Outcome, told: RunFiles) -> None:
        """What the table does not show."""
        about, notes = self.comparison.about, self.comparison.notes
        about["environment"] = about["environment"] or told.environment
        name = self.comparison.settings[run.setting].name
        for other in sorted(told.settings - {*self._variables[run.setting].values()}):
            notes.append(
                f'{name}: the program set "{other}" by itself, and had that when it ended '
                f"({run.directory})."
            )
        if outcome.failure is None and outcome.step_us is None and not outcome.ended_early:
            note = (
                f"{name}: no time per step, for less than two whole ones came ({self.step_from})."
            )
            notes += [] if note in notes else [note]

    def _write(self) -> None:
        """Whole, or not at all: whatever happens to this process, what is over is there."""
        path = self.output / REPORT
        unfinished = path.with_name(f".pytracer-{os.getpid()}.tmp")
        try:
            unfinished.write_text(json.dumps(report(self.comparison), indent=2) + "\n")
            unfinished.replace(path)
        except OSError as error:
            raise PytracerError(f"cannot write {path}: {error.strerror}") from error


def _outcome(run: Run, exit_code: int, wall_s: float, told: RunFiles) -> Outcome:
    log = run.directory / LOG
    failure = None
    if exit_code != 0 and not told.numbers.get("ooms"):
        failure = f"{_ending(exit_code)}, {_reason(log)} ({log})"
    elif not told.numbers:
        reason = "it used none, or its Python has no pytracer"
        if told.problems:
            reason = told.problems[0]
        failure = f"it left no snapshot of an accelerator: {reason} ({log})"
    return Outcome(
        **told.numbers,
        wall_s=wall_s,
        ended_early=exit_code != 0 and failure is None,
        failure=failure,
        files=[str(log), *map(str, told.paths)],
    )


def _ending(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:  # a real-time signal
        return f"killed by signal {-exit_code}"


def _reason(log: Path) -> str:
    """What a program said of its failure: its last exception, or else its last line."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    return last_exception(text)


def _variables(settings: Sequence[str]) -> list[dict[str, str]]:
    """What each sets; two that set the same are one."""
    if isinstance(settings, str) or not settings:
        raise ConfigError(f"settings={settings!r}: give a list of those to compare")
    found: list[dict[str, str]] = []
    for name in settings:
        if not name.strip():
            raise ConfigError(
                f'settings {name!r}: give "NAME:VALUE", or "{CURRENT}" for those of the environment'
            )
        given = allocator.variables(_change(name))
        if given in found:
            other = settings[found.index(given)]
            raise ConfigError(f'"{name}" are the same settings as "{other}": give each once')
        found.append(given)
    return found


def _change(setting: str) -> str:
    return "" if setting == CURRENT else setting


def _file_name(setting: str) -> str:
    return re.sub(r"[^\w.-]+", "-", setting)[:_MAX_NAME].strip("-.")


def experiment(
    function: Callable[..., object],
    settings: Sequence[str],
    *,
    repeat: int = 1,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    output: str | os.PathLike[str] | None = None,
    step_from: str | None = None,
) -> Comparison:
    """Calls a function under several settings of the allocator, each time in a new process.

    The processes are as those of multiprocessing's "spawn": the function and its arguments are
    pickled, and the program's main module is imported again in each, so the call of `experiment`
    must stand under `if __name__ == "__main__":` there. What the function prints goes into a file
    of the run. That memory runs out is a result. Ctrl-C ends the process that runs; what was over
    before is in `output`.

    Args:
        function: At the top level of a module, or else something that can be pickled.
        settings: Changes to the allocator's settings that the environment has, as in
            "expandable_segments:True"; "current": none. The first is what others are compared with.
        repeat: How often it is called under each; the order is turned around each time.
        args, kwargs: What it is called with.
        output: The directory that snapshots, logs and `experiment.json` go into, a new or an empty
            one; None: a new one, named by the time.
        step_from: Who tells that a step is over: "optimizer" (the default), "optimizer:Class" or
            "framework" (see `Tracer`).

    Returns:
        How each call was.

    Raises:
        ConfigError: A setting is malformed, refused by the allocator or comes twice; the function
            cannot be called in a new process; `output` is there and not empty.
        PytracerError: There is no accelerator, or a run cannot be started.
    """
    if _is_starting:
        raise PytracerError(
            "experiment() is called by importing the main module, which its processes do too: put "
            'it under `if __name__ == "__main__":`'
        )
    pickled = _pickled(function, tuple(args), dict(kwargs or {}))
    with tempfile.NamedTemporaryFile(prefix="pytracer-") as file:
        for part in (sys.path, {"sys_argv": sys.argv, **_main_module()}):
            pickle.dump(part, file)
        file.write(pickled)
        file.flush()
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        whole = Experiment(
            [sys.executable, *flags, "-c", _NEW_PROCESS, file.name],
            settings,
            repeat=repeat,
            output=output,
            step_from=step_from,
            name=f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}",
        )
        whole.prepare()
        for run in whole.runs:
            whole.run(run)
    return whole.comparison


_NEW_PROCESS = (
    "import pickle, sys; file = open(sys.argv[1], 'rb'); sys.path[:] = pickle.load(file); "
    "from pytracer import experiments; experiments.call(file)"
)

_is_starting = False


def call(file: IO[bytes]) -> None:
    """In the new process."""
    import multiprocessing.spawn

    from pytracer import autostart

    global _is_starting
    autostart.watch()  # pytracer may be here by sys.path, and not installed
    _is_starting = True
    multiprocessing.spawn.prepare(pickle.load(file))
    function, args, kwargs = pickle.load(file)
    _is_starting = False
    function(*args, **kwargs)


def _pickled(function: Callable[..., object], args: Any, kwargs: Any) -> bytes:
    try:
        pickled = pickle.dumps((function, args, kwargs))
    except Exception as error:  # pickling runs what the objects define
        raise ConfigError(
            f"{function!r} cannot be called in a new process ({error}): give a function at the top "
            "level of a module, and arguments that can be pickled"
        ) from error
    if b"__main__" in pickled and not _main_module():
        raise ConfigError(
            f"{function!r} is known to this process alone, for no file defines it: put it into a "
            "module, and import it"
        )
    return pickled


def _main_module() -> dict[str, str]:
    """Where a new process finds it, as multiprocessing has it; {}: at a prompt, in a notebook."""
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        return {"init_main_from_name": name}
    path = getattr(main, "__file__", None)
    return {} if path is None else {"init_main_from_path": os.path.abspath(path)}
