"""Tests of the typed metadata of a file, whose values may have any type."""

from typing import Any

import pytest

from pytracer.reading.metadata import (
    DeviceMetadata,
    FileMetadata,
    OomRecord,
    TensorUse,
    file_metadata,
)

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**31,
    2**63,
    1.5,
    float("nan"),
    "x",
    b"x",
    [],
    [[]],
    {},
    (),
)
"""Values of types that some key may not have."""


def test_values_of_wrong_types_are_unknown() -> None:
    # GIVEN a file whose metadata has a key for each attribute, of each type
    names = [*FileMetadata.__dataclass_fields__, "devices", "module_phases", "metadata"]
    devices = [*DeviceMetadata.__dataclass_fields__, "uses"]
    for odd in ODD:
        found = file_metadata(
            dict.fromkeys(names, odd)
            | {"devices": [odd, {"index": odd}, {"index": 0, **dict.fromkeys(devices, odd)}]}
        )
        # THEN an attribute has the value, or is unknown
        texts = (found.version, found.host, found.role, found.untraced, found.step_from)
        numbers = (found.written_ns, found.current_step, found.stack_depth)
        assert set(texts) == ({odd} if isinstance(odd, str) else {None})
        is_number = type(odd) is int and odd < 2**63
        assert set(numbers) == ({odd} if is_number else {None})
        assert {found.rank, found.pid} == {None}  # none of these is in the range of ranks
        assert found.waiting is (odd if isinstance(odd, bool) else None)
        device = found.device(0)
        assert device.overwritten == (odd if is_number else None)
        assert (device.steps, device.uses, device.memory_fraction) == ([], [], None)
        assert not found.module_phases.names


def test_valid_entries_of_lists_are_kept() -> None:
    found = file_metadata(
        {
            "rank": 3,
            "backends": ["cpu", 1, "cuda"],
            "torch": "2.9.1+cu130",
            "torch_folders": ["/torch", "", 2],
            "settings": {"npu": "a:1", "x": None},
            "devices": [
                {
                    "index": 1,
                    "steps": [[1, 0], [True, 1], [2], (2, 7), [-1, 8], "ab"],
                    "uses": [[4, 512, "argument"], [4, 512], [-1, 512, "result"], [4, 2**63, ""]],
                    "statistics": {"memory_fraction": 0.5, "ooms": 1.0},
                },
                {"index": 1, "overwritten": 3},
            ],
        }
    )
    assert (found.rank, found.backends, found.torch_version("cuda")) == (
        3,
        ("cpu", "cuda"),
        "2.9.1",
    )
    assert (found.torch_folders, found.settings) == (("/torch",), ("a:1",))
    device = found.device(1)
    assert (device.steps, device.overwritten) == ([(1, 0), (2, 7)], None)
    assert device.uses == [TensorUse(4, 512, "argument")]
    assert (device.memory_fraction, found.device(0)) == (0.5, DeviceMetadata())


@pytest.mark.parametrize(
    ("device", "is_cpu", "index"), [(0, False, 0), (-1, True, 0), (1, False, 1)]
)
def test_an_oom_is_of_one_device(device: int, is_cpu: bool, index: int) -> None:
    devices = [{"index": 0, "is_cpu": is_cpu}, {"index": 1, "is_cpu": False}]
    found = file_metadata({"oom": {"device": device, "free_bytes": 7}, "devices": devices})
    assert [found.oom_of(other) is not None for other in (0, 1)] == [index == 0, index == 1]
    assert found.oom_of(index) == OomRecord(device, None, None, 7)
