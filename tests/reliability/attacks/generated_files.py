"""Generated files: random opcodes of pickle, and random programs in every wrapping.

Half of the files consist of random opcodes with random arguments, behind a head that makes them
look like a snapshot. The other half are recordings of random programs, either consistent or with
events removed, doubled and exchanged. They are pickled in each protocol, by both of Python's
picklers, and compressed with gzip or zstd, in several members, twice, or with other bytes before or
after. Every command is run.
"""

import gzip
import io
import pickle
import pickletools
import random
from typing import Any

import pyarrow
from attack import Budget, Found
from hostile import PROMISE, attack_files
from synthetic_snapshots import Program, file_metadata

__all__ = ["PROMISE"]

DEVICE = "none"
SECONDS = 30

HEADS = (
    b"\x80\x04",
    b"\x80\x04}(\x8c\x08segments](",
    b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](](",
    b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces]\x8c\x08pytracer",
)
KEYS = ("action", "addr", "size", "frames", "alloc", "blocks", "state", "address", "total_size")
OPCODES = [opcode for opcode in pickletools.opcodes if opcode.proto >= 1 or opcode.arg is None]
PICKLERS: tuple[Any, ...] = (pickle.Pickler, pickle._Pickler)  # type: ignore[attr-defined]


def opcodes(rng: random.Random) -> bytes:
    """Return a head and random opcodes."""
    parts = [rng.choice(HEADS)]
    for _ in range(rng.choice((5, 30, 200, 2000))):
        kind = rng.random()
        if kind < 0.3:
            key = rng.choice(KEYS).encode()
            parts.append(b"\x8c" + bytes([len(key)]) + key + b"\x94")
        elif kind < 0.5:
            parts.append(rng.choice((b"K\x01", b"J\xff\xff\xff\xff", b"}", b"]", b"(", b")", b"N")))
        elif kind < 0.6:
            parts.append(b"h" + bytes([rng.randrange(20)]))
        else:
            opcode = rng.choice(OPCODES)
            size = 0 if opcode.arg is None else max(opcode.arg.n, 0) or rng.randrange(10)
            parts.append(opcode.code.encode("latin1") + rng.randbytes(size))
    return b"".join(parts) + b"."


def program(rng: random.Random) -> dict[str, Any]:
    """Return a recording of a random program."""
    recording = Program(device=rng.randrange(3))
    alive: list[int] = []
    for number in range(rng.choice((0, 5, 50, 400))):
        if alive and rng.random() < 0.4:
            recording.free(alive.pop(rng.randrange(len(alive))), rng.choice(("", "rollout")))
        else:
            frames = [("/home/me/a.py", "f", rng.randrange(5)) for _ in range(rng.randrange(4))]
            requested = rng.choice((1, 511, 512, 4096, 2**20))
            alive.append(recording.alloc(requested, *frames, events=rng.random() < 0.9))
        if rng.random() < 0.05:
            recording.out_of_memory(2**30, rng.randrange(2**30))
        if rng.random() < 0.05:
            recording.annotate(f"ProfilerStep#{number}", rng.choice(("START", "END")))
    if rng.random() < 0.5:
        recording.metadata = file_metadata(rng.choice(("cuda", "npu", "cpu")))
    for _ in range(rng.choice((0, 0, 1, 5))):
        if recording.events:
            at = rng.randrange(len(recording.events))
            event = recording.events.pop(at)
            recording.events[rng.randrange(len(recording.events) + 1) : 0] = [
                event
            ] * rng.randrange(3)
    return recording.content()


def wrapped(content: Any, rng: random.Random) -> bytes:
    """Pickle and wrap the content in random ways."""
    file = io.BytesIO()
    rng.choice(PICKLERS)(file, protocol=rng.choice((1, 2, 3, 4, 5))).dump(content)
    data = file.getvalue()
    kind = rng.randrange(8)
    if kind == 0:
        return gzip.compress(data, rng.randrange(10))
    if kind == 1:
        return pyarrow.Codec("zstd").compress(data, asbytes=True)
    if kind == 2:
        half = rng.randrange(len(data))
        return gzip.compress(data[:half]) + gzip.compress(data[half:])
    if kind == 3:
        return gzip.compress(gzip.compress(data))
    if kind == 4:
        return data + rng.randbytes(rng.randrange(100))
    if kind == 5:
        return rng.randbytes(rng.randrange(1, 10)) + data
    return data


def attack(budget: Budget) -> Found:
    def make(number: int) -> tuple[str, bytes]:
        rng = random.Random(f"{budget.seed} {number}")
        content = opcodes(rng) if rng.random() < 0.5 else wrapped(program(rng), rng)
        return f"seed {budget.seed}, file {number}", content

    return attack_files(budget, "generated files", make)
