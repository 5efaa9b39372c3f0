"""Test `show --leaks` on the programs of leak_programs.py: the oracle is how each was made."""

from pathlib import Path

import leak_programs
import pytest
from leakless_programs import INNOCENTS

from pytracer.analysis import find_leaks
from pytracer.analysis.leaks.results import DeviceLeaks, answer, holder_of, leaks_of
from pytracer.reading import load
from pytracer.text import size

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[1] / "answers.md"
VERDICTS = {"none": "none", "unknown": "can't tell"}
SAMPLE = {
    *("validation_losses", "concatenated_predictions", "parameter_groups", "embedding_that_grows"),
    *("two_lists", "deque_that_fills", "queue_that_fills", "cache_that_fills", "one_long_answer"),
    *("one_long_answer_by_concatenation", "metrics_of_a_long_epoch", "generation"),
    *("metrics_of_the_epoch_before", "layers_that_are_unfrozen"),
}
"""The programs of `make test`."""


def search(name: str, folder: Path) -> DeviceLeaks:
    path = leak_programs.run(name, "cpu", folder)
    (device,) = find_leaks(load(path)).devices
    return device


def some(names: list[str]) -> list[object]:
    return [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.long) for name in names]


@pytest.mark.parametrize("name", some([*leak_programs.TRUTHS]))
def test_a_leak_is_found(name: str, tmp_path: Path) -> None:
    truth = leak_programs.TRUTHS[name]
    device = search(name, tmp_path)
    leaks = leaks_of(device)
    assert device.verdict == "leak", answer(device)
    # THEN the answer has its line, its bytes a step, and what keeps them
    assert truth.line in [frame.line for frame in leaks[0].frames]
    assert f"leak_programs.py:{truth.line}" in answer(device)
    assert device.bytes_per_step == pytest.approx(truth.rate, rel=0.02)
    assert truth.holder in (holder_of(leaks) or "")
    assert device.matters


@pytest.mark.parametrize("name", some([*INNOCENTS]))
def test_no_other_program_is_accused(name: str, tmp_path: Path) -> None:
    device = search(name, tmp_path)
    assert device.verdict == INNOCENTS[name], answer(device)


def test_the_page_has_each_program() -> None:
    page = PAGE.read_text()
    for name, truth in leak_programs.TRUTHS.items():
        holder = f"`{truth.holder.strip()}`" if truth.holder else "not found"
        what = leak_programs.PROGRAMS[name].__doc__
        assert f"| {what} | {size(round(truth.rate))} | {holder} |\n" in page
    for name, verdict in INNOCENTS.items():
        assert f"| {leak_programs.PROGRAMS[name].__doc__} | {VERDICTS[verdict]} |\n" in page
