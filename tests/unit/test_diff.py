"""What differs between snapshots, against sums by hand and by plain Python."""

import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import plain_reader
import pytest
from made_snapshots import Program, about

from pytracer.errors import PytracerError
from pytracer.reading.devices import devices_of
from pytracer.reading.diff import (
    DeviceDifference,
    DirectoryDifference,
    Summary,
    diff,
    diff_directories,
    diff_summaries,
    summarise,
)
from pytracer.reading.diff_changes import SiteChange
from pytracer.reading.snapshot import Frame, Snapshot

GOLDEN = Path(__file__).parents[1] / "golden"

TRAIN, MODEL, EVAL = "/a/train.py", "/a/src/model.py", "/a/eval.py"


def only_device(before: Snapshot, after: Snapshot) -> DeviceDifference:
    [device] = diff(before, after).devices
    return device


def rows(sites: list[SiteChange]) -> list[tuple[str, int, int, str | None]]:
    return [(each.kind, each.before_bytes, each.after_bytes, each.matched_by) for each in sites]


def holding(*blocks: tuple[int, tuple[str, str, int]]) -> Snapshot:
    """Snapshot of a program that allocated that, and frees a part after its peak."""
    program = Program()
    kept = [program.alloc(size, frame) for size, frame in blocks]
    program.free(kept[0])
    return program.snapshot()


def test_what_is_new_gone_grown_and_shrunk() -> None:
    # GIVEN two runs
    forward, step, old = (MODEL, "forward", 5), (TRAIN, "step", 9), (TRAIN, "warm_up", 3)
    before = holding(
        (1024, forward), (2048, forward), (512, step), (4096, old), (512, (EVAL, "f", 1))
    )
    after = holding(
        (1024, forward),
        (8192, forward),
        (512, forward),
        (512, (TRAIN, "save", 30)),
        (512, (EVAL, "f", 1)),
    )
    # WHEN they are compared
    device = only_device(before, after)
    # THEN by the blocks at either peak, the largest difference first
    assert [
        (*row, site.delta_bytes) for row, site in zip(rows(device.sites), device.sites, strict=True)
    ] == [
        ("grown", 3072, 9728, "line", 6656),
        ("gone", 4096, 0, None, -4096),
        *[("gone", 512, 0, None, -512), ("new", 0, 512, None, 512)],
        ("same", 512, 512, "line", 0),
    ]
    assert [(s.before_count, s.after_count) for s in device.sites] == [
        (2, 3),
        (1, 0),
        (1, 0),
        (0, 1),
        (1, 1),
    ]
    assert device.sites[0].after == [Frame(*forward)]
    # AND numbers of the device are those of the peak
    allocated, peak = device.amounts["allocated_bytes"], (8192, 10752)
    assert (allocated.before, allocated.after, allocated.delta) == (*peak, peak[1] - peak[0])
    assert device.amounts["reserved_bytes"].after == 2**21
    assert device.amounts["fragmentation_bytes"].delta == peak[0] - peak[1]
    assert device.amounts["device_allocs"].delta == 0
    assert (device.at, device.reasons, device.is_certain) == ("peak", [], True)


def test_lines_that_moved() -> None:
    # GIVEN a function whose lines moved, and one whose line stayed
    before = holding(
        (1024, (TRAIN, "step", 10)), (2048, (TRAIN, "step", 20)), (512, (TRAIN, "f", 2))
    )
    after = holding(
        (1024, (TRAIN, "step", 13)), (4096, (TRAIN, "step", 23)), (512, (TRAIN, "f", 2))
    )
    # THEN the function is one row: which of its lines is which cannot be told
    step, stayed = only_device(before, after).sites
    assert rows([step, stayed]) == [
        ("grown", 3072, 5120, "function"),
        ("same", 512, 512, "line"),
    ]
    assert [frame.line for frame in step.before] == [10, 20]
    assert [frame.line for frame in step.after] == [13, 23]
    # AND a line that is there on both sides is matched before any that moved
    after = holding(
        (1024, (TRAIN, "step", 10)), (4096, (TRAIN, "step", 23)), (512, (TRAIN, "f", 2))
    )
    assert rows(only_device(before, after).sites) == [
        ("grown", 2048, 4096, "function"),
        ("same", 1024, 1024, "line"),
        ("same", 512, 512, "line"),
    ]


def test_paths_that_differ() -> None:
    # GIVEN a program in another place, on another system, with a file in another folder
    names = [("pkg/model.py", "forward", 5), ("pkg/loss.py", "loss", 7), ("x/train.py", "step", 9)]
    before = holding(*((1024, (f"/home/me/{f}", n, line)) for f, n, line in names))
    moved = [("pkg/model.py", "forward", 6), ("pkg/loss.py", "other", 7), ("y/train.py", "step", 9)]
    after = holding(*((2048, (f"C:/job/{f}".replace("/", "\\"), n, line)) for f, n, line in moved))
    # THEN functions match by the path's last two parts, then by the file's name
    found = {
        (s.matched_by, (s.after or s.before)[0].name) for s in only_device(before, after).sites
    }
    assert found == {("path", "forward"), ("file name", "step"), (None, "loss"), (None, "other")}


def test_sites_that_cannot_be_told_apart_are_summed_up() -> None:
    # GIVEN two files of one name with a function of one name, both elsewhere now
    before = holding((1024, ("/a/p/util.py", "make", 1)), (2048, ("/a/q/util.py", "make", 1)))
    after = holding((512, ("/b/r/util.py", "make", 1)))
    # THEN they are one row
    [site] = only_device(before, after).sites
    assert rows([site]) == [("shrunk", 3072, 512, "file name")]
    assert len(site.before) == 2


def test_unknown_stacks_are_a_site_of_their_own() -> None:
    program = Program()
    program.alloc(1024)
    [site] = only_device(program.snapshot(), program.snapshot()).sites
    assert (site.kind, site.before, site.after, site.matched_by) == ("same", [], [], "line")


def test_phases() -> None:
    # GIVEN a block older than the trace, and phases of which one is gone
    def run(*phases: tuple[str, int]) -> Snapshot:
        program = Program()
        program.alloc(512, (TRAIN, "load", 1), events=False)
        for phase, size in phases:
            program.alloc(size, (TRAIN, "step", 2), phase=phase)
        return program.snapshot()

    before = run(("rollout", 1024), ("update", 2048), ("update", 512))
    after = run(("rollout", 4096), ("", 512))
    # WHEN they are compared THEN by phase
    found = {
        p.phase: (p.kind, p.before_bytes, p.after_bytes, p.before_count, p.after_count)
        for p in only_device(before, after).phases
    }
    assert found == {
        "rollout": ("grown", 1024, 4096, 1, 1),
        "update": ("gone", 2560, 0, 2, 0),
        "": ("new", 0, 512, 0, 1),
        None: ("same", 512, 512, 0, 0),
    }


def test_sums_of_random_programs() -> None:
    # GIVEN random programs
    rng = random.Random(7)

    def run() -> Program:
        program, alive = Program(), []
        for _ in range(300):
            if alive and rng.random() < 0.45:
                program.free(alive.pop(rng.randrange(len(alive))))
            else:
                frame = (f"/a/{rng.choice('xy')}.py", rng.choice("fg"), rng.randrange(4))
                phase = rng.choice(["", "p", "q"])
                alive.append(program.alloc(rng.randrange(1, 9000), frame, phase=phase))
        return program

    def held_at_peak(program: Program) -> tuple[int, dict[Frame, list[int]]]:
        """Run forward, in plain Python."""
        alive: dict[int, tuple[Frame, int]] = {}
        highest, at_peak = 0, {}
        for event in program.events:
            if event["action"] == "alloc":
                [frame] = event["frames"]
                alive[event["addr"]] = Frame(**frame), -(-event["size"] // 512) * 512
            elif event["action"] == "free_completed":
                del alive[event["addr"]]
            if (total := sum(size for _, size in alive.values())) > highest:
                highest, at_peak = total, dict(alive)
        by_frame = defaultdict(list)
        for frame, size in at_peak.values():
            by_frame[frame].append(size)
        return highest, by_frame

    for _ in range(5):
        before, after = run(), run()
        # WHEN they are compared
        device = only_device(before.snapshot(), after.snapshot())
        # THEN sites and phases add up to the peaks, and each site has what it held
        for program, side in ((before, "before"), (after, "after")):
            highest, by_frame = held_at_peak(program)
            assert getattr(device.amounts["allocated_bytes"], side) == highest
            for changes in (device.sites, device.phases):
                assert sum(getattr(each, f"{side}_bytes") for each in changes) == highest
            found = {
                frame: (getattr(site, f"{side}_bytes"), getattr(site, f"{side}_count"))
                for site in device.sites
                for frame in getattr(site, side)
                if site.matched_by == "line"
            }
            assert found
            assert found == {frame: (sum(by_frame[frame]), len(by_frame[frame])) for frame in found}


def test_metadata() -> None:
    # GIVEN two runs with other options, settings and user's metadata
    before, after = Program(), Program()
    before.about = about(stack_depth=32, metadata={"lr": 0.1, "seed": 1}, rank=0)
    after.about = about(
        *["npu"],
        stack_depth=64,
        metadata={"lr": 0.2, "seed": 1, "new": None},
        rank=0,
        pid=8,
        host="n2",
    )
    before.settings = {"expandable_segments": False, "roundup_power2_divisions": {"1": 0, "2": 0}}
    after.settings = {"expandable_segments": True, "roundup_power2_divisions": {"1": 0, "2": 4}}
    # THEN what differs is told, and not what is of the process and the moment
    found = diff(before.snapshot(), after.snapshot()).metadata
    assert {(fact.name, fact.before, fact.after) for fact in found} == {
        ("backends", "['cuda']", "['npu']"),
        ("stack_depth", "32", "64"),
        ("metadata.lr", "0.1", "0.2"),
        ("metadata.new", None, "None"),
        ("allocator_settings.expandable_segments", "False", "True"),
        ("allocator_settings.roundup_power2_divisions.2", "0", "4"),
    }
    # AND if one of them has none, that alone
    after.about, after.settings = {}, {}
    found = diff(before.snapshot(), after.snapshot()).metadata
    assert [(fact.name, fact.after) for fact in found] == [
        ("pytracer", None),
        ("allocator_settings", None),
    ]


def test_devices() -> None:
    # GIVEN files of one device each, of other indices and kinds
    cuda, npu = Program(0), Program(1)
    for program in (cuda, npu):
        program.alloc(1024, (TRAIN, "f", 1))
    cuda.about = about()
    # THEN the one is compared with the other
    device = only_device(cuda.snapshot(), npu.snapshot())
    assert (device.before, device.after) == ("cuda:0", "device 1")
    assert rows(device.sites) == [("same", 1024, 1024, "line")]
    # GIVEN one with two, THEN by index, and the other one is named
    both = cuda.content()
    other = npu.content()
    both["segments"] += other["segments"]
    both["device_traces"].append(other["device_traces"][1])
    found = diff(plain_reader.convert(both), npu.snapshot())
    assert [(each.before, each.after) for each in found.devices] == [("cuda:1", "device 1")]
    assert (found.only_baseline, found.only_new) == (["cuda:0"], [])
    # GIVEN the CPU, which stands after the accelerators, THEN it is compared with the CPU
    one = with_cpu([cuda])
    found = diff(one, with_cpu([cuda, npu]))
    assert [(each.before, each.after) for each in found.devices] == [
        ("cuda:0", "cuda:0"),
        ("cpu", "cpu"),
    ]
    assert (found.only_baseline, found.only_new) == ([], ["cuda:1"])
    # AND a device that is not there is an error
    with pytest.raises(PytracerError, match="device 5"):
        diff(cuda.snapshot(), npu.snapshot(), device=5)


def with_cpu(accelerators: list[Program]) -> Snapshot:
    """All of these devices in one file."""
    cpu = Program(len(accelerators))
    cpu.alloc(512, (TRAIN, "f", 1))
    found = cpu.content()
    for index, program in enumerate(accelerators):
        found["segments"] += program.content()["segments"]
        found["device_traces"][index] = program.events
    found["pytracer"] = about(devices=[{"index": len(accelerators), "is_cpu": True}])
    return plain_reader.convert(found)


def test_the_only_accelerators_are_compared_whatever_their_indices() -> None:
    # GIVEN the files of two ranks, each with its own device and the CPU
    def of_rank(index: int, size: int) -> Snapshot:
        cpu, accelerator = Program(8), Program(index)
        for program in (cpu, accelerator):
            program.alloc(size, (TRAIN, "f", 1))
        found = cpu.content()
        found["segments"] += accelerator.content()["segments"]
        found["device_traces"][index] = accelerator.events
        told = [{"index": 8, "is_cpu": True}]
        return plain_reader.convert({**found, "pytracer": about(devices=told)})

    # WHEN they are compared THEN the accelerators are, and the CPUs
    found = diff(of_rank(0, 512), of_rank(3, 1024))
    assert [(each.before, each.after) for each in found.devices] == [
        ("cuda:0", "cuda:3"),
        ("cpu", "cpu"),
    ]
    assert (found.only_baseline, found.only_new) == ([], [])


def test_devices_that_were_not_used() -> None:
    # GIVEN a device with nothing but the marker of the snapshot
    program = Program()
    program.alloc(1024, (TRAIN, "f", 1))
    content = program.content()
    content["device_traces"].append([{"action": "snapshot"}])
    # THEN it is not compared, nor exported
    snapshot = plain_reader.convert(content)
    assert [each.before for each in diff(snapshot, snapshot).devices] == ["device 0"]
    assert devices_of(snapshot) == [0]


def test_expandable_segments_without_a_trace() -> None:
    # GIVEN files with no events, whose segments expand
    def state(size: int) -> Snapshot:
        program = Program()
        program.alloc(size, (TRAIN, "f", 1), events=False)
        content = program.content()
        content["segments"][0]["is_expandable"] = True
        return plain_reader.convert(content)

    # THEN they are compared at the end, for a reason that is said once
    device = only_device(state(1024), state(2048))
    assert (device.at, device.reasons) == ("end", ["device 0 has no trace in it"])
    assert rows(device.sites) == [("grown", 1024, 2048, "line")]


def test_a_trace_that_contradicts_its_state_is_compared_at_the_end() -> None:
    # GIVEN a file that leaves events out, and one that does not and is fuller at its peak
    before, after = Program(), Program()
    before.alloc(1024, (TRAIN, "f", 1))
    before.events.append({**before.events[-1], "action": "free_completed"})
    kept = after.alloc(4096, (TRAIN, "g", 1))
    after.alloc(2048, (TRAIN, "f", 1))
    after.free(kept)
    # THEN both are compared at the end, and that is said
    device = only_device(before.snapshot("a.pickle"), after.snapshot())
    assert (device.at, device.phases) == ("end", [])
    assert len(device.reasons) == 1
    assert rows(device.sites) == [("grown", 1024, 2048, "line")]
    assert device.amounts["allocated_bytes"].after == 2048
    assert device.amounts["peak_reserved_bytes"].before is None


def test_directories() -> None:
    # GIVEN three pairs of files, one of which has grown more
    pairs = []
    for step, size in ((1, 1024), (2, 1024), (3, 7168)):
        before = holding((1024, (TRAIN, "f", 1)), (2048, (TRAIN, "g", 1)))
        after = holding((size, (TRAIN, "f", 3)), (2048, (TRAIN, "g", 1)))
        pairs.append((f"step {step}", summarise(before), summarise(after)))
    # WHEN they are compared
    found = diff_directories("a", "b", pairs, ["a/x.pickle"])
    # THEN each pair has a row
    assert [(file.place, file.before_bytes, file.after_bytes) for file in found.files] == [
        ("step 1", 3072, 3072),
        ("step 2", 3072, 3072),
        ("step 3", 3072, 9216),
    ]
    # AND sites have means, and the pair that differs most
    moved, same = found.sites
    assert rows([moved, same]) == [
        ("grown", 1024, 3072, "function"),
        ("same", 2048, 2048, "line"),
    ]
    assert (moved.largest_in, moved.largest_delta_bytes) == ("step 3", 6144)
    assert moved.delta_bytes == 2048
    assert (found.only_baseline, found.only_new) == (["a/x.pickle"], [])


def test_changes_that_cancel_in_the_mean() -> None:
    # GIVEN two ranks that swapped what a site and a phase of them held, and another that grew
    def rank(size: int, other: int) -> Summary:
        program = Program()
        program.alloc(size, (TRAIN, "f", 1), phase="p")
        program.alloc(other, (TRAIN, "g", 2), phase="q")
        return summarise(program.snapshot())

    pairs = [
        ("rank 0", rank(8192, 512), rank(1024, 1024)),
        ("rank 1", rank(1024, 512), rank(8192, 1024)),
    ]
    # THEN what moved most in a pair comes first, though its mean is the same
    found = diff_directories("a", "b", pairs)
    for changes in (found.sites, found.phases):
        assert [(c.delta_bytes, abs(c.largest_delta_bytes or 0)) for c in changes] == [
            (0, 7168),
            (512, 512),
        ]


def of_phase(size: int, phase: str | None = "rollout") -> Snapshot:
    """A file of one phase, or of the step that it is in."""
    program = Program()
    program.alloc(size, (TRAIN, "f", 1), phase="rollout")
    program.about = about(window={"first": 1, "last": 1, "phase": phase})
    return program.snapshot()


def test_files_of_one_phase_do_not_tell_all() -> None:
    # GIVEN a file of one phase, THEN why its peak is no more than a bound is said in words
    device = only_device(of_phase(512), of_phase(512, None))
    [note] = device.notes
    assert note.startswith("The baseline is of one phase: what other threads did")
    assert not device.is_certain
    [note] = only_device(of_phase(512, None), of_phase(512)).notes
    assert note.startswith("The new one is of one phase")
    assert only_device(of_phase(512, None), of_phase(512, None)).notes == []


def test_a_peak_that_is_not_certain() -> None:
    # GIVEN a file of which stats say so
    certain = summarise(holding((512, (TRAIN, "f", 1))))
    [device] = certain.devices
    report = replace(device.report, is_peak_certain=False)
    doubtful = replace(certain, devices=[replace(device, report=report)])
    # WHEN it is compared with one that is certain THEN that is said
    [found] = diff_summaries(certain, doubtful).devices
    assert not found.is_certain
    assert found.notes == ["The peak of the new one is of what is known: it may have been higher"]


def test_blocks_of_phases_are_counted_once() -> None:
    # GIVEN a step with the files of two of its phases, which have the same blocks
    def compared(*phases: str | None) -> DirectoryDifference:
        pairs = [
            (str(p), summarise(of_phase(512, p)), summarise(of_phase(2048 if p else 1024, p)))
            for p in phases
        ]
        return diff_directories("a", "b", pairs)

    # WHEN they are compared
    found = compared(None, "rollout", "update")
    # THEN sites and phases are those of the step alone, and that is said
    assert [(c.before_bytes, c.after_bytes) for c in (*found.sites, *found.phases)] == [
        (512, 1024),
        (512, 1024),
    ]
    assert found.notes[-1].startswith("Call sites and phases are those of files of whole steps")
    assert any(note.endswith("(2 of 3 pairs)") for note in found.notes)
    # AND each file has its row
    assert [file.delta_bytes for file in found.files] == [512, 1536, 1536]
    # AND where there is none of a whole step, those of phases are all there is
    found = compared("rollout", "update")
    assert [site.after_bytes for site in found.sites] == [2048]
    assert "whole steps" not in "".join(found.notes)


def test_what_a_file_cannot_tell_is_not_gone() -> None:
    # GIVEN a file with phases and stacks, and others that lack one of them
    def program(frame: tuple[str, str, int] | None, phase: str) -> Snapshot:
        found = Program()
        found.alloc(1024, *[frame] if frame else [], phase=phase)
        return found.snapshot()

    full, no_stacks = program((TRAIN, "f", 1), "p"), program(None, "p")
    no_phases = program((TRAIN, "f", 1), "")
    # WHEN they are compared THEN what one lacks is left out, for a reason in words
    device = only_device(full, no_stacks)
    assert device.notes == [
        "The new one has no stacks of what it held: call sites are not compared"
    ]
    assert (device.sites, [phase.kind for phase in device.phases]) == ([], ["same"])
    device = only_device(no_phases, full)
    assert device.notes == ["The baseline tells of no phases: they are not compared"]
    assert (device.phases, [site.kind for site in device.sites]) == ([], ["same"])
    # AND in directories these pairs do not count
    pairs = [
        (name, summarise(full), summarise(other))
        for name, other in (("a", full), ("b", no_stacks), ("c", no_phases))
    ]
    found = diff_directories("a", "b", pairs)
    assert [(c.kind, c.after_bytes) for c in (*found.sites, *found.phases)] == [
        ("same", 1024),
        ("same", 1024),
    ]
    assert [note[-14:] for note in found.notes] == ["(1 of 3 pairs)"] * 2


@pytest.mark.parametrize("other", ["native/npu-2.14.0.pickle", "snapshot-1.3-cpu.pickle"])
def test_a_cuda_file_with_one_of_another_kind(other: str) -> None:
    # GIVEN golden files of the same program on several backends
    ours = "snapshot-1.3-cuda.pickle" if "cpu" in other else "native/cuda-2.15.0.pickle"
    before, after = plain_reader.read(GOLDEN / ours), plain_reader.read(GOLDEN / other)
    # THEN sites match by line, and no device is alone
    found = diff(before, after)
    assert found.devices
    assert (found.only_baseline, found.only_new) == ([], [])
    for device in found.devices:
        assert {site.matched_by for site in device.sites} == {"line"}
