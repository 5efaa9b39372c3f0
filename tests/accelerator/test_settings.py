"""What does a change of the allocator's settings do, and what is restored?"""

import gc

import pytest
import torch
from settings_state import LARGE, MIB, OTHER_SETTINGS, State

import pytracer
from pytracer import Tracer
from pytracer.errors import PytracerError


def test_segments_are_of_the_requested_kind(state: State, backend: str) -> None:
    # GIVEN a recording
    with Tracer(device=backend) as tracer:
        for on in (True, False, True, False):
            state.device.empty_cache()
            tracer.clear()
            # WHEN expandable segments are switched on or off
            with pytracer.expandable_segments(on):
                block = torch.empty(LARGE, dtype=torch.uint8, device=backend)
                address = block.data_ptr()
                del block
                state.device.empty_cache()
            # THEN the events that follow are of such segments, until the change ends
            actions = [
                event["action"]
                for event in tracer.snapshot()["device_traces"][0]
                if event["size"] >= LARGE
                and event["addr"] <= address < event["addr"] + event["size"]
            ]
            begin = "segment_map" if on else "segment_alloc"
            end = "segment_unmap" if on else "segment_free"
            assert [action for action in actions if action.startswith("segment")] == [begin, end]
    assert state.expandable() is False


@pytest.mark.parametrize("on", [True, False])
def test_other_settings_are_kept(state: State, on: bool, backend: str) -> None:
    # GIVEN other settings
    with pytracer.allocator_settings(OTHER_SETTINGS[backend]):
        before = state.settings(), state.values()
        # WHEN expandable segments are switched
        with pytracer.expandable_segments(on):
            # THEN only this setting changes
            assert state.expandable() is on
            others = f"{OTHER_SETTINGS[backend]},".lstrip(",")
            assert state.settings() == f"{others}expandable_segments:{on}"
            expected = {**before[1], "expandable_segments": on}
            expected["PYTORCH_CUDA_ALLOC_CONF"] = state.settings()
            assert state.values() in ({}, expected)
        # AND after the change all settings are restored
        assert (state.settings(), state.values()) == before


def test_an_exception_ends_a_change(state: State) -> None:
    # GIVEN WHEN a block that raises an exception
    before = state.settings()
    with pytest.raises(RuntimeError, match=r"^mine$"), pytracer.expandable_segments(True):
        raise RuntimeError("mine")
    # THEN the settings are restored, and the exception is the block's
    assert state.settings() == before
    assert state.expandable() is False


def test_a_permanent_change(state: State) -> None:
    with pytracer.expandable_segments(False):  # restores the settings from before the test
        # GIVEN a change whose object is dropped
        pytracer.expandable_segments(True)
        gc.collect()
        # WHEN THEN it lasts until the next change
        assert state.expandable() is True
        change = pytracer.expandable_segments(False)
        assert state.expandable() is False
        # AND an object can be used later, and repeatedly
        with change:
            assert state.expandable() is False
        assert state.expandable() is True
        with change:
            assert state.expandable() is False
        assert state.expandable() is True


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [
        ("max_split_size_mb:64", "max_split_size", 64 * MIB),
        ("garbage_collection_threshold:0.25", "garbage_collection_threshold", 0.25),
        ("roundup_power2_divisions:4", "roundup_power2_divisions", None),
        ("roundup_power2_divisions:[256:1,512:2,>:8]", "roundup_power2_divisions", None),
        ("pinned_num_register_threads:8", "pinned_num_register_threads", 8),
        ("pinned_use_cuda_host_register:True", "pinned_use_cuda_host_register", True),
        ("release_lock_on_cudamalloc:True", "release_lock_on_cudamalloc", True),
        ("graph_capture_record_stream_reuse:True", "graph_capture_record_stream_reuse", True),
        ("pinned_max_cached_size_mb:64", "max_cached_size", 64 * MIB),
        ("pinned_max_round_threshold_mb:64", "max_round_threshold", 64 * MIB),
    ],
)
def test_values_shown_by_cuda(state: State, change: str, name: str, value: object) -> None:
    # GIVEN a setting of this version
    before = state.values()
    if name not in before:
        pytest.skip("this torch does not show this setting")
    # WHEN it is changed, THEN the allocator shows the new value, and after the change the old one
    with pytracer.allocator_settings(change):
        assert state.values()[name] == value or (value is None and any(state.values()[name]))
    after = state.values()
    assert after == before


def test_values_not_shown_by_cuda(state: State, backend: str) -> None:
    # GIVEN the size of a segment for a block of 5 MiB
    if backend == "npu":
        pytest.skip("torch_npu cannot change this setting")

    def segment() -> int:
        state.device.empty_cache()
        before = state.device.memory_reserved()
        block = torch.empty(5 * MIB, dtype=torch.uint8, device=backend)
        size = state.device.memory_reserved() - before
        del block
        state.device.empty_cache()
        return int(size)

    assert segment() == 20 * MIB
    # WHEN this size is changed, THEN new segments have it, and the old one is restored
    with pytracer.allocator_settings("large_segment_size_mb:40"):
        assert segment() == 40 * MIB
    assert segment() == 20 * MIB


def test_settings_of_several_strings(state: State, backend: str) -> None:
    # GIVEN two strings of settings, the second without the first setting
    if backend == "npu":
        pytest.skip("torch_npu shows no values")
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    torch._C._accelerator_setAllocatorSettings("max_split_size_mb:200")
    # WHEN THEN both are in force
    assert split_settings(state.settings()) == {"expandable_segments:True", "max_split_size_mb:200"}
    with pytracer.expandable_segments(False):
        assert state.expandable() is False
    assert state.expandable() is True
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    torch._C._accelerator_setAllocatorSettings("")


def split_settings(text: str | None) -> set[str]:
    return set((text or "").split(","))


def test_a_change_leaves_no_memory_reserved(state: State) -> None:
    # GIVEN an empty allocator
    state.device.empty_cache()
    before = state.device.memory_reserved(), state.device.memory._snapshot()["segments"]
    # WHEN THEN after a change, the allocator has the same segments
    with pytracer.expandable_segments(True):
        assert (state.device.memory_reserved(), state.device.memory._snapshot()["segments"]) == (
            before
        )


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_during_a_capture(state: State, backend: str) -> None:
    # GIVEN a graph that is being captured during a change
    graph = torch.cuda.CUDAGraph() if backend == "cuda" else state.device.NPUGraph()
    capture = state.device.graph
    change = pytracer.expandable_segments(True)
    with capture(graph):
        # WHEN settings are to be changed, THEN the change is refused
        with pytest.raises(PytracerError, match="a graph is being captured"):
            pytracer.allocator_settings("expandable_segments:False")
        # AND the end of the earlier change works
        with change:
            pass
    assert state.expandable() is False
