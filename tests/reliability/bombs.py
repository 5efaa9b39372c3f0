"""Make small files that take much memory or time, by name and size.

Python's pickle writes a repeated object as a reference of 2 to 5 bytes. Most bombs are therefore
ordinary objects that share their parts.
"""

import gzip
import pickle
import struct
from collections.abc import Callable
from typing import Any

from synthetic_snapshots import BEGIN, SEGMENT, Program, file_metadata

Bomb = Callable[[int], bytes]
REFERENCE = 3  # approximate bytes of a reference
EVENT = 12  # approximate bytes of an event whose keys and values are references


def content(**changes: Any) -> dict[str, Any]:
    """Return a small snapshot of one device, with `changes` of its keys."""
    program = Program()
    program.metadata = file_metadata()
    program.alloc(1000, ("/home/me/model.py", "forward", 1))
    return {**program.content(), **changes}


def dumped(**changes: Any) -> bytes:
    return pickle.dumps(content(**changes), protocol=4)


def spliced(opcodes: bytes, key: str = "pytracer") -> bytes:
    """Return a snapshot in which these opcodes make the value of `key`."""
    head = b"\x80\x04}(" + b"".join(
        pickle.dumps(name, protocol=2)[2:-1] + pickle.dumps(value, protocol=2)[2:-1]
        for name, value in (("segments", []), ("device_traces", []))
        if name != key
    )
    return head + pickle.dumps(key, protocol=2)[2:-1] + opcodes + b"u."


def event(**changes: Any) -> dict[str, Any]:
    address = BEGIN + 512
    return {"action": "alloc", "addr": address, "size": 512, "stream": 0, "frames": [], **changes}


def texts_by_reference(size: int) -> bytes:
    text = "x" * (size // 2)
    return dumped(external_annotations=[{"name": text}] + [text] * (size // 2 // REFERENCE))


def metadata_by_reference(size: int) -> bytes:
    text = "x" * (size // 2)
    return dumped(
        pytracer={**file_metadata(), "metadata": {"a": [text] * (size // 2 // REFERENCE)}}
    )


def doubled_lists(size: int) -> bytes:
    levels = b"]r" + struct.pack("<I", 10_000)
    for number in range(10_000, 10_000 + size // 20):
        twice = (b"j" + struct.pack("<I", number)) * 2
        levels += b"0]r" + struct.pack("<I", number + 1) + b"(" + twice + b"e"
    return spliced(levels)


def unknown_key(size: int) -> bytes:
    key = "k" * (size // 2)
    return dumped(device_traces=[[event(**{key: 0}) for _ in range(size // 2 // EVENT)]])


def segment(blocks: int) -> dict[str, Any]:
    block = {"address": BEGIN, "size": 512, "requested_size": 512, "state": "active_allocated"}
    return {"device": 0, "address": BEGIN, "total_size": SEGMENT, "blocks": [block] * blocks}


def blocks_by_reference(size: int) -> bytes:
    return dumped(segments=[segment(size // REFERENCE)])


def segments_by_reference(size: int) -> bytes:
    return dumped(segments=[segment(100)] * (size // REFERENCE))


def long_names_in_stacks(size: int) -> bytes:
    frame = {"filename": "f" * (size // 3), "name": "n" * (size // 3), "line": 1}
    return dumped(device_traces=[[event(frames=[frame] * (size // 3 // REFERENCE))]])


def long_stacks(size: int) -> bytes:
    frames = [{"filename": "f", "name": "n", "line": line} for line in range(10)]
    stack = frames * (size // 20 // REFERENCE)
    return dumped(
        device_traces=[[event(frames=stack, addr=BEGIN + n) for n in range(size // 2 // 25)]]
    )


def different_stacks(size: int) -> bytes:
    frame = {"filename": "f" * (size // 4), "name": "n", "line": 1}
    count = max(1, int((size / 2 / REFERENCE) ** 0.5))
    events = [event(frames=[frame] * n, addr=BEGIN + 512 * n) for n in range(count)]
    return dumped(device_traces=[events])


def different_sites(size: int) -> bytes:
    name = "f" * (size // 4)
    events = [
        event(frames=[{"filename": name, "name": "n", "line": n}], addr=BEGIN + 512 * n)
        for n in range(size // 2 // 30)
    ]
    return dumped(device_traces=[events])


def long_phases(size: int) -> bytes:
    text = "p" * (size // 2)
    return dumped(device_traces=[[event(user_metadata=text)] * (size // 2 // REFERENCE)])


def long_annotations(size: int) -> bytes:
    text = "p" * (size // 2)
    count = size // 4 // EVENT
    annotations = [
        {"name": text, "stage": stage, "device": 0, "time_us": n}
        for n in range(count)
        for stage in ("START", "END")
    ]
    return dumped(external_annotations=annotations)


def many_steps(size: int) -> bytes:
    steps = [[step, 0] for step in range(size // 10)]
    device = {"index": 0, "is_cpu": False, "overwritten": 0, "steps": steps}
    return dumped(pytracer=file_metadata(devices=[device]))


def many_devices(size: int) -> bytes:
    return dumped(segments=[{**segment(0), "device": n} for n in range(size // 20)])


def far_device(size: int) -> bytes:
    return dumped(segments=[{**segment(0), "device": 10**n} for n in range(min(18, size))])


def overlapping_blocks(size: int) -> bytes:
    events = [event(addr=BEGIN + n, size=SEGMENT) for n in range(size // EVENT // 2)]
    frees = [event(action="free_completed", addr=alloc["addr"]) for alloc in events]
    return dumped(device_traces=[[*events, *frees]])


def one_address(size: int) -> bytes:
    pair = [event(), event(action="free_requested"), event(action="free_completed")]
    return dumped(device_traces=[pair * (size // 3 // REFERENCE)])


def out_of_memory(size: int) -> bytes:
    oom = {"action": "oom", "device_free": 0, "size": 2**62, "stream": 0, "frames": []}
    return dumped(device_traces=[[event(), *[oom] * (size // REFERENCE)]])


def _stated(opcode: bytes, form: str, count: int) -> Bomb:
    return lambda size: spliced(opcode + struct.pack(form, count) + b"x" * size)


def _compressed(bomb: Bomb, growth: int) -> Bomb:
    """Return the gzip of a file that is larger by this factor."""
    return lambda size: gzip.compress(bomb(size * growth), 9)


STATED = {
    "a stated length of text": _stated(b"X", "<I", 2**32 - 1),
    "a stated length of text, 64 bits": _stated(b"\x8d", "<Q", 2**63 + 5),
    "a stated length of bytes": _stated(b"B", "<I", 2**32 - 1),
    "a stated length of bytes, 64 bits": _stated(b"\x8e", "<Q", 2**64 - 1),
    "a stated length of a bytearray": _stated(b"\x96", "<Q", 2**62),
    "a stated length of a number": _stated(b"\x8b", "<i", 2**31 - 1),
    "a stated negative length": _stated(b"\x8b", "<i", -(2**31)),
    "a stated frame": _stated(b"\x95", "<Q", 2**63),
    "a memo of a high number": _stated(b"Nr", "<I", 2**32 - 1),
    "a reference of a high number": _stated(b"j", "<I", 2**32 - 1),
}

PLAIN: dict[str, Bomb] = {
    "tuple tower": lambda size: spliced(b")" + b"\x85" * size),
    "many tuples": lambda size: spliced(
        b"](" + b")\x85" * (size // 2) + b"e", "external_annotations"
    ),
    "many towers": lambda size: spliced(
        b"](" + (b"K\x01" + b"\x85" * 40) * (size // 42) + b"e", "external_annotations"
    ),
    "empty dicts": lambda size: spliced(b"](" + b"}" * size + b"e", "external_annotations"),
    "empty traces": lambda size: spliced(b"](" + b"]" * size + b"e", "device_traces"),
    "deep lists": lambda size: spliced(b"]" * (size // 2) + b"a" * (size // 2 - 1)),
    "marks": lambda size: spliced(b"(" * size),
    "stack of values": lambda size: spliced(b"N" * size),
    "unknown keys": lambda size: dumped(
        device_traces=[[event(**{f"k{n}": 0}) for n in range(size // 30)]]
    ),
    "events by reference": lambda size: dumped(device_traces=[[event()] * (size // REFERENCE)]),
    "long number": lambda size: spliced(b"\x8b" + struct.pack("<i", size) + b"\x7f" * size),
    **{
        make.__name__.replace("_", " "): make
        for make in (
            *(texts_by_reference, metadata_by_reference, doubled_lists, unknown_key),
            *(blocks_by_reference, segments_by_reference, long_names_in_stacks, long_stacks),
            *(different_stacks, different_sites, long_phases, long_annotations, many_steps),
            *(many_devices, far_device, overlapping_blocks, one_address, out_of_memory),
        )
    },
}

BOMBS: dict[str, Bomb] = {
    **PLAIN,
    **STATED,
    **{
        f"{name}, compressed {growth}-fold": _compressed(PLAIN[name], growth)
        for name in ("many towers", "empty dicts", "events by reference", "texts by reference")
        for growth in (20, 150)
    },
    "zeros, compressed": lambda size: gzip.compress(bytes(1000 * size), 9),
    "compressed twice": lambda size: gzip.compress(gzip.compress(bytes(1000 * size), 9), 9),
    "many empty members": lambda size: gzip.compress(b"") * (size // 20),
}
"""Functions by name: each takes a size in bytes and returns a file of about that size; compressed
files are smaller."""
