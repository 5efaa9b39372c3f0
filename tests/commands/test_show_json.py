"""What is in the JSON of `pytracer show`, and where does it go?"""

import errno
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from show_command import CUDA, invoke

from pytracer import show
from pytracer.analysis import explain, stats
from pytracer.commands.json_output import JsonOutput
from pytracer.errors import PytracerError
from pytracer.reading import load
from pytracer.reading.to_json import SCHEMA_VERSION, to_json

pytestmark = pytest.mark.usefixtures("narrow_terminal")


def test_json_is_the_report(tmp_path: Path) -> None:
    # WHEN the report is written as JSON, to standard output and to a file
    shown, written = invoke(CUDA, "--json"), tmp_path / "stats.json"
    assert "peak allocated" in invoke(CUDA, "--json-output", written).output
    # THEN both have the report, with numbers as JSON numbers
    expected = {"schema_version": SCHEMA_VERSION, "errors": []}
    expected |= {"files": [to_json(stats(load(CUDA)))], "answer": to_json(show(CUDA))}
    (explained,) = (document := json.loads(shown.output)).pop("explained")
    assert document == expected
    assert explained["devices"] == to_json(explain(load(CUDA)))
    assert json.loads(written.read_text()) == json.loads(shown.output)
    # AND the file can be overwritten
    assert invoke(CUDA, "--json-output", written).exit_code == 0


def test_json_does_not_overwrite_a_snapshot(tmp_path: Path) -> None:
    # GIVEN two snapshots
    paths = [shutil.copy(CUDA, tmp_path / name) for name in ("a.pickle", "b.pickle")]
    # WHEN the first is passed as the output file, THEN it is refused and remains unchanged
    result = invoke("--json-output", *paths)
    assert result.exit_code == 2
    assert "named like a snapshot" in re.sub(r"\s+", " ", result.output)
    assert Path(paths[0]).read_bytes() == CUDA.read_bytes()


def test_json_that_cannot_be_written(tmp_path: Path) -> None:
    result = invoke(CUDA, "--json-output", tmp_path / "no" / "x.json")
    assert result.exit_code == 1
    assert re.fullmatch(
        r"Error: cannot write .*x\.json: No such file or directory\n", result.stderr
    )
    assert "\x1b" not in invoke(CUDA, "--json-output", tmp_path / "\x1b]0;x\x07" / "x.json").stderr


def test_values_without_a_json_type_are_strings(tmp_path: Path) -> None:
    # GIVEN values that JSON does not support, which a file of unknown origin may have
    path = tmp_path / "x.json"
    strange = {"nan": float("nan"), "bytes": b"x", "set": {1}, (1, 2): None, "text": "\ud800"}
    # WHEN they are written, THEN they are strings, and other values are unchanged
    JsonOutput(path=str(path)).write({"strange": strange | {"ok": [1, 2.5, True]}})
    assert json.loads(path.read_text())["strange"] == {
        "nan": "nan",
        "bytes": "b'x'",
        "set": "{1}",
        "(1, 2)": None,
        "text": "\ud800",
        "ok": [1, 2.5, True],
    }


def test_a_json_file_that_cannot_be_completed_is_left_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a report, and a disk that is full
    path = tmp_path / "x.json"
    path.write_text("old")

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    # WHEN
    with pytest.raises(PytracerError, match=r"cannot write .*x\.json: No space left"):
        JsonOutput(path=str(path)).write({"new": 1})
    # THEN
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_goes_to_standard_output_once(capsys: pytest.CaptureFixture[str]) -> None:
    JsonOutput(is_only=True, path="-").write({"a": 1})
    assert json.loads(capsys.readouterr().out)["a"] == 1
