"""Test what stays of what exists at a path when a file is written there."""

import contextlib
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pytracer import Tracer
from pytracer.atomic_file import open_atomically, open_output
from pytracer.errors import ConfigError
from pytracer.reading import load

NOBODY = 65534

Write = Callable[[Path], None]


def write_snapshot(path: Path) -> None:
    with Tracer(None, device="cpu") as tracer:
        torch.empty(1000)
        tracer.dump(path)


def write_output(path: Path) -> None:
    with open_output(path) as file:
        file.write(b"content")


@pytest.fixture(params=[write_snapshot, write_output])
def write(request: pytest.FixtureRequest) -> Write:
    function: Write = request.param
    return function


def read_in_thread(pipe: Path) -> Callable[[], bytes]:
    """Read a pipe to its end in a thread; return a function that waits for the content."""
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    thread.start()

    def content() -> bytes:
        thread.join(10)
        return found[0]

    return content


def test_a_pipe_gets_the_content(tmp_path: Path, write: Write) -> None:
    # GIVEN a pipe with a reader
    pipe = tmp_path / "x.pickle"
    os.mkfifo(pipe)
    content = read_in_thread(pipe)
    # WHEN a file is written there
    write(pipe)
    # THEN the reader got the content, the pipe is still there, and nothing else
    assert len(content()) > 5
    assert pipe.is_fifo()
    assert [*tmp_path.iterdir()] == [pipe]


def test_a_device_is_written_to(tmp_path: Path, write: Write) -> None:
    # GIVEN a link to a device, which a user other than root cannot replace
    link = tmp_path / "x.pickle"
    link.symlink_to("/dev/null")
    # WHEN a file is written there, THEN both stay
    write(link)
    assert link.is_symlink()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_device_node_is_not_replaced(tmp_path: Path, write: Write) -> None:
    # GIVEN a node of the null device, in a folder that may be written to
    null = tmp_path / "null"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        null.write_bytes(b"x")
    except PermissionError:
        pytest.skip("this container has no device nodes")
    # WHEN a file is written there, THEN it stays
    write(null)
    assert stat.S_ISCHR(null.stat().st_mode)


@pytest.mark.parametrize("exists", [True, False])
def test_links_are_followed(tmp_path: Path, write: Write, exists: bool) -> None:
    # GIVEN a link to a link to a file in another folder, which may be missing
    target = tmp_path / "disk" / "file"
    target.parent.mkdir()
    if exists:
        target.write_bytes(b"")
    (tmp_path / "second").symlink_to("disk/file")
    link = tmp_path / "x.pickle"
    link.symlink_to(tmp_path / "second")
    # WHEN a file is written to the link
    write(link)
    # THEN the target has the content, and both are links
    assert target.stat().st_size > 5
    assert link.is_symlink()
    assert os.readlink(tmp_path / "second") == "disk/file"
    assert len([*tmp_path.iterdir()]) == 3
    assert [*target.parent.iterdir()] == [target]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o750])
def test_the_mode_is_kept(tmp_path: Path, write: Write, mode: int) -> None:
    # GIVEN a file with a mode of its own
    path = tmp_path / "x.pickle"
    path.touch()
    path.chmod(mode)
    # WHEN it is written
    write(path)
    # THEN it has the mode
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.stat().st_size > 5


def test_nobody_may_read_an_unfinished_private_file(tmp_path: Path) -> None:
    # GIVEN a private file
    path = tmp_path / "x"
    path.touch(0o600)
    # WHEN it is written, THEN the unfinished file is private too
    with open_atomically(path) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600


def test_hard_links_stay(tmp_path: Path, write: Write) -> None:
    # GIVEN a file with two names, which is longer than what is written
    path, other = tmp_path / "x.pickle", tmp_path / "other"
    path.write_bytes(bytes(1_000_000))
    os.link(path, other)
    # WHEN it is written
    write(path)
    # THEN both names have the content
    assert path.samefile(other)
    assert 5 < other.stat().st_size < 1_000_000
    assert len([*tmp_path.iterdir()]) == 2


def test_a_failure_leaves_a_file_with_several_links(tmp_path: Path) -> None:
    # GIVEN a file with two names
    path = tmp_path / "x"
    path.write_bytes(b"before")
    os.link(path, tmp_path / "other")
    # WHEN a file cannot be completed, THEN the file stays as it was
    with contextlib.suppress(ZeroDivisionError), open_atomically(path) as file:
        file.write(b"new")
        raise ZeroDivisionError
    assert path.read_bytes() == b"before"
    assert len([*tmp_path.iterdir()]) == 2


def test_a_descriptor_is_written_to(tmp_path: Path) -> None:
    # GIVEN a file that is open, with content
    path = tmp_path / "x.pickle"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    # WHEN a snapshot is written to its descriptor
    with Tracer(None, device="cpu") as tracer:
        tracer.dump(file)
    # THEN the file is complete, and closed as open() closes it
    load(path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_the_standard_output_is_not_replaced(tmp_path: Path) -> None:
    # GIVEN a file that the process has open, as the standard output is
    path = tmp_path / "log"
    with open(path, "wb") as log:
        inode = path.stat().st_ino
        link = tmp_path / "stdout"
        link.symlink_to(f"/proc/self/fd/{log.fileno()}")
        # WHEN a file is written to its link in /proc, which /dev/stdout leads to
        with open_atomically(link) as file:
            file.write(b"content")
    # THEN the open file has it
    assert path.read_bytes() == b"content"
    assert path.stat().st_ino == inode


# --- folders in which no other file can be made ---------------------------------------------------


@contextlib.contextmanager
def shared_folder() -> Iterator[Path]:
    """Make a folder that any user may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def run_as_another_user(body: Callable[[], Any]) -> None:
    """Run a function that does not need torch in a forked child, which is not root."""
    child = os.fork()
    if child == 0:
        failed = 1
        try:
            if os.geteuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            body()
            failed = 0
        finally:
            os._exit(failed)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_file_in_a_folder_that_is_not_writable() -> None:
    with shared_folder() as folder:
        # GIVEN the one file that a user may write to in a folder
        path = folder / "x.pickle"
        path.write_bytes(b"a longer content")
        path.chmod(0o666)
        folder.chmod(0o555)
        inode = path.stat().st_ino

        # WHEN the user writes it
        def write() -> None:
            Tracer(path, device="cpu")._writer.open()  # finds no fault
            with open_atomically(path) as file:
                file.write(b"content")

        run_as_another_user(write)
        # THEN it has the content
        assert path.read_bytes() == b"content"
        assert path.stat().st_ino == inode

        # AND it is empty if it could not be completed
        def fail() -> None:
            with contextlib.suppress(ZeroDivisionError), open_atomically(path) as file:
                file.write(b"new")
                raise ZeroDivisionError

        run_as_another_user(fail)
        assert path.read_bytes() == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's file")
def test_a_file_of_another_user_in_a_sticky_folder() -> None:
    with shared_folder() as folder:
        # GIVEN a file of another user, in a folder where only owners replace files, as /tmp
        path = folder / "x"
        path.write_bytes(b"a longer content")
        path.chmod(0o666)
        folder.chmod(0o1777)
        before = path.stat()

        def write() -> None:
            with open_atomically(path) as file:
                file.write(b"content")

        # WHEN it is written
        run_as_another_user(write)
        # THEN it has the content and the owner, and nothing else is in the folder
        assert path.read_bytes() == b"content"
        assert (path.stat().st_ino, path.stat().st_uid) == (before.st_ino, before.st_uid)
        assert [*folder.iterdir()] == [path]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's file")
def test_root_leaves_a_user_the_file(tmp_path: Path, write: Write) -> None:
    # GIVEN a file of a user
    path = tmp_path / "x.pickle"
    path.touch()
    os.chown(path, NOBODY, NOBODY)
    # WHEN root writes it, THEN it is still the user's
    write(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (NOBODY, NOBODY)


def test_a_file_that_may_not_be_written_is_refused() -> None:
    with shared_folder() as folder:
        # GIVEN a file that is protected, in a folder in which files can be made
        path = folder / "x.pickle"
        path.write_bytes(b"before")
        path.chmod(0o444)
        folder.chmod(0o777)

        def write() -> None:
            # WHEN it is an output, THEN the start of the recording says so
            with pytest.raises(ConfigError, match="Permission denied"):
                Tracer(path, device="cpu").start()
            # AND it is not written
            with pytest.raises(PermissionError), open_atomically(path):
                pass

        run_as_another_user(write)
        assert path.read_bytes() == b"before"


def test_a_missing_folder_is_reported_with_the_path(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "x"
    with pytest.raises(FileNotFoundError) as error, open_atomically(path):
        pass
    assert error.value.filename == str(path)
