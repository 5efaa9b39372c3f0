"""Snapshots cut short at each byte.

The files are a small snapshot in pytracer's format, the same compressed with gzip and zstd, and a
snapshot of PyTorch's own recorder. Each is truncated at each number of bytes, and every command is
run.
"""

import gzip

import pyarrow
from attack import Budget, Found
from bombs import dumped
from hostile import PROMISE, SMALL, attack_files

__all__ = ["PROMISE"]

DEVICE = "none"
SECONDS = 20


def attack(budget: Budget) -> Found:
    files = {
        "a snapshot": dumped(),
        "a snapshot compressed by gzip": gzip.compress(dumped(), mtime=0),
        "a snapshot compressed by zstd": pyarrow.Codec("zstd").compress(dumped(), asbytes=True),
        SMALL.name: SMALL.read_bytes(),
    }
    cuts = [(name, end) for name, content in files.items() for end in range(len(content))]

    def make(number: int) -> tuple[str, bytes]:
        # Spread over the files: neighbours are similar, and the time may end before all cuts are
        # tried.
        name, end = cuts[number * 7919 % len(cuts)]
        return f"{name}, cut after {end} bytes", files[name][:end]

    return attack_files(budget, "files cut short", make, len(cuts))
