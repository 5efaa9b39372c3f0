"""Call sites and phases have the bytes of both peaks, and add up to them."""

import random
from collections import defaultdict

from small_differences import TRAIN, only_device, snapshot_with_blocks
from synthetic_snapshots import Program

from pytracer.analysis.diff.texts import device_answer
from pytracer.reading.snapshot import Frame


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
        "device 0: no change in bytes allocated at the peaks (6 KiB); changes "
    )
    # AND a call site that shrinks is not the reason why the sum grows
    h = (TRAIN, "h", 3)
    before = snapshot_with_blocks((4096, f), (2048, g), (2048, h))
    after = snapshot_with_blocks((512, f), (4608, g), (4096, h))
    answer = device_answer(only_device(before, after))
    assert answer.endswith("(8 KiB → 9 KiB, +12.5%); most by a/train.py:2 g: +2.5 KiB.")
