"""Measure what `pytracer fleet collect` takes for a file, next to reading the file alone.

    python bench/fleet.py A.pickle B.pickle --files 64 256 1024 --workers 2
    python bench/fleet.py A.pickle --files 256 --ray 1 2 4

The files of a run are hard links to the given ones, so they are in the page cache. "alone" is one
process that makes the rows of each file, and does nothing else. All times are processor seconds of
all processes, because the elapsed time of a shared machine says little; the least of the rounds,
which alternate. The memory is the peak of the sum of all processes' own and shared parts (PSS),
and `budget` is what `--memory` allowed. A collection's fixed costs, such as the start of its
processes, are in its times.
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
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

TICKS = os.sysconf("SC_CLK_TCK")
MIB = 2**20
ALONE = """
import sys, time
from pytracer.fleet.sources import find_sources
from pytracer.fleet.work import collect_file
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
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path, help="snapshots of which the runs are made")
    parser.add_argument("--files", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ray", nargs="*", type=int, default=[], help="numbers of Ray's workers")
    given = parser.parse_args()
    table = Table(title=f"{given.workers} processes, {given.memory}")
    for name in ("files", "load", "alone", "collection", "alone ÷ collection", "ms a file"):
        table.add_column(name, justify="right")
    for name in ("elapsed", "peak", "table"):
        table.add_column(name, justify="right")
    curve = Table(title="Ray")
    for name in ("files", "workers", "elapsed", "files a second"):
        curve.add_column(name, justify="right")
    # In the folder of the first file, because hard links do not leave a file system.
    with tempfile.TemporaryDirectory(dir=given.paths[0].resolve().parent) as text:
        folder = Path(text)
        for count in given.files:
            runs = folder / f"run{count}"
            make_run(runs, given.paths, count)
            alone, collected = [], []
            sample = [str(path) for path in sorted(runs.rglob("*.pickle"))[:64]]
            for i in range(given.rounds):
                done = run([sys.executable, "-c", ALONE, *sample])
                alone.append([float(each) / len(sample) for each in done.output.split()])
                output = folder / f"table{count}-{i}"
                command = ["-m", "pytracer", "fleet", "collect", runs, "--output", output]
                options = ["--workers", given.workers, "--memory", given.memory]
                collected.append(run([sys.executable, *map(str, [*command, *options])]))
            load_s, alone_s = (min(each[i] for each in alone) for i in range(2))
            least_s = min(each.cpu_s for each in collected) / count
            size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
            table.add_row(
                f"{count:,}",
                f"{load_s * 1e3:.1f} ms",
                f"{alone_s * 1e3:.1f} ms",
                f"{least_s * 1e3:.1f} ms",
                f"{alone_s / least_s:.0%}",
                f"{least_s * 1e3:.1f}",
                f"{min(each.elapsed_s for each in collected):.1f} s",
                f"{max(each.peak_bytes for each in collected) / MIB:.0f} MiB",
                f"{size / 1024:.0f} KiB",
            )
            for workers in given.ray:
                output = folder / f"ray{count}-{workers}"
                arguments = [str(workers), str(runs), str(output)]
                elapsed = float(run([sys.executable, "-c", RAY, *arguments]).output.split()[-1])
                curve.add_row(
                    f"{count:,}", str(workers), f"{elapsed:.1f} s", f"{count / elapsed:.1f}"
                )
    console = Console()
    console.print(table)
    if given.ray:
        console.print(curve)


if __name__ == "__main__":
    main()
