"""Small files that are made to take much memory or time.

Texts, lists, events, blocks, segments and stacks that refer to one another; towers of tuples and
lists; keys and names of half the file's length that every event uses; files that compress well;
lengths that exceed the file; very many devices, steps and marks. Each kind is made in several sizes
(tests/reliability/bombs.py), and every command is run.
"""

import random

from attack import Budget, Found
from bombs import BOMBS
from hostile import PROMISE, attack_files

__all__ = ["PROMISE"]

DEVICE = "none"
SECONDS = 60

SIZES = (5_000, 40_000, 160_000)


def attack(budget: Budget) -> Found:
    kinds = [*BOMBS]

    def make(number: int) -> tuple[str, bytes]:
        rounds, kind = divmod(number, len(kinds))
        size = SIZES[rounds] if rounds < len(SIZES) else random.Random(number).randrange(10**5)
        return f"{kinds[kind]}, of {size:,} bytes", BOMBS[kinds[kind]](size)

    found = attack_files(budget, "bombs", make)
    found.count("kinds of bombs", len(kinds))
    return found
