"""Test until when the program kept memory that was freed before the file was written."""

import pickle
from collections.abc import Callable

import pytest
import torch

import pytracer
from pytracer.analysis import explain, who_holds
from pytracer.analysis.answer_words import answer_of
from pytracer.reading import load

KEPT, OTHER = 2_000_000, 1_000_000


def make(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.uint8)


def keeps_until_it_returns() -> None:
    kept = [make(KEPT) for _ in range(3)]
    make(OTHER)
    kept[0].fill_(1)


def replaces_in_a_loop() -> None:
    for _ in range(3):
        kept = make(KEPT)
        make(OTHER)
    del kept  # so that this function is told from one that returns


def replaces_in_a_ring() -> None:
    ring: list[torch.Tensor | None] = [None] * 3
    for step in range(9):
        ring[step % 3] = makes_one_of_two()


def makes_one_of_two() -> torch.Tensor:
    kept = make(KEPT)
    make(OTHER)
    return kept


def holders(
    program: Callable[[], None], entries: int = 100_000
) -> tuple[dict[str | None, int], str]:
    """Return who held how much at the peak, and the answer as text."""
    with pytracer.Tracer(device="cpu", trace_alloc_max_entries=entries) as tracer:
        program()
        make(100)
        snapshot = load(pickle.dumps(tracer.snapshot(), protocol=4))
    (held,) = who_holds(snapshot, at="peak", by="holder")
    answer = str(answer_of(explain(snapshot)[0]))
    return {group.holder: group.requested_bytes for group in held.groups}, answer


@pytest.mark.parametrize("entries", [100_000, 7], ids=["", "without its allocations"])
def test_what_a_function_kept_until_it_returned(entries: int) -> None:
    found, answer = holders(keeps_until_it_returns, entries)
    assert found["until keeps_until_it_returns() returned"] == 3 * KEPT
    assert "kept until keeps_until_it_returns() returned" in " ".join(answer.split())


def test_a_line_that_replaced_what_it_had() -> None:
    found, _ = holders(replaces_in_a_loop)
    begin = replaces_in_a_loop.__code__.co_firstlineno
    until = "until replaces_in_a_loop() released it (test_releases.py:{})".format
    assert {key for key, size in found.items() if size >= KEPT} <= {
        until(begin + 2),
        until(begin + 4),
    }
    assert sum(found.values()) >= 2 * KEPT


@pytest.mark.parametrize("entries", [100_000, 15], ids=["", "without the first allocations"])
def test_a_line_that_calls_again_and_again(entries: int) -> None:
    found, _ = holders(replaces_in_a_ring, entries)
    line = replaces_in_a_ring.__code__.co_firstlineno + 3
    until = f"until replaces_in_a_ring() released it (test_releases.py:{line})"
    # The first block of the ring is released by the first end that releases anything.
    assert found[until] >= 2 * KEPT
