"""Run work on several threads at once, and collect their exceptions, for the tests."""

import threading
from collections.abc import Callable


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
