"""Compare recorded frames with the chain of `sys._getframe()`, cut at `stack_depth`."""

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from core_events import Probe, started_session
from processes import run

from pytracer import _core

Scene = Callable[[Probe], object]


def recursion(probe: Probe) -> None:
    def down(depth: int) -> None:
        probe() if depth == 0 else down(depth - 1)

    for depth in (0, 1, 5, 40, 250):
        down(depth)


def generators(probe: Probe) -> None:
    def inner() -> Iterator[int]:
        probe()
        yield 1
        probe()

    def outer() -> Iterator[int]:
        yield from inner()
        yield from (probe() or 2 for _ in range(2))

    assert list(outer()) == [1, 2, 2]


def coroutines(probe: Probe) -> None:
    async def inner() -> None:
        probe()

    async def outer() -> None:
        await inner()
        await inner()

    with contextlib.suppress(StopIteration):
        outer().send(None)


def lambdas_and_comprehensions(probe: Probe) -> None:
    (lambda: probe())()
    [probe() for _ in range(2)]
    {probe() for _ in range(2)}
    list(filter(lambda _: probe(), range(2)))
    sorted([2, 1], key=lambda _: probe() or 0)


def classes_and_calls_from_c(probe: Probe) -> None:
    class Body:
        probe()

        def __init__(self) -> None:
            probe()

        def __eq__(self, other: object) -> bool:
            probe()
            return True

        __hash__ = None  # type: ignore[assignment]

        @property
        def attribute(self) -> None:
            probe()

    assert [Body()] == [Body()]
    assert Body().attribute is None


def several_lines(probe: Probe) -> None:
    for _ in range(3):
        probe()
        probe(
            # a call that spans several lines
        )
    try:
        raise ValueError
    except ValueError:
        probe()
    finally:
        probe()


def exec_and_eval(probe: Probe) -> None:
    exec("probe()\nprobe()", {"probe": probe})
    eval("probe()", {"probe": probe})
    exec(compile("def é():\n\n probe()\né()", "<日本語 \ud800>", "exec"), {"probe": probe})


def threads(probe: Probe) -> None:
    def work() -> None:
        probe()

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()


SCENES = [
    recursion,
    generators,
    coroutines,
    lambdas_and_comprehensions,
    classes_and_calls_from_c,
    several_lines,
    exec_and_eval,
    threads,
]


@pytest.mark.parametrize("depth", [1, 2, 32, 200])
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_frames_equal_pythons(scene: Scene, depth: int) -> None:
    # GIVEN a recording
    recorder = started_session(depth=depth)
    probe = Probe()
    # WHEN the same events happen twice, so that the second time uses the cached stacks
    scene(probe)
    scene(probe)
    # THEN each event has the frames that Python reports, innermost first, cut at the depth
    probe.check(recorder, depth)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 32, 200])
def test_finalisers_run_by_the_collector(depth: int) -> None:
    # GIVEN garbage whose finalisers record events, and a collector that runs at every chance, even
    # while cells and generators are created and the frame below is not complete yet
    recorder = started_session(depth=depth)
    probe = Probe()

    class Garbage:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            probe()

    def makes_cells(a: object, b: object, c: object) -> Callable[[], object]:
        d, e = [a], [b]
        return lambda: (a, b, c, d, e)

    def makes_a_generator(a: object) -> Iterator[object]:
        b = [a]
        yield lambda: (a, b)

    def work() -> None:
        Garbage()
        makes_cells(1, 2, 3)()
        for _ in makes_a_generator(1):
            [[x] for x in ([], [])]

    def first_caller() -> None:
        work()

    def second_caller() -> None:  # the stacks differ only below the innermost frames
        work()

    thresholds = gc.get_threshold()
    # WHEN it runs
    try:
        for threshold in range(1, 12):
            gc.set_threshold(threshold)
            for _ in range(20):
                first_caller()
                second_caller()
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
    # THEN the recorded frames equal Python's
    assert len(probe.expected) == 440
    probe.check(recorder, depth)


def test_addresses_of_code_objects_are_reused() -> None:
    # GIVEN 10,000 functions compiled at run time and dropped, so that their addresses are reused
    # by functions with the same instructions but other names, files and lines
    recorder = started_session()
    probe = Probe()
    addresses = set()
    # WHEN each function records an event
    for number in range(10_000):
        scope = {"probe": probe}
        source = "\n" * (number % 7) + f"def f{number % 3}():\n probe()"
        exec(compile(source, f"<made {number}>", "exec"), scope)
        function = scope[f"f{number % 3}"]
        addresses.add(id(function.__code__))  # type: ignore[attr-defined]
        function()
        del scope, function
    # THEN no event has the frames of another function, though addresses were reused, and all line
    # numbers are known
    assert len(addresses) < 5_000
    probe.check(recorder, 32)


def test_names_and_lines_outlive_the_code() -> None:
    # GIVEN an event of a function that is freed before the stop, and one of a function freed later
    recorder = started_session()
    scope = {"probe": (probe := Probe())}
    exec(compile("\n\ndef early():\n probe()\nearly()", "<early>", "exec"), scope)
    del scope["early"]
    gc.collect()
    exec(compile("\ndef late():\n probe()\nlate()", "<late>", "exec"), scope)
    recorder.stop()
    # WHEN the second function is freed too
    del scope["late"]
    gc.collect()
    # THEN both events still have their names and lines
    probe.check(recorder, 32)


def test_frame_walk_problem_finds_none() -> None:
    # GIVEN any place in a program
    def somewhere() -> str | None:
        return _core.frame_walk_problem()

    # WHEN the frame walk is compared with Python's public interface there
    problems = [somewhere(), *(somewhere() for _ in range(1)), (lambda: somewhere())()]
    # THEN no problem is reported
    assert problems == [None, None, None]


def test_an_event_of_module_level_code_has_one_frame(tmp_path: Path) -> None:
    # WHEN module-level code records an event, THEN the event has exactly one frame
    program = (
        "from pytracer import _core\n"
        "_core.enable_stacks()\n"
        "o = _core.Session([-1], 10, 32, 2**20, 3); o.start()\n"
        "_core.testing.record(0, 64, 1)\n"
        "print([frame[1:] for frame in o.frames(int(o.events()['stack'][0]))])\n"
    )
    done = run(program, cwd=tmp_path, new=True)
    assert (done.stdout, done.stderr) == ("[('<module>', 4)]\n", "")


def test_threads_of_a_child_have_their_own_frames(tmp_path: Path) -> None:
    # GIVEN a program that records on the thread with which Python began, whose thread state is kept
    program = """
import os, threading
from core_events import Probe, started_session
from pytracer import _core

right = []

def check():
    session, probe = started_session(), Probe()
    probe()
    (lambda: probe())()  # another stack: only a walk of a wrong thread's frames takes it for known
    probe.check(session, 32)
    session.stop()
    right.append(threading.get_ident())

def fork():
    child = os.fork()
    if child != 0:
        right.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return
    # AND a child in which that thread state is freed, and new threads get the slots of the old ones
    del right[:]
    check()
    threads = [threading.Thread(target=once) for _ in range(4)]
    for thread in threads:
        thread.start()
    everyone.wait()
    for thread in threads:
        thread.join()
    os._exit(len(right))

everyone, one_at_a_time = threading.Barrier(5), threading.Lock()

def once():
    _core.testing.record(2, 64, 0)  # takes a slot
    everyone.wait()  # so that no two threads have the same one
    with one_at_a_time:
        check()

check()
thread = threading.Thread(target=fork)
thread.start()
thread.join()
print(len(right), right[-1])
"""
    # WHEN threads of the child record, THEN each event has the frames of its own thread
    done = run(program, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("2 5\n", "")
