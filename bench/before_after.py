"""Compare two versions of pytracer: run benchmarks with both versions in turn.

    python bench/before_after.py --before OLD/bin/python per_event per_step threads
    tests/devices/simulate cuda PYTHON bench/before_after.py --before OLD/bin/python \\
        --device cuda per_event per_step threads

OLD is a virtual environment with the same torch and the earlier pytracer; the Python that runs this
script has the later one. Both run the benchmarks of this folder. In each round one process of each
configuration runs with each version, so that a change of the machine's speed affects both. Every
figure is the median and minimum .. maximum over the rounds.
"""

import json
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import arguments, new_table, save, summary
from rich.console import Console
from rich.progress import track

DEVICES = ("cpu", "cuda", "npu")
PRINTED = ("of_native", "added_ns", "percent")  # the other figures are only in the result file


def medians(figures: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield each median of a result file, with a name from its keys and the figure's texts."""
    if isinstance(figures, list):
        for figure in figures:
            yield from medians(figure, name)
    elif isinstance(figures, dict) and "median" in figures:
        yield name, figures["median"]
    elif isinstance(figures, dict):
        words = [str(value) for value in figures.values() if isinstance(value, str | int)]
        for key, value in figures.items():
            yield from medians(value, " ".join([name, *words, key]).strip())


def measure(python: str, bench: str, device: str, folder: Path) -> dict[str, float]:
    """Run one round of a benchmark with this Python, and return its medians by name."""
    result = folder / "result.json"
    script = str(Path(__file__).with_name(f"{bench}.py"))
    command = [python, script, "--device", device, "--rounds", "1", "--json", str(result)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return dict(medians(json.loads(result.read_text())["figures"]))


def main() -> None:
    parser = ArgumentParser(add_help=False)
    parser.add_argument("names", nargs="+", metavar="name", help="benchmarks, such as per_event")
    parser.add_argument("--before", required=True, help="the Python with the earlier version")
    options = arguments(__doc__, "before_after_{device}.json", devices=DEVICES, parents=[parser])
    pythons = {"before": options.before, "after": sys.executable}
    found: dict[str, dict[str, dict[str, list[float]]]] = {name: {} for name in options.names}
    turns = [(name, when) for _ in range(options.rounds) for name in found for when in pythons]
    with tempfile.TemporaryDirectory() as folder:
        for name, when in track(turns, "measuring", console=Console(stderr=True)):
            figures = measure(pythons[when], name, options.device, Path(folder))
            for what, value in figures.items():
                versions = found[name].setdefault(what, {when: [] for when in pythons})
                versions[when].append(value)
    summaries = {
        name: {
            what: {when: summary(values) for when, values in versions.items() if values}
            for what, versions in figures.items()
        }
        for name, figures in found.items()
    }
    columns = ("what", "before", "after", "ratio")
    table = new_table(f"Before and after on {options.device}", columns, columns[:1])
    for name, figures in summaries.items():
        table.add_section()
        for what, versions in figures.items():
            if what.endswith(PRINTED) and len(versions) == 2 and versions["before"]["median"]:
                before, after = (versions[when]["median"] for when in pythons)
                ratio = f"{after / before:.2f}"
                table.add_row(f"{name} {what}", f"{before:.4g}", f"{after:.4g}", ratio)
    save(options, summaries, table)


if __name__ == "__main__":
    main()
