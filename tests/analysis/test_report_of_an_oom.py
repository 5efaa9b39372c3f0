"""What does the report say of an out-of-memory?"""

from typing import Any

import pytest
from small_reports import SEGMENT, cuda_content, event, only_device
from synthetic_program import run
from synthetic_snapshots import inexact

from pytracer.analysis import device_data, ooms
from pytracer.analysis.history import replay


@pytest.mark.parametrize("is_exact", [True, False])
def test_whether_a_request_fits_if_free_bytes_are_a_bound(
    is_exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a history that may be inexact when memory runs out, as if other events followed
    monkeypatch.setattr(ooms, "_event_at_end", lambda _: -1)

    def replayed(*arguments: Any) -> Any:
        return inexact(replay(*arguments), 0 if is_exact else 7)

    monkeypatch.setattr(device_data, "replay", replayed)
    content = cuda_content()
    # WHEN more than all possibly free memory is requested, THEN the request does not fit
    assert only_device(content).ooms[0].fits_in_free_blocks is False
    # AND whether a smaller request fits is known only if levels are exact
    content["device_traces"][0][5]["size"] = 4096
    assert only_device(content).ooms[0].fits_in_free_blocks is (True if is_exact else None)
    # AND in a file of one phase it is always unknown
    content["pytracer"]["window"] = {"phase": "update"}
    assert only_device(content).ooms[0].fits_in_free_blocks is None
    content["device_traces"][0][5]["size"] = 3 * 2**20
    assert only_device(content).ooms[0].fits_in_free_blocks is None


def test_a_request_that_fits_into_free_blocks_together() -> None:
    # GIVEN a request as large as all free blocks together, but larger than any of them
    content = cuda_content()
    content["device_traces"][0][5]["size"] = SEGMENT - 1024
    # WHEN it fails, THEN the report says that free blocks together are large enough
    (oom,) = only_device(content).ooms
    assert oom.fits_in_free_blocks is True
    assert oom.sample is not None
    assert oom.sample.largest_free_bytes < oom.requested_bytes


def test_a_request_that_fits_into_segments_and_device_together() -> None:
    # GIVEN a request that is larger than the free memory in segments, and than that of the device
    content = cuda_content(total_bytes=10 * SEGMENT)
    oom = content["device_traces"][0][5]
    oom["device_free"], inside = 2 * SEGMENT, SEGMENT - 1024
    # WHEN both together are large enough, THEN the report says so, and how much others hold
    oom["size"] = 2 * SEGMENT + inside
    (found,) = only_device(content).ooms
    assert (found.fits_in_largest_block, found.fits_in_free_blocks) == (False, False)
    assert found.fits_if_joined is True
    assert (found.available_bytes, found.free_in_segments_bytes) == (2 * SEGMENT, inside)
    assert found.elsewhere_bytes == 7 * SEGMENT
    # AND a request of one more byte does not fit
    oom["size"] += 1
    assert only_device(content).ooms[0].fits_if_joined is False
    # AND a smaller request fits into a block, which belongs to another stream or pool
    oom["size"] = 1024
    (found,) = only_device(content).ooms
    assert (found.fits_in_largest_block, found.fits_in_free_blocks) == (True, True)


@pytest.mark.parametrize(
    ("device_metadata", "available_bytes"),
    [
        ({"statistics": {"memory_fraction": 0.25}, "total_bytes": 8 * SEGMENT}, SEGMENT),
        ({"statistics": {"memory_fraction": 1.0}, "total_bytes": 8 * SEGMENT}, 4 * SEGMENT),
        ({"statistics": {"memory_fraction": 0.25}}, 4 * SEGMENT),
        ({"statistics": 3, "total_bytes": 8 * SEGMENT}, 4 * SEGMENT),
        ({"oom": {"device": 0, "total_bytes": 3 * SEGMENT}}, 2 * SEGMENT),
        ({"oom": {"device": 0, "total_bytes": 5}}, 0),
        ({"oom": {"device": 1, "total_bytes": 5}}, 4 * SEGMENT),
        ({"oom": {"device": -1, "total_bytes": 5}}, 4 * SEGMENT),
        ({"oom": 3}, 4 * SEGMENT),
    ],
)
def test_a_limit_of_the_process(device_metadata: dict[str, Any], available_bytes: int) -> None:
    # GIVEN a process that may not use all of the device, and has reserved a segment
    oom = device_metadata.pop("oom", None)
    content = cuda_content(**device_metadata)
    content["pytracer"]["oom"] = oom
    content["device_traces"][0][5] |= {"device_free": 4 * SEGMENT, "size": 3 * SEGMENT}
    # WHEN memory runs out, THEN only memory within the limit is available
    (found,) = only_device(content).ooms
    assert (found.device_free_bytes, found.available_bytes) == (4 * SEGMENT, available_bytes)
    assert found.fits_if_joined is (available_bytes == 4 * SEGMENT)


@pytest.mark.parametrize(
    ("metadata", "is_of_this_device"),
    [
        ({"oom": {"device": 0}}, True),
        ({"oom": {"device": 1}}, False),
        ({"oom": {"device": -1}}, False),
        ({"oom": None}, False),
        (None, True),
    ],
)
def test_the_sites_at_an_out_of_memory(
    metadata: dict[str, Any] | None, is_of_this_device: bool
) -> None:
    # GIVEN a file of an out-of-memory after A's free; in torch's own files it is the last event
    content = cuda_content()
    if metadata is None:
        del content["pytracer"]
    else:
        content["pytracer"] |= metadata
    # WHEN it is reported, THEN it has the sites of the out-of-memory, and those of the peak
    device = only_device(content)
    held = {each.moment.name: each.active_bytes for each in device.held}
    assert held == {"oom": 1024, "peak": 1536, "end": 1024}
    assert device.is_oom_file == is_of_this_device
    # AND a file of torch's recorder with later events is not of an out-of-memory
    content["device_traces"][0].append(event("alloc", 0, 500))
    content["segments"][0]["blocks"][0] |= {"state": "active_allocated", "requested_size": 500}
    expected = is_of_this_device and metadata is not None
    assert only_device(content).is_oom_file == expected


def test_an_out_of_memory_of_the_cpu() -> None:
    # GIVEN an out-of-memory of the CPU, whose file has device -1
    content = run([("alloc", 10, 0)]).content()
    content["device_traces"][1].append(event("oom", 4096, 3000))
    content["pytracer"]["oom"] = {"device": -1, "total_bytes": 5}
    # WHEN it is reported, THEN it has sites; limits and joined memory apply to accelerators only
    device = only_device(content, device=1)
    held = device.held_by("line", "oom")
    assert held is not None
    assert held.active_bytes == 10
    (oom,) = device.ooms
    assert (oom.fits_if_joined, oom.available_bytes) == (None, 4096)


@pytest.mark.parametrize(
    ("amounts", "elsewhere_bytes", "outside_bytes", "others_bytes"),
    [
        (
            {"total_bytes": 9, "free_bytes": 3, "process_bytes": None, "reserved_bytes": 2},
            4,
            None,
            None,
        ),
        ({"total_bytes": 9, "free_bytes": 8, "process_bytes": 4, "reserved_bytes": 1}, 0, 3, None),
        ({"total_bytes": 9, "free_bytes": 2, "process_bytes": 4, "reserved_bytes": 5}, 2, None, 3),
        ({"total_bytes": 9, "free_bytes": 2, "reserved_bytes": 8}, None, None, None),
        (
            {"total_bytes": 9, "free_bytes": "3", "process_bytes": 4, "reserved_bytes": []},
            None,
            None,
            None,
        ),
        ({"total_bytes": 9, "process_bytes": 2**63, "reserved_bytes": 1}, None, None, None),
    ],
)
def test_unknown_memory_outside_the_allocator(
    amounts: dict[str, object],
    elsewhere_bytes: int | None,
    outside_bytes: int | None,
    others_bytes: int | None,
) -> None:
    outside = only_device(cuda_content(**amounts)).outside
    assert outside is not None
    assert outside.elsewhere_bytes == elsewhere_bytes
    assert (outside.outside_bytes, outside.others_bytes) == (outside_bytes, others_bytes)


def test_retries() -> None:
    # GIVEN a trace in which segments are freed once for a retry, and once between other events
    content = cuda_content()
    content["device_traces"][0][1:1] = [
        event("segment_alloc", SEGMENT, 9),
        event("segment_free", SEGMENT, 9),
        event("segment_alloc", SEGMENT, 5),
        event("segment_free", SEGMENT, 5),
        event("snapshot", 0, 0),
        event("segment_alloc", SEGMENT, 7),
        event("segment_free", SEGMENT, 7),
    ]
    # WHEN it is reported, THEN the first counts as a retry, and so does that of the out-of-memory
    assert only_device(content).counts.retries == 2
    # AND the CPU has no retries, even with segment events
    content["pytracer"]["devices"][0]["is_cpu"] = True
    assert only_device(content).counts.retries is None
