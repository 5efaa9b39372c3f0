"""`pytracer.dry_run`: run a program on a device that is not there, and say what memory it needs."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

from pytracer.analysis.answer_of_files import answer_of_files, answered_file
from pytracer.analysis.explanation import explain
from pytracer.backends.hook_folders import HookFolders
from pytracer.child_process import last_exception_in, run_to_end
from pytracer.errors import ConfigError, PytracerError
from pytracer.experiments.run_files import read_run
from pytracer.reading.snapshot import Snapshot
from pytracer.rehearsal import libraries
from pytracer.rehearsal.models import Model, model_of
from pytracer.rehearsal.plan import VARIABLE, Plan, read_report
from pytracer.rehearsal.results import DryRun, answer_of
from pytracer.simulator.trials import try_settings
from pytracer.text import number, printable
from pytracer.tracing.options import SWITCH, record_all_ranks, variable

CONTEXT_BYTES = 600 << 20
"""What a process takes of a device outside of torch's allocator, as is assumed: the context and the
code of kernels. It is between 0.3 and 1.5 GiB."""

RANKS_OF_A_HOST = 8
_OFFLINE = {
    **{"WANDB_MODE": "disabled", "COMET_MODE": "disabled", "NEPTUNE_MODE": "offline"},
    **{"HF_HUB_OFFLINE": "1", "CLEARML_OFFLINE_MODE": "1"},
}
"""Variables that keep loggers and hubs from sending anything, unless they are set already."""

_PATIENCE_S = 30.0  # after the limit, for a process that does not end itself


def dry_run(
    command: Sequence[str],
    *,
    device: str = "h100",
    world_size: int = 1,
    rank: int = 0,
    together: bool = False,
    device_memory_bytes: int | None = None,
    context_memory_bytes: int = CONTEXT_BYTES,
    stop_after_steps: int = 3,
    allow_writes: bool = False,
    time_limit_s: float = 600.0,
    output: str | os.PathLike[str] | None = None,
    is_quiet: bool = True,
    variables: Mapping[str, str] | None = None,
) -> DryRun:
    """Run a program on a simulated device, by torch's own allocator: does it fit?

    It needs a CUDA build of torch (or torch_npu), and no device. Kernels do nothing, and device
    memory takes no host memory. Checkpoints are not written, and loggers are offline.

    Args:
        command: A script and its arguments, `["-m", MODULE, ...]`, or another program.
        device: The model of the device, as in "h100"; `pytracer run --help` lists them.
        world_size: The number of ranks. One of them runs, and its collectives do nothing.
        rank: The rank that runs.
        together: Whether all ranks run, as programs need that send objects to each other.
        device_memory_bytes: The memory of the device; None: that of the model.
        context_memory_bytes: What is taken of it outside of torch's allocator.
        stop_after_steps: The number of steps of an optimizer after which the program is stopped;
            0: it runs to its end.
        allow_writes: Whether checkpoints are written.
        time_limit_s: When a program that does not end is stopped.
        output: A new folder for the recordings.  None: one in outputs/dry_run.
        is_quiet: Whether what the program prints goes to log.txt in that folder.
        variables: Environment variables of the program, in addition to those of this process.

    Raises:
        ConfigError: An argument is wrong, or this torch cannot be used.
        PytracerError: The program failed for another reason than memory, or used no device.
    """
    model = model_of(device)
    model = replace(model, capacity_bytes=device_memory_bytes or model.capacity_bytes)
    if not 0 <= context_memory_bytes < (most_bytes := model.capacity_bytes):
        raise ConfigError(f"{context_memory_bytes=}: the device has only {most_bytes} bytes")
    folder = new_folder() if output is None else Path(output)
    if folder.suffix == ".pickle" or (folder.is_dir() and any(folder.iterdir())):
        raise ConfigError(f"output={folder}: give a new or empty folder for the recordings")
    with tempfile.TemporaryDirectory(prefix="pytracer_") as reports:
        plan = Plan(
            world_size, rank, together, stop_after_steps, time_limit_s, allow_writes, reports
        )
        whole = _checked(command, plan)
        environment = {**_OFFLINE, **os.environ, **(variables or {}), **_variables(plan, model)}
        environment["SIMULATED_OTHERS_MB"] = str(-(-context_memory_bytes >> 20))
        environment[variable("output")] = os.path.abspath(folder)
        record_all_ranks(environment)
        log = folder / "log.txt" if is_quiet else None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            code, took_s = run_to_end(whole, environment, log, time_limit_s + _PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise PytracerError(f"the program did not end within {time_limit_s:.0f} s") from None
        except OSError as error:
            text = printable(shlex.join(command))
            raise PytracerError(f"cannot run {text}: {error}") from error
        report = read_report(Path(reports))
    snapshots: list[Snapshot] = []
    files = read_run(folder, snapshots.append)
    is_other = report is None or report.is_other_error or not files.numbers.get("ooms")
    if code != 0 and is_other:
        reason = last_exception_in(log) if log else "see its output"
        reason = f"signal {-code} ended it" if code < 0 else reason
        if world_size > 1 and not together:
            reason += " (ranks that send objects to each other have to run together)"
        if report is not None and report.unsaved:
            reason += " (if it needs checkpoints: --allow-writes writes them)"
        raise PytracerError(f"the program failed, but not because memory ran out: {reason}")
    if report is None or not files.numbers:
        raise PytracerError(
            "can't tell how much memory the program used: it used no device, or ended without "
            "exit handlers (os._exit)"
        )
    answers = [answered_file(each, explain(each, None, try_settings)) for each in snapshots]
    decides = any(value.decides for value in report.values)
    found = DryRun(
        fits=code == 0 and not report.gave_up,
        device=device,
        world_size=report.world_size,
        peak_allocated_bytes=files.numbers["peak_allocated_bytes"],
        peak_reserved_bytes=files.numbers["peak_reserved_bytes"],
        device_bytes=model.capacity_bytes,
        context_bytes=context_memory_bytes,
        flushes=files.numbers.get("retries", 0),
        is_least=decides or bool(report.unknown) or report.stopped == "time",
        unknown=report.unknown,
        values=sorted(report.values, key=lambda value: not value.decides),
        steps=report.steps,
        seconds=took_s,
        paths=[str(path) for path in files.paths],
        answer=answer_of_files(answers),
    )
    return replace(found, answer=answer_of(found, report, files))


def new_folder() -> Path:
    """Return the folder of the recordings of a dry run that begins now, if none is named."""
    return Path("outputs", "dry_run", f"{datetime.now():%Y%m%d_%H%M%S_%f}")


def _variables(plan: Plan, model: Model) -> dict[str, str]:
    """Return the environment variables of the program."""
    ranks = min(plan.world_size, RANKS_OF_A_HOST)
    found = {
        **libraries.environment(model.backend),
        **model.variables(),
        VARIABLE: json.dumps(asdict(plan)),
        SWITCH: "1",
        "SIMULATED_DEVICES": str(ranks),
    }
    if plan.world_size > 1 and not plan.is_together:
        found |= {
            **{"RANK": str(plan.rank), "LOCAL_RANK": str(plan.rank % ranks)},
            **{"WORLD_SIZE": str(plan.world_size), "LOCAL_WORLD_SIZE": str(ranks)},
            **{"GROUP_RANK": str(plan.rank // ranks)},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
        }
    # Kernels that were timed here stay apart: real devices shall run none of them.
    cache = HookFolders().destination().directory / "dry_run"
    caches = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "torchinductor_"}
    return {name: str(cache / below) for name, below in caches.items()} | found


def _checked(command: Sequence[str], plan: Plan) -> list[str]:
    """Check the arguments; return the command of a new process, or of one for each rank."""
    if isinstance(command, str) or not command:
        raise ConfigError(f'command={command!r}: give a list, as in ["train.py", "--batch", "8"]')
    if not 0 <= plan.rank < plan.world_size:
        ranks = number(plan.world_size, "rank")
        raise ConfigError(f"rank={plan.rank} of {ranks}: the first rank is 0")
    if plan.stop_after_steps < 0 or not plan.time_limit_s > 0:
        raise ConfigError("stop_after_steps must be 0 or more, and time_limit_s above 0")
    is_python = command[0] in ("-m", sys.executable) or command[0].endswith(".py")
    command = command[command[0] == sys.executable :]
    if not is_python and shutil.which(command[0]) is None:
        raise ConfigError(f"cannot run {command[0]}: give a script, `-m MODULE` or a program")
    if plan.is_together and plan.world_size > 1:
        launcher = ["torch.distributed.run", "--standalone", *["--no-python"] * (not is_python)]
        return [sys.executable, "-m", *launcher, f"--nproc-per-node={plan.world_size}", *command]
    return [*([sys.executable] if is_python else []), *command]
