"""A leak is found by the blocks that live, if the ring has the events of few steps."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pytracer
from pytracer.analysis import find_leaks
from pytracer.analysis.leaks.results import DeviceLeaks, answer
from pytracer.reading import load

Step = Callable[[list[torch.Tensor], int], object]
RING = 200
OTHERS = 20  # allocations of a step: the ring has some 5 steps


def recorded(
    step: Step, path: Path, steps: int = 120, first: int = 1, *, ends: bool = False
) -> DeviceLeaks:
    """Record steps that others' allocations fill, and search the file for leaks.

    Args:
        ends: The function that keeps what is kept returns before the file is written.
    """
    kept: list[torch.Tensor] = []
    ring = RING + steps * ends
    with pytracer.Tracer(device="cpu", trace_alloc_max_entries=ring) as tracer:
        model = [torch.empty(1000) for _ in range(10)]
        for number in range(first, first + steps):
            for _ in range(OTHERS):
                torch.empty(100)
            step(kept, number)
            tracer.step()
        if ends:
            kept.clear()
            model.clear()
        tracer.dump(path)
    (device,) = find_leaks(load(path)).devices
    return device


def keep(kept: list[torch.Tensor], _: int) -> None:
    kept.append(torch.empty(5000))


def keep_rarely(kept: list[torch.Tensor], number: int) -> None:
    if number % 3 == 0:
        kept.append(torch.empty(5000))


def replace_oldest(kept: list[torch.Tensor], _: int) -> None:
    kept.append(torch.empty(5000))
    del kept[:-80]


def thin_out(kept: list[torch.Tensor], _: int) -> None:
    kept.append(torch.empty(5000))
    if len(kept) >= 60:
        del kept[1::2]


def keep_at_random(kept: list[torch.Tensor], number: int) -> None:
    kept.append(torch.empty(5000))
    if len(kept) >= 80:
        random.Random(number).shuffle(kept)
        del kept[60:]


def keep_nothing(kept: list[torch.Tensor], _: int) -> None:
    kept[:] = [torch.empty(5000)]


@pytest.mark.parametrize("ends", [False, True], ids=["lives", "ends"])
@pytest.mark.parametrize(("step", "period"), [(keep, 1), (keep_rarely, 3)])
def test_a_leak_of_steps_without_events(
    step: Step, period: int, ends: bool, tmp_path: Path
) -> None:
    device = recorded(step, tmp_path / "a.pickle", ends=ends)
    # THEN it is found since the first step, at its rate
    assert device.verdict == "leak", answer(device)
    [growth] = device.growths
    assert growth.frames[0].name == step.__name__
    assert growth.bytes_per_step == pytest.approx(4 * 5000 / period, rel=0.02)
    assert growth.first_step in (1, 2, 3)
    assert (device.first, device.last) == (1, 120)


@pytest.mark.parametrize("ends", [False, True], ids=["lives", "ends"])
@pytest.mark.parametrize("step", [replace_oldest, thin_out, keep_at_random, keep_nothing])
def test_what_is_released_sooner_or_later_is_not_accused(
    step: Step, ends: bool, tmp_path: Path
) -> None:
    device = recorded(step, tmp_path / "a.pickle", ends=ends)
    assert device.verdict != "leak", answer(device)


def test_the_birth_steps_of_a_long_run(tmp_path: Path) -> None:
    # GIVEN more steps than are kept for that
    device = recorded(keep, tmp_path / "a.pickle", steps=10_000)
    blocks = load(tmp_path / "a.pickle").blocks
    births = sorted(blocks.birth_step[blocks.size_bytes == 4 * 5000].tolist())
    # THEN the step of each block is known to a two-thousandth
    assert len(births) == 10_000
    assert all(0 <= step - birth <= 5 for step, birth in enumerate(births, 1))
    assert len({*births}) > 2000
    assert device.verdict == "leak"


def test_a_file_without_blocks(tmp_path: Path) -> None:
    # GIVEN a ring that lost its beginning, and no block that lives
    def step(kept: list[torch.Tensor], number: int) -> None:
        kept[:] = [] if number == 120 else [torch.empty(5000)]

    assert recorded(step, tmp_path / "a.pickle").verdict != "leak"
