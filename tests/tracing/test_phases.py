"""Tests of phases and of the phase that each event carries."""

import asyncio
import inspect
import pickle
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
import viewers
from processes import run

from pytracer import Tracer, annotate
from pytracer.errors import ConfigError


def phase_of(size: int, tracer: Tracer) -> set[str]:
    """Return the phases of the allocations of this size."""
    return {
        event["user_metadata"]
        for event in tracer.snapshot()["device_traces"][0]
        if event["action"] == "alloc" and event["size"] == size
    }


def test_events_carry_the_innermost_phase() -> None:
    # GIVEN nested phases
    with Tracer(device="cpu") as tracer:
        torch.empty(1001, dtype=torch.uint8)
        with annotate("rollout"):
            torch.empty(1002, dtype=torch.uint8)
            with annotate("généré"):
                torch.empty(1003, dtype=torch.uint8)
            torch.empty(1004, dtype=torch.uint8)
        torch.empty(1005, dtype=torch.uint8)
    # THEN each allocation has its innermost phase, and the outer phases
    events = tracer.events()
    paths = {int(e["size_bytes"]): tracer.phase(e["phase"]) for e in events if e["size_bytes"]}
    assert (paths[1001], paths[1002], paths[1003]) == ((), ("rollout",), ("rollout", "généré"))
    found = {size: phase_of(size, tracer) for size in range(1001, 1006)}
    assert found == {1001: {""}, 1002: {"rollout"}, 1003: {"généré"}, 1004: {"rollout"}, 1005: {""}}


def test_annotations_agree_with_the_events() -> None:
    # GIVEN phases; one began before the recording, one has not ended
    def allocate() -> None:
        time.sleep(1e-4)  # times of annotations are in microseconds
        torch.empty(1000, dtype=torch.uint8)
        time.sleep(1e-4)

    before = annotate("before")
    before.__enter__()
    with Tracer(device="cpu") as tracer:
        allocate()
        for _ in range(3):
            with annotate("outer"):
                allocate()
                with annotate("inner"):
                    allocate()
                allocate()
        before.__exit__(None, None, None)
        allocate()
        with annotate("last"):
            allocate()
            snapshot = tracer.snapshot()
    # WHEN they are read as mosaic does, THEN each event gets the phase that it carries itself
    viewers.check_snapshot(snapshot)
    carried = [event["user_metadata"] for event in snapshot["device_traces"][0]]
    assert {*carried} == {"before", "outer", "inner", "", "last"}
    steps = {"step 1"}
    assert [name if name not in steps else "" for name in viewers.annotated(snapshot, 0)] == carried


def test_a_decorated_function_recursive_and_on_two_threads() -> None:
    # GIVEN a function that is entered recursively, and on two threads whose calls overlap
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
        thread = threading.Thread(target=run)
        thread.start()
        run()
        thread.join()
        torch.empty(2002, dtype=torch.uint8)
    assert (phase_of(2000, tracer), phase_of(2002, tracer)) == ({"role"}, {""})


def test_the_function_s_result_and_error_pass() -> None:
    @annotate("phase")
    def work(fail: bool) -> int:
        if fail:
            raise KeyError("no")
        return 7

    assert work(False) == 7
    with pytest.raises(KeyError, match="no"):
        work(True)


def test_one_object_on_several_threads() -> None:
    # GIVEN two threads that enter the same object; the first to enter is the first to leave
    shared, entered, left = annotate("shared"), threading.Event(), threading.Event()

    def run() -> None:
        with annotate("second"), shared:
            entered.set()
            left.wait(60)
            torch.empty(5000, dtype=torch.uint8)
        torch.empty(5001, dtype=torch.uint8)

    with Tracer(device="cpu") as tracer:
        second = threading.Thread(target=run)
        with annotate("first"):
            with shared:
                second.start()
                entered.wait(60)
            torch.empty(5002, dtype=torch.uint8)
            left.set()
            second.join()
    # THEN each thread leaves its own phase
    found = [phase_of(size, tracer) for size in range(5000, 5003)]
    assert found == [{"shared"}, {""}, {"first"}]


def test_coroutine_functions_are_in_their_phase_while_they_run() -> None:
    # GIVEN two coroutines that alternate on one thread
    @annotate("even")
    async def even(rounds: int) -> str:
        for _ in range(rounds):
            torch.empty(6000, dtype=torch.uint8)
            await asyncio.sleep(0)
        return "result"

    @annotate("odd")
    async def odd(rounds: int) -> None:
        for _ in range(rounds):
            torch.empty(6001, dtype=torch.uint8)
            await asyncio.sleep(0)
        raise KeyError("no")

    async def undecorated(rounds: int) -> None:
        for _ in range(rounds):
            torch.empty(6002, dtype=torch.uint8)
            await asyncio.sleep(0)

    async def main() -> list[object]:
        return await asyncio.gather(even(3), odd(3), undecorated(3), return_exceptions=True)

    with Tracer(device="cpu") as tracer:
        results = asyncio.run(main())
    # THEN each has its own phase, and returns its result or raises its error
    found = [phase_of(size, tracer) for size in range(6000, 6003)]
    assert found == [{"even"}, {"odd"}, {""}]
    assert results[0] == "result"
    assert isinstance(results[1], KeyError)
    assert inspect.iscoroutinefunction(even)
    assert even.__name__ == "even"


def test_a_cancelled_coroutine_cleans_up_in_its_phase() -> None:
    @annotate("cancelled")
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            torch.empty(6100, dtype=torch.uint8)

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with Tracer(device="cpu") as tracer:
        asyncio.run(main())
    assert phase_of(6100, tracer) == {"cancelled"}


def test_generator_functions_are_in_their_phase_while_they_run() -> None:
    # GIVEN a generator that receives values and exceptions
    @annotate("generator")
    def generate() -> Generator[int, int, str]:
        try:
            sent = yield 1
            torch.empty(7000, dtype=torch.uint8)
            try:
                yield sent + 1
            except KeyError:
                torch.empty(7001, dtype=torch.uint8)
            yield 9
            return "result"
        finally:
            torch.empty(7002, dtype=torch.uint8)

    with Tracer(device="cpu") as tracer:
        generator = generate()
        assert next(generator) == 1
        torch.empty(7003, dtype=torch.uint8)
        assert generator.send(5) == 6
        assert generator.throw(KeyError()) == 9
        with pytest.raises(StopIteration, match="result"):
            next(generator)
        # AND a generator that is closed
        closed = generate()
        next(closed)
        closed.close()
    # THEN the generator receives them in its phase
    found = [phase_of(size, tracer) for size in range(7000, 7004)]
    assert found == [{"generator"}] * 3 + [{""}]
    assert inspect.isgeneratorfunction(generate)


def test_async_generator_functions_are_in_their_phase_while_they_run() -> None:
    # GIVEN an async generator that awaits and receives exceptions
    @annotate("generator")
    async def generate() -> AsyncGenerator[int, None]:
        try:
            yield 1
            torch.empty(8000, dtype=torch.uint8)
            await asyncio.sleep(0)
            try:
                yield 2
            except KeyError:
                torch.empty(8001, dtype=torch.uint8)
            yield 3
        finally:
            await asyncio.sleep(0)
            torch.empty(8002, dtype=torch.uint8)

    async def main() -> None:
        assert [value async for value in generate()] == [1, 2, 3]
        generator = generate()
        assert await anext(generator) == 1
        torch.empty(8003, dtype=torch.uint8)
        assert await anext(generator) == 2
        assert await generator.athrow(KeyError()) == 3
        await generator.aclose()

    with Tracer(device="cpu") as tracer:
        asyncio.run(main())
    # THEN it runs in its phase
    found = [phase_of(size, tracer) for size in range(8000, 8004)]
    assert found == [{"generator"}] * 3 + [{""}]
    assert inspect.isasyncgenfunction(generate)


def test_what_a_decorated_generator_yields_is_not_kept() -> None:
    @annotate("phase")
    def generate() -> Generator[torch.Tensor, None, None]:
        yield torch.empty(1)

    @annotate("phase")
    async def generate_async() -> AsyncGenerator[torch.Tensor, None]:
        yield torch.empty(1)

    async def main() -> None:
        generator = generate_async()
        yielded = weakref.ref(await anext(generator))
        assert yielded() is None

    generator = generate()
    yielded = weakref.ref(next(generator))
    assert yielded() is None
    asyncio.run(main())


def test_compiled_code_enters_no_phase() -> None:
    # GIVEN phases within code that is compiled into one graph
    @annotate("decorated")
    def decorated(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    def function(x: torch.Tensor) -> torch.Tensor:
        with annotate("within"):
            return decorated(x) + torch.ones(1234)

    compiled = torch.compile(function, fullgraph=True, backend="eager")
    # WHEN it runs, THEN it is compiled, and its events have the caller's phase
    with Tracer(device="cpu") as tracer, annotate("around"):
        expected = torch.ones(1234).sin() + 1
        assert torch.equal(compiled(torch.ones(1234)), expected)
    assert phase_of(4 * 1234, tracer) == {"around"}
    # AND the same functions enter their phases when they are not compiled
    with Tracer(device="cpu") as tracer:
        function(torch.ones(1234))
    assert phase_of(4 * 1234, tracer) == {"", "within", "decorated"}


@pytest.mark.parametrize("name", [None, "", 3, ["a"], len])
def test_a_phase_without_a_name(name: Any) -> None:
    # A bare `@annotate` would otherwise be taken for a call
    with pytest.raises(
        ConfigError, match=r'annotate\(.*\) has no name: give it one, as in annotate\("a"'
    ):
        annotate(name)


def test_more_names_than_there_is_room_for(tmp_path: Path) -> None:
    program = """
import logging, torch, pytracer
with pytracer.Tracer("x.pickle", device="cpu") as tracer:
    for number in range(70_000):
        with pytracer.annotate(f"iteration {number}"):
            pass
    with pytracer.annotate("iteration 5"):
        torch.empty(77, dtype=torch.uint8)
"""
    done = run(program, cwd=tmp_path)
    # THEN that is logged once and counted, and known phases still work
    assert done.stderr.count("there are too many phase names") == 1
    snapshot = pickle.loads((tmp_path / "x.pickle").read_bytes())
    assert snapshot["pytracer"]["phases"]["names_dropped"] == 70_000 - 65_535
    (event,) = (
        e for e in snapshot["device_traces"][0] if (e["action"], e["size"]) == ("alloc", 77)
    )
    assert event["user_metadata"] == "iteration 5"


def test_one_object_entered_on_one_thread_and_left_on_another() -> None:
    phase = annotate("phase")
    with Tracer(device="cpu") as tracer:
        phase.__enter__()
        leaves = threading.Thread(target=phase.__exit__, args=(None, None, None))
        leaves.start()
        leaves.join()
        torch.empty(5100, dtype=torch.uint8)
    assert phase_of(5100, tracer) == {""}
