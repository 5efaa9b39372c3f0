"""Run one program under several allocator settings, each run in a new traced process.

The order of runs is balanced: every second repeat runs the settings backwards. Otherwise a machine
that becomes slower, hotter or fuller during the experiment would favour the first setting. With an
even number of repeats, the mean positions of all settings in the order are equal.
"""

import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pytracer.atomic_file import open_output
from pytracer.child_process import last_exception_in, run_to_end
from pytracer.errors import ConfigError, PytracerError
from pytracer.experiments.comparison import Comparison, Outcome, Setting
from pytracer.experiments.conclusions import report
from pytracer.experiments.run_files import RunFiles, read_run
from pytracer.settings import change as allocator
from pytracer.text import printable
from pytracer.tracing.options import (
    OPTIONS,
    STEP_OPTIONS,
    SWITCH,
    record_all_ranks,
    switched_off,
    variable,
)

CURRENT = "current"  # the name of the setting that changes nothing in the environment's settings

REPORT, LOG = "experiment.json", "log.txt"

_MAX_NAME = 50


@dataclass(frozen=True)
class Run:
    """One run: the index of its setting, the repeat, from 1, and where its files are."""

    setting: int
    repeat: int
    directory: Path


def balanced_order(settings: int, repeat: int) -> list[tuple[int, int]]:
    """Return the order of runs, as pairs of a setting's index and a repeat's number, from 1."""
    order: list[tuple[int, int]] = []
    for number in range(1, repeat + 1):
        pairs = [(setting, number) for setting in range(settings)]
        order += pairs if number % 2 else reversed(pairs)
    return order


class Experiment:
    """The runs of one program under several settings, and the comparison of those that ended."""

    def __init__(
        self,
        command: Sequence[str],
        settings: Sequence[str],
        *,
        repeat: int = 1,
        output: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> None:
        """Check the arguments. No process is started yet.

        Args:
            command: The program and its arguments.
            settings, repeat, output: Those of `pytracer.experiment`.
            name: The name of the program in the report.

        Raises:
            ConfigError: A setting is malformed or is given twice, `output` exists and is not empty,
                or tracing is switched off.
        """
        if repeat < 1:
            raise ConfigError(f"repeat={repeat}: give 1 or more")
        if switched_off():
            raise ConfigError(
                f"an experiment needs tracing, which {SWITCH}=0 switches off: unset {SWITCH}"
            )
        self._command = list(command)
        self.step_from = OPTIONS["step_from"].of_variable() or "optimizer"
        self._variables = _variables(settings)
        self.output = Path(
            f"experiment_{datetime.now():%Y%m%d-%H%M%S}" if output is None else output
        )
        if self.output.exists() and (not self.output.is_dir() or any(self.output.iterdir())):
            raise ConfigError(f"{self.output} already exists: give a new or an empty directory")
        self.comparison = Comparison([Setting(name, "") for name in settings])
        names = [re.sub(r"[^\w.-]+", "-", each)[:_MAX_NAME].strip("-.") for each in settings]
        self.runs = [
            Run(setting, number, self.output / f"{i:02}_{names[setting]}")
            for i, (setting, number) in enumerate(balanced_order(len(settings), repeat), 1)
        ]
        self.comparison.metadata = {
            "kind": "experiment",
            "program": name or shlex.join(command),
            "command": None if name else list(command),
            "repeat": repeat,
            "step_from": self.step_from,
            "started": datetime.now().astimezone().isoformat(timespec="seconds"),
            "order": [
                {**vars(run), "setting": settings[run.setting], "directory": str(run.directory)}
                for run in self.runs
            ],
            "finished": False,
            "backend": None,
            "environment": None,
        }

    def prepare(self) -> None:
        """Have the allocator try each setting, in a process that does nothing else.

        Raises:
            ConfigError: The allocator refuses a setting.
            PytracerError: There is no accelerator, the program does not exist, or the output cannot
                be written.
        """
        if shutil.which(self._command[0]) is None:
            raise PytracerError(
                f"cannot run {self._command[0]}: no executable program of this name was found"
            )
        for setting, values in zip(self.comparison.settings, self._variables, strict=True):
            backend = allocator.check_in_new_process(_change(setting.name))
            if backend is None:
                raise PytracerError(
                    f"{sys.executable} finds no accelerator, and torch's allocator of CPU memory "
                    "has no settings to compare: run the experiment on a machine with the "
                    "program's accelerator"
                )
            self.comparison.metadata["backend"] = backend
            general = values.get("PYTORCH_ALLOC_CONF", "")
            setting.settings = values.get(f"PYTORCH_{backend.upper()}_ALLOC_CONF", general)
        try:
            self.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PytracerError(f"cannot make {self.output}: {error.strerror}") from error
        self._write()

    def run(self, run: Run) -> Outcome:
        """Run the program once, to its end (see `run_to_end`).

        Raises:
            PytracerError: The program cannot be started, or a file cannot be written.
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
        files = read_run(run.directory)
        outcome = _outcome(run, exit_code, wall_s, files)
        self.comparison.settings[run.setting].outcomes.append(outcome)
        self._add_notes(run, outcome, files)
        self.comparison.metadata["finished"] = run == self.runs[-1]
        self._write()
        return outcome

    def _environment(self, run: Run) -> dict[str, str]:
        """Return the environment of a run.

        The variables that select steps are left out: the numbers come from the snapshot at the end,
        which a tracer of selected steps does not write.
        """
        steps = set(map(variable, STEP_OPTIONS))
        environment = {name: text for name, text in os.environ.items() if name not in steps}
        environment |= self._variables[run.setting]
        environment |= {SWITCH: "1", variable("output"): os.path.abspath(run.directory)}
        environment[variable("step_from")] = self.step_from
        record_all_ranks(environment)
        return environment

    def _add_notes(self, run: Run, outcome: Outcome, files: RunFiles) -> None:
        metadata, notes = self.comparison.metadata, self.comparison.notes
        metadata["environment"] = metadata["environment"] or files.environment
        name = self.comparison.settings[run.setting].name
        for settings in sorted(files.settings - {*self._variables[run.setting].values()}):
            notes.append(
                f'{name}: the program itself changed the settings to "{settings}", which were in '
                f"force when it ended ({run.directory})."
            )
        if outcome.failure is None and outcome.step_us is None and not outcome.ended_early:
            note = (
                f"{name}: the time per step is unknown, because {self.step_from} reported fewer "
                "than two complete steps."
            )
            notes += [] if note in notes else [note]

    def _write(self) -> None:
        """Write the report of the runs so far. The old report stays until the new is complete."""
        text = json.dumps(report(self.comparison), indent=2) + "\n"
        with open_output(self.output / REPORT) as file:
            file.write(text.encode())


def _outcome(run: Run, exit_code: int, wall_s: float, files: RunFiles) -> Outcome:
    log = run.directory / LOG
    failure = None
    if exit_code != 0 and not files.numbers.get("ooms"):
        failure = f"{_ending(exit_code)}, {last_exception_in(log)} ({log})"
    elif not files.numbers:
        unknown = "it used no accelerator, or its Python has no pytracer"
        reason = next(iter(files.problems), unknown)
        failure = f"it wrote no snapshot of an accelerator: {reason} ({log})"
    return Outcome(
        **files.numbers,
        wall_s=wall_s,
        ended_early=exit_code != 0 and failure is None,
        failure=failure,
        files=[str(log), *map(str, files.paths)],
    )


def _ending(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:  # a real-time signal
        return f"killed by signal {-exit_code}"


def _variables(settings: Sequence[str]) -> list[dict[str, str]]:
    """Return the environment variables of each setting.

    Raises:
        ConfigError: There is no setting, one is malformed, or two mean the same.
    """
    if isinstance(settings, str) or not settings:
        raise ConfigError(f"settings={settings!r}: give a list of the settings to compare")
    found: list[dict[str, str]] = []
    for name in settings:
        if not name.strip():
            raise ConfigError(
                f'settings {name!r}: give "NAME:VALUE", or "{CURRENT}" for those of the environment'
            )
        values = allocator.variables(_change(name))
        if values in found:
            same = settings[found.index(values)]
            raise ConfigError(f'"{name}" means the same as "{same}": give one of them')
        found.append(values)
    return found


def _change(setting: str) -> str:
    return "" if setting == CURRENT else setting
