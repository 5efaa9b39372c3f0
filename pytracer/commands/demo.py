"""The command `pytracer demo`."""

from pathlib import Path

import click

from pytracer.backends.running_torch import torch_build


@click.command("demo")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("pytracer_demo.pickle"),
    show_default=True,
    help="The snapshot file to write.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="The number of training steps.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda", "npu"]),
    default="auto",
    show_default=True,
    help="The device to train on. auto: the accelerator, else the CPU.",
)
def command(output: Path, steps: int, device: str) -> None:
    """Does pytracer work here, and what can it record?

    \b
    pytracer demo
    pytracer demo --device cpu

    Trains a small transformer under the tracer, writes a snapshot, and prints where the memory
    went.
    """
    torch_build()  # without torch, the error is one line
    from pytracer.commands import demo_training  # imports torch, which `--help` does without

    demo_training.run(output, steps, device)
