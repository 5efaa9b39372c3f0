"""Snapshots with mutated bytes and values.

Each case takes one of the golden files (of every format version of pytracer, and of PyTorch 1.13 to
2.15) and damages it. In half of the cases bytes are flipped, overwritten, cut out, doubled or
replaced by pieces of another file. In the other half values are changed, removed, doubled and
moved, and the file is pickled again. Some files are then compressed, or damaged after compression.
Every command is run.
"""

import gzip
import pickle
import random

from analysis.test_any_snapshot import distorted_content
from attack import Budget, Found
from hostile import GOLDEN, PROMISE, attack_files

__all__ = ["PROMISE"]

DEVICE = "none"
SECONDS = 30


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Damage the content at a few places."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(data))
        count = rng.choice((1, 1, 2, 4, 8, 64))
        kind = rng.randrange(6)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + count] = rng.randbytes(count)
        elif kind == 2 and len(data) > count + 1:
            del data[at : at + count]
        elif kind == 3:
            data[at:at] = data[at : at + count]
        elif kind == 4:
            source = rng.choice(GOLDEN).read_bytes()
            piece = rng.randrange(len(source))
            data[at : at + count] = source[piece : piece + count]
        else:
            data[at : at + count] = rng.choice((b"\xff", b"\x00", b"\x7f", b"\x80")) * count
    return bytes(data)


def mutated(rng: random.Random) -> bytes:
    """Return a damaged golden file."""
    golden = rng.choice(GOLDEN)
    if rng.random() < 0.5:
        content = pickle.dumps(distorted_content(golden, rng), protocol=rng.choice((2, 3, 4, 4, 5)))
    else:
        content = damaged(golden.read_bytes(), rng)
    if rng.random() < 0.1:
        content = gzip.compress(content, 1)
        if rng.random() < 0.5:
            content = damaged(content, rng)
    return content


def attack(budget: Budget) -> Found:
    def make(number: int) -> tuple[str, bytes]:
        rng = random.Random(f"{budget.seed} {number}")
        return f"seed {budget.seed}, file {number}", mutated(rng)

    return attack_files(budget, "mutated files", make)
