"""Boxes that are damaged, or that somebody made to do harm, and what reading one of them does.

`changed_boxes.py BOX FOLDER COUNT SEED` reads COUNT of them, as `pytracer show` does, each in a
child, and prints a line for each promise that is broken; then how many became snapshots, of how
many.
"""

import copy
import io
import json
import os
import random
import shutil
import signal
import struct
import sys
import time
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuzz_values import peak_of
from processes import run

from pytracer.boxes import places
from pytracer.boxes.live_boxes import _devices
from pytracer.errors import PytracerError
from pytracer.reading.reader import load
from pytracer.tracing import restore

PROGRAM = """
import os, torch, pytracer
tracer = pytracer.Tracer("made", device="cpu").start()
def kept(): return torch.ones(1000)
held = [kept() for _ in range(50)]
for step in range(3):
    with pytracer.annotate(f"phase {step}"):
        for i in range(100): torch.empty(i + 1)
    tracer.step()
os.kill(os.getpid(), 9)
"""
NAME = "99999-1-1-deadbeefdeadbeef-0.box"
"""The name of a box of a process that is gone, wherever it is read."""

MOST_S, MOST_BYTES = 2.0, 200 << 20
"""How much processor time and memory reading may take."""

_HEADER, _ENTRY = 32 * 1024, struct.Struct("<IhHIIQQQQQQ")  # csrc/support/box.h
_DESCRIPTION, _HALF = 17, 2**18
_COUNT, _BACKED, _FIRST_ENTRY = 40, 32, 128


@dataclass(frozen=True)
class Box:
    """The parts of a box by their offsets, the header first."""

    parts: dict[int, bytes]

    @classmethod
    def of(cls, path: Path) -> "Box":
        with open(path, "rb") as file:
            header = file.read(_HEADER)
            parts = {0: header}
            for at in range(_FIRST_ENTRY, _HEADER, _ENTRY.size):
                kind, _, _, _, _, offset, _, backed, *_ = _ENTRY.unpack_from(header, at)
                file.seek(offset)
                if kind and backed:
                    parts[offset] = file.read(backed)
        return cls(parts)

    @classmethod
    def of_killed_process(cls, folder: Path, program: str = PROGRAM) -> "Box":
        run(program, cwd=folder)
        [path] = folder.rglob("*.box")
        return cls.of(path)

    def write(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(path, "wb") as file:
            for offset, part in self.parts.items():
                file.seek(offset)
                file.write(part)

    def entry(self, kind: int) -> tuple[int, tuple[int, ...]]:
        """Return where an array's entry is, and the entry."""
        for at in range(_FIRST_ENTRY, _HEADER, _ENTRY.size):
            found = _ENTRY.unpack_from(self.parts[0], at)
            if found[0] == kind:
                return at, found
        raise LookupError(kind)

    def with_backed(self, kind: int, size: int) -> "Box":
        """Return a box that says that the file has so much of an array."""
        header = bytearray(self.parts[0])
        struct.pack_into("<Q", header, self.entry(kind)[0] + _BACKED, size)
        return Box({**self.parts, 0: bytes(header)})

    @property
    def description(self) -> dict[str, Any]:
        _, (_, _, _, _, _, offset, _, _, count, *_) = self.entry(_DESCRIPTION)
        begin = (count & 1) * _HALF
        found: dict[str, Any] = json.loads(self.parts[offset][begin : begin + (count >> 1)])
        return found

    def described(self, text: bytes) -> "Box":
        at, (_, _, _, _, _, offset, *_) = self.entry(_DESCRIPTION)
        header = bytearray(self.parts[0])
        struct.pack_into("<Q", header, at + _BACKED, 2 * _HALF)
        struct.pack_into("<Q", header, at + _COUNT, len(text) << 1)
        return Box({**self.parts, 0: bytes(header), offset: text.ljust(_HALF, b"\0")})

    def replaced(self, old: bytes, new: bytes) -> "Box":
        assert any(old in part for part in self.parts.values())
        return Box({offset: part.replace(old, new) for offset, part in self.parts.items()})

    def mutated(self, rng: random.Random) -> "Box":
        parts = {offset: bytearray(part) for offset, part in self.parts.items()}
        for _ in range(rng.choice((1, 10, 100))):
            part = rng.choice([*parts.values()])
            at = rng.randrange(min(len(part), rng.choice((8, 256, 8192, len(part)))))
            part[at] = rng.choice((0, 1, 127, 255, rng.randrange(256)))
        return Box({offset: bytes(part) for offset, part in parts.items()})

    def hostile(self, rng: random.Random, outside: Path) -> "Box":
        """Return the box with a description that asks for what is not allowed."""
        if rng.random() < 0.15:
            return self.described(rng.choice(_TEXTS))
        values = [*_VALUES, *map(str, (outside / "x", outside / "fifo", outside / "link"))]
        found = self.description
        for _ in range(rng.choice((1, 1, 3))):
            at: Any = found
            while True:
                key = rng.choice([*at]) if isinstance(at, dict) else rng.randrange(len(at))
                if not (isinstance(at[key], dict | list) and at[key] and rng.random() < 0.7):
                    break
                at = at[key]
            paths = [str(outside / "x"), "", ".sh"], [str(outside / "fifo"), 0]
            at[key] = copy.deepcopy(rng.choice([*values, *paths]))
            if rng.random() < 0.3:
                found["path"] = [rng.choice(values) for _ in range(3)]
            if rng.random() < 0.3:
                found["cgroup"] = [rng.choice(values), 0]
        text = json.dumps(found).encode()
        return self.described(text[: _HALF - 1])


_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 2**63, 10**300, 1.5, float("nan"), float("inf"), "", "\0", "\n"),
    *("\x1b]0;title\x07\x1b[31m", "\udce9", "‮", "x" * 5000, "../" * 20 + "x", "/dev/zero"),
    *("/dev/stdin", "/proc/self/mem", ".", "..", "/", "//x", ".pickle", "/x/y/z.sh", "%s%n{0}"),
    *([], {}, [[]], ["x"] * 3, {"x": {}}, [1, 2, 3], ["/dev/zero", 0], {"1": {"total_bytes": -5}}),
    *({"99999999": 3}, {"0": {"total_bytes": 10**30}}, list(range(1000)), "/sys/fs/cgroup/../x"),
    "/sys/fs/cgroup/../../../dev/zero/memory.events",
)
_TEXTS = (
    *(b"x", b"{", b"[]", b"null", b"1", b"{}", b"\xff\xfe{}", b'{"a":' * 40_000, b"[" * 100_000),
    *(b'{"metadata":' + b"[" * 900 + b"]" * 900 + b"}", b'{"devices":' + b"9" * 5000 + b"}"),
    *(b'{"folder":"' + b"/x" * 100_000 + b'"}', b'{"metadata":{"host":"' + b"a" * 200_000 + b'"}}'),
    b'{"recording":[4294967295,3,true],"metadata":{"pid":1e999}}',
)


@dataclass(frozen=True)
class Reading:
    """What reading a box took, and whether it made a snapshot; `problem`: a broken promise."""

    seconds: float
    extra_bytes: int
    has_snapshot: bool
    problem: str | None


def _question(path: Path) -> None:
    with suppress(OSError, PytracerError):
        assert {type(device.rank) for device in _devices(1, path, None)} <= {int, type(None)}
    restore.main()


def read(folder: Path, box: Box) -> Reading:
    """Read a box in a child of this process, which has recorded nothing."""
    given, report = folder / "given", folder / "report"
    path = given / places.FOLDER / NAME
    box.write(path)
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(120)
            began = time.process_time()
            sys.argv = ["restore", str(path), str(given), "killed", "20260101-000000-000000"]
            with redirect_stdout(io.StringIO()) as output:
                extra_bytes, _ = peak_of(lambda: _question(path))
            used = [time.process_time() - began, extra_bytes, output.getvalue()]
            report.write_text(json.dumps(used))
        finally:
            os._exit(0)
    _, status, _ = os.wait4(child, 0)
    if status != 0 or not report.exists():
        return Reading(0, 0, False, f"the reader ended with status {status}")
    seconds, extra_bytes, text = json.loads(report.read_text())
    report.unlink()
    snapshots, problem = [*given.rglob("*.pickle")], None
    left = {each.suffix for each in path.parent.glob("*")} if path.parent.exists() else set()
    others = {each for each in given.rglob("*") if each.is_file()} - {*snapshots}
    if any(each.suffix not in (".pkl", places.UNREADABLE) for each in others):
        problem = f"there are {sorted(others)}"
    elif not text.strip().isprintable():
        problem = f"it prints {text!r}"
    elif seconds > MOST_S or extra_bytes > MOST_BYTES:
        problem = f"it took {seconds:.1f} s and {extra_bytes >> 20} MiB"
    elif ".box" in left:
        problem = f"it is read again the next time: {text}"
    for snapshot in snapshots:
        load(snapshot)
    shutil.rmtree(given)
    return Reading(seconds, extra_bytes, bool(snapshots), problem)


def attack(template: Box, folder: Path, seed: str) -> Reading:
    """Read a box that is changed at random, half of them in its description, in an empty folder."""
    rng = random.Random(seed)
    outside = folder / "outside"
    outside.mkdir(exist_ok=True)
    if not (outside / "fifo").exists():
        os.mkfifo(outside / "fifo")
        (outside / "link").symlink_to("/dev/zero")
    is_hostile = rng.random() < 0.5
    box = template.hostile(rng, outside) if is_hostile else template.mutated(rng)
    done = read(folder, box)
    written = {each.name for each in (*folder.iterdir(), *outside.iterdir())}
    written -= {"outside", "fifo", "link"}
    problem = f"it wrote {sorted(written)} outside" if written else done.problem
    return replace(done, problem=None if problem is None else f"box {seed}: {problem}")


def main(path: str, folder: str, count: str, seed: str) -> None:
    template = Box.of(Path(path))
    done = [attack(template, Path(folder), f"{seed} {i}") for i in range(int(count))]
    print(*(each.problem for each in done if each.problem is not None), sep="\n")
    print(sum(each.has_snapshot for each in done), len(done))


if __name__ == "__main__":
    main(*sys.argv[1:])
