"""Test the parts of an accelerator's snapshot that torch's own snapshot does not have."""

import contextlib
import gc
import locale
import os
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import simulated
import torch
from viewed_pickles import check_opcodes
from viewers import check_snapshot

import pytracer
from pytracer import ACTIONS

MB = 1 << 20


@pytest.fixture(autouse=True)
def empty_device(device: ModuleType) -> None:
    gc.collect()
    device.empty_cache()


def actions(tracer: pytracer.Tracer, index: int = 0) -> list[str]:
    events = tracer.events()
    return [ACTIONS[number] for number in events["action"][events["device"] == index]]


def blocks_of(snapshot: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {
        block["address"]: block
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def test_memory_outside_the_allocator(backend: str, device: ModuleType) -> None:
    # GIVEN a block of torch on the last device, while the CPU is traced too
    last = device.device_count() - 1
    held = torch.empty(40 * MB, dtype=torch.uint8, device=f"{backend}:{last}")
    with pytracer.Tracer(device=[backend, "cpu"]) as tracer:
        snapshot = tracer.snapshot()
    # THEN the file has the device's own figures
    *accelerators, cpu = snapshot["pytracer"]["devices"]
    metadata = accelerators[last]
    free, total = device.mem_get_info(last)
    assert metadata["total_bytes"] == total
    assert metadata["reserved_bytes"] == device.memory_reserved(last) >= held.numel()
    if simulated.active():  # a real device has other users, too
        assert metadata["free_bytes"] == free
        assert metadata["reserved_bytes"] == simulated.used_bytes(last)
        context_bytes = simulated.context_bytes(last)
        assert metadata["process_bytes"] == metadata["reserved_bytes"] + context_bytes
    if metadata["process_bytes"] is not None:
        assert metadata["process_bytes"] > metadata["reserved_bytes"]
    # AND the CPU has none, nor has an unused device, because a query would initialise it
    assert "total_bytes" not in cpu
    for index in range(last):
        if device.memory_reserved(index) == 0:
            assert "total_bytes" not in accelerators[index]


def test_statistics_of_the_allocator(backend: str, device: ModuleType) -> None:
    # GIVEN memory that was freed, and an allocation that failed
    device.empty_cache()
    device.reset_peak_memory_stats(0)
    device.set_per_process_memory_fraction(0.5, 0)
    before = device.memory_stats(0)
    large = torch.empty(40 * MB, dtype=torch.uint8, device=f"{backend}:0")
    del large
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 45, dtype=torch.uint8, device=f"{backend}:0")
    # WHEN a snapshot is taken
    with pytracer.Tracer(device=backend) as tracer:
        statistics = tracer.snapshot()["pytracer"]["devices"][0]["statistics"]
    # THEN it has the allocator's own statistics, and the current device is unchanged
    assert device.current_device() == 0
    stats = device.memory_stats(0)
    device.set_per_process_memory_fraction(1.0, 0)
    assert statistics.pop("memory_fraction", 0.5) == 0.5
    assert statistics == {
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "device_allocs": stats["num_device_alloc"],
        "device_frees": stats["num_device_free"],
        "retries": stats["num_alloc_retries"],
        "ooms": stats["num_ooms"],
    }
    assert statistics["ooms"] == before["num_ooms"] + 1
    assert statistics["peak_reserved_bytes"] >= 40 * MB > stats["allocated_bytes.all.current"]


def test_selected_devices(backend: str, device: ModuleType) -> None:
    if device.device_count() < 2:
        pytest.skip("needs two devices")
    # GIVEN tracers of each device, of all devices, of the default, of all and the CPU, of the CPU
    options = [f"{backend}:0", f"{backend}:1", backend, "auto", [backend, "cpu"], ["cpu"]]
    tracers = [pytracer.Tracer(device=option).start() for option in options]
    # WHEN both devices and the CPU are used
    blocks = [torch.empty(1000, device=name) for name in (f"{backend}:0", f"{backend}:1", "cpu")]
    # THEN each tracer has the events of its devices
    seen = [{int(index) for index in tracer.events()["device"]} for tracer in tracers]
    assert seen == [{0}, {1}, {0, 1}, {0, 1}, {-1, 0, 1}, {-1}]
    # AND in the file the CPU is after all other devices
    snapshot = tracers[4].snapshot()
    assert [bool(trace) for trace in snapshot["device_traces"]] == [True] * 3
    assert {segment["device"] for segment in snapshot["segments"]} >= {0, 1, 2}
    assert snapshot["pytracer"]["backends"] == [backend, "cpu"]
    second_only = tracers[1].snapshot()
    assert {segment["device"] for segment in second_only["segments"]} == {1}
    assert [bool(trace) for trace in second_only["device_traces"]] == [False, True]
    for tracer in tracers:
        check_snapshot(tracer.snapshot())
        tracer.stop()
    del blocks


def test_the_state_at_the_stop(backend: str, device: ModuleType, tmp_path: Path) -> None:
    # GIVEN a tracer that was stopped with a large live block
    tracer = pytracer.Tracer(device=f"{backend}:0").start()
    block = torch.empty(1 << 30, dtype=torch.uint8, device=backend)
    address = block.data_ptr()
    tracer.stop()
    # WHEN this block is freed
    del block
    device.empty_cache()
    # THEN a dump still has the block
    tracer.dump(tmp_path / "x.pickle")
    data = (tmp_path / "x.pickle").read_bytes()
    check_opcodes(data)
    snapshot = pickle.loads(data)
    check_snapshot(snapshot)
    assert blocks_of(snapshot)[address]["frames"]
    assert snapshot["device_traces"][0][-1]["action"] == "alloc"
    assert "free_requested" not in {event["action"] for event in snapshot["device_traces"][0]}
    # AND the device's free memory at the stop
    (metadata,) = snapshot["pytracer"]["devices"]
    assert metadata["reserved_bytes"] >= 1 << 30
    if simulated.active():
        used_bytes = metadata["total_bytes"] - metadata["free_bytes"]
        assert used_bytes == metadata["reserved_bytes"]


def test_another_locale(backend: str) -> None:
    # GIVEN a locale that writes numbers with a comma, if one is installed
    before = locale.setlocale(locale.LC_ALL)
    for name in ("de_DE.UTF-8", "fr_FR.UTF-8", "C.UTF-8"):
        with contextlib.suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, name)
            break
    try:
        # WHEN a snapshot is taken
        with pytracer.Tracer(device=backend) as tracer:
            torch.empty(1000, device=backend)
            settings = tracer.snapshot()["allocator_settings"]
    finally:
        locale.setlocale(locale.LC_ALL, before)
    # THEN the settings have numbers
    if backend == "cuda":
        assert settings["garbage_collection_threshold"] == 0.0
        assert isinstance(settings["garbage_collection_threshold"], float)
        assert settings["roundup_power2_divisions"]["1024"] == 0


def test_events_of_all_devices_are_in_order_of_time(backend: str, device: ModuleType) -> None:
    if device.device_count() < 2:
        pytest.skip("needs two devices")
    # GIVEN blocks on two devices and the CPU, allocated alternately
    with pytracer.Tracer(device=[backend, "cpu"]) as tracer:
        for _ in range(50):
            for name in (f"{backend}:1", "cpu", f"{backend}:0"):
                torch.empty(1000, device=name)
        events = tracer.events()
    # THEN all events are in order of time, and each device's events in order of their numbers, of
    # which those of a free have one
    assert (np.diff(events["time_ns"]) >= 0).all()
    assert set(events["device"]) == {-1, 0, 1}
    assert (np.diff(events["device"].astype(int)) != 0).sum() > 50
    for index in (-1, 0, 1):
        rows = events[events["device"] == index]
        is_completion = rows["action"] == pytracer.ACTIONS.index("free_completed")
        steps = np.where(is_completion[1:] & (index != -1), 0, 1)
        assert (np.diff(rows["sequence"].astype(int)) == steps).all()


def test_pools_and_streams(backend: str, device: ModuleType) -> None:
    # GIVEN a pool and a stream
    pool, stream = device.MemPool(), device.Stream()
    with pytracer.Tracer(device=backend) as tracer:
        # WHEN a block is allocated from each
        with device.use_mem_pool(pool):
            pooled = torch.empty(1000, device=backend)
        with device.stream(stream):
            streamed = torch.empty(1000, device=backend)
        events, snapshot = tracer.events(), tracer.snapshot()
    handle = getattr(stream, f"{backend}_stream")
    # THEN events and segments have the pool and the stream
    by_address = {int(e["address"]): e for e in events if ACTIONS[e["action"]] == "alloc"}
    event = by_address[pooled.data_ptr()]
    assert (int(event["pool_high"]), int(event["pool_low"])) == tuple(pool.id) != (0, 0)
    assert int(by_address[streamed.data_ptr()]["stream"]) == handle
    in_file = {e["addr"]: e for e in snapshot["device_traces"][0] if e["action"] == "alloc"}
    assert in_file[pooled.data_ptr()]["pool_id"] == tuple(pool.id)
    assert in_file[streamed.data_ptr()]["pool_id"] == (0, 0)
    segments = {segment["address"]: segment for segment in snapshot["segments"]}
    assert segments[pooled.data_ptr()]["segment_pool_id"] == tuple(pool.id)
    assert segments[streamed.data_ptr()]["stream"] == handle
    del pooled


def test_labels_beyond_their_bound(backend: str, device: ModuleType) -> None:
    if backend == "npu" or not hasattr(device.memory, "_set_memory_metadata"):
        return  # torch_npu has no labels, nor have older torches
    # GIVEN a program that sets new labels again and again
    with pytracer.Tracer(device=backend, trace_alloc_max_entries=200_000) as tracer:
        for number in range(70_000):
            device.memory._set_memory_metadata(f"step {number} " + "x" * 20)
            if number % 2 == 0:
                torch.empty(1, device=backend)
        device.memory._set_memory_metadata("")
        snapshot = tracer.snapshot()
    # THEN the first labels are kept, the others are empty and counted
    labels = [event["user_metadata"] for event in snapshot["device_traces"][0]]
    assert labels[1].startswith("step 0 ")
    kept = sum(1 for label in labels if label)
    (metadata, *_) = snapshot["pytracer"]["devices"]
    assert 20_000 < kept < len(labels)
    assert metadata["labels_dropped"] == len(labels) - kept
    assert os.getpid() == snapshot["pytracer"]["pid"]


def test_metadata_that_the_program_sets_in_torch_takes_precedence(
    backend: str, device: ModuleType
) -> None:
    if not hasattr(device.memory, "_set_memory_metadata"):
        pytest.skip("this torch has none")
    with pytracer.Tracer(device=f"{backend}:0") as tracer, pytracer.annotate("phase"):
        device.memory._set_memory_metadata("mine")
        torch.empty(12_345, dtype=torch.uint8, device=backend)
        device.memory._set_memory_metadata("")
        torch.empty(12_345, dtype=torch.uint8, device=backend)
    trace = tracer.snapshot()["device_traces"][0]
    allocations = [event for event in trace if event["action"] == "alloc"]
    assert [event["user_metadata"] for event in allocations] == ["mine", "phase"]
