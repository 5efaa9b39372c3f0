"""Threads that allocate without Python: churn.cpp, compiled for the running torch."""

import ctypes
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from pytracer.backends.hook_compile import HookCompiler

SOURCE = Path(__file__).parent / "churn.cpp"
POINTER, NUMBER, TEXT = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p
SIGNATURES = {
    "churn_start": (POINTER, [TEXT, *[NUMBER] * 4]),
    "churn_allow": (None, [POINTER, NUMBER]),
    "churn_pairs": (NUMBER, [POINTER]),
    "churn_end": (None, [POINTER]),
    "churn_samples": (NUMBER, [POINTER, POINTER]),
    "churn_delete": (None, [POINTER]),
    "wait_in_c": (None, [NUMBER, POINTER, ctypes.POINTER(NUMBER), POINTER]),
    "allocate_and_free": (None, [TEXT, NUMBER]),
}
"""The results and arguments of the library's functions."""


class GilHold(ctypes.Structure):
    """Counts and times of a period in which a thread held the GIL."""

    began_ns: int  # wall time, nanoseconds since the epoch
    ended_ns: int
    pairs: int  # pairs of the churn
    counted: int  # by a thread that needs the GIL
    _fields_ = [(name, ctypes.c_uint64) for name in ("began_ns", "ended_ns", "pairs", "counted")]


class Extension:
    """The compiled library, in `folder`.

    Args:
        folder: The folder of the compiled library.
        is_compiled: Whether another process has compiled it there.
    """

    def __init__(self, folder: Path, is_compiled: bool = False) -> None:
        self.folder = folder
        library = folder / "churn.so"
        if not is_compiled:
            self._compile(library)
        self.without_gil = ctypes.CDLL(str(library))
        self.with_gil = ctypes.PyDLL(str(library))  # the same functions, called with the GIL held
        for functions in (self.without_gil, self.with_gil):
            for name, (result, arguments) in SIGNATURES.items():
                function = getattr(functions, name)
                function.restype, function.argtypes = result, arguments

    def allocate_and_free_with_gil(self, device: str, size: int) -> None:
        """Allocate and free on the calling thread, which keeps the GIL even to wait for a lock."""
        self.with_gil.allocate_and_free(device.encode(), size)

    def _compile(self, library: Path) -> None:
        headers = Path(torch.__file__).parent / "include"
        libraries = Path(torch.__file__).parent / "lib"
        # The hooks of these tests are the wheel's, and PYTRACER_BUILD forbids compiling others.
        compiler = HookCompiler(environment={**os.environ, "PYTRACER_BUILD": "auto"})
        command = [*compiler.find_command(), "-O2", "-shared", "-fPIC", "-std=c++20"]
        command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
        command += [f"-I{headers}", str(SOURCE), f"-L{libraries}", "-lc10", "-o", str(library)]
        subprocess.run(command, check=True)


class Churn:
    """A C++ thread that allocates and frees on one device until its allowance of pairs is used up.

    Args:
        extension: The library with the thread's code.
        device: A device name such as "cuda:1".
        sizes: The smallest and the largest size of a block, in bytes.
        held: The number of blocks that the thread holds.
        samples: The number of timed pairs, counted from the first pair.
    """

    def __init__(
        self,
        extension: Extension,
        device: str,
        sizes: tuple[int, int] = (1, 1 << 16),
        held: int = 1,
        samples: int = 0,
    ) -> None:
        self._extension = extension
        self._library = extension.without_gil
        self._samples = samples
        self._allowed = 0
        self._churn = self._library.churn_start(device.encode(), *sizes, held, samples)

    def allow(self, pairs: int) -> None:
        self._allowed += pairs
        self._library.churn_allow(self._churn, pairs)

    @property
    def pairs(self) -> int:
        done: int = self._library.churn_pairs(self._churn)
        assert done != 2**64 - 1, "the thread was ended by an exception"
        return done

    def finish(self, seconds: float = 600) -> None:
        """Wait until the allowance is used up."""
        deadline = time.monotonic() + seconds
        while self.pairs < self._allowed:
            assert time.monotonic() < deadline, f"{self.pairs} pairs of {self._allowed}"
            time.sleep(0.0002)

    def hold_gil(self, seconds: float, counter: ctypes.c_uint64) -> GilHold:
        """Hold the GIL in C, and return how far this thread and `counter` got in the meantime."""
        hold = GilHold()
        microseconds = round(seconds * 1_000_000)
        wait = self._extension.with_gil.wait_in_c
        wait(microseconds, self._churn, counter, ctypes.byref(hold))
        return hold

    def end(self) -> npt.NDArray[np.uint32]:
        """End the thread and free its blocks.

        Returns:
            Nanoseconds of the timed pairs, of shape (n, 2): the thread's CPU time, and wall time.
        """
        self._library.churn_end(self._churn)
        samples = np.zeros((self._samples, 2), np.uint32)
        count = self._library.churn_samples(self._churn, samples.ctypes.data)
        self._library.churn_delete(self._churn)
        self._churn = None
        return samples[:count]
