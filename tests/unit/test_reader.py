"""Loading: what is a snapshot is loaded, anything else is refused without running it."""

import os
import pickle
from pathlib import Path

import pytest

from pytracer.errors import PytracerError
from pytracer.reading import load

SNAPSHOT = {"segments": [], "device_traces": [[{"action": "alloc", "pool_id": (0, 0)}]]}


class Bomb:
    """Unpickled carelessly, it makes a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_snapshot_is_loaded(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(SNAPSHOT, protocol=protocol))
    assert load(path) == load(str(path)) == SNAPSHOT


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_code_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    # GIVEN a snapshot with a value that runs something when unpickled
    path, target = tmp_path / "bomb.pickle", tmp_path / "boom"
    path.write_bytes(pickle.dumps(SNAPSHOT | {"x": Bomb(target)}, protocol=protocol))
    # WHEN it is loaded, THEN the function is named, and was not called
    with pytest.raises(PytracerError, match=r"bomb\.pickle is refused: it asks for posix\.mkdir,"):
        load(path)
    assert not target.exists()
    # AND the bomb is a real one
    pickle.loads(path.read_bytes())
    assert target.exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"\x80\x04\x8c\x01aQ.", "refused: it asks for the external", id="persistent"),
        pytest.param(b"", "cut short or empty", id="empty"),
        pytest.param(pickle.dumps(SNAPSHOT, protocol=2)[:-30], "cut short", id="truncated"),
        pytest.param(pickle.dumps(SNAPSHOT, protocol=4)[:-30], "cut short", id="truncated frame"),
        pytest.param(b"segments: none\n", "no pickle file at all", id="text"),
        pytest.param(b"\x7fELF" + bytes(99), "no pickle file at all", id="binary"),
        pytest.param(pickle.dumps([1]), "no memory snapshot", id="a list"),
        pytest.param(pickle.dumps({"segments": []}), "no memory snapshot", id="half a snapshot"),
    ],
)
def test_other_files_are_named_for_what_they_are(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "file.pickle"
    path.write_bytes(data)
    with pytest.raises(PytracerError, match=rf"file\.pickle .*{message}"):
        load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PytracerError, match=r"cannot read .*nothing\.pickle: No such file"):
        load(tmp_path / "nothing.pickle")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PytracerError, match=r"cannot read .*: Is a directory"):
        load(tmp_path)
