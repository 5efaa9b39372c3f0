"""`fuzz_values.py COUNT SEED` loads COUNT generated snapshots whose values refer to each other.

Every file must either load or raise PytracerError, in a bounded time and within a memory bound that
is a multiple of the file's size. The seed of a failing file is printed: `fuzz_values.py 1 SEED`
repeats it. (tests/cpp/fuzz_reader.cpp reads mutated snapshots, without creating Python values.)
"""

import gzip
import random
import struct
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from pytracer.errors import PytracerError
from pytracer.reading import load

Result = TypeVar("Result")

MOST_SECONDS = 2.0
SPARE_BYTES = 56 << 20  # the reader's own 16 MiB, twice, and room for Python and a decompressor
KEYS = ("pytracer", "allocator_settings", "external_annotations")


def peak_of(function: Callable[[], Result]) -> tuple[int, Result]:
    """Return the growth of this process's peak memory while a function ran, and its result.

    `ru_maxrss` cannot be used: a process inherits it from its parent, across fork and exec.
    """
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # resets the peak to the current resident memory
    before = _peak_bytes()
    result = function()
    return _peak_bytes() - before, result


def _peak_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return int(file.read().partition("VmHWM:")[2].split()[0]) * 1024


class Values:
    """Random values in pickle's opcodes, with references to earlier ones."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._remembered = 0

    def value(self, depth: int = 0) -> bytes:
        kinds = [self._small, self._number, self._text, self._reference]
        if depth < 6:
            kinds += [self._list, self._tuple, self._dict, self._repeated]
        pickled = self._rng.choice(kinds)(depth)
        if self._rng.random() < 0.4:
            pickled += b"\x94"
            self._remembered += 1
        return pickled

    def text(self, text: str) -> bytes:
        encoded = text.encode()
        return b"X" + len(encoded).to_bytes(4, "little") + encoded

    def _values(self, depth: int, most: int) -> list[bytes]:
        return [self.value(depth + 1) for _ in range(self._rng.randrange(most))]

    def _small(self, _: int) -> bytes:
        return self._rng.choice([b"N", b"\x88", b"\x89", b"K\x07", b"]", b")", b"}"])

    def _number(self, _: int) -> bytes:
        size = self._rng.choice([1, 4, 8, 16])
        long = b"\x8a" + bytes([size]) + self._rng.randbytes(size)
        return self._rng.choice([long, b"G" + struct.pack(">d", self._rng.random())])

    def _text(self, _: int) -> bytes:
        text = self._rng.choice(["x", "name", "é", "\N{GRINNING FACE}x"])
        return self.text(text * self._rng.choice([1, 7, 1000, 20_000]))

    def _reference(self, _: int) -> bytes:
        if not self._remembered:
            return b"N"
        return b"j" + self._rng.randrange(self._remembered).to_bytes(4, "little")

    def _list(self, depth: int) -> bytes:
        return b"](" + b"".join(self._values(depth, 6)) + b"e"

    def _tuple(self, depth: int) -> bytes:
        return b"(" + b"".join(self._values(depth, 6)) + b"t"

    def _dict(self, depth: int) -> bytes:
        key = lambda: self._rng.choice([self.text(str(self._rng.randrange(9))), b"K\x07", b"N"])  # noqa: E731
        return b"}(" + b"".join(key() + value for value in self._values(depth, 6)) + b"u"

    def _repeated(self, depth: int) -> bytes:
        times = self._rng.choice([10, 1000, 20_000])
        return b"](" + self._reference(depth) * times + b"e"


def generated_file(rng: random.Random) -> bytes:
    """Return a snapshot with random values; two in five are mutated, three in ten compressed."""
    values = Values(rng)
    data = b"\x80\x04}(" + values.text("segments") + b"]" + values.text("device_traces") + b"]"
    for key in KEYS:
        value = values.value()
        data += values.text(key)
        if rng.random() < 0.9:  # mostly the type that the key has in real files
            value = (
                b"](" + value + b"e" if key == KEYS[2] else b"}" + values.text("x") + value + b"s"
            )
        data += value
    data += b"u."
    if rng.random() < 0.4:
        data = mutated(data, rng)
    return gzip.compress(data, rng.choice([1, 9])) if rng.random() < 0.3 else data


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with one to three mutations: a part changed, removed, or repeated."""
    for _ in range(rng.randrange(1, 4)):
        at, count = rng.randrange(len(data)), rng.randrange(200)
        middle = rng.choice(
            [
                rng.randbytes(1) + data[at + 1 : at + count],
                b"",
                data[at : at + count] * 2,
                data[at : at + count] * 100,
            ]
        )
        data = data[:at] + middle + data[at + count :]
    return data


def try_file(seed: str) -> bool:
    """Load the file of this seed, check time and memory, and return whether it could be read."""
    data = generated_file(random.Random(seed))
    begin = time.process_time()

    def is_read() -> bool:
        try:
            load(data)
        except PytracerError:
            return False
        return True

    peak, result = peak_of(is_read)
    times = 300 if data.startswith(b"\x1f\x8b") else 20
    assert peak < SPARE_BYTES + times * len(data), f"{peak} bytes for a file of {len(data)}"
    seconds = time.process_time() - begin
    assert seconds < MOST_SECONDS, f"{seconds} s for a file of {len(data)} bytes"
    return result


def main() -> None:
    count, seed = int(sys.argv[1]), sys.argv[2]
    read = 0
    for i in range(count):
        file_seed = f"{seed}.{i}" if count > 1 else seed
        try:
            read += try_file(file_seed)
        except Exception:
            print(f"fuzz_values.py 1 {file_seed}", file=sys.stderr)
            raise
    print(read, count - read)


if __name__ == "__main__":
    main()
