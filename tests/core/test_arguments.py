"""Which arguments does a tracer take, and what does it say of others?"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from files_left import load

from pytracer import ConfigError, Tracer, annotate

INTEGER = "give an integer from {} to {}".format


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("trace_alloc_max_entries", INTEGER(1, 2**28)),
        ("stack_depth", INTEGER(1, 1024)),
        ("max_stack_bytes", INTEGER(2**16, 2**32)),
    ],
)
@pytest.mark.parametrize(
    "value", [-1, 0, 2**40, 10**30, True, False, None, 100.0, math.nan, math.inf, "100", b"1", [1]]
)
def test_bad_integers(option: str, remedy: str, value: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        Tracer(**{option: value})
    assert f"{option}={value!r} is " in str(raised.value)
    assert remedy in str(raised.value)


@pytest.mark.parametrize(
    ("option", "lowest", "highest"),
    [
        ("trace_alloc_max_entries", 1, 2**28),
        ("stack_depth", 1, 1024),
        ("max_stack_bytes", 2**16, 2**32),
    ],
)
def test_integers_at_their_bounds(option: str, lowest: int, highest: int) -> None:
    for value in (lowest, highest):
        # GIVEN the smallest and the largest allowed value
        with Tracer(**{option: value}) as tracer:  # type: ignore[arg-type]
            torch.empty(10)
        # WHEN the tracer records, THEN it works
        assert 1 <= len(tracer.events()) <= 2
        assert len(tracer.frames(int(tracer.events()["stack"][0]))) >= 1
    for value in (lowest - 1, highest + 1):
        with pytest.raises(ConfigError, match=f"{option}={value} is out of range"):
            Tracer(**{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, 'device=\'gpu\' is unknown: give "auto", "cpu"'),
        ({"device": ""}, "device='' is unknown: give \"auto\""),
        ({"device": "cpu:"}, "device='cpu:' is unknown: give \"auto\""),
        ({"device": "cpu:x"}, "device='cpu:x' is unknown: give \"auto\""),
        ({"device": "cpu:-1"}, "device='cpu:-1' is unknown: give \"auto\""),
        ({"device": "cpu:7"}, "device='cpu:7' does not exist: there is one CPU, \"cpu\""),
        ({"device": "auto:0"}, "device='auto:0' is unknown: give \"auto\""),
        ({"device": ["cpu", "xpu"]}, "device=['cpu', 'xpu'] is unknown: give \"auto\""),
        ({"device": "cuda:64"}, "device='cuda:64' does not exist: indices are below 64"),
        ({"pinned_memory": 1}, "pinned_memory=1 is not a boolean: give True or False"),
        ({"ranks": "ALL"}, "ranks='ALL' is not a list of ranks: give integers from 0 (sep"),
        ({"max_oom_snapshots": -1}, "max_oom_snapshots=-1 is out of range: give an integer from 0"),
        ({"max_oom_snapshots": 1.5}, "max_oom_snapshots=1.5 is not an integer: give"),
        ({"device": []}, 'device=[] is not a device name: give "auto"'),
        ({"device": None}, 'device=None is not a device name: give "auto"'),
        ({"device": 0}, 'device=0 is not a device name: give "auto"'),
        ({"device": {"cpu"}}, "device={'cpu'} is not a device name: give \"auto\""),
        ({"device": b"cpu"}, "device=b'cpu' is"),
        ({"output": ""}, "output='' is not a path: give a file name ending in .pickle"),
        ({"output": b"x.pickle"}, "output=b'x.pickle' is not a path: give"),
        ({"output": 3}, "output=3 is not a path: give a file name"),
        ({"output": True}, "output=True is not a path: give a file name"),
        ({"output": ["x"]}, "output=['x'] is not a path: give a file name"),
        ({"output": "x\0.pickle"}, "output='x\\x00.pickle' is not a path: give"),
        ({"metadata": "run 7"}, "metadata='run 7' is not a dict: give a dict, or None"),
        ({"metadata": [("run", 7)]}, "metadata=[('run', 7)] is not a dict: give"),
        ({"metadata": {7: "run"}}, "metadata has the key 7: keys must be strings"),
        ({"metadata": {"a": {None: 1}}}, "metadata has the key None: keys must be strings"),
        ({"metadata": {"run": 2**63}}, f"metadata holds {2**63}: give None, booleans"),
        ({"metadata": {"run": {7}}}, "metadata holds {7}: give None, booleans"),
        ({"metadata": {"run": [{"a": b"7"}]}}, "metadata holds b'7': give None, booleans"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Tracer(**options)
    assert str(raised.value).startswith(message)


def test_values_that_cannot_be_compared_or_printed() -> None:
    # GIVEN a value whose comparison raises an error, and a dict that contains itself
    class Incomparable:
        def __eq__(self, other: object) -> bool:
            raise ValueError("the truth of many")

        __hash__ = None  # type: ignore[assignment]

    endless: dict[str, Any] = {}
    endless["itself"] = endless
    # WHEN they are passed, THEN the error still names the option
    with pytest.raises(ConfigError, match=r"phases=.*give \"auto\""):
        Tracer(phases=Incomparable())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"stack_depth=.*out of range: give an integer"):
        Tracer(stack_depth=10**5000)
    with pytest.raises(ConfigError, match=r"metadata .*give"):
        Tracer(metadata=endless)


def test_good_arguments(tmp_path: Path) -> None:
    # GIVEN the accepted forms of a device, and all types of metadata
    metadata = {"a": [None, True, -(2**63), 2**63 - 1, 1.5, math.inf, "é\ud800"], "b": {"c": (1,)}}
    for device in ("auto", "cpu", "cpu:0", ["cpu", "auto"], ("cpu",), torch.device("cpu")):
        # WHEN a tracer uses them
        with Tracer(tmp_path / "x.pickle", device=device, metadata=metadata) as tracer:
            torch.empty(10)
        # THEN it records, and the metadata is in the file
        assert len(tracer.events()) == 2
        section = load(tmp_path / "x.pickle")["pytracer"]
        assert section["backends"] == ["cpu"]
        assert section["metadata"] == {**metadata, "b": {"c": [1]}}


def test_unknown_stack_and_phase_numbers() -> None:
    # GIVEN a tracer with an event that has a stack and a phase
    with Tracer(device="cpu") as tracer, annotate("phase"):
        torch.empty(1)
    (event, *_) = tracer.events()
    # WHEN unknown numbers are passed, THEN each error names the number and where valid ones are
    for number in (-1, 10**6, 10**12):
        with pytest.raises(IndexError, match=rf"no stack {number}; events\(\) has"):
            tracer.frames(number)
        with pytest.raises(IndexError, match=f"no event has the phase {number}: .* entered 1 to "):
            tracer.phase(number)
    with pytest.raises(IndexError, match="this tracer has no stack 1;"):
        Tracer(device="cpu").frames(1)
    # AND the event's own numbers and 0 are accepted
    assert tracer.frames(event["stack"])[0]["name"] == "test_unknown_stack_and_phase_numbers"
    assert tracer.phase(event["phase"]) == ("phase",)
    assert (tracer.frames(0), tracer.phase(0)) == ([], ())
