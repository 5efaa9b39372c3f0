"""Variables of pytracer that have no effect: said once in a job, and kept from doing harm."""

import atexit
import contextlib
import os
import signal
import sys

from pytracer.errors import ConfigError
from pytracer.log import warn_once
from pytracer.text import did_you_mean
from pytracer.tracing import options
from pytracer.tracing.snapshot_files import FIRST_PROCESS

PREFIX = "PYTRACER_"
_OWN = (FIRST_PROCESS, "PYTRACER_DRY_RUN")  # for the processes that pytracer itself starts
REPORTED = "PYTRACER_REPORTED"  # tells the children of a process that the variables were reported


def report_unrecorded() -> None:
    """Report the variables of a process that `PYTRACER` does not have recorded; defuse the signal.

    Without a handler, the signal would end the job.
    """
    with contextlib.suppress(ConfigError):  # no signal that the variable could have had in mind
        number = options.OPTIONS["dump_signal"].of_variable()
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            from pytracer.tracing import on_demand

            on_demand.WATCHER.defuse(number)
    variables = [option.variable for option in options.OPTIONS.values()]
    given = [name for name in variables if options.variable_text(name)]
    if options.switched_off() or REPORTED in os.environ:
        return
    if given:  # a tracer in the program's code would use them
        atexit.register(_report_without_tracer, given, os.getpid())
    report_unknown()


def _report_without_tracer(given: list[str], pid: int) -> None:
    if os.getpid() == pid and "pytracer.tracing.tracer" not in sys.modules:
        warn_once(
            f"PYTRACER=1 was not set: process {pid} recorded nothing, and {', '.join(given)} had "
            "no effect in it. Set PYTRACER=1, or ignore this if a child process has its own tracer"
        )


def report_unknown() -> None:
    """Report misspelt variables."""
    if REPORTED in os.environ:
        return
    known = {*map(options.variable, options.OPTIONS), *options.OTHER_VARIABLES, *_OWN}
    ends = [name.removeprefix(PREFIX) for name in known]
    for name in [*os.environ]:
        if name.startswith(PREFIX) and name not in known:
            hint = did_you_mean(name.removeprefix(PREFIX), ends, PREFIX)
            warn_once(f"{name} is not a variable of pytracer and has no effect{hint}")
    os.environ[REPORTED] = "1"
