"""Shared parts of the benchmarks: worker processes, medians, the environment, the result file."""

import argparse
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

RESULTS = Path(__file__).parent / "results"

# What selects the stacks: the `context` of a session, which torch's callers choose under
# `patch_torch()`; torch's `context` and `stacks`. By default there are forward stacks, too.
DEFAULT = "default"
OURS = {"no stacks": None, "alloc": "alloc", "all": "all", DEFAULT: "all"}
NATIVE = {"native python": ("all", "python"), "native all": ("all", "all")}
BASE = "native python"  # the denominator of all ratios


def in_own_process(script: str, *arguments: object) -> Any:
    """Run `script --worker arguments...` in a new process and return the JSON that it prints."""
    command = [sys.executable, script, "--worker", json.dumps(arguments, default=str)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def start(main: Callable[[], None], worker: Callable[..., Any]) -> None:
    """Start a benchmark, or `worker` in one of its own processes."""
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(worker(*json.loads(sys.argv[2]))))
    else:
        main()


def new_table(title: str, columns: Iterable[str], texts: Container[str] = ()) -> Table:
    """Return a table of figures; the columns in `texts` are aligned to the left."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="left" if column in texts else "right")
    return table


def in_turn(cases: Sequence[Any], measure: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """Measure one case after the other, and return the results of each."""
    results = defaultdict(list)
    for case in track(cases, "measuring", console=Console(stderr=True)):
        results[case].append(measure(case))
    return results


def summary(values: list[float]) -> dict[str, float]:
    """Return the median, minimum and maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def environment() -> dict[str, Any]:
    """Return the machine and the versions with which the figures are measured."""
    import torch

    import pytracer

    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    simulated = "libsimulated_device.so" in Path("/proc/self/maps").read_text()
    real_gpu = not simulated and torch.cuda.is_available()
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_npu": getattr(sys.modules.get("torch_npu"), "__version__", None),
        "simulated": simulated,
        "gpu": torch.cuda.get_device_name() if real_gpu else None,
        "pytracer": pytracer.__version__,
    }


def where(found: dict[str, Any]) -> str:
    """Return the environment of a result file in words."""
    environment = found["environment"]
    words = [environment["cpu"], f"{environment['cores']} cores"]
    if environment["gpu"]:
        words.append(environment["gpu"])
    words += [f"Python {environment['python']}", f"torch {environment['torch']}"]
    if environment["torch_npu"]:
        words.append(f"torch_npu {environment['torch_npu']}")
    if environment["simulated"]:
        words.append("simulated devices: kernels do nothing")
    return ", ".join(words)


def positive(text: str) -> int:
    """Parse a command line argument that must be 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def arguments(
    description: str | None,
    results: str,
    devices: tuple[str, ...] = ("cpu",),
    rounds: int = 5,
    parents: Sequence[argparse.ArgumentParser] = (),
) -> argparse.Namespace:
    """Parse the options that every benchmark has, and those of `parents`.

    Args:
        description: The text of `--help`.
        results: The name of the result file; `{device}` is replaced.
        devices: The devices that the benchmark supports; the first is the default.
        rounds: The default of `--rounds`.
        parents: Parsers with further options, created with `add_help=False`.
    """
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=parents,
    )
    parser.add_argument(
        "--rounds",
        type=positive,
        default=rounds,
        help=f"processes for each configuration ({rounds})",
    )
    parser.add_argument(
        "--device",
        choices=devices,
        default=devices[0],
        help="the device whose allocator is measured",
    )
    parser.add_argument("--json", type=Path, help=f"the result file (bench/results/{results})")
    options = parser.parse_args()
    options.json = options.json or RESULTS / results.format(device=options.device)
    if not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}")
    return options


def save(options: argparse.Namespace, figures: Any, table: Table | None = None) -> None:
    """Print the table; write the figures, the environment and the rounds to the result file."""
    if table is not None:
        Console().print(table)
    content = {"environment": environment(), "rounds": options.rounds, "figures": figures}
    options.json.write_text(json.dumps(content, indent=2) + "\n")
    if options.json.is_file():
        print(f"\n{options.json}")


def recorder(
    device: str, configuration: str, max_entries: int, stack_depth: int = 64
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the functions that start and stop a recorder, pytracer's or torch's.

    Args:
        device: "cpu", "cuda" or "npu"; torch has no recorder for "cpu".
        configuration: A key of OURS or NATIVE.
        max_entries: The number of events in the ring.
        stack_depth: The number of Python frames that pytracer keeps; torch's recorder keeps all.
    """
    import torch

    import pytracer

    if configuration in NATIVE:
        context, stacks = NATIVE[configuration]
        record = functools.partial(
            getattr(torch, device).memory._record_memory_history,
            context=context,
            stacks=stacks,
            max_entries=max_entries,
        )
        return functools.partial(record, "all"), functools.partial(record, None)
    tracer = pytracer.Tracer(
        device=device,
        stack_depth=stack_depth,
        forward_stacks=configuration == DEFAULT,
        trace_alloc_max_entries=max_entries,
    )
    tracer._recording.change(tracer._recording.options, OURS[configuration])
    return tracer.start, tracer.stop


def stack_depth() -> int:
    """Return the number of Python frames on the caller's stack, including the caller's own."""
    depth = -1
    frame: Any = sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


def at_depth(frames: int, body: Any) -> Any:
    """Call `body` so that it runs at a depth of `frames` Python frames."""
    own = stack_depth()

    def down(left: int) -> Any:
        return body() if left == 0 else down(left - 1)

    # `down` itself and `body` are two of the frames.
    assert frames >= own + 2, f"{frames} frames are too few: the caller already has {own}"
    return down(frames - own - 2)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
