"""Do the replaced functions of torch's recorder take and return what torch's do?"""

import inspect
import logging
import pickle
import sys
from pathlib import Path

import pytest
import torch
from patched_torch import Torch, blocks, deep, events

from pytracer.torch_recorder.patch import patch_torch, unpatch_torch

pytestmark = pytest.mark.usefixtures("no_collector")


# Replaced functions.


def test_the_signature_is_torchs_with_a_stack_depth(program: Torch) -> None:
    # GIVEN the parameters of torch's own function
    own = inspect.signature(program.device.memory._record_memory_history_impl).parameters
    # WHEN the function is replaced
    patch_torch()
    replaced = inspect.signature(program.device.memory._record_memory_history).parameters
    # THEN verl finds a `stack_depth` parameter, which it looks for
    assert list(replaced) == [*own, "stack_depth"]
    assert replaced["stack_depth"].default == 32
    assert all(replaced[name] == own[name] for name in own)
    # AND all of torch's functions are replaced
    assert all(
        now is not program.before[name]
        for now, (_, name) in zip(program.now(), program.places, strict=True)
    )
    assert {function.__module__ for function in program.now()} == {patch_torch.__module__}
    assert program.device.memory_snapshot is program.device.memory.memory_snapshot


def test_patching_twice_and_undoing_it(program: Torch) -> None:
    patch_torch()
    replaced = program.now()
    patch_torch()
    assert program.now() == replaced
    # WHEN the patch is undone during a session
    program.record()
    assert program.is_enabled()
    unpatch_torch()
    # THEN the session has ended; the fixture checks that torch's functions are restored
    assert not program.is_enabled()
    unpatch_torch()


def test_a_wrapper_around_the_replaced_function_keeps_working(patched: Torch) -> None:
    # GIVEN a wrapper around pytracer's function
    replaced = patched.device.memory._record_memory_history
    patched.device.memory._record_memory_history = wrapper = lambda *args, **more: replaced(
        *args, **more
    )
    wrapper(stack_depth=3)
    assert not patched.is_native_enabled()
    # WHEN the patch is undone
    unpatch_torch()
    # THEN the wrapper remains, and calls torch's function
    assert patched.device.memory._record_memory_history is wrapper
    wrapper(stack_depth=3)
    assert patched.is_native_enabled()
    # AND after another patch, it calls pytracer's
    patch_torch()
    patched.record(None)
    assert not patched.is_enabled()
    patched.record()
    assert patched.is_enabled()
    assert not patched.is_native_enabled()
    unpatch_torch()
    patched.device.memory._record_memory_history = patched.before["_record_memory_history"]


# Recording.


def test_the_number_of_entries_is_limited(patched: Torch) -> None:
    for entries, bound in ((sys.maxsize, 100_000), (1 << 40, 100_000), (0, 1), (77, 77)):
        patched.record(max_entries=entries)
        metadata = patched.snapshot()["pytracer"]
        assert metadata["trace_alloc_max_entries"] == bound
        assert metadata["stand_in"]["max_entries"] == entries


def test_cpp_frames_are_not_recorded_without_a_warning(
    patched: Torch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pytracer"):
        patched.record(stacks="all")  # torch's default
    assert caplog.text == ""
    assert patched.snapshot()["pytracer"]["stand_in"]["stacks"] == "all"


def test_wrong_arguments_raise_torchs_errors(program: Torch) -> None:
    wrong = [
        ((), {"enabled": "some"}),
        ((3,), {}),
        ((), {"context": "stack"}),
        ((), {"stacks": "rust"}),
        ((None,), {"context": "stack"}),
        ((), {"max_entries": -1}),
        ((), {"max_entries": "all"}),
        ((), {"nonsense": 1}),
        ((), {"skip_actions": ["nonsense"]}),
        ((), {"skip_actions": "alloc"}),
        ((), {"compile_context": "yes"}),
        ((True, True, "many"), {}),
    ]

    def errors() -> list[tuple[type, str]]:
        raised = []
        for args, kwargs in wrong:
            with pytest.raises((TypeError, RuntimeError)) as info:
                program.record(*args, **kwargs)
            raised.append((info.type, str(info.value)))
        return raised

    # GIVEN the errors of torch's function
    before = errors()
    # THEN the replaced function raises the same errors
    patch_torch()
    assert errors() == before
    program.record(None)
    assert not program.is_enabled()


# Reading.


def test_files_and_dicts_are_equal_and_small(patched: Torch, tmp_path: Path) -> None:
    # GIVEN a recording with deep stacks
    patched.record(max_entries=2000)
    for _ in range(500):
        deep(patched)
    # WHEN it is written in the ways of frameworks
    patched.device.memory._dump_snapshot(str(tmp_path / "dump.pickle"))
    snapshot = patched.snapshot()
    pickled = pickle.dumps(snapshot, protocol=4)
    # THEN the file is complete, and the pickled dict is not much larger, because it shares frames
    dumped = pickle.loads((tmp_path / "dump.pickle").read_bytes())
    assert events(dumped) == events(snapshot)
    assert dumped["segments"] == snapshot["segments"]
    assert len(pickled) < 1.5 * (tmp_path / "dump.pickle").stat().st_size
    assert patched.device.memory_snapshot() == snapshot["segments"]
    assert [path.name for path in tmp_path.iterdir()] == ["dump.pickle"]
    # AND a file that cannot be written raises an error, as with torch
    with pytest.raises(OSError, match="No such file"):
        patched.device.memory._dump_snapshot(str(tmp_path / "nowhere" / "x.pickle"))


def test_frames_of_generated_code(
    patched: Torch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "augment_with_fx_traces" not in inspect.signature(patched.before["_snapshot"]).parameters:
        pytest.skip("this torch does not have the parameter")
    # GIVEN torch's own function that adds information to frames
    name = "_augment_memory_snapshot_stack_traces"
    home = patched.device.memory if hasattr(patched.device.memory, name) else torch._utils
    monkeypatch.setattr(home, name, lambda snapshot: {**snapshot, "augmented": True})
    patched.record()
    # THEN it is applied
    assert patched.device.memory._snapshot(augment_with_fx_traces=True)["augmented"]
    patched.device.memory._dump_snapshot(tmp_path / "x.pickle", augment_with_fx_traces=True)
    assert pickle.loads((tmp_path / "x.pickle").read_bytes())["augmented"]
    # AND the real function accepts pytracer's snapshot
    monkeypatch.undo()
    patched.new()
    assert events(patched.device.memory._snapshot(augment_with_fx_traces=True))


# Features of torch's recorder only.


def test_torchs_annotations(patched: Torch) -> None:
    if patched.backend == "npu":
        pytest.skip("only CUDA has them")
    # GIVEN a session that requests torch's annotations
    patched.record(global_record_annotations=True, compile_context=True)
    with torch.profiler.record_function("named"):
        patched.new()
    snapshot = patched.snapshot()
    # THEN pytracer's snapshot has them, and pytracer's events
    assert {entry["name"] for entry in snapshot["external_annotations"]} == {"named"}
    assert [action for action, _ in events(snapshot)][-3:] == [
        "alloc",
        "free_requested",
        "free_completed",
    ]
    assert "pytracer" in snapshot
    # AND torch's recorder has kept no events
    if "skip_actions" in inspect.signature(patched.device.memory._record_memory_history).parameters:
        assert sum(map(len, patched.before["_snapshot"]()["device_traces"])) == 0
    # WHEN the annotations are no longer requested, THEN torch's recorder is switched off
    patched.record()
    assert not patched.is_native_enabled()
    patched.record(compile_context=True)
    assert patched.is_native_enabled()
    patched.record(None)
    assert not patched.is_native_enabled()


def test_pinned_memory(patched: Torch, tmp_path: Path) -> None:
    parameters = inspect.signature(patched.device.memory._record_memory_history).parameters
    if "record_pinned_host_memory" not in parameters:
        pytest.skip("this torch does not have the parameter")
    # GIVEN a session of the host and the device
    patched.record(record_pinned_host_memory=True, global_record_annotations=True, stacks="python")
    held = torch.empty(1000).pin_memory(), patched.new()
    patched.device.memory._dump_snapshot(tmp_path / "x.pickle")
    snapshot = pickle.loads((tmp_path / "x.pickle").read_bytes())
    # THEN the file has both
    assert snapshot["host_traces"]
    assert snapshot["host_segments"]
    assert held[1].data_ptr() in blocks(snapshot)
    assert events(snapshot)
    # WHEN only the host is requested, THEN the device is not recorded
    patched.record(record_pinned_host_memory=True, record_cuda=False)
    assert not patched.is_enabled()
    patched.record(None)


def test_skipped_events(patched: Torch, tmp_path: Path) -> None:
    if "skip_actions" not in inspect.signature(patched.before["_record_memory_history"]).parameters:
        pytest.skip("this torch does not have the parameter")
    patched.record(skip_actions=["free_requested", "segment_alloc", "snapshot"])
    patched.new()
    patched.device.memory._dump_snapshot(tmp_path / "x.pickle")
    for snapshot in (patched.snapshot(), pickle.loads((tmp_path / "x.pickle").read_bytes())):
        actions = [event["action"] for event in snapshot["device_traces"][0]]
        assert actions == ["alloc", "free_completed"]
        assert snapshot["pytracer"]["stand_in"]["skip_actions"]


def test_the_arguments_of_old_versions(patched: Torch) -> None:
    if patched.backend == "npu":
        pytest.skip("only CUDA has them")
    for options, context, has_events in (
        ({}, "state", False),
        ({"trace_alloc_max_entries": 10}, "state", True),
        ({"trace_alloc_max_entries": 10, "trace_alloc_record_context": True}, "alloc", True),
        ({"record_context": False}, None, False),
    ):
        patched.record(True, **options)
        patched.new()
        snapshot = patched.snapshot()
        assert snapshot["pytracer"]["context"] == context
        assert bool(events(snapshot)) == has_events
        patched.record(False)
        assert not patched.is_enabled()
