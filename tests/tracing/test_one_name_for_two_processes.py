"""Does each of several processes that are given one file name keep its recording?"""

import os
import pickle
import signal
import time
from pathlib import Path

import pytest
import torch

import pytracer
from pytracer.tracing import snapshot_files

pytestmark = pytest.mark.usefixtures("logged")


def names() -> set[str]:
    """Return the files in the present folder, but for hidden ones."""
    return {path.name for path in Path().glob("[!.]*")}


def write_as_another(name: str) -> None:
    """Write a file whose time is not that of this process's files."""
    Path(name).write_bytes(b"another's")
    after_ns = time.time_ns() + 10**9
    os.utime(name, ns=(after_ns, after_ns))


@pytest.mark.parametrize("end", ["pickle", "pkl"])
def test_a_file_that_another_process_wrote_during_the_recording(
    end: str, logged: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN a recording, and another process that writes a file of the same name
    with pytracer.Tracer(f"run.{end}", device="cpu"):
        torch.empty(1000)
        write_as_another(f"run.{end}")
    # THEN both files are there, and a warning names the second
    own = f"run.pid{os.getpid()}.{end}"
    assert names() == {f"run.{end}", own}
    assert Path(f"run.{end}").read_bytes() == b"another's"
    assert pickle.loads(Path(own).read_bytes())["pytracer"]["pid"] == os.getpid()
    assert f"run.{end} too: this process writes" in caplog.text


def test_files_of_steps() -> None:
    # GIVEN another process with the same name and the same steps
    with pytracer.Tracer("run.pickle", device="cpu", steps=[1, 2]) as tracer:
        write_as_another("run.step1.pickle")
        torch.empty(1000)
        tracer.step()
        torch.empty(1000)
        tracer.step()
    # THEN its file stays
    assert names() == {"run.step1.pickle", f"run.pid{os.getpid()}.step1.pickle", "run.step2.pickle"}


@pytest.mark.parametrize("by", [".", "a link"])
def test_two_processes_at_the_same_time(tmp_path: Path, by: str) -> None:
    # GIVEN another process that has the name, and has written nothing yet
    Path("a link").symlink_to(".")
    read, write = os.pipe()
    read_end, write_end = os.pipe()
    if (child := os.fork()) == 0:
        try:
            snapshot_files._is_held(tmp_path / by / "run.pickle")
            os.write(write, b"1")
            os.read(read_end, 1)
        finally:
            os._exit(0)
    os.close(write)  # so that the end of the child ends the next line
    os.read(read, 1)
    # WHEN this process writes
    try:
        with pytracer.Tracer("run.pickle", device="cpu"):
            torch.empty(1000)
    finally:
        os.write(write_end, b"1")
        os.waitpid(child, 0)
        for descriptor in (read, read_end, write_end):
            os.close(descriptor)
    # THEN its file has its process id
    assert names() == {f"run.pid{os.getpid()}.pickle", "a link"}


def test_a_name_in_a_folder_that_is_made_later(tmp_path: Path) -> None:
    # GIVEN another process that has a name, before it has made the folder
    path = tmp_path / "folder" / "run.pickle"
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        snapshot_files._is_held(path)
        os.write(write, b"1")
        signal.pause()
    os.read(read, 1)
    # WHEN the folder is there THEN this process does not get the name
    path.parent.mkdir()
    assert not snapshot_files._is_held(path)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)


def test_a_second_run_has_the_name_of_the_first(logged: set[str]) -> None:
    # GIVEN the file of an earlier run
    Path("run.pickle").write_bytes(b"earlier")
    os.utime("run.pickle", ns=(10**18, 10**18))
    # WHEN the program runs again, and writes to the name itself, too
    with pytracer.Tracer("run.pickle", device="cpu") as tracer:
        torch.empty(1000)
        tracer.dump("run.pickle")
        tracer.dump("run.pickle")
    # THEN the file is replaced, as the documentation says
    assert names() == {"run.pickle"}
    assert not logged
