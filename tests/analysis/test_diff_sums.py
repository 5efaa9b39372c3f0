"""Call sites and phases have the bytes of both peaks, and add up to them."""

import random
from collections import defaultdict

from small_differences import MODEL, TRAIN, only_device, rows, snapshot_with_blocks
from synthetic_snapshots import Program

from pytracer.analysis.diff.texts import device_answer
from pytracer.reading.snapshot import Frame, Snapshot

EVAL = "/a/eval.py"


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
        (*row, site.delta_bytes)
        for row, site in zip(rows(device.changes["line"]), device.changes["line"], strict=True)
    ] == [
        ("grown", 3072, 9728, "line", 6656),
        ("gone", 4096, 0, None, -4096),
        *[("gone", 512, 0, None, -512), ("new", 0, 512, None, 512)],
        ("same", 512, 512, "line", 0),
    ]
    assert [(s.before_count, s.after_count) for s in device.changes["line"]] == [
        (2, 3),
        (1, 0),
        (1, 0),
        (0, 1),
        (1, 1),
    ]
    assert device.changes["line"][0].after == Frame(*forward)
    # AND the device's numbers are those of the peaks
    allocated, peak = device.amounts["allocated_bytes"], (8192, 10752)
    assert (allocated.before, allocated.after, allocated.delta) == (*peak, peak[1] - peak[0])
    assert device.amounts["reserved_bytes"].after == 2**21
    assert device.amounts["fragmentation_bytes"].delta == peak[0] - peak[1]
    assert device.amounts["device_allocs"].delta == 0
    assert (device.at, device.reasons, device.notes) == ("peak", [], [])


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
        for p in only_device(before, after).changes["phase"]
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
            for rows_of in (device.changes["line"], device.changes["phase"]):
                assert sum(getattr(change, f"{side}_bytes") for change in rows_of) == highest
            found = {
                frame: (getattr(site, f"{side}_bytes"), getattr(site, f"{side}_count"))
                for site in device.changes["line"]
                if (frame := getattr(site, side)) is not None
            }
            assert found == {frame: (sum(sizes), len(sizes)) for frame, sizes in by_frame.items()}


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
