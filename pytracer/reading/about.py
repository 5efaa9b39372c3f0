"""What a file tells of itself. It may be a stranger's: any value may be in any place."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pytracer.reading.snapshot import Snapshot


def about_device(snapshot: Snapshot, device: int) -> Mapping[str, Any]:
    """What pytracer tells of a device; {} if it does not, as in others' files."""
    told = snapshot.about.get("devices")
    for each in told if isinstance(told, list | tuple) else ():
        if isinstance(each, dict) and each.get("index") == device:
            return each
    return {}


def only_phase(snapshot: Snapshot) -> str | None:
    """The phase of a file that has no other events (`discrete`), as "outer/inner"; else None."""
    window = snapshot.about.get("window")
    phase = window.get("phase") if isinstance(window, dict) else None
    return phase if isinstance(phase, str) else None


def told_settings(snapshot: Snapshot) -> str | None:
    """The allocator's settings as its variable has them; None: the file does not tell."""
    ours = snapshot.about.get("settings")  # of allocators that do not tell themselves
    told = [snapshot.allocator_settings.get("PYTORCH_CUDA_ALLOC_CONF")]
    told += ours.values() if isinstance(ours, dict) else ()
    return next((text for text in told if isinstance(text, str)), None)


def told_number(told: Mapping[str, Any], name: str) -> int | None:
    """A number that a file tells; None: it does not, or what it tells is no such number."""
    value = told.get(name)
    return value if type(value) is int and abs(value) < 2**63 else None


def is_count(value: object) -> bool:
    """Whether a file's value is a number as steps, ranks and pids are."""
    return type(value) is int and 0 <= value < 2**31


class Annotation(NamedTuple):
    """One of `external_annotations`: something begins (stage "START") or ends ("END")."""

    time_us: int
    name: str
    stage: str
    device: str


def annotations(snapshot: Snapshot) -> Iterator[Annotation]:
    """The annotations that are such."""
    for each in snapshot.external_annotations:
        if (
            isinstance(each, dict)
            and type(each.get("time_us")) is int
            and 0 <= each["time_us"] < 2**63
            and isinstance(each.get("name"), str)
            and isinstance(each.get("stage"), str)
        ):
            yield Annotation(each["time_us"], each["name"], each["stage"], str(each.get("device")))
