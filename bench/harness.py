"""What the benchmarks share: processes of their own, medians, the environment, the result file."""

import argparse
import functools
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

# Which stacks are kept: our `context`; torch's `context` and `stacks`.
OURS = {"no stacks": None, "alloc": "alloc", "all": "all"}
NATIVE = {"native python": ("all", "python"), "native all": ("all", "all")}
BASE = "native python"  # what ratios are against


def in_own_process(script: str, *arguments: object) -> Any:
    """Runs `script --worker arguments...` and returns what it prints, JSON."""
    command = [sys.executable, script, "--worker", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def summary(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def environment() -> dict[str, Any]:
    """Where the figures were taken."""
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
    simulated = importlib.util.find_spec("simulated") is not None
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
    """The environment in a result file, in words."""
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
    """An argument that is 1 or more."""
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
    """The options every benchmark has, and those of `parents`.

    Args:
        description: For `--help`.
        results: A file name, with `{device}` in it.
        devices: Whose allocators there are; the first is the default.
        rounds: How many there are without `--rounds`.
        parents: Made with `add_help=False`.
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
    parser.add_argument("--device", choices=devices, default=devices[0], help="whose allocator")
    parser.add_argument("--json", type=Path, help=f"where results go (bench/results/{results})")
    options = parser.parse_args()
    options.json = options.json or RESULTS / results.format(device=options.device)
    if not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}")
    return options


def save(options: argparse.Namespace, figures: Any) -> None:
    """Writes figures, environment and rounds."""
    written = {"environment": environment(), "rounds": options.rounds, "figures": figures}
    options.json.write_text(json.dumps(written, indent=2) + "\n")
    if options.json.is_file():
        print(f"\n{options.json}")


def recorder(
    device: str, configuration: str, max_entries: int, stack_depth: int = 64
) -> tuple[Callable[[], object], Callable[[], object]]:
    """What switches a recorder on and off: ours, or torch's.

    Args:
        device: "cpu", "cuda" or "npu"; torch has no recorder for the first.
        configuration: a key of OURS or NATIVE.
        max_entries: events of the ring.
        stack_depth: Python frames that ours keeps; torch's keeps all.
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
        context=OURS[configuration],
        trace_alloc_max_entries=max_entries,
    )
    return tracer.start, tracer.stop


def stack_depth() -> int:
    """The caller's: how many Python frames there are, its own included."""
    depth = -1
    frame: Any = sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


def at_depth(frames: int, body: Any) -> Any:
    """Calls `body` so that it runs at `frames` Python frames."""
    own = stack_depth()

    def down(left: int) -> Any:
        return body() if left == 0 else down(left - 1)

    # `down` itself and `body` are two of them.
    assert frames >= own + 2, f"{frames} frames asked for, {own} there already"
    return down(frames - own - 2)


def resident_bytes() -> int:
    """Of this process, now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
