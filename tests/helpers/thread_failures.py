"""Run work on several threads at once, and collect their exceptions, for the tests."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def failures_of(work: Callable[[], object], count: int = 4) -> list[BaseException]:
    """Run `work` on `count` threads to its end, and return the exceptions that it raised."""
    failures: list[BaseException] = []

    def collect() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=collect) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


@contextmanager
def repeated(*bodies: Callable[[], object]) -> Iterator[None]:
    """Run each body again and again in a thread of its own, and raise its exception at the end."""
    ended, failures = threading.Event(), []

    def run(body: Callable[[], object]) -> None:
        try:
            while not ended.is_set():
                body()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=[body]) for body in bodies]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    for failure in failures:
        raise failure
