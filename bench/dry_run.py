"""Compare dry runs with what the same programs took of a real device.

The programs are those of tests/accelerator/fit_programs.py, as they ran on an H200
(bench/results/hardware_h200.md). This needs a build of torch for CUDA, and no device. The result is
a table in bench/results/dry_run.md.
"""

import json
import os
import platform
import resource
import sys
import tempfile
from datetime import date
from importlib.metadata import version
from pathlib import Path

from harness import arguments
from rich.progress import track

import pytracer
from pytracer.fitting.sizes import parsed_target, targets_of

GIB = 2**30
LANGUAGE = ("batch=16,length=1024", "batch=24,length=768")
IMAGES = ("batch=64,length=128", "batch=96,length=64")
PROGRAMS = {
    "llama": ("Llama, autocast, GradScaler", LANGUAGE, (27.1, 29.2), (27.9, 30.0)),
    "checkpointing": ("GPT, checkpointing", LANGUAGE, (10.8, 12.9), (11.9, 14.9)),
    "lora": ("LoRA", LANGUAGE, (25.5, 27.4), (26.3, 27.9)),
    "flash": ("GPT, flash attention", LANGUAGE, (18.3, 19.8), (20.3, 22.2)),
    "foreach": ("AdamW foreach", LANGUAGE, (27.1, 29.2), (27.9, 30.0)),
    "convolutions": ("convolutions", IMAGES, (0.98, 1.13), (0.41, 0.51)),
}
"""A name, two sizes, and the peaks of a later step at each: GiB allocated and reserved."""
HEAD = """\
# Dry runs against hardware

`python bench dry_run`, {date}, {cores} cores, Python {python}, torch {torch}.
Each program runs by `pytracer.dry_run(..., device="h200")`. The measured peaks are those of
`hardware_h200.md`, with torch 2.11.0, rounded. The columns have GiB allocated, reserved.

| program | sizes | measured | dry run | difference % | seconds | host MiB |
|---|---|---|---|---|---|---|
"""


def run_program(name: str, sizes: str) -> None:
    """Run a program as it ran on the device: 8 layers of width 1,024, and 32,000 words."""
    sys.path.append(str(Path(__file__).parents[1] / "tests/accelerator"))
    import fit_programs

    fit_programs.VOCABULARY, fit_programs.LAYERS = 32_000, 8
    fit_programs.WIDTH, fit_programs.HEADS = 1024, 16
    found = fit_programs.run("cuda", name, targets_of(parsed_target(sizes))[0], None)
    host_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps([*found["steady"], host_kib]))


def compared(name: str, sizes: str, measured: tuple[float, float], folder: Path) -> list[str]:
    """Run a program dry, and return the cells of its row."""
    command = [__file__, "--worker", name, sizes]
    run = pytracer.dry_run(command, device="h200", stop_after_steps=0, output=folder)
    printed = (folder / "log.txt").read_text().splitlines()
    *peaks, host_kib = json.loads(next(line for line in printed if line.startswith("[")))
    pairs = list(zip(peaks, measured, strict=True))
    return [
        ", ".join(f"{known:.3g}" for known in measured),
        ", ".join(f"{peak / GIB:.3g}" for peak in peaks),
        ", ".join(f"{100 * (peak / GIB / known - 1):.1f}" for peak, known in pairs),
        f"{run.seconds:.0f}",
        f"{host_kib >> 10}",
    ]


def main() -> None:
    options = arguments(__doc__, "dry_run.md")
    versions = {"torch": version("torch"), "python": platform.python_version()}
    text = HEAD.format(date=date.today(), cores=os.cpu_count(), **versions)
    rows = [
        (title, name, sizes, measured)
        for name, (title, both, *peaks) in PROGRAMS.items()
        for sizes, measured in zip(both, peaks, strict=True)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        for title, name, sizes, measured in track(rows):
            cells = compared(name, sizes, measured, Path(scratch, name + sizes))
            text += f"| {title} | {' | '.join([sizes, *cells])} |\n"
    print(text)
    options.json.write_text(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        run_program(*sys.argv[2:])
    else:
        main()
