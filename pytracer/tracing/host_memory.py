"""The host memory of the process at its steps: what grows there is in no allocator's recording."""

import contextlib
import os

MOST_SAMPLES = 512

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class HostMemory:
    """How much host memory the process had when its steps began.

    Attributes:
        samples: Pairs of a step and bytes, less than `MOST_SAMPLES`: then every second one is
            dropped, and every second step is noted from then on.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.samples: list[tuple[int, int]] = []
        self._every = 1

    def note(self, step: int) -> None:
        """Note the memory of the process as that of a step. Takes about 20 us, and never raises."""
        if self.samples and step <= self.samples[-1][0]:  # the steps have begun anew
            self._clear()
        if step % self._every:
            return
        with contextlib.suppress(OSError, ValueError):
            self.samples.append((step, _private_bytes()))
        if len(self.samples) == MOST_SAMPLES:
            self._every *= 2
            self.samples = [pair for pair in self.samples if pair[0] % self._every == 0]


def _private_bytes() -> int:
    """Return the resident memory without that of files, which the kernel can drop: see proc(5)."""
    with open("/proc/self/statm", "rb") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * _PAGE_BYTES
