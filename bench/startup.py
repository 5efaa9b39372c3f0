"""Measure what pytracer adds to a program's start: inactive, with `PYTRACER`, and in code.

Each round uses a new process for each of four cases. The figures are medians over the rounds, in
ms.

- unset: the line of the `.pth` file, which every interpreter runs, and the entry point, which every
  `import torch` calls. The duration of `import torch` itself is given for comparison.
- set (the hook is in the cache): the same line, and the time from the import of torch until the
  tracer records, or, on an accelerator, until it waits for torch to initialise the device.
- code: the import of pytracer after torch, and the start of the first Tracer, on an accelerator
  after its initialisation. The hook is in the cache, as in every process except the first.
- unbuilt: the start of the first Tracer without a hook in the cache and without the wheel's ready
  hooks, so that the hook is compiled and tried in a child process.
"""

import importlib.util
import json
import os
import site
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

FIGURES = {
    ("unset", "pth_line_s"): "each interpreter's start",
    ("unset", "entry_point_s"): "import torch",
    ("unset", "import_torch_s"): "import torch, all of it",
    ("set", "pth_line_s"): "each interpreter's start",
    ("set", "start_s"): "after import torch, until the tracer records",
    ("code", "import_s"): "from pytracer import Tracer",
    ("code", "start_s"): "first Tracer.start()",
    ("unbuilt", "start_s"): "first Tracer.start(), with the hook's compilation and trial",
}
LINES = 101


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def pth_line() -> None:
    """Read the `.pth` file and run its line, as Python does at its start."""
    spec = importlib.util.find_spec("_torch_pytracer")
    assert spec is not None
    assert spec.origin is not None, "pytracer is not installed"
    site.addpackage(os.path.dirname(spec.origin), "torch_pytracer.pth", set())


def import_torch() -> None:
    import torch  # noqa: F401


def unset(device: str) -> dict[str, float]:
    lines = [seconds(pth_line) for _ in range(LINES)]
    torch = seconds(import_torch)
    sys.modules.pop("_torch_pytracer", None)  # torch may have called the entry point already
    entry_point = EntryPoint("pytracer", "_torch_pytracer:autoload", "torch.backends")
    return {
        "pth_line_s": statistics.median(lines),
        "entry_point_s": seconds(lambda: entry_point.load()()),
        "import_torch_s": torch,
    }


def traced(device: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(PYTRACER="1", PYTRACER_OUTPUT=folder, PYTRACER_DEVICE=device)
        line = seconds(pth_line)
        from pytracer.activation import import_hook

        begin, spent = import_hook.begin, []
        import_hook.begin = lambda: spent.append(seconds(begin))
        import_torch()
        return {"pth_line_s": line, "start_s": sum(spent)}


def import_tracer() -> None:
    from pytracer import Tracer  # noqa: F401  # the package imports this name lazily


def in_code(device: str) -> dict[str, float]:
    import torch

    if device != "cpu":
        getattr(torch, device).init()
    imported = seconds(import_tracer)
    from pytracer import Tracer

    return {"import_s": imported, "start_s": seconds(Tracer(device=device).start)}


def unbuilt(device: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(XDG_CACHE_HOME=folder, TMPDIR=folder)
        os.environ.pop("PYTRACER_HOOK_DIR", None)
        from pytracer.backends import ready_hooks

        ready_hooks.FOLDER = "none"
        result = in_code(device)
        built = list(Path(folder).glob("pytracer*/*.so"))
        assert built, "no hook was built: is PYTRACER_BUILD=never set?"
        return result


def main() -> None:
    # A measured process imports nothing else: each object more is work for the garbage collector.
    from harness import arguments, in_own_process, in_turn, new_table, save, summary

    options = arguments(__doc__, "startup_{device}.json", devices=("cpu", "cuda", "npu"))
    in_own_process(__file__, options.device, "code")  # builds the hook if it is not in the cache
    modes = tuple(dict.fromkeys(mode for mode, _ in FIGURES))
    rounds = modes * options.rounds
    results = in_turn(rounds, lambda mode: in_own_process(__file__, options.device, mode))
    title = f"Time added to a program's start on {options.device} (medians)"
    table = new_table(title, ("case", "what", "ms"), ("case", "what"))
    figures: dict[str, dict[str, Any]] = {mode: {} for mode in modes}
    for (mode, key), what in FIGURES.items():
        figures[mode][key] = summary([round_[key] for round_ in results[mode]])
        table.add_row(mode, what, f"{1000 * figures[mode][key]['median']:.3f}")
    save(options, figures, table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        modes = {"unset": unset, "set": traced, "code": in_code, "unbuilt": unbuilt}
        device, mode = json.loads(sys.argv[2])
        print(json.dumps(modes[mode](device)))
    else:
        main()
