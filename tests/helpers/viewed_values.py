"""The keys and values that viewers expect in a snapshot, and the error for all others."""

from typing import Any

SAFE_INTEGER = 2**53  # the page's numbers are doubles, which are exact up to here

# Of events and blocks that an autograd node allocated; torch writes the first one too.
BACKWARD_TYPES = {
    "forward_frames": list,
    "forward_exact": bool,
    "forward_phase": str,
    "autograd_node": str,
}
SEGMENT_TYPES = {
    "device": int,
    "address": int,
    "total_size": int,
    "allocated_size": int,
    "active_size": int,
    "requested_size": int,
    "stream": int,
    "segment_type": str,
    "segment_pool_id": tuple,
    "is_expandable": bool,
    "frames": list,
    "blocks": list,
}
BLOCK_TYPES = {"address": int, "size": int, "requested_size": int, "state": str, "frames": list}
CATEGORY_TYPES = {"category": str, "category_rule": str}  # pytracer's own, as the next
OWNER_TYPES = {"owner": str, "owners": int}
OPTIONAL_TYPES = {"holder": str, "birth_step": int}
EVENT_TYPES = {
    "action": str,
    "addr": int,
    "size": int,
    "stream": int,
    "time_us": int,
    "pool_id": tuple,
    "frames": list,
    "compile_context": str,
    "user_metadata": str,
}
ALLOCATION_TYPES = {"frames": list, "birth_step": int}  # pytracer's own, of blocks that are freed
OOM_TYPES = {("device_free" if key == "addr" else key): kind for key, kind in EVENT_TYPES.items()}
FRAME_TYPES = {"filename": str, "name": str, "line": int}
ANNOTATION_TYPES = {"name": str, "stage": str, "device": int, "time_us": int}
ALLOCATED, PENDING, INACTIVE = "active_allocated", "active_pending_free", "inactive"


class ViewerError(AssertionError):
    """A viewer would reject this snapshot, misread it, or crash: the place, and the value there."""


def require(condition: object, message: str) -> None:
    if not condition:
        raise ViewerError(message)


def check_types(value: Any, types: dict[str, type], where: str) -> None:
    require(isinstance(value, dict), f"{where} is not a dict")
    if "frames" in types:
        types = {**types, **{key: BACKWARD_TYPES[key] for key in BACKWARD_TYPES if key in value}}
    if value.keys() != types.keys():
        missing, extra = types.keys() - value.keys(), value.keys() - types.keys()
        raise ViewerError(f"{where}: missing {missing}, unknown {extra}")
    for key, kind in types.items():
        if type(value[key]) is not kind:  # not `isinstance`, because a bool is not an int here
            raise ViewerError(f"{where}: {key} is {value[key]!r}, not {kind.__name__}")


def check_range(address: int, size: int, where: str) -> None:
    require(size > 0, f"{where}: size {size}: the page cannot draw an empty range")
    require(
        0 <= address < SAFE_INTEGER - size,
        f"{where}: address {address} is not exact in the page's arithmetic",
    )
