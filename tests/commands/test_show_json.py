"""What is in the JSON of `pytracer show`, and where does it go?"""

import json

import pytest
from show_command import CUDA, invoke

from pytracer import show
from pytracer.analysis import explain, stats
from pytracer.commands.json_output import print_json
from pytracer.reading import load
from pytracer.reading.to_json import SCHEMA_VERSION, to_json

pytestmark = pytest.mark.usefixtures("narrow_terminal")


def test_json_is_the_report() -> None:
    shown = invoke(CUDA, "--json")
    expected = {"schema_version": SCHEMA_VERSION, "errors": []}
    expected |= {"files": [to_json(stats(load(CUDA)))], "answer": to_json(show(CUDA))}
    (explained,) = (document := json.loads(shown.output)).pop("explained")
    assert document == expected
    assert explained["devices"] == to_json(explain(load(CUDA)))


def test_values_without_a_json_type_are_strings(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN values that JSON does not support, which a file of unknown origin may have
    strange = {"nan": float("nan"), "bytes": b"x", "set": {1}, (1, 2): None, "text": "\ud800"}
    # WHEN they are written, THEN they are strings, and other values are unchanged
    print_json({"strange": strange | {"ok": [1, 2.5, True]}})
    assert json.loads(capsys.readouterr().out)["strange"] == {
        "nan": "nan",
        "bytes": "b'x'",
        "set": "{1}",
        "(1, 2)": None,
        "text": "\ud800",
        "ok": [1, 2.5, True],
    }
