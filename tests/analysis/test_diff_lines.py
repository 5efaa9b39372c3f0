"""Call sites are matched, also if their lines, files, folders or stacks differ."""

import random
from pathlib import Path

import pytest
import reference_reader
from small_differences import MODEL, TRAIN, only_device, rows, snapshot_with_blocks
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis.diff.compare import compare_snapshots
from pytracer.analysis.diff.matching import match_sites
from pytracer.analysis.diff.summaries import summarise
from pytracer.analysis.diff.texts import device_answer, falsified
from pytracer.reading.snapshot import Frame, Snapshot

GOLDEN = Path(__file__).parents[1] / "golden"


def test_lines_that_moved() -> None:
    # GIVEN a function whose lines moved, and one whose line did not
    before = snapshot_with_blocks(
        (1024, (TRAIN, "step", 10)), (2048, (TRAIN, "step", 20)), (512, (TRAIN, "f", 2))
    )
    after = snapshot_with_blocks(
        (1024, (TRAIN, "step", 13)), (4096, (TRAIN, "step", 23)), (512, (TRAIN, "f", 2))
    )
    # THEN each line is matched with the one in its place
    second, first, stayed = only_device(before, after).changes["line"]
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
    assert rows(only_device(before, after).changes["line"]) == [
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
    changed = [site for site in found.changes["line"] if site.is_change]
    assert [(site.before, site.after, site.delta_bytes) for site in changed] == [
        (Frame(MODEL, "forward", 40), Frame(MODEL, "forward", 43), -9 << 10)
    ]
    assert device_answer(found).endswith("; most by src/model.py:43 forward: -9 KiB.")
    # AND if it is gone, none of the others takes its place
    rest = {name: size for name, size in held.items() if name != "attention"}
    found = only_device(program(held, 0), program(rest, 3))
    assert rows(found.changes["line"]) == [
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
    assert rows(only_device(before, after).changes["line"]) == [
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
        found = match_sites(before, after, *stacks)
        # THEN no line is matched twice
        counterparts = [counterpart for counterpart, _ in found.values()]
        assert len({*counterparts} & after) == len(counterparts) == len(before & found.keys())
        # AND those of both sides are matched, apart from a few next to an edit
        matched = {(old, new) for old, (new, _) in found.items()}
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
    frame = Frame("/a.py", "f", 20)
    assert match_sites(before, after, *stacks) == {frame: (frame, "line")}


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
        for s in only_device(before, after).changes["line"]
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
    assert rows(only_device(before, after).changes["line"]) == [
        ("gone", 2048, 0, None),
        ("gone", 1024, 0, None),
        ("new", 0, 512, None),
    ]
    # AND the one whose folder has the same name is
    after = snapshot_with_blocks((512, ("/b/q/util.py", "make", 1)))
    assert rows(only_device(before, after).changes["line"]) == [
        ("shrunk", 2048, 512, "path"),
        ("gone", 1024, 0, None),
    ]


def test_unknown_stacks_are_a_site_of_their_own() -> None:
    program = Program()
    program.alloc(1024)
    [site] = only_device(program.snapshot(), program.snapshot()).changes["line"]
    assert (site.kind, site.before, site.after, site.matched_by) == ("same", None, None, "line")


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
    assert [str(site.name and site.name[1]) for site in device.changes["line"]] == [
        "backward of forward (MulBackward0)",
        "forward",
    ]
    # AND if one side has them, the lines without forward stacks are compared, and this comes first
    found = compare_snapshots(run(True, 8192), run(False, 9216))
    [device] = found.devices
    assert rows(device.changes["line"])[-1] == ("same", 4096, 4096, "line")
    assert all(
        site.name in (None, Frame(*forward), Frame(*backward)) for site in device.changes["line"]
    )
    [sentence] = falsified(found)
    assert sentence.startswith("forward_stacks differs (True → False): call sites are compared ")
    assert found.metadata[0].name == "forward_stacks"
    # AND also if the other side shows the threads of autograd, and not which node ran
    [device] = compare_snapshots(run(True, 8192), run(False, 9216, only_thread=True)).devices
    assert {site.name for site in device.changes["line"]} == {None, Frame(*forward)}


def test_a_file_of_torchs_recorder_may_have_forward_stacks() -> None:
    # GIVEN a file of torch's own recorder, in anomaly mode: it has forward frames, and no node
    program = Program()
    program.metadata = None
    program.alloc(4096, (TRAIN, "step", 9))
    assert not summarise(program.snapshot()).has_forward_stacks
    program.events[-1]["forward_frames"] = [f'  File "{MODEL}", line 5, in forward\n']
    # WHEN it is compared, THEN a file without such frames differs from it
    assert summarise(program.snapshot()).has_forward_stacks


def test_a_file_with_cpp_frames_has_the_same_call_sites() -> None:
    # GIVEN golden files of one program, the second with C++ frames, which are torch's default
    names = ("native/cuda-2.15.0.pickle", "native/cuda-2.15.0-all.pickle")
    before, after = (reference_reader.read(GOLDEN / name) for name in names)
    # WHEN they are compared, THEN every call site holds the same amount in both
    for device in compare_snapshots(before, after).devices:
        assert {(site.kind, site.matched_by) for site in device.changes["line"]} == {
            ("same", "line")
        }
        assert {site.after.filename for site in device.changes["line"] if site.after} == {
            "train.py"
        }


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
        assert {site.matched_by for site in device.changes["line"]} == {"line"}
