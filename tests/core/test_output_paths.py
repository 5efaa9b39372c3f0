"""Which paths can be written to, and what happens if one cannot?"""

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from files_left import files, live_sizes, load
from processes import run

from pytracer import ConfigError, Tracer
from pytracer.boxes.restoring import restore
from pytracer.tracing.snapshot_files import Files

# No file may grow beyond this size: the only way to a full disk that needs no permission.
LIMITED = """
import resource
import torch
from pytracer import Tracer

def work():
    return [torch.empty(n + 1) for n in range(3000)]

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
"""


def test_full_disk(tmp_path: Path) -> None:
    # GIVEN an earlier snapshot of the same process, and a disk that becomes full
    program = (
        LIMITED
        + """
with Tracer("snapshot.pickle"):
    pass
for _ in range(2):
    with Tracer("snapshot.pickle"):
        kept = work()
        limit(100_000)
    assert sum(tensor.numel() for tensor in kept) == 3000 * 3001 / 2
limit(resource.RLIM_INFINITY)
print("trained")
"""
    )
    path = tmp_path / "snapshot_2.pickle"
    # WHEN snapshots cannot be written
    done = run(program, cwd=tmp_path)
    # THEN the training continues, one message is logged, and the old file is unchanged
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.splitlines() == [
        f"pytracer: the snapshot {path} was not written: [Errno 27] writing the snapshot "
        f"failed: File too large: '{path}'"
    ]
    assert files(tmp_path) == ["snapshot.pickle"]
    assert live_sizes(load(tmp_path / "snapshot.pickle")) == []


def test_a_folder_that_another_process_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN another process that could not write, and removes the folder that both processes use
    original = Files.writing

    @contextlib.contextmanager
    def writing(files: Files, path: Path) -> Iterator[None]:
        with original(files, path):
            path.parent.rmdir()
            yield

    monkeypatch.setattr(Files, "writing", writing)
    # WHEN a snapshot is written into this folder
    with Tracer(tmp_path / "out", device="cpu"):
        pass
    # THEN the snapshot exists
    assert len([*tmp_path.glob("out/exit/*.pickle")]) == 1


def test_full_disk_at_exit_and_in_dump(tmp_path: Path) -> None:
    # GIVEN a disk that is full
    program = (
        LIMITED
        + """
tracer = Tracer("exit.pickle").start()
kept = work()
limit(100_000)
try:
    tracer.dump("dumped.pickle")
except OSError as error:
    print(error.errno, error.filename)
"""
    )
    # WHEN the program dumps, and the process ends
    done = run(program, cwd=tmp_path)
    # THEN `dump()` raises an error, the exit logs one, and no file is left
    assert (done.returncode, done.stdout) == (0, "27 dumped.pickle\n")
    assert len(done.stderr.splitlines()) == 1
    assert "exit.pickle was not written" in done.stderr
    assert files(tmp_path) == []
    # AND what it has recorded is not lost, once there is space
    [line] = [*restore(tmp_path)]
    assert "what it had recorded is in" in line
    [path] = tmp_path.glob("*killed*.pickle")
    assert len(live_sizes(load(path))) > 1000


@pytest.mark.parametrize("output", ["file/x.pickle", "file/deep/x.pickle", "file/d", "file"])
@pytest.mark.parametrize("place", ["", "/proc", "/sys"])
def test_a_path_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, output: str
) -> None:
    # GIVEN a place where nobody, not even root, can create a directory
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    path = f"{place}/{output}" if place else output
    # WHEN a tracer's output is there
    with pytest.raises(ConfigError) as raised:
        Tracer(path).start()
    # THEN the start raises an error that names the path and the remedy
    first = Path(place or tmp_path, "" if place else "file")
    assert f"output={path!r} cannot be written: {first}" in str(raised.value)
    assert "give a path in a directory that exists and is writable" in str(raised.value)
    assert files(tmp_path) == ["file"]


def test_a_directory_named_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.pickle").mkdir()
    with pytest.raises(ConfigError, match=r"x\.pickle' is a directory: give another file name"):
        Tracer(tmp_path / "x.pickle").start()


def test_a_directory_removed_while_recording(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN a recording whose directory is removed and cannot be created again
    directory = tmp_path / "runs"
    with caplog.at_level(logging.WARNING, "pytracer"), Tracer(directory / "x.pickle") as tracer:
        shutil.rmtree(directory)
        directory.touch()
    # WHEN the recording ends, THEN one warning is logged, and the events can still be dumped
    (record,) = caplog.records
    assert f"the snapshot {directory / 'x.pickle'} was not written" in record.getMessage()
    with pytest.raises(NotADirectoryError) as raised:
        tracer.dump(directory / "x.pickle")
    assert raised.value.filename == str(directory / "x.pickle")
    tracer.dump(tmp_path / "y.pickle")
    assert files(tmp_path) == ["runs", "y.pickle"]


@pytest.mark.parametrize(
    "name",
    [b"caf\xe9.pickle", "日本語.pickle".encode(), b"n" * 248 + b".pickle"],
    ids=["not UTF-8", "UTF-8", "longest"],
)
def test_any_file_name_the_system_takes(tmp_path: Path, name: bytes) -> None:
    # GIVEN a name that is not UTF-8, or that has the maximum length
    path = tmp_path / os.fsdecode(name)
    # WHEN a snapshot is written to it at exit and by `dump`
    with Tracer(path) as tracer:
        torch.empty(10)
    # THEN the snapshot exists
    load(path)
    path.unlink()
    tracer.dump(path)
    load(path)


def test_a_file_name_with_a_null_character(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="null"):
        Tracer().dump(f"{tmp_path}/x\0.pickle")
    assert files(tmp_path) == []


def test_a_relative_output_is_resolved_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a relative output
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    # WHEN the training changes its working directory
    with Tracer("x.pickle"):
        monkeypatch.chdir(tmp_path / "elsewhere")
    # THEN the snapshot is in the original directory
    assert files(tmp_path) == ["x.pickle"]
