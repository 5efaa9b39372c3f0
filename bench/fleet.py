"""Measure what `pytracer fleet collect` takes for a file, next to reading the file alone.

    python bench/fleet.py A.pickle B.pickle --files 64 256 1024 --workers 2
    python bench/fleet.py A.pickle --files 256 --ray 1 2 4 --ray-files 512

The files of a run are hard links to the given ones, so they are in the page cache. "alone" are as
many processes as the collection has, which make the rows of files and do nothing else; they run
before and after each collection, because processors that share a core, and machines that others use
too, change their speed. All times are processor seconds of all processes; the least of the rounds.
"speed" is the median over the rounds of what a file takes alone, relative to the collection around
it. The memory is the peak of the sum of all processes' own and shared parts (PSS). A collection's
fixed costs, such as the start of its processes, are in its times.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from harness import arguments, new_table, positive, save, summary
from rich.console import Console

TICKS = os.sysconf("SC_CLK_TCK")
MIB = 2**20
ELSEWHERE = tempfile.gettempdir()  # not in the sources, which Python would import
Figure = dict[str, Any]
ALONE = """
import sys, time
from pytracer.fleet.sources import find_sources
from pytracer.fleet.summary import collect_file
from pytracer.reading.reader import load
sources, _ = find_sources(sys.argv[1:])
collect_file(sources[0])
begin = time.process_time()
for source in sources:
    load(source.path)
loaded = time.process_time()
for source in sources:
    collect_file(source)
print(loaded - begin, time.process_time() - loaded)
"""
RAY = """
import sys
from pathlib import Path
import ray
ray.init(num_cpus=int(sys.argv[1]), log_to_driver=False, include_dashboard=False)
from pytracer.fleet.collection import collect
from pytracer.fleet.ray_engine import RayEngine
warm = collect([sys.argv[2] + "/step1"], Path(sys.argv[3] + "-warm"), RayEngine())
print(collect([sys.argv[2]], Path(sys.argv[3]), RayEngine()).seconds)
"""


class Used(NamedTuple):
    """What a command used: processor and elapsed seconds, and the peak of its memory."""

    cpu_s: float
    elapsed_s: float
    peak_bytes: int
    output: str


def run(command: list[str]) -> Used:
    """Run a command, and measure all processes of its session."""
    begin = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=ELSEWHERE
    )
    cpu: dict[int, float] = {}
    peak = [0]

    def sample() -> None:
        while process.poll() is None:
            total = 0
            for stat in Path("/proc").glob("[0-9]*/stat"):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    fields = stat.read_text().rpartition(")")[2].split()
                    if int(fields[3]) != process.pid:
                        continue
                    cpu[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / TICKS
                    rollup = (stat.parent / "smaps_rollup").read_text()
                    total += 1024 * int(rollup.partition("\nPss:")[2].split()[0])
            peak[0] = max(peak[0], total)
            time.sleep(0.05)

    sampler = threading.Thread(target=sample)
    sampler.start()
    output, _ = process.communicate()
    sampler.join()
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed")
    return Used(sum(cpu.values()), time.monotonic() - begin, peak[0], output)


def make_run(folder: Path, files: list[Path], count: int, steps: int = 8) -> None:
    """Make a run of hard links to files."""
    for i in range(count):
        rank, step = divmod(i, steps)
        path = folder / f"step{step + 1}/torch_memory_rank{rank}_pid{rank}.pickle"
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(files[i % len(files)], path)


def alone(sample: list[str], workers: int) -> tuple[float, float]:
    """Return the processor seconds that each of `workers` processes takes to load and to make."""
    command = [sys.executable, "-c", ALONE, *sample]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ELSEWHERE)
        for _ in range(workers)
    ]
    taken = [[float(each) for each in done.communicate()[0].split()] for done in processes]
    load_s, make_s = (sum(each) / (workers * len(sample)) for each in zip(*taken, strict=True))
    return load_s, make_s


def measure_size(folder: Path, runs: Path, count: int, options: argparse.Namespace) -> Figure:
    """Collect a run of `count` files in each round, and read files alone before and after it."""
    sample = [str(path) for path in sorted(runs.rglob("*.pickle"))[:64]]
    readings, collected, speeds = [alone(sample, options.workers)], [], []
    for i in range(options.rounds):
        output = folder / f"table{count}-{i}"
        command = ["-m", "pytracer", "fleet", "collect", runs, "--output", output]
        limits = ["--workers", options.workers]
        collected.append(run([sys.executable, *map(str, [*command, *limits])]))
        readings.append(alone(sample, options.workers))
        around_s = (readings[-2][1] + readings[-1][1]) / 2
        speeds.append(around_s * count / collected[-1].cpu_s)
    return {
        "files": count,
        "load_s": summary([each[0] for each in readings]),
        "alone_s": summary([each[1] for each in readings]),
        "collection_s": summary([each.cpu_s / count for each in collected]),
        "speed": summary(speeds),
        "elapsed_s": summary([each.elapsed_s for each in collected]),
        "peak_bytes": max(each.peak_bytes for each in collected),
        "table_bytes": sum(path.stat().st_size for path in output.rglob("*") if path.is_file()),
    }


def measure_ray(folder: Path, runs: Path, count: int, workers: int, rounds: int) -> Figure:
    """Collect a run by Ray tasks on `workers` cores of this machine."""
    elapsed = []
    for i in range(rounds):
        arguments = [str(workers), str(runs), str(folder / f"ray{count}-{workers}-{i}")]
        output = run([sys.executable, "-c", RAY, *arguments]).output
        elapsed.append(float(output.split()[-1]))
    return {"files": count, "workers": workers, "elapsed_s": summary(elapsed)}


def show(figures: list[Figure], curve: list[Figure], title: str) -> None:
    """Print the figures as tables."""
    columns = ("files", "load", "alone", "collection", "speed", "elapsed", "peak", "table")
    table = new_table(title, columns)
    for each in figures:
        table.add_row(
            f"{each['files']:,}",
            *(f"{each[key]['min'] * 1e3:.1f} ms" for key in ("load_s", "alone_s", "collection_s")),
            f"{each['speed']['median']:.0%}",
            f"{each['elapsed_s']['min']:.1f} s",
            f"{each['peak_bytes'] / MIB:.0f} MiB",
            f"{each['table_bytes'] / 1024:.0f} KiB",
        )
    console = Console()
    console.print(table)
    if curve:
        rays = new_table("Ray", ("files", "workers", "elapsed", "files a second"))
        for each in curve:
            least_s = each["elapsed_s"]["min"]
            rays.add_row(
                f"{each['files']:,}",
                str(each["workers"]),
                f"{least_s:.1f} s",
                f"{each['files'] / least_s:.1f}",
            )
        console.print(rays)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("paths", nargs="+", type=Path, help="snapshots of which the runs are made")
    parser.add_argument("--files", nargs="+", type=positive, default=[64, 256])
    parser.add_argument("--workers", type=positive, default=2)
    parser.add_argument(
        "--ray", nargs="*", type=positive, default=[], help="numbers of Ray's workers"
    )
    parser.add_argument(
        "--ray-files", type=positive, default=512, help="the files of Ray's collections (512)"
    )
    options = arguments(__doc__, "fleet.json", rounds=3, parents=[parser])
    figures, curve = [], []
    options.paths = [path.resolve() for path in options.paths]
    # In the folder of the first file, because hard links do not leave a file system.
    with tempfile.TemporaryDirectory(dir=options.paths[0].parent) as text:
        folder = Path(text)
        for count in options.files:
            runs = folder / f"run{count}"
            make_run(runs, options.paths, count)
            figures.append(measure_size(folder, runs, count, options))
        if options.ray:
            runs = folder / f"runs-of-ray{options.ray_files}"
            make_run(runs, options.paths, options.ray_files)
            for workers in options.ray:
                curve.append(measure_ray(folder, runs, options.ray_files, workers, options.rounds))
    show(figures, curve, f"{options.workers} processes")
    save(options, {"collections": figures, "ray": curve})


if __name__ == "__main__":
    main()
