"""Phases, as events carry them."""

import threading
from collections.abc import Callable

import pytest
import torch

from pytracer import Tracer, annotate


def phase_of(size: int, tracer: Tracer) -> set[str]:
    """The phases of the allocations of that size."""
    return {
        event["user_metadata"]
        for event in tracer.snapshot()["device_traces"][0]
        if event["action"] == "alloc" and event["size"] == size
    }


def test_events_carry_the_innermost_phase() -> None:
    # GIVEN phases within phases
    with Tracer(device="cpu") as tracer:
        torch.empty(1001, dtype=torch.uint8)
        with annotate("rollout"):
            torch.empty(1002, dtype=torch.uint8)
            with annotate("généré"):
                torch.empty(1003, dtype=torch.uint8)
            torch.empty(1004, dtype=torch.uint8)
        torch.empty(1005, dtype=torch.uint8)
    # THEN each allocation has its own
    found = {size: phase_of(size, tracer) for size in range(1001, 1006)}
    assert found == {1001: {""}, 1002: {"rollout"}, 1003: {"généré"}, 1004: {"rollout"}, 1005: {""}}


def test_a_decorated_function_recursive_and_on_two_threads() -> None:
    # GIVEN a function that is entered again while it runs, and on two threads whose calls overlap
    inside, done = threading.Barrier(2), threading.Barrier(2)

    @annotate("role")
    def role(depth: int) -> None:
        if depth:
            role(depth - 1)
            return
        inside.wait()
        torch.empty(2000, dtype=torch.uint8)
        done.wait()

    def run() -> None:
        role(3)
        torch.empty(2001, dtype=torch.uint8)

    with Tracer(device="cpu") as tracer:
        other = threading.Thread(target=run)
        other.start()
        run()
        other.join()
        torch.empty(2002, dtype=torch.uint8)
    assert (phase_of(2000, tracer), phase_of(2002, tracer)) == ({"role"}, {""})


def test_threads_keep_theirs_apart_and_others_get_the_last() -> None:
    # GIVEN two threads in phases of their own, at the same time
    entered, allocated = threading.Barrier(3), threading.Barrier(3)

    def run(name: str, size: int) -> Callable[[], None]:
        def body() -> None:
            with annotate(name):
                entered.wait()
                torch.empty(size, dtype=torch.uint8)
                allocated.wait()

        return body

    with Tracer(device="cpu") as tracer:
        threads = [threading.Thread(target=run(f"role {i}", 3000 + i)) for i in range(2)]
        for thread in threads:
            thread.start()
        entered.wait()
        torch.empty(3002, dtype=torch.uint8)
        allocated.wait()
        for thread in threads:
            thread.join()
    assert [phase_of(3000 + i, tracer) for i in range(2)] == [{"role 0"}, {"role 1"}]
    assert phase_of(3002, tracer) in ({"role 0"}, {"role 1"})


def test_the_function_s_result_and_error_pass() -> None:
    @annotate("phase")
    def work(fail: bool) -> int:
        if fail:
            raise KeyError("no")
        return 7

    assert work(False) == 7
    with pytest.raises(KeyError, match="no"):
        work(True)
