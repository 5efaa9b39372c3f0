"""Test commands on directories with special files, unreadable folders and long names."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import invoke
from directories import COMMANDS, SPECIAL, command

from pytracer.errors import PytracerError
from pytracer.fleet.dataset import MARK
from pytracer.reading import find, load

GOLDEN = Path(__file__).parents[1] / "golden" / "snapshot-1.4-cuda.pickle"
PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
def _end_reads_of_fifos(tmp_path: Path) -> Iterator[None]:
    """After some seconds, end what waits for a FIFO, in this process or in another one."""

    def end(*_: object) -> None:
        for path in tmp_path.rglob("*"):
            if path.is_fifo():
                os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S, 0.5)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory with one snapshot."""
    path = tmp_path / "run"
    path.mkdir()
    shutil.copy(GOLDEN, path / "a.pickle")
    return path


@pytest.mark.parametrize("kind", SPECIAL)
def test_only_regular_files_are_found(directory: Path, kind: str) -> None:
    # GIVEN a special file, and a link to a regular one
    SPECIAL[kind](directory / "x.pickle.gz")
    (directory / "link.pickle").symlink_to("a.pickle")
    # WHEN / THEN
    assert find([directory]) == [directory / "a.pickle", directory / "link.pickle"]


def test_a_link_to_a_missing_file_is_found_so_that_reading_it_fails(directory: Path) -> None:
    # GIVEN
    (directory / "gone.pickle").symlink_to("nowhere")
    # WHEN / THEN
    assert directory / "gone.pickle" in find([directory])


def test_a_fifo_that_the_user_names_is_read(directory: Path) -> None:
    # GIVEN
    pipe = directory / "x.pickle"
    os.mkfifo(pipe)
    # WHEN
    child = os.fork()
    if child == 0:
        pipe.write_bytes(GOLDEN.read_bytes())
        os._exit(0)
    snapshot = load(pipe)
    os.waitpid(child, 0)
    # THEN
    assert len(snapshot.traces) == len(load(GOLDEN).traces)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_waits_for_a_fifo(directory: Path, name: str) -> None:
    # GIVEN
    os.mkfifo(directory / "x.pickle")
    # WHEN
    result = invoke(*command(name, directory))
    # THEN the other file is read
    assert "x.pickle" not in result.output


@pytest.fixture
def unreadable(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of the directory that this process, which may be root, cannot list."""
    folder = directory / "private"
    folder.mkdir()
    original = os.scandir

    def scandir(path: "str | os.PathLike[str]" = ".") -> "os._ScandirIterator[str]":
        if str(path) == str(folder):
            raise PermissionError(13, "Permission denied", str(path))
        return original(path)

    monkeypatch.setattr(os, "scandir", scandir)
    return folder


def test_a_folder_that_cannot_be_searched(directory: Path, unreadable: Path) -> None:
    # WHEN / THEN it is an error, or reported
    with pytest.raises(PytracerError, match=f"cannot search {unreadable}: Permission denied"):
        find([directory])
    errors: list[PytracerError] = []
    assert find([directory], errors.append) == [directory / "a.pickle"]
    assert [str(error) for error in errors] == [f"cannot search {unreadable}: Permission denied"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_rest_is_read(
    directory: Path, unreadable: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN what the command answers without the folder
    whole = command(name, directory)
    # WHEN
    result = invoke(*whole)
    # THEN the folder is reported, and the file is read
    assert f"cannot search {unreadable}: Permission denied" in result.output + caplog.text
    if name == "fleet collect":
        assert ": 1 file read in" in result.output
    else:
        assert result.output.count("\n") > 1 or (directory.parent / "output").exists()


@pytest.mark.parametrize("fifo", [MARK, "files/x/y/00000001.parquet"])
def test_a_dataset_with_a_fifo_is_refused(directory: Path, fifo: str) -> None:
    # GIVEN
    dataset = directory.parent / "dataset"
    invoke("fleet", "collect", directory, "--output", dataset)
    path = dataset / fifo
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    # WHEN
    result = invoke("fleet", "report", dataset)
    # THEN
    assert result.exit_code == 1
    assert str(path) in result.output
    assert "not a regular file" in result.output


def test_long_names_are_exported(tmp_path: Path) -> None:
    # GIVEN files whose names, with their folders, are longer than a file's name may be
    for end in "ab":
        path = tmp_path / ("x" * 150) / ("y" * 150 + end) / "a.pickle"
        path.parent.mkdir(parents=True)
        shutil.copy(GOLDEN, path)
    shutil.copy(GOLDEN, tmp_path / "a.pickle")
    # WHEN
    output = tmp_path / "output"
    result = invoke("export", tmp_path, "--to", "parquet", "--output", output)
    # THEN
    assert result.exit_code == 0, result.output
    assert len(list((output / "events").iterdir())) == 3
