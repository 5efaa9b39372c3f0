"""A comparison says what its files lack, and what else differs and makes it uncertain."""

from dataclasses import replace

import reference_reader
from small_differences import TRAIN, only_device, rows, snapshot_with_blocks
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis.diff.compare import compare, compare_snapshots
from pytracer.analysis.diff.differences import Difference
from pytracer.analysis.diff.summaries import summarise
from pytracer.reading.snapshot import Snapshot


def test_metadata() -> None:
    # GIVEN two runs with different options, settings and user metadata
    before, after = Program(), Program()
    before.metadata = file_metadata(stack_depth=32, metadata={"lr": 0.1, "seed": 1}, rank=0)
    after.metadata = file_metadata(
        *["npu"],
        stack_depth=64,
        metadata={"lr": 0.2, "seed": 1, "new": None},
        rank=0,
        pid=8,
        host="n2",
    )
    before.settings = {"expandable_segments": False, "roundup_power2_divisions": {"1": 0, "2": 0}}
    after.settings = {"expandable_segments": True, "roundup_power2_divisions": {"1": 0, "2": 4}}
    # THEN the differences are listed, except those of the process and the time
    found = compare_snapshots(before.snapshot(), after.snapshot()).metadata
    assert {(fact.name, fact.before, fact.after) for fact in found} == {
        ("backends", "['cuda']", "['npu']"),
        ("stack_depth", "32", "64"),
        ("metadata.lr", "0.1", "0.2"),
        ("metadata.new", None, "None"),
        ("allocator_settings.expandable_segments", "False", "True"),
        ("allocator_settings.roundup_power2_divisions.2", "0", "4"),
    }
    # AND first those that falsify the comparison: the depth only if a stack was cut
    assert {fact.name for fact in found if fact.falsifies} == {"backends", "stack_depth"}
    assert {fact.name for fact in found[:2]} == {"backends", "stack_depth"}
    for program in (before, after):
        program.metadata["stacks"] = {"count": 3, "truncated": 0}
    found = compare_snapshots(before.snapshot(), after.snapshot()).metadata
    assert [fact.name for fact in found if fact.falsifies] == ["backends"]
    # AND if one file has no metadata, only this is listed
    after.metadata, after.settings = {}, {}
    found = compare_snapshots(before.snapshot(), after.snapshot()).metadata
    assert [(fact.name, fact.after) for fact in found] == [
        ("pytracer", None),
        ("allocator_settings", None),
    ]


def test_expandable_segments_without_a_trace() -> None:
    # GIVEN files without events, with expandable segments
    def state(size: int) -> Snapshot:
        program = Program()
        program.alloc(size, (TRAIN, "f", 1), events=False)
        content = program.content()
        content["segments"][0]["is_expandable"] = True
        return reference_reader.convert(content)

    # THEN they are compared at the end, and the reason is reported once
    device = only_device(state(1024), state(2048))
    assert (device.at, device.reasons) == ("end", ["no trace of device 0"])
    assert rows(device.changes["line"]) == [("grown", 1024, 2048, "line")]


def test_a_trace_that_contradicts_its_state_is_compared_at_the_end() -> None:
    # GIVEN a file with missing events, and a complete one whose peak is higher than its end
    before, after = Program(), Program()
    before.alloc(1024, (TRAIN, "f", 1))
    before.events.append({**before.events[-1], "action": "free_completed"})
    kept = after.alloc(4096, (TRAIN, "g", 1))
    after.alloc(2048, (TRAIN, "f", 1))
    after.free(kept)
    # THEN both are compared at the end, and the reason is reported
    device = only_device(before.snapshot("a.pickle"), after.snapshot())
    assert (device.at, device.changes["phase"]) == ("end", [])
    assert len(device.reasons) == 1
    assert rows(device.changes["line"]) == [("grown", 1024, 2048, "line")]
    assert device.amounts["allocated_bytes"].after == 2048
    assert device.amounts["peak_reserved_bytes"].before is None


def phase_file(size: int, phase: str | None = "rollout") -> Snapshot:
    """Return a file of one phase, or of the step that contains the phase."""
    program = Program()
    program.alloc(size, (TRAIN, "f", 1), phase="rollout")
    program.metadata = file_metadata(window={"first": 1, "last": 1, "phase": phase})
    return program.snapshot()


def test_an_uncertain_peak() -> None:
    # GIVEN files whose peak the report calls uncertain
    certain = summarise(snapshot_with_blocks((512, (TRAIN, "f", 1))))
    [device] = certain.devices

    report = replace(device.report, is_peak_certain=False)
    uncertain = replace(certain, devices=[replace(device, report=report)])
    # WHEN one is compared with a certain peak, THEN a note says that it may be higher
    [found] = compare("a", "b", [("", certain, uncertain)]).devices
    [note] = found.notes
    assert note.startswith("The peak of the new one may be higher: ")
    # AND the note on several pairs has their number
    pairs = [("a", certain, uncertain), ("b", certain, uncertain), ("c", certain, certain)]
    [found] = compare("x", "y", pairs).devices
    [note] = found.notes
    assert note.startswith("The peak of the new one may be higher: ")
    assert note.endswith(" (2 of 3 pairs)")


def test_blocks_in_the_files_of_several_phases_are_counted_once() -> None:
    # GIVEN a step, and files of two of its phases with the same blocks
    def compared(*phases: str | None) -> Difference:
        pairs = [
            (str(p), summarise(phase_file(512, p)), summarise(phase_file(2048 if p else 1024, p)))
            for p in phases
        ]
        return compare("a", "b", pairs)

    # WHEN they are compared
    found = compared(None, "rollout", "update")
    # THEN the figures are those of the step only, and a note says so
    [device] = found.devices
    assert [
        (c.before_bytes, c.after_bytes) for c in (*device.changes["line"], *device.changes["phase"])
    ] == [(512, 1024), (512, 1024)]
    assert device.amounts["allocated_bytes"].after == 1024
    assert device.notes[-1].startswith("Files of phases do not count here: ")
    # AND each file has its row
    assert [file.delta_bytes for file in found.files] == [1536, 1536, 512]
    # AND without a file of the complete step, the files of phases are used
    [device] = compared("rollout", "update").devices
    assert [site.after_bytes for site in device.changes["line"]] == [2048]
    assert "Files of phases" not in "".join(device.notes)


def test_information_that_a_file_lacks_is_not_gone() -> None:
    # GIVEN a file with phases and stacks, and others without one of the two
    def program(frame: tuple[str, str, int] | None, phase: str) -> Snapshot:
        found = Program()
        found.alloc(1024, *[frame] if frame else [], phase=phase)
        return found.snapshot()

    full, no_stacks = program((TRAIN, "f", 1), "p"), program(None, "p")
    no_phases = program((TRAIN, "f", 1), "")
    # WHEN they are compared, THEN the missing part is left out, and a note says why
    device = only_device(full, no_stacks)
    assert device.notes == ["The new one has no stacks: call sites are not compared"]
    assert (device.changes["line"], [phase.kind for phase in device.changes["phase"]]) == (
        [],
        ["same"],
    )
    device = only_device(no_phases, full)
    assert device.notes == ["The baseline has no phases: phases are not compared"]
    assert (device.changes["phase"], [site.kind for site in device.changes["line"]]) == (
        [],
        ["same"],
    )
    # AND in directories these pairs do not count for the missing part
    pairs = [
        (name, summarise(full), summarise(second))
        for name, second in (("a", full), ("b", no_stacks), ("c", no_phases))
    ]
    [found] = compare("a", "b", pairs).devices
    assert [(c.kind, c.after_bytes) for c in (*found.changes["line"], *found.changes["phase"])] == [
        ("same", 1024),
        ("same", 1024),
    ]
    assert [note[-14:] for note in found.notes] == ["(1 of 3 pairs)"] * 2
