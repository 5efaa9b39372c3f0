"""Compare dry runs with what the same programs took of a real device.

    python bench dry_run
    python bench/dry_run.py --checkouts FOLDER

The programs are those of tests/accelerator/fit_programs.py, as they ran on an H200
(bench/results/hardware_h200.md). This needs a build of torch for CUDA, and no device. The result is
a table in bench/results/dry_run.md.

With --checkouts, the programs are those of public repositories whose authors published what they
took, or their snapshots. FOLDER has clones of github.com/pytorch/torchtitan at 9dec370 and of
github.com/Wedsonlin/assignment2-systems at 87b0864. Only torchtitan's tokenizer and data set are
replaced, by zeros. This also needs the packages that the programs import: triton, tensorboard,
torchao, einops, einx and jaxtyping. The result is a table in bench/results/dry_run_published.md.
"""

import json
import os
import platform
import resource
import runpy
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from datetime import date
from importlib.metadata import version
from itertools import chain, product, repeat
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from harness import arguments
from rich.progress import track

import pytracer
from pytracer.analysis.history import replay
from pytracer.fitting.sizes import parsed_target, targets_of
from pytracer.reading.reader import load
from pytracer.reading.snapshot import FREE_COMPLETED

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
TITAN, SYSTEMS = "torchtitan: Llama 3.1 8B, FSDP2", "assignment2-systems: "
COMPILE = "--training.compile"
FLOAT8 = (
    *(COMPILE, "--float8.enable_float8_linear", "--float8.enable_fsdp_float8_all_gather"),
    "--float8.precompute_float8_dynamic_scale_for_fsdp",
)
PUBLISHED = (
    (TITAN, 8, "reserved", 82.4, []),
    (f"{TITAN}, torch.compile", 8, "reserved", 77.0, [COMPILE]),
    (f"{TITAN}, torch.compile, Float8", 8, "reserved", 76.8, FLOAT8),
    (TITAN, 128, "reserved", 67.0, []),
    (f"{TITAN}, torch.compile", 128, "reserved", 62.0, [COMPILE]),
    (f"{SYSTEMS}3.4 B, DDP", 2, "allocated", 51.301, ["baseline"]),
    (f"{SYSTEMS}3.4 B, sharded optimizer", 2, "allocated", 38.562, ["sharded"]),
)
"""A program, its ranks, the kind of its peak, the published GiB, and its options."""
MEDIUM = (
    *("--d_model=1024", "--d_ff=4096", "--num_layers=24", "--num_heads=16"),
    *("--model_name=medium", "--memory-profiler=pytorch"),
)
PATTERNS = {"inference": "forward-only", "training": "full-training-step"}
AUTOCAST = {(512, "inference"), (512, "training"), (1024, "training")}
"""Which published snapshots are of bfloat16: the repository does not say it, their events do."""
HEAD = """\
# Dry runs against hardware

`python bench/dry_run.py`, {date}, {cores} cores, Python {python}, torch {torch}.
The columns have GiB. {source}

| program | what | measured | dry run | difference % | seconds | host MiB |
|---|---|---|---|---|---|---|
"""
HARDWARE = "The allocated and reserved peaks are those of `hardware_h200.md` (torch 2.11.0)."
AUTHORS = """With `--checkouts FOLDER`. Their authors published the measured peaks: torchtitan in
`benchmarks/llama3_h100_202412_torchtitan.md` (H100 of 96 GB, a torch of December 2024), and
assignment2-systems in `results` (torch 2.11.0), partly as snapshots, whose allocations and frees
are compared; their device is not named, and taken to be an A100. Each run compiles anew."""


def run_program(name: str, sizes: str) -> None:
    """Run a program as it ran on the device: 8 layers of width 1,024, and 32,000 words."""
    sys.path.append(str(Path(__file__).parents[1] / "tests/accelerator"))
    import fit_programs

    fit_programs.VOCABULARY, fit_programs.LAYERS = 32_000, 8
    fit_programs.WIDTH, fit_programs.HEADS = 1024, 16
    found = fit_programs.run("cuda", name, targets_of(parsed_target(sizes))[0], None)
    host_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps([*found["steady"], host_kib]))


def cells(measured: Sequence[float], peaks: Sequence[int]) -> list[str]:
    """Return the measured GiB, those of the dry run with as many digits, and the differences."""
    pairs = [(known, peak / GIB) for known, peak in zip(measured, peaks, strict=True)]
    return [
        ", ".join(map(str, measured)),
        ", ".join(f"{found:#.{len(str(known)) - 1}g}" for known, found in pairs),
        ", ".join(f"{round(100 * (found / known - 1), 1) + 0:.1f}" for known, found in pairs),
    ]


def hardware(scratch: Path) -> Iterator[list[str]]:
    """Run the programs that ran on an H200, and yield the cells of their rows."""
    for name, (title, both, *peaks) in PROGRAMS.items():
        for sizes, measured in zip(both, peaks, strict=True):
            folder = scratch / (name + sizes)
            command = [__file__, "--worker", "program", name, sizes]
            run = pytracer.dry_run(command, device="h200", stop_after_steps=0, output=folder)
            printed = (folder / "log.txt").read_text().splitlines()
            *found, host_kib = json.loads(next(line for line in printed if line.startswith("[")))
            seconds = f"{run.seconds:.0f}"
            yield [title, sizes, *cells(measured, found), seconds, f"{host_kib >> 10}"]


def run_torchtitan(folder: str, scratch: str, *options: str) -> None:
    """Run torchtitan's train.py with tokens of zeros."""
    import torch

    def load(name: str, path: str, tokenizer: object, batch: int, length: int, *_: object) -> Any:
        return repeat(torch.zeros(2, batch, length, dtype=torch.long))

    if FLOAT8[-1] in options:
        from torchao.float8 import ScalingType

        ScalingType.DELAYED = None  # the program asks for it, and today's torchao has none
    package: Any = ModuleType("torchtitan")
    package.__path__ = [f"{folder}/torchtitan"]  # this one, even if another is installed
    tokenizer = SimpleNamespace(n_words=128_256)
    data: Any = SimpleNamespace(build_hf_data_loader=load, build_tokenizer=lambda *_: tokenizer)
    sys.modules.update({"torchtitan": package, "torchtitan.datasets": data})
    os.chdir(folder)
    given = "--job.config_file=train_configs/llama3_8b.toml", "--training.batch_size=2"
    sys.argv = ["train.py", *given, f"--job.dump_folder={scratch}/dump", *options]
    runpy.run_path("train.py", run_name="__main__")


def published(checkouts: Path, scratch: Path) -> Iterator[list[str]]:
    """Run the programs of public repositories, and yield the cells of their rows."""
    for number, (program, ranks, kind, known_gib, options) in enumerate(PUBLISHED):
        folder = str((checkouts / program.partition(":")[0]).resolve())
        if program.startswith(TITAN):
            command = [__file__, "--worker", "torchtitan", folder, str(scratch)]
            anew = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}  # compiling takes memory, too
            given: dict[str, Any] = {"device": "h100-96", "variables": anew}
        else:  # the published peak is that of the first step
            command = ["-m", "cs336_systems.sharded_optimizer", "--mode"]
            path = {"PYTHONPATH": f"{folder}:{folder}/cs336-basics"}
            given = {"device": "h100", "stop_after_steps": 1, "variables": path}
        output = scratch / str(number)
        run = pytracer.dry_run([*command, *options], world_size=ranks, output=output, **given)
        figures = cells([known_gib], [getattr(run, f"peak_{kind}_bytes")])
        yield [program, f"{kind}, {ranks} ranks", *figures, f"{run.seconds:.0f}", "-"]


def recorded(folder: Path, scratch: Path) -> Iterator[list[str]]:
    """Record the published snapshots again, and yield the cells of their rows."""
    script = (folder / "cs336_systems/nsys_profile.py").read_text()
    # Before Python 3.12, an f-string ends at a quote within it.
    script = script.replace('["context_length"]', "['context_length']")
    for name in ("run", "results"):
        (scratch / name).mkdir()
    (scratch / "run/recorded.py").write_text(script)
    python = ["env", f"--chdir={scratch}/run", f"PYTHONPATH={folder}:{folder}/cs336-basics"]
    for words, what in product((128, 256, 512, 1024), PATTERNS):
        is_cast = (words, what) in AUTOCAST
        options = [f"--context_length={words}", f"--autocast={str(is_cast).lower()}"]
        command = [*python, sys.executable, "recorded.py", *MEDIUM, *options]
        run = pytracer.dry_run(
            [*command, f"--pattern={PATTERNS[what]}"],
            device="a100",
            stop_after_steps=0,
            output=scratch / f"{words}_{what}",
        )
        name = f"results/medium_{words}_{what}_memory_snapshot.pickle"
        both = [load(each / name) for each in (folder, scratch)]
        usages = [replay(each, 0).usage for each in both]
        known, found = ([u.allocated_bytes.max(), u.reserved_bytes.max()] for u in usages)
        published, own = (
            np.stack([trace.action, trace.size_bytes])[:, trace.action <= FREE_COMPLETED]
            for trace in (each.traces[0] for each in both)
        )
        events = "equal" if np.array_equal(published, own) else "other"
        yield [
            f"{SYSTEMS}0.42 B, {what} of {words} words{', autocast' * is_cast}",
            f"allocated, reserved; {published.shape[1]:,} {events} events",
            *cells([round(float(peak) / GIB, 3) for peak in known], found),
            *(f"{run.seconds:.0f}", "-"),
        ]


def main() -> None:
    own = ArgumentParser(add_help=False)
    own.add_argument("--checkouts", type=Path, help="a folder of clones of public repositories")
    is_published = own.parse_known_args()[0].checkouts is not None
    name = "dry_run_published.md" if is_published else "dry_run.md"
    options = arguments(__doc__, name, parents=[own])
    with tempfile.TemporaryDirectory() as scratch:
        source, rows = HARDWARE, hardware(Path(scratch))
        if is_published:
            systems = (options.checkouts / "assignment2-systems").resolve()
            both = published(options.checkouts, Path(scratch)), recorded(systems, Path(scratch))
            source, rows = AUTHORS, chain(*both)
        versions = {"torch": version("torch"), "python": platform.python_version()}
        text = HEAD.format(date=date.today(), cores=os.cpu_count(), source=source, **versions)
        for row in track(rows):
            text += f"| {' | '.join(row)} |\n"
    print(text)
    options.json.write_text(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        (run_torchtitan if sys.argv[2] == "torchtitan" else run_program)(*sys.argv[3:])
    else:
        main()
