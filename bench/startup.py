"""What pytracer adds to a program's start, with `PYTRACER` unset and set.

Each round takes two fresh processes, one of each. Unset: the line of the `.pth` file, which every
interpreter runs, and the entry point, which every `import torch` calls. Set (the hook is in the
cache): the same line, and what follows the import of torch, to where the tracer records. How long
`import torch` takes by itself is given for scale.
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
from typing import Any

from harness import arguments, in_own_process, save, summary
from rich.console import Console
from rich.progress import track
from rich.table import Table

FIGURES = {
    ("unset", "pth_line_s"): "each interpreter's start",
    ("unset", "entry_point_s"): "import torch",
    ("unset", "import_torch_s"): "import torch, all of it",
    ("set", "pth_line_s"): "each interpreter's start",
    ("set", "start_s"): "after import torch, until the tracer records",
}
LINES = 101


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def pth_line() -> None:
    """What Python does at its start: reads the file and runs its line."""
    spec = importlib.util.find_spec("_torch_pytracer")
    assert spec is not None
    assert spec.origin is not None, "pytracer is not installed"
    site.addpackage(os.path.dirname(spec.origin), "torch_pytracer.pth", set())


def import_torch() -> None:
    import torch  # noqa: F401


def unset() -> dict[str, float]:
    lines = [seconds(pth_line) for _ in range(LINES)]
    torch = seconds(import_torch)
    sys.modules.pop("_torch_pytracer", None)  # where torch has called it already
    entry_point = EntryPoint("pytracer", "_torch_pytracer:autoload", "torch.backends")
    return {
        "pth_line_s": statistics.median(lines),
        "entry_point_s": seconds(lambda: entry_point.load()()),
        "import_torch_s": torch,
    }


def traced() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(PYTRACER="1", PYTRACER_OUTPUT=folder)
        line = seconds(pth_line)
        from pytracer import autostart

        begin, spent = autostart.begin, []
        autostart.begin = lambda: spent.append(seconds(begin))
        import_torch()
        return {"pth_line_s": line, "start_s": sum(spent)}


def main() -> None:
    options = arguments(__doc__, "startup.json")
    in_own_process(__file__, "set")  # the hook is built, if it was not
    modes = ("unset", "set")
    results: dict[str, list[dict[str, float]]] = {mode: [] for mode in modes}
    rounds = [mode for _ in range(options.rounds) for mode in modes]
    for mode in track(rounds, "measuring", console=Console(stderr=True)):
        results[mode].append(in_own_process(__file__, mode))
    table = Table(title="What a start takes longer (medians)")
    for column in ("PYTRACER", "what", "ms"):
        table.add_column(column, justify="right" if column == "ms" else "left")
    figures: dict[str, dict[str, Any]] = {mode: {} for mode in modes}
    for (mode, key), what in FIGURES.items():
        figures[mode][key] = summary([each[key] for each in results[mode]])
        table.add_row(mode, what, f"{1000 * figures[mode][key]['median']:.3f}")
    Console().print(table)
    save(options.json, figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps({"unset": unset, "set": traced}[sys.argv[2]]()))
    else:
        main()
