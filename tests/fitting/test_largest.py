"""The search for the largest size that fits, by programs whose needs are known."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytracer import ConfigError
from pytracer.analysis.answer import Answer, Line
from pytracer.fitting import largest as module
from pytracer.fitting.largest import MOST, filled_in, largest
from pytracer.rehearsal.results import DryRun

DEVICE_BYTES = 80 << 30


def run_of(needed_bytes: int) -> DryRun:
    fits = needed_bytes <= DEVICE_BYTES
    answer = Answer("none" if fits else "oom", "", "", [Line("asked", "train.py:3", size_bytes=5)])
    sizes = (min(needed_bytes, DEVICE_BYTES),) * 2
    return DryRun(fits, "h100", 1, *sizes, DEVICE_BYTES, 0, 0, False, [], [], 3, 1.0, [], answer)


@given(
    fixed_bytes=st.integers(0, 2 * DEVICE_BYTES),
    first_bytes=st.integers(0, DEVICE_BYTES),
    each_bytes=st.integers(1 << 12, DEVICE_BYTES),
)
def test_the_largest_value_is_found(fixed_bytes: int, first_bytes: int, each_bytes: int) -> None:
    # GIVEN a program that needs some memory, and more from some size on
    def needed(value: int) -> int:
        return fixed_bytes + max(first_bytes, each_bytes * value)

    def dry_run(command: list[str], output: Path, **_: Any) -> DryRun:
        return run_of(needed(int(command[-1])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "dry_run", dry_run)
        # WHEN the largest value is searched for
        found = largest(["train.py", "{batch}"], "batch")
    # THEN it fits, the next one does not, and few runs were needed
    if found.value:
        assert needed(found.value) <= DEVICE_BYTES
    if found.value < MOST:
        assert needed(found.value + 1) > DEVICE_BYTES
        assert found.value + 1 in found.runs
    assert found.fits == (needed(1) <= DEVICE_BYTES)
    assert len(found.runs) <= 40


def test_the_sizes_have_to_stand_in_the_command() -> None:
    assert filled_in(["train.py", "--b={b}", "{l}"], {"b": 2, "l": 3}) == ["train.py", "--b=2", "3"]
    with pytest.raises(ConfigError, match=r"the command has no \{batch\}"):
        filled_in(["train.py", "--batch", "8"], {"batch": 2})
