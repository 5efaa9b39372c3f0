"""Each device and file is compared with its counterpart, and several pairs have one mean."""

import pytest
import reference_reader
from small_differences import TRAIN, only_device, rows
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis.diff.changes import Held, Pair, changes
from pytracer.analysis.diff.compare import compare_snapshots
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import Snapshot, used_devices


def test_devices() -> None:
    # GIVEN files of one device each, with different indices and backends
    cuda, npu = Program(0), Program(1)
    for program in (cuda, npu):
        program.alloc(1024, (TRAIN, "f", 1))
    cuda.metadata = file_metadata()
    # THEN the two devices are compared
    device = only_device(cuda.snapshot(), npu.snapshot())
    assert (device.before, device.after) == ("cuda:0", "device 1")
    assert rows(device.changes["line"]) == [("same", 1024, 1024, "line")]
    # GIVEN a file with two devices, THEN devices match by index, and the unmatched one is listed
    both = cuda.content()
    npu_content = npu.content()
    both["segments"] += npu_content["segments"]
    both["device_traces"].append(npu_content["device_traces"][1])
    found = compare_snapshots(reference_reader.convert(both), npu.snapshot())
    assert [(device.before, device.after) for device in found.devices] == [("cuda:1", "device 1")]
    assert (found.only_baseline, found.only_new) == (["cuda:0"], [])
    # GIVEN files that list the CPU after the accelerators, THEN the CPU is compared with the CPU
    single = with_cpu([cuda])
    found = compare_snapshots(single, with_cpu([cuda, npu]))
    assert [(device.before, device.after) for device in found.devices] == [
        ("cuda:0", "cuda:0"),
        ("cpu", "cpu"),
    ]
    assert (found.only_baseline, found.only_new) == ([], ["cuda:1"])
    # AND a missing device is an error
    with pytest.raises(PytracerError, match="device 5"):
        compare_snapshots(cuda.snapshot(), npu.snapshot(), device=5)


def with_cpu(accelerators: list[Program]) -> Snapshot:
    """Return a file with these accelerators and a CPU."""
    cpu = Program(len(accelerators))
    cpu.alloc(512, (TRAIN, "f", 1))
    found = cpu.content()
    for index, program in enumerate(accelerators):
        found["segments"] += program.content()["segments"]
        found["device_traces"][index] = program.events
    found["pytracer"] = file_metadata(devices=[{"index": len(accelerators), "is_cpu": True}])
    return reference_reader.convert(found)


def test_single_accelerators_are_compared_even_with_different_indices() -> None:
    # GIVEN the files of two ranks, each with its own accelerator and the CPU
    def rank_file(index: int, size: int) -> Snapshot:
        cpu, accelerator = Program(8), Program(index)
        for program in (cpu, accelerator):
            program.alloc(size, (TRAIN, "f", 1))
        found = cpu.content()
        found["segments"] += accelerator.content()["segments"]
        found["device_traces"][index] = accelerator.events
        devices = [{"index": 8, "is_cpu": True}]
        return reference_reader.convert({**found, "pytracer": file_metadata(devices=devices)})

    # WHEN they are compared, THEN the accelerators are compared with each other, and the CPUs too
    found = compare_snapshots(rank_file(0, 512), rank_file(3, 1024))
    assert [(device.before, device.after) for device in found.devices] == [
        ("cuda:0", "cuda:3"),
        ("cpu", "cpu"),
    ]
    assert (found.only_baseline, found.only_new) == ([], [])


def test_devices_that_were_not_used() -> None:
    # GIVEN a device that has only the snapshot marker
    program = Program()
    program.alloc(1024, (TRAIN, "f", 1))
    content = program.content()
    content["device_traces"].append([{"action": "snapshot"}])
    # THEN it is neither compared nor exported
    snapshot = reference_reader.convert(content)
    found = compare_snapshots(snapshot, snapshot)
    assert [device.before for device in found.devices] == ["device 0"]
    assert used_devices(snapshot) == [0]


class Counted(dict[str | None, Held]):
    """A side of a pair that counts how often a key is looked up."""

    lookups = 0

    def __contains__(self, key: object) -> bool:
        Counted.lookups += 1
        return super().__contains__(key)


def test_phases_of_many_pairs_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN many pairs of files, each of which has phases of its own
    monkeypatch.setattr(Counted, "lookups", 0)
    count = 300
    before = [Counted({f"phase {i}": Held(i, 1)}) for i in range(count)]
    after = [Counted({f"phase {i}": Held(3 * i, 2)}) for i in range(count)]
    pairs = [Pair(f"pair {i}", before[i], after[i]) for i in range(count)]
    # WHEN they are compared
    found = changes(pairs)
    # THEN each phase has the numbers of its pair, as a mean over all
    assert {change.name: change.largest_delta_bytes for change in found} == {
        f"phase {i}": 2 * i for i in range(count)
    }
    assert {change.largest_in for change in found} == {f"pair {i}" for i in range(count)}
    # AND no phase was looked for in the pairs of others
    assert Counted.lookups <= 4 * count
