"""Does a search for the program's objects harm the program, and does it find them all?"""

import gc
import sys
import threading
import weakref
from typing import Any

import pytest
from torch import nn

from pytracer import _core
from pytracer.owners.registry import Registry


def test_threads_may_make_tuples_while_objects_are_searched() -> None:
    # GIVEN a heap of many objects, and threads that make tuples of unknown length
    heap = [[number] for number in range(200_000)]
    is_over = threading.Event()
    errors: list[SystemError] = []

    def make_tuples() -> None:
        try:
            while not is_over.is_set():
                tuple(str(number) for number in range(500))
        except SystemError as error:  # something else refers to an unfinished tuple
            errors.append(error)

    threads = [threading.Thread(target=make_tuples) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        # WHEN modules and optimizers are searched for
        for _ in range(5):
            Registry().search()
    finally:
        is_over.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()
    # THEN no thread fails
    assert (errors, len(heap)) == ([], 200_000)


def test_instances_of_types_are_found_without_code_of_the_program() -> None:
    class Meta(type):
        def __hash__(cls) -> int:
            raise AssertionError

        def __eq__(cls, other: object) -> bool:
            raise AssertionError

        def __subclasscheck__(cls, other: type) -> bool:
            raise AssertionError

    class Base(metaclass=Meta):
        pass

    class Derived(Base):
        pass

    class Pretends:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise AssertionError

    # GIVEN objects whose types do not want to be looked at
    base, derived, other = Base(), Derived(), Pretends()
    # WHEN they are searched for, THEN those of the types are found, and their code did not run
    (found,) = _core.live_references(Base)
    assert {number for number, _ in found} == {id(base), id(derived)}
    first, second = _core.live_references(Derived, Pretends)
    assert [number for number, _ in first] == [id(derived)]
    assert [(number, reference() is other) for number, reference in second] == [(id(other), True)]
    assert _core.live_references() == []


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_search_leaves_the_collector_as_it_was(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        # GIVEN an object in a cycle, which the collector alone frees
        node = nn.Identity()
        node.itself = [node]
        watched = weakref.ref(node)
        # WHEN it is found, and dropped
        assert any(found is watched for _, found in _core.live_references(nn.Identity)[0])
        del node
        # THEN the collector is as it was, and nothing else refers to the object
        assert gc.isenabled() == is_enabled
        gc.collect()
        assert watched() is None
    finally:
        (gc.enable if was_enabled else gc.disable)()
