"""Test the extraction of a program's requests to its allocator from a snapshot."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_reader

from pytracer.analysis.requests import (
    ALLOCATE,
    EMPTY_CACHE,
    FAIL,
    FREE,
    LEAVE,
    RELEASE_POOL,
    Recording,
    extract_recording,
)
from pytracer.errors import PytracerError
from pytracer.reading import load
from pytracer.reading.snapshot import ALLOC, FREE_COMPLETED, OOM

NATIVE = sorted((Path(__file__).parents[1] / "golden/native").glob("*.pickle"))
MIB = 1 << 20
A, B, C = 1 << 40, 2 << 40, 3 << 40  # the addresses of segments of 2 MiB

RequestRows = list[tuple[int, int, int, int, int]]


def event(action: str, address: int, size: int, stream: int = 0, pool: int = 0) -> dict[str, Any]:
    name = "device_free" if action == "oom" else "addr"
    return {
        "action": action,
        name: address,
        "size": size,
        "stream": stream,
        "time_us": 1,
        "pool_id": (0, pool),
        "frames": [],
    }


def alloc(address: int, size: int, stream: int = 0, pool: int = 0) -> dict[str, Any]:
    return event("alloc", address, size, stream, pool)


def free(address: int, size: int, stream: int = 0, pool: int = 0) -> list[dict[str, Any]]:
    actions = ("free_requested", "free_completed")
    return [event(action, address, size, stream, pool) for action in actions]


def segment(
    address: int, *sizes: int, stream: int = 0, pool: int = 0, total: int = 2 * MIB
) -> dict[str, Any]:
    """Return a segment with allocated blocks of these sizes at its beginning."""
    blocks, at = [], address
    for size in sizes:
        state = {"requested_size": size, "state": "active_allocated", "frames": []}
        blocks.append({"address": at, "size": size, **state})
        at += size
    if at < address + total:
        rest = {"requested_size": 0, "state": "inactive", "frames": []}
        blocks.append({"address": at, "size": address + total - at, **rest})
    return {
        "device": 0,
        "address": address,
        "total_size": total,
        "stream": stream,
        "segment_type": "small",
        "segment_pool_id": (0, pool),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def recording(
    events: list[dict[str, Any]], segments: list[dict[str, Any]], **more: Any
) -> Recording:
    content = {
        "segments": segments,
        "device_traces": [events],
        "allocator_settings": {},
        "external_annotations": [],
        **more,
    }
    return extract_recording(reference_reader.convert(content, "made.pickle"))


def request_rows(found: Recording) -> RequestRows:
    """Return kind, block, bytes, stream and pool of each request."""
    requests = found.requests
    columns = (requests.kind, requests.block, requests.size_bytes, requests.stream, requests.pool)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_allocations_and_frees_in_their_order() -> None:
    # GIVEN two blocks on two streams, the first of which is freed
    found = recording(
        [
            event("segment_alloc", A, 2 * MIB, 7),
            alloc(A, 500, 7),
            event("segment_alloc", B, 2 * MIB),
            alloc(B, 1024),
            *free(A, 500, 7),
        ],
        [segment(A, stream=7), segment(B, 1024)],
    )
    # THEN both are requested, and the default stream has the number 0
    assert request_rows(found) == [
        (ALLOCATE, 0, 500, 1, 0),
        (ALLOCATE, 1, 1024, 0, 0),
        (FREE, 0, 0, 0, 0),
    ]
    assert found.requests.event.tolist() == [1, 3, 5]
    assert found.starts_empty
    assert found.limit_bytes is None


def test_a_pending_free() -> None:
    # GIVEN a free that completes after another allocation, and one that never completes
    requested, completed = free(A, 512)
    found = recording(
        [
            event("segment_alloc", A, 2 * MIB),
            alloc(A, 512),
            alloc(A + 512, 1024),
            requested,
            event("free_requested", A + 512, 1024),
            alloc(A + 1536, 2048),
            completed,
        ],
        [
            {
                **segment(A),
                "blocks": [
                    {"address": A, "size": 512, "requested_size": 0, "state": "inactive"},
                    {
                        "address": A + 512,
                        "size": 1024,
                        "requested_size": 1024,
                        "state": "active_pending_free",
                    },
                    {
                        "address": A + 1536,
                        "size": 2048,
                        "requested_size": 2048,
                        "state": "active_allocated",
                    },
                    {
                        "address": A + 3584,
                        "size": 2 * MIB - 3584,
                        "requested_size": 0,
                        "state": "inactive",
                    },
                ],
            }
        ],
    )
    # THEN the program leaves both blocks when it freed them, and one free completes later
    assert [(kind, block) for kind, block, *_ in request_rows(found)] == [
        (ALLOCATE, 0),
        (ALLOCATE, 1),
        (LEAVE, 0),
        (LEAVE, 1),
        (ALLOCATE, 2),
        (FREE, 0),
    ]


def test_blocks_older_than_the_trace_come_first_by_address() -> None:
    # GIVEN a trace that begins with existing blocks, some in other pools, two of which are freed
    found = recording(
        [*free(A + 512, 500), *free(B, 1000, pool=3), alloc(A + 512, 512)],
        [segment(A, 512, 512), segment(B, pool=3), segment(C, 2048, pool=5)],
    )
    # THEN they are allocated first, with the requested sizes and in the right pools
    assert request_rows(found) == [
        (ALLOCATE, 0, 512, 0, 0),
        (ALLOCATE, 1, 500, 0, 0),
        (ALLOCATE, 2, 1000, 0, 1),
        (ALLOCATE, 3, 2048, 0, 2),
        (FREE, 1, 0, 0, 0),
        (FREE, 2, 0, 0, 0),
        (ALLOCATE, 4, 512, 0, 0),
    ]
    assert found.requests.event.tolist() == [-1] * 4 + [1, 3, 4]
    assert found.requests.older_blocks == 4
    assert not found.starts_empty


RELEASED_SEGMENT = [event("segment_alloc", A, 2 * MIB), alloc(A, 512), *free(A, 512)]
NEW_SEGMENT = [event("segment_alloc", B, 2 * MIB), alloc(B, 512)]


@pytest.mark.parametrize(
    ("free_bytes", "is_by_program"),
    [(0, False), (2 * MIB, True), (None, True)],
    ids=["full", "not full", "unknown"],
)
def test_who_released_the_cache(free_bytes: int | None, is_by_program: bool) -> None:
    # GIVEN cached memory that is released directly before an allocation, and the free memory
    devices = [{"index": 0, "reserved_bytes": 2 * MIB, "free_bytes": free_bytes}]
    found = recording(
        [*RELEASED_SEGMENT, event("segment_free", A, 2 * MIB), *NEW_SEGMENT],
        [segment(B, 512)],
        pytracer={"format_version": [1, 4], "backends": ["cuda"], "devices": devices},
    )
    # THEN the allocator released it if the device was full, else the program did
    kinds = [kind for kind, *_ in request_rows(found)]
    assert kinds == [ALLOCATE, FREE, *([EMPTY_CACHE] if is_by_program else []), ALLOCATE]
    assert found.limit_bytes == (None if free_bytes is None else 2 * MIB + free_bytes)


def test_a_cache_released_without_need() -> None:
    # GIVEN an empty_cache(), a pool that is released with it, and one that is released alone
    found = recording(
        [
            *RELEASED_SEGMENT,
            event("segment_alloc", B, 2 * MIB, pool=4),
            alloc(B, 512, pool=4),
            *free(B, 512, pool=4),
            event("segment_alloc", C, 2 * MIB, pool=9),
            alloc(C, 512, pool=9),
            *free(C, 512, pool=9),
            event("segment_free", A, 2 * MIB),
            event("segment_free", B, 2 * MIB, pool=4),
            event("snapshot", 0, 0),
            event("segment_free", C, 2 * MIB, pool=9),
        ],
        [],
    )
    # THEN pools are released before the cache is emptied
    releases = [(kind, pool) for kind, _, _, _, pool in request_rows(found) if kind >= RELEASE_POOL]
    assert releases == [(RELEASE_POOL, 1), (EMPTY_CACHE, 0), (RELEASE_POOL, 2)]


def test_an_allocation_that_failed() -> None:
    # GIVEN an allocation that failed although the cache was released for it
    found = recording(
        [
            event("segment_alloc", B, 2 * MIB),
            alloc(B, 512),
            *RELEASED_SEGMENT,
            event("segment_free", A, 2 * MIB),
            event("oom", MIB, 8 * MIB, 5),
        ],
        [segment(B, 512)],
    )
    # THEN it is requested too, and the limit is the memory that the device had
    assert request_rows(found)[-1] == (FAIL, -1, 8 * MIB, 1, 0)
    assert EMPTY_CACHE not in [kind for kind, *_ in request_rows(found)]
    assert found.limit_bytes == 3 * MIB


def test_a_memory_fraction_in_the_file_is_the_limit() -> None:
    # GIVEN the file of an out-of-memory, of a program that was limited to a part of the device
    found = recording(
        [*RELEASED_SEGMENT, event("oom", 100 * MIB, 8 * MIB)],
        [segment(A)],
        pytracer={
            "format_version": [1, 4],
            "backends": ["cuda"],
            "devices": [],
            "oom": {"device": 0, "total_bytes": 4 * MIB},
        },
    )
    assert found.limit_bytes == 4 * MIB


def test_a_memory_fraction_in_the_file_of_an_exit_is_the_limit() -> None:
    # GIVEN a program that limits itself to a quarter of the device
    device = {"index": 0, "reserved_bytes": 2 * MIB, "free_bytes": 14 * MIB}
    device |= {"total_bytes": 16 * MIB, "statistics": {"memory_fraction": 0.25}}
    metadata = {"format_version": [1, 4], "backends": ["cuda"], "devices": [device]}
    assert recording(RELEASED_SEGMENT, [segment(A)], pytracer=metadata).limit_bytes == 4 * MIB


@pytest.mark.parametrize(
    ("more", "settings"),
    [
        ({}, ""),
        ({"allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "a:1,b:[2,3]"}}, "a:1,b:[2,3]"),
        (
            {
                "allocator_settings": {
                    "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
                    "expandable_segments": True,
                }
            },
            "max_split_size_mb:64,expandable_segments:True",
        ),
        ({"pytracer": {"backends": ["npu"], "settings": {"npu": "a:1"}}}, "a:1"),
    ],
    ids=["none", "in the file", "changed at run time", "npu"],
)
def test_the_settings_of_the_recording(more: dict[str, Any], settings: str) -> None:
    assert recording(RELEASED_SEGMENT, [segment(A)], **more).settings == settings


def test_expandable_segments_reveal_the_setting() -> None:
    # GIVEN a file without settings, such as torch_npu's, with mapped memory
    found = recording(
        [event("segment_map", A, 2 * MIB), alloc(A, 512)],
        [{**segment(A, 512), "is_expandable": True}],
    )
    assert found.settings == "expandable_segments:True"


@pytest.mark.parametrize("path", NATIVE, ids=lambda path: path.stem)
def test_files_of_torch_s_own_recorder(path: Path) -> None:
    # GIVEN a file of the recorder of some torch release; some have no trace
    if path.stem in ("cuda-1.13.1", "cuda-2.15.0-state"):
        with pytest.raises(PytracerError, match=r"nothing to simulate|no accelerator events"):
            extract_recording(load(path))
        return
    found = extract_recording(load(path))
    # THEN every allocation and free of the trace is requested, in the order of the events
    requests, actions = found.requests, found.trace.action
    for kind, action in ((ALLOCATE, ALLOC), (FREE, FREE_COMPLETED), (FAIL, OOM)):
        events = requests.event[(requests.kind == kind) & (requests.event >= 0)]
        assert events.tolist() == np.flatnonzero(actions == action).tolist()
    assert found.limit_bytes is not None  # all of them ran out of memory


def test_files_that_cannot_be_simulated() -> None:
    # GIVEN files of the CPU, of one phase, and without an allocation
    cpu = {"backends": ["cpu"], "devices": [{"index": 0, "is_cpu": True}]}
    phase = {"backends": ["cuda"], "window": {"phase": "rollout"}, "devices": []}
    for events, segments, more, message in (
        (RELEASED_SEGMENT, [segment(A)], {"pytracer": cpu}, "no accelerator events"),
        (
            RELEASED_SEGMENT,
            [segment(A)],
            {"pytracer": phase},
            "only the events of the phase rollout",
        ),
        (free(A, 512), [segment(A)], {}, "nothing to simulate"),
        ([], [], {}, "no accelerator events"),
    ):
        # THEN each is refused, and the error names the file
        with pytest.raises(PytracerError, match=f"made.pickle.*{message}"):
            recording(events, segments, **more)
