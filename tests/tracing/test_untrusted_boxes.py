"""Tests of boxes that are damaged, or that somebody made or placed to do harm."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import changed_boxes
import pytest
from amount import amount
from changed_boxes import NAME, Box
from fuzz_values import peak_of
from processes import environment, run, run_python

from pytracer.boxes import places, restoring
from pytracer.boxes.description import DamagedBoxError, described, opened
from pytracer.reading import load

RING, NAMES = 1, 11  # BoxKind of csrc/support/box.h


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Box:
    return Box.of_killed_process(tmp_path_factory.mktemp("killed"))


def given(box: Box, folder: Path) -> Path:
    box.write(path := folder / "given" / places.FOLDER / NAME)
    return path


def show(folder: Path, limit: str = "true", name: str = "given") -> str:
    """Return what `pytracer show` says on stderr under a limit of the shell's."""
    command = f'{limit}; exec "{sys.executable}" -m pytracer show {name}'
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment(), capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr
    return done.stderr


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_changed_boxes_do_no_harm(box: Box, tmp_path: Path) -> None:
    # GIVEN boxes with damaged bytes, and with descriptions that ask for what is not allowed
    box.write(tmp_path / "template")
    (folder := tmp_path / "read").mkdir()
    count = amount(120, 20_000)
    # WHEN they are read, in a new process, whose forks are cheap
    arguments = (changed_boxes.__file__, tmp_path / "template", folder, count, 7)
    done = run_python(*arguments, cwd=tmp_path, timeout=7200, new=True)
    # THEN each reading ends by itself, writes a snapshot in its folder or nothing, and takes little
    *problems, counts = done.stdout.split("\n")[:-1]
    assert not [*filter(None, problems)], done.stderr
    snapshots, read = map(int, counts.split())
    assert (read, 0 < snapshots < read) == (count, True)


def test_a_box_chooses_neither_the_place_nor_what_is_printed(box: Box, tmp_path: Path) -> None:
    # GIVEN a box that names another place, and has codes for the terminal
    found = box.description
    found["path"] = [str(tmp_path / "escaped" / "x"), "", ".sh"]
    found["metadata"]["host"] = "\x1b]0;title\x07\nanother line"
    given(box.described(json.dumps(found).encode()), tmp_path)
    # WHEN its folder is shown
    said = show(tmp_path)
    # THEN the snapshot is below the folder, and one line says so
    assert not (tmp_path / "escaped").exists()
    [name] = files(tmp_path)
    assert (name.startswith("given/"), name.endswith(".pickle")) == (True, True)
    assert (said.count("\n"), said.strip().isprintable()) == (1, True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rank", [1]),
        ("rank", "three"),
        ("rank", True),
        ("host", 7),
        ("backends", {"cuda": 1}),
        ("backends", [["cuda"]]),
        ("pid", 2**70),
    ],
)
def test_what_a_box_says_is_typed(box: Box, key: str, value: object) -> None:
    found = box.description
    found["metadata"][key] = value
    description = described(json.dumps(found).encode())
    assert description is not None
    about = description.about
    assert about.rank is None
    assert description.accelerator.isprintable()
    assert description.who.endswith(" of an unknown host" if key == "host" else f" of {about.host}")


@pytest.mark.parametrize("number", ["/dev/zero", "/proc/self/fd/0", "fifo"])
def test_no_file_is_read_that_a_box_names(box: Box, tmp_path: Path, number: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    found = box.description
    found["cgroup"] = [str(tmp_path / number), 0]
    given(box.described(json.dumps(found).encode()), tmp_path)
    show(tmp_path, limit="ulimit -t 20")
    [path] = (tmp_path / "given").rglob("*.pickle")
    assert load(path).metadata.killed is not None


def test_a_box_with_more_than_is_on_the_disk_is_refused(box: Box, tmp_path: Path) -> None:
    # GIVEN a file with a hole of 3 GiB that says that its ring has all of it
    path = given(box.with_backed(RING, 3 << 30), tmp_path)
    os.truncate(path, 4 << 30)

    # WHEN / THEN it is not read
    def read() -> None:
        with pytest.raises(DamagedBoxError, match="its tables have"), opened(path):
            pass

    extra_bytes, _ = peak_of(read)
    assert extra_bytes < 16 << 20
    assert "cannot be read: its tables have" in show(tmp_path)
    assert path.with_suffix(places.UNREADABLE).exists()


def test_links_to_boxes_are_not_followed(box: Box, tmp_path: Path) -> None:
    # GIVEN another folder that has links to a run's boxes
    path = given(box, tmp_path)
    bait = tmp_path / "bait"
    (bait / "x" / places.FOLDER).mkdir(parents=True)
    (bait / places.FOLDER).symlink_to(path.parent)
    (bait / "x" / places.FOLDER / NAME).symlink_to(path)
    # WHEN it is shown THEN nothing is moved there
    assert "bait contains no snapshots" in show(tmp_path, name="bait")
    assert files(bait) == [f"x/{places.FOLDER}/{NAME}"]
    # WHEN the run is shown THEN its box is read
    assert "ended without writing" in show(tmp_path)


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("ulimit -v 4000000", "cannot reserve 4294967295 bytes"),
        ("ulimit -n 8", "Too many open files"),
        ("ulimit -f 8", "cannot write"),
    ],
)
def test_limits_of_the_reader_say_nothing_of_a_box(
    box: Box, tmp_path: Path, limit: str, said: str
) -> None:
    path = given(box, tmp_path)
    # WHEN a process with a limit reads a box THEN it says why it cannot, and leaves nothing
    assert said in show(tmp_path, limit)
    assert files(tmp_path) == [str(path.relative_to(tmp_path))]
    assert [*(tmp_path / "given").iterdir()] == [path.parent]
    # WHEN one without reads it THEN it is read
    assert "ended without writing" in show(tmp_path)


def test_a_name_that_is_not_utf8_is_replaced(box: Box, tmp_path: Path) -> None:
    given(box.replaced(b"kept", b"k\xffpt"), tmp_path)
    show(tmp_path)
    [path] = (tmp_path / "given").rglob("*.pickle")
    assert "k?pt" in load(path).strings


def test_a_box_goes_only_when_its_snapshot_can_be_read(box: Box, tmp_path: Path) -> None:
    # GIVEN a snapshot that is damaged on its way to the disk
    path = given(box, tmp_path)
    done = read_by(
        path,
        """
from pytracer.errors import PytracerError
def load(path): raise PytracerError(f"{path} is damaged")
restore.load = load
""",
    )
    # THEN nothing is left of it, and the box stays, under the name of those that nobody can read
    assert "is damaged" in done[0]["problem"]
    assert files(tmp_path / "given") == [f"{places.FOLDER}/{path.stem}{places.UNREADABLE}"]


def test_a_box_that_cannot_be_removed_is_read_once(box: Box, tmp_path: Path) -> None:
    # GIVEN a folder from which nothing can be removed (root may do that)
    path = given(box, tmp_path)
    first, second = read_by(path, "places.remove = lambda path: False", times=2)
    # THEN there is one file, however often the box is read
    assert [Path(first["path"])] == [*(tmp_path / "given").rglob("*.pickle")]
    assert second["path"] is None
    # AND none if the box cannot even be emptied
    again = given(box, tmp_path / "again")
    [done] = read_by(again, "places.remove = places.empty = lambda path: False")
    assert "cannot be removed" in done["problem"]
    assert files(tmp_path / "again" / "given") == [f"{places.FOLDER}/{NAME}"]


def read_by(path: Path, changes: str, times: int = 1) -> list[dict[str, Any]]:
    """Return what the program that reads boxes prints, with some of its functions replaced."""
    program = f"""
import sys
from pytracer.boxes import places, restoring
from pytracer.tracing import restore
{changes}
sys.argv = ["restore", {str(path)!r}, {str(path.parents[1])!r}, "killed", "1"]
for _ in range({times}): restore.main()
"""
    done = run(program, cwd=path.parents[2])
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("end", ["", "second.stop()"])
def test_a_later_ring_does_not_hide_what_was_overwritten(end: str, tmp_path: Path) -> None:
    # GIVEN a process whose ring was replaced by a larger one when older events were gone
    program = f"""
import os, torch, pytracer
tracer = pytracer.Tracer("out", device="cpu", trace_alloc_max_entries=1000).start()
keep = [torch.ones(10) for _ in range(500)]
for i in range(3000): torch.empty(100)
second = pytracer.Tracer(None, device="cpu", trace_alloc_max_entries=300000).start()
for i in range(700): torch.empty(100)
{end}
tracer.dump("own.pickle")
os.kill(os.getpid(), 9)
"""
    run(program, cwd=tmp_path)
    show(tmp_path, name="out")
    # THEN the restored snapshot counts as the process's own one does, from its beginning
    [path] = (tmp_path / "out").rglob("*.pickle")
    own, restored = (pickle.loads(each.read_bytes()) for each in (tmp_path / "own.pickle", path))
    events = [event["action"] for event in restored["device_traces"][0]]
    held = sum(action in ("alloc", "free_completed") for action in events)
    counts = restored["pytracer"]["devices"][0]
    assert counts["recorded"] == own["pytracer"]["devices"][0]["recorded"] == 7900
    assert counts["overwritten"] == counts["recorded"] - held > 0


def test_a_live_box_elsewhere_names_its_output_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a box in the user's own folder
    output = tmp_path / "run" / "output"
    used: list[Path] = []
    monkeypatch.setattr(restoring, "output_of", lambda box: output)
    monkeypatch.setattr(
        restoring, "_snapshot", lambda box, folder, *_: used.append(folder) or {"path": None}
    )
    monkeypatch.chdir(tmp_path)
    # WHEN its process is dumped THEN the file goes to the output if that was asked for
    for asked in ([tmp_path / "run"], [output], [tmp_path / "other"], []):
        restoring.snapshot_of_live(tmp_path / "pytracer_boxes_0" / NAME, asked)
    assert used == [output, output, tmp_path, tmp_path]
