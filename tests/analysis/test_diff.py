"""Compare differences between snapshots with sums by hand and by simple Python code."""

import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import reference_reader
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis.diff.changes import Change, Held, Pair, changes
from pytracer.analysis.diff.compare import compare, compare_snapshots
from pytracer.analysis.diff.differences import DeviceDifference, Difference
from pytracer.analysis.diff.matching import match_sites
from pytracer.analysis.diff.summaries import SnapshotSummary, summarise
from pytracer.analysis.diff.texts import device_answer, falsified
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import Frame, Snapshot, used_devices

GOLDEN = Path(__file__).parents[1] / "golden"

TRAIN, MODEL, EVAL = "/a/train.py", "/a/src/model.py", "/a/eval.py"


def only_device(before: Snapshot, after: Snapshot) -> DeviceDifference:
    [device] = compare_snapshots(before, after).devices
    return device


def rows(sites: list[Change]) -> list[tuple[str, int, int, str | None]]:
    return [(site.kind, site.before_bytes, site.after_bytes, site.matched_by) for site in sites]


def snapshot_with_blocks(*blocks: tuple[int, tuple[str, str, int]]) -> Snapshot:
    """Return the snapshot of a program that allocates `blocks` and then frees the first one."""
    program = Program()
    kept = [program.alloc(size, frame) for size, frame in blocks]
    program.free(kept[0])
    return program.snapshot()


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
    pairs = [Pair[str | None](f"pair {i}", before[i], after[i]) for i in range(count)]
    # WHEN they are compared
    found = changes(pairs)
    # THEN each phase has the numbers of its pair, as a mean over all
    assert {change.name: change.largest_delta_bytes for change in found} == {
        f"phase {i}": 2 * i for i in range(count)
    }
    assert {change.largest_in for change in found} == {f"pair {i}" for i in range(count)}
    # AND no phase was looked for in the pairs of others
    assert Counted.lookups <= 4 * count


def test_new_gone_grown_and_shrunk_sites() -> None:
    # GIVEN two runs
    forward, step, old = (MODEL, "forward", 5), (TRAIN, "step", 9), (TRAIN, "warm_up", 3)
    before = snapshot_with_blocks(
        (1024, forward), (2048, forward), (512, step), (4096, old), (512, (EVAL, "f", 1))
    )
    after = snapshot_with_blocks(
        (1024, forward),
        (8192, forward),
        (512, forward),
        (512, (TRAIN, "save", 30)),
        (512, (EVAL, "f", 1)),
    )
    # WHEN they are compared
    device = only_device(before, after)
    # THEN sites have the bytes of both peaks, the largest difference first
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
    assert device.sites[0].after == Frame(*forward)
    # AND the device's numbers are those of the peaks
    allocated, peak = device.amounts["allocated_bytes"], (8192, 10752)
    assert (allocated.before, allocated.after, allocated.delta) == (*peak, peak[1] - peak[0])
    assert device.amounts["reserved_bytes"].after == 2**21
    assert device.amounts["fragmentation_bytes"].delta == peak[0] - peak[1]
    assert device.amounts["device_allocs"].delta == 0
    assert (device.at, device.reasons, device.is_certain) == ("peak", [], True)


def test_lines_that_moved() -> None:
    # GIVEN a function whose lines moved, and one whose line did not
    before = snapshot_with_blocks(
        (1024, (TRAIN, "step", 10)), (2048, (TRAIN, "step", 20)), (512, (TRAIN, "f", 2))
    )
    after = snapshot_with_blocks(
        (1024, (TRAIN, "step", 13)), (4096, (TRAIN, "step", 23)), (512, (TRAIN, "f", 2))
    )
    # THEN each line is matched with the one in its place
    second, first, stayed = only_device(before, after).sites
    assert rows([second, first, stayed]) == [
        ("grown", 2048, 4096, "function"),
        ("same", 1024, 1024, "function"),
        ("same", 512, 512, "line"),
    ]
    assert (second.before, second.after) == (Frame(TRAIN, "step", 20), Frame(TRAIN, "step", 23))
    # AND so is a line between one that stayed and one that is new
    after = snapshot_with_blocks(
        (1024, (TRAIN, "step", 10)), (4096, (TRAIN, "step", 23)), (512, (TRAIN, "f", 2))
    )
    assert rows(only_device(before, after).sites) == [
        ("grown", 2048, 4096, "function"),
        ("same", 1024, 1024, "line"),
        ("same", 512, 512, "line"),
    ]


def test_functions_of_one_name_are_not_one() -> None:
    # GIVEN three classes of a file, each with a `forward`
    lines = {"attention": 40, "mlp": 61, "block": 73}
    held = {"attention": 10 << 10, "mlp": 4 << 10, "block": 6 << 10}

    def program(held: dict[str, int], inserted: int) -> Snapshot:
        main = (TRAIN, "main", 120)
        blocks = ((held[name], (MODEL, "forward", lines[name] + inserted)) for name in held)
        return snapshot_with_blocks((512, main), *blocks)

    # WHEN one takes 9 KiB less, and the file has three more lines at its beginning
    found = only_device(program(held, 0), program(held | {"attention": 1 << 10}, 3))
    # THEN only this one has changed, by as much
    changed = [site for site in found.sites if site.is_change]
    assert [(site.before, site.after, site.delta_bytes) for site in changed] == [
        (Frame(MODEL, "forward", 40), Frame(MODEL, "forward", 43), -9 << 10)
    ]
    assert device_answer(found).endswith("; most by src/model.py:43 forward: -9 KiB.")
    # AND if it is gone, none of the others takes its place
    rest = {name: size for name, size in held.items() if name != "attention"}
    found = only_device(program(held, 0), program(rest, 3))
    assert rows(found.sites) == [
        ("gone", 10 << 10, 0, None),
        ("same", 6 << 10, 6 << 10, "function"),
        ("same", 4 << 10, 4 << 10, "function"),
        ("same", 512, 512, "line"),
    ]


def test_a_function_below_another_one() -> None:
    # GIVEN a function that is moved below another one of the file
    before = snapshot_with_blocks((512, (TRAIN, "f", 10)), (1024, (TRAIN, "g", 20)))
    after = snapshot_with_blocks((512, (TRAIN, "f", 30)), (1024, (TRAIN, "g", 11)))
    # THEN both are matched
    assert rows(only_device(before, after).sites) == [
        ("same", 1024, 1024, "function"),
        ("same", 512, 512, "function"),
    ]


def edited(lines: list[tuple[int, str]], rng: random.Random) -> dict[int, int]:
    """Insert and remove text above some lines, and return the new number of each line."""
    shift, found = 0, {}
    for line, _ in lines:
        if rng.random() < 0.1:
            shift += rng.randrange(0, 30)
        found[line] = line + shift
    return found


def test_lines_of_an_edited_file() -> None:
    # GIVEN files of many functions of few names, with text inserted at random places
    rng = random.Random(5)
    for _ in range(40):
        numbers = sorted(rng.sample(range(1, 900), 60))
        lines = [(number, rng.choice(["forward", "__init__", "step"])) for number in numbers]
        new_number = edited(lines, rng)
        # WHEN some of the lines hold memory before, and others after
        before, after = (
            {Frame("/a.py", name, number) for number, name in rng.sample(lines, 40)}
            for _ in range(2)
        )
        after = {frame._replace(line=new_number[frame.line]) for frame in after}
        stacks = (
            {"/a.py": frozenset(lines)},
            {"/a.py": frozenset((new_number[number], name) for number, name in lines)},
        )
        found = [*match_sites(before, after, *stacks)]
        # THEN each line is in one row
        assert sorted(frame for old, _, _ in found for frame in old) == sorted(before)
        assert sorted(frame for _, new, _ in found for frame in new) == sorted(after)
        # AND those of both sides are matched, apart from a few next to an edit
        matched = {(*old, *new) for old, new, rule in found if rule is not None}
        expected = {
            (frame, frame._replace(line=new_number[frame.line]))
            for frame in before
            if frame._replace(line=new_number[frame.line]) in after
        }
        assert len(matched & expected) >= 0.9 * len(expected)
        assert len(matched - expected) <= 0.1 * len(expected)


def test_an_unchanged_file_with_other_lines_in_use() -> None:
    # GIVEN lines of one function that hold memory in one recording each, below the same caller
    stacks = [{"/a.py": frozenset({(10, "f"), (20, "f"), (30, "f"), (90, "main")})}] * 2
    before, after = (
        [Frame("/a.py", "f", line) for line in lines] for lines in ((10, 20), (20, 30))
    )
    # THEN only the same line is matched
    found = [(old, new) for old, new, rule in match_sites(before, after, *stacks) if rule]
    assert found == [([Frame("/a.py", "f", 20)], [Frame("/a.py", "f", 20)])]


def test_paths_that_differ() -> None:
    # GIVEN a program in another folder, on another system, with one file moved to another folder
    names = [("pkg/model.py", "forward", 5), ("pkg/loss.py", "loss", 7), ("x/train.py", "step", 9)]
    before = snapshot_with_blocks(*((1024, (f"/home/me/{f}", n, line)) for f, n, line in names))
    moved = [("pkg/model.py", "forward", 6), ("pkg/loss.py", "other", 7), ("y/train.py", "step", 9)]
    after = snapshot_with_blocks(
        *((2048, (f"C:/job/{f}".replace("/", "\\"), n, line)) for f, n, line in moved)
    )
    # THEN functions match by the last two parts of the path, then by the file name
    found = {
        (s.matched_by, s.name.name)
        for s in only_device(before, after).sites
        if isinstance(s.name, Frame)
    }
    assert found == {("path", "forward"), ("file name", "step"), (None, "loss"), (None, "other")}


def test_files_that_cannot_be_told_apart() -> None:
    # GIVEN two files with the same name, and a third one in another folder
    before = snapshot_with_blocks(
        (1024, ("/a/p/util.py", "make", 1)), (2048, ("/a/q/util.py", "make", 1))
    )
    after = snapshot_with_blocks((512, ("/b/r/util.py", "make", 1)))
    # THEN none is matched
    assert rows(only_device(before, after).sites) == [
        ("gone", 2048, 0, None),
        ("gone", 1024, 0, None),
        ("new", 0, 512, None),
    ]
    # AND the one whose folder has the same name is
    after = snapshot_with_blocks((512, ("/b/q/util.py", "make", 1)))
    assert rows(only_device(before, after).sites) == [
        ("shrunk", 2048, 512, "path"),
        ("gone", 1024, 0, None),
    ]


def test_unknown_stacks_are_a_site_of_their_own() -> None:
    program = Program()
    program.alloc(1024)
    [site] = only_device(program.snapshot(), program.snapshot()).sites
    assert (site.kind, site.before, site.after, site.matched_by) == ("same", None, None, "line")


def test_phases() -> None:
    # GIVEN a block older than the trace, and phases, one of which is missing in the second run
    def run(*phases: tuple[str, int]) -> Snapshot:
        program = Program()
        program.alloc(512, (TRAIN, "load", 1), events=False)
        for phase, size in phases:
            program.alloc(size, (TRAIN, "step", 2), phase=phase)
        return program.snapshot()

    before = run(("rollout", 1024), ("update", 2048), ("update", 512))
    after = run(("rollout", 4096), ("", 512))
    # WHEN they are compared, THEN each phase has its bytes and counts of both sides
    found = {
        p.name: (p.kind, p.before_bytes, p.after_bytes, p.before_count, p.after_count)
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
        """Compute the peak and the blocks held then from the events, in simple Python code."""
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
        # THEN sites and phases add up to the peaks, and each site has the blocks that it held
        for program, side in ((before, "before"), (after, "after")):
            highest, by_frame = held_at_peak(program)
            assert getattr(device.amounts["allocated_bytes"], side) == highest
            for rows_of in (device.sites, device.phases):
                assert sum(getattr(change, f"{side}_bytes") for change in rows_of) == highest
            found = {
                frame: (getattr(site, f"{side}_bytes"), getattr(site, f"{side}_count"))
                for site in device.sites
                if (frame := getattr(site, side)) is not None
            }
            assert found == {frame: (sum(sizes), len(sizes)) for frame, sizes in by_frame.items()}


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


def test_devices() -> None:
    # GIVEN files of one device each, with different indices and backends
    cuda, npu = Program(0), Program(1)
    for program in (cuda, npu):
        program.alloc(1024, (TRAIN, "f", 1))
    cuda.metadata = file_metadata()
    # THEN the two devices are compared
    device = only_device(cuda.snapshot(), npu.snapshot())
    assert (device.before, device.after) == ("cuda:0", "device 1")
    assert rows(device.sites) == [("same", 1024, 1024, "line")]
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
    assert (device.at, device.reasons) == ("end", ["device 0 has no trace in it"])
    assert rows(device.sites) == [("grown", 1024, 2048, "line")]


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
    assert (device.at, device.phases) == ("end", [])
    assert len(device.reasons) == 1
    assert rows(device.sites) == [("grown", 1024, 2048, "line")]
    assert device.amounts["allocated_bytes"].after == 2048
    assert device.amounts["peak_reserved_bytes"].before is None


def test_directories() -> None:
    # GIVEN three pairs of files, in one of which a site has grown
    pairs = []
    for step, size in ((1, 1024), (2, 1024), (3, 7168)):
        before = snapshot_with_blocks((1024, (TRAIN, "f", 1)), (2048, (TRAIN, "g", 1)))
        after = snapshot_with_blocks((size, (TRAIN, "f", 3)), (2048, (TRAIN, "g", 1)))
        pairs.append((f"step {step}", summarise(before), summarise(after)))
    # WHEN they are compared
    found = compare("a", "b", pairs, ["a/x.pickle"])
    # THEN each pair has a row, the largest difference first
    assert [(file.name, file.before_bytes, file.after_bytes) for file in found.files] == [
        ("step 3", 3072, 9216),
        ("step 1", 3072, 3072),
        ("step 2", 3072, 3072),
    ]
    # AND sites have means, and the pair with the largest difference
    [device] = found.devices
    moved, same = device.sites
    assert rows([moved, same]) == [
        ("grown", 1024, 3072, "function"),
        ("same", 2048, 2048, "line"),
    ]
    assert (moved.largest_in, moved.largest_delta_bytes) == ("step 3", 6144)
    assert moved.delta_bytes == 2048
    # AND so do the amounts
    allocated = device.amounts["allocated_bytes"]
    assert (device.pairs, allocated.before, allocated.after) == (3, 3072, (3072 * 2 + 9216) // 3)
    assert (found.only_baseline, found.only_new) == (["a/x.pickle"], [])


def test_changes_that_cancel_in_the_mean() -> None:
    # GIVEN two ranks that swap the sizes of a site and a phase, and a site that grows in both
    def rank(size: int, growing_size: int) -> SnapshotSummary:
        program = Program()
        program.alloc(size, (TRAIN, "f", 1), phase="p")
        program.alloc(growing_size, (TRAIN, "g", 2), phase="q")
        return summarise(program.snapshot())

    pairs = [
        ("rank 0", rank(8192, 512), rank(1024, 1024)),
        ("rank 1", rank(1024, 512), rank(8192, 1024)),
    ]
    # THEN the largest difference within a pair comes first, although its mean is unchanged
    [found] = compare("a", "b", pairs).devices
    for rows_of in (found.sites, found.phases):
        assert [(c.delta_bytes, abs(c.largest_delta_bytes or 0)) for c in rows_of] == [
            (0, 7168),
            (512, 512),
        ]


def phase_file(size: int, phase: str | None = "rollout") -> Snapshot:
    """Return a file of one phase, or of the step that contains the phase."""
    program = Program()
    program.alloc(size, (TRAIN, "f", 1), phase="rollout")
    program.metadata = file_metadata(window={"first": 1, "last": 1, "phase": phase})
    return program.snapshot()


def test_forward_stacks_of_one_side_only() -> None:
    # GIVEN one program: a forward call, and its backward, which is called in another line
    forward, backward = (MODEL, "forward", 5), (TRAIN, "step", 9)

    def run(has_forward_stacks: bool, size: int, only_thread: bool = False) -> Snapshot:
        program = Program()
        program.alloc(4096, forward, backward)
        program.alloc(size, backward)
        for entry in (program.events[-1], program._alive[program.events[-1]["addr"]]):
            if has_forward_stacks:
                text = f'  File "{MODEL}", line 5, in forward\n'
                entry |= {"frames": [], "forward_frames": [text], "forward_exact": True}
                entry["autograd_node"] = "MulBackward0"
            elif only_thread:
                entry |= {"frames": [], "autograd_node": "backward"}
        program.metadata = file_metadata(forward_stacks=has_forward_stacks)
        return program.snapshot()

    # WHEN both sides have forward stacks, THEN memory of the backward pass has the forward line
    device = only_device(run(True, 8192), run(True, 9216))
    assert [str(site.name and site.name[1]) for site in device.sites] == [
        "backward of forward (MulBackward0)",
        "forward",
    ]
    # AND if one side has them, the lines without forward stacks are compared, and this comes first
    found = compare_snapshots(run(True, 8192), run(False, 9216))
    [device] = found.devices
    assert rows(device.sites)[-1] == ("same", 4096, 4096, "line")
    assert all(site.name in (None, Frame(*forward), Frame(*backward)) for site in device.sites)
    [sentence] = falsified(found)
    assert sentence.startswith("forward_stacks differs (True → False): call sites are compared ")
    assert found.metadata[0].name == "forward_stacks"
    # AND also if the other side shows the threads of autograd, and not which node ran
    [device] = compare_snapshots(run(True, 8192), run(False, 9216, only_thread=True)).devices
    assert {site.name for site in device.sites} == {None, Frame(*forward)}


def test_a_file_of_torchs_recorder_may_have_forward_stacks() -> None:
    # GIVEN a file of torch's own recorder, in anomaly mode: it has forward frames, and no node
    program = Program()
    program.metadata = None
    program.alloc(4096, (TRAIN, "step", 9))
    assert not summarise(program.snapshot()).has_forward_stacks
    program.events[-1]["forward_frames"] = [f'  File "{MODEL}", line 5, in forward\n']
    # WHEN it is compared, THEN a file without such frames differs from it
    assert summarise(program.snapshot()).has_forward_stacks


def test_changes_that_cancel() -> None:
    # GIVEN a line that takes over the memory of another one
    f, g = (TRAIN, "f", 1), (TRAIN, "g", 2)
    before = snapshot_with_blocks((4096, f), (2048, g))
    after = snapshot_with_blocks((2048, f), (4096, g))
    # THEN the answer does not say that nothing is mostly due to one of them
    answer = device_answer(only_device(before, after))
    assert "most by" not in answer
    assert answer.startswith(
        "device 0: no change of the bytes allocated at the peaks (6 KiB); changes "
    )
    # AND a call site that shrinks is not the reason why the sum grows
    h = (TRAIN, "h", 3)
    before = snapshot_with_blocks((4096, f), (2048, g), (2048, h))
    after = snapshot_with_blocks((512, f), (4608, g), (4096, h))
    answer = device_answer(only_device(before, after))
    assert answer.endswith("(8 KiB → 9 KiB, +12.5%); most by a/train.py:2 g: +2.5 KiB.")


def test_files_of_one_phase_are_incomplete() -> None:
    # GIVEN a file of one phase, THEN a note says why its peak may be wrong
    device = only_device(phase_file(512), phase_file(512, None))
    [note] = device.notes
    assert note.startswith(
        "The baseline is of one phase: it lacks the allocations of other threads"
    )
    assert not device.is_certain
    [note] = only_device(phase_file(512, None), phase_file(512)).notes
    assert note.startswith("The new one is of one phase")
    assert only_device(phase_file(512, None), phase_file(512, None)).notes == []


def test_an_uncertain_peak() -> None:
    # GIVEN files whose peak the report calls uncertain
    certain = summarise(snapshot_with_blocks((512, (TRAIN, "f", 1))))
    [device] = certain.devices

    def up_to(most_bytes: int) -> SnapshotSummary:
        report = replace(device.report, is_peak_certain=False, peak_most_bytes=most_bytes)
        return replace(certain, devices=[replace(device, report=report)])

    # WHEN one is compared with a certain peak, THEN a note says by how much it may be higher
    [found] = compare("a", "b", [("", certain, up_to(1536))]).devices
    assert not found.is_certain
    [note] = found.notes
    assert note.startswith("The peak of the new one may be up to 1 KiB higher: ")
    # AND the note on several pairs has the maximum
    pairs = [(name, certain, up_to(most)) for name, most in (("a", 1024), ("b", 2048), ("c", 512))]
    [found] = compare("x", "y", pairs).devices
    [note] = found.notes
    assert note.startswith("The peak of the new one may be up to 1.5 KiB higher: ")
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
    assert [(c.before_bytes, c.after_bytes) for c in (*device.sites, *device.phases)] == [
        (512, 1024),
        (512, 1024),
    ]
    assert device.amounts["allocated_bytes"].after == 1024
    assert device.notes[-1].startswith("These are files of complete steps: ")
    # AND each file has its row
    assert [file.delta_bytes for file in found.files] == [1536, 1536, 512]
    # AND without a file of the complete step, the files of phases are used
    [device] = compared("rollout", "update").devices
    assert [site.after_bytes for site in device.sites] == [2048]
    assert "complete steps" not in "".join(device.notes)


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
    assert (device.sites, [phase.kind for phase in device.phases]) == ([], ["same"])
    device = only_device(no_phases, full)
    assert device.notes == ["The baseline has no phases: phases are not compared"]
    assert (device.phases, [site.kind for site in device.sites]) == ([], ["same"])
    # AND in directories these pairs do not count for the missing part
    pairs = [
        (name, summarise(full), summarise(second))
        for name, second in (("a", full), ("b", no_stacks), ("c", no_phases))
    ]
    [found] = compare("a", "b", pairs).devices
    assert [(c.kind, c.after_bytes) for c in (*found.sites, *found.phases)] == [
        ("same", 1024),
        ("same", 1024),
    ]
    assert [note[-14:] for note in found.notes] == ["(1 of 3 pairs)"] * 2


def test_a_file_with_cpp_frames_has_the_same_call_sites() -> None:
    # GIVEN golden files of one program, the second with C++ frames, which are torch's default
    names = ("native/cuda-2.15.0.pickle", "native/cuda-2.15.0-all.pickle")
    before, after = (reference_reader.read(GOLDEN / name) for name in names)
    # WHEN they are compared, THEN every call site holds the same amount in both
    for device in compare_snapshots(before, after).devices:
        assert {(site.kind, site.matched_by) for site in device.sites} == {("same", "line")}
        assert {site.after.filename for site in device.sites if site.after} == {"train.py"}


@pytest.mark.parametrize("other", ["native/npu-2.14.0.pickle", "snapshot-1.3-cpu.pickle"])
def test_a_cuda_file_with_one_of_another_backend(other: str) -> None:
    # GIVEN golden files of the same program on several backends
    cuda = "snapshot-1.3-cuda.pickle" if "cpu" in other else "native/cuda-2.15.0.pickle"
    before, after = reference_reader.read(GOLDEN / cuda), reference_reader.read(GOLDEN / other)
    # THEN sites match by line, and every device has a counterpart
    found = compare_snapshots(before, after)
    assert found.devices
    assert (found.only_baseline, found.only_new) == ([], [])
    for device in found.devices:
        assert {site.matched_by for site in device.sites} == {"line"}
