"""Sizes of files and targets, and recordings that do not show what was asked."""

from pathlib import Path

import pytest

from pytracer.errors import ConfigError, PytracerError
from pytracer.fitting.sizes import parsed_file, parsed_target, targets_of, variables_of


def test_files_with_sizes(tmp_path: Path) -> None:
    assert parsed_file("a/b.pickle") == (Path("a/b.pickle"), None)
    assert parsed_file("a@b.pickle@batch=2,length=64") == (
        Path("a@b.pickle"),
        {"batch": 2, "length": 64},
    )
    for text in ("a@batch=2.5", "a@batch=0", "a@batch=", "a@=2", "a@batch=2,length=64/x"):
        with pytest.raises(ConfigError, match=f'"{text}": give sizes such as batch=16,length=4096'):
            parsed_file(text)
    # A file with such a name is that file.
    (tmp_path / "a@batch=2").touch()
    assert parsed_file(f"{tmp_path}/a@batch=2") == (tmp_path / "a@batch=2", None)


def test_targets() -> None:
    found = parsed_target("batch=8..16..4,length=64")
    assert targets_of(found) == [{"batch": batch, "length": 64} for batch in (8, 12, 16)]
    assert targets_of({"batch": [1, 2], "length": [3, 4]})[-1] == {"batch": 2, "length": 4}


@pytest.mark.parametrize(
    "text", ["", "batch", "batch=", "batch=x", "=2", "a=1,a=2", "a=1-2", "a=0", "a=8..1", "a=2.5"]
)
def test_malformed_targets(text: str) -> None:
    with pytest.raises(ConfigError, match="give sizes such as batch=16,length=4096"):
        parsed_target(text)


@pytest.mark.parametrize("values", [{"batch": 0}, {"batch": []}, {"batch": range(5, 4)}])
def test_values_that_are_no_sizes(values: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="a size is a whole number above 0"):
        targets_of(values)


def test_too_many_values() -> None:
    with pytest.raises(ConfigError, match="more than 1,000 sizes at once"):
        targets_of({"batch": range(1, 40), "length": range(1, 40)})


@pytest.mark.parametrize(
    ("recorded", "target", "message"),
    [
        ([(2, 64), (2, 64)], (4, 64), "all recordings have batch=2, so the effect of"),
        ([(2, 64), (4, 64)], (4, 128), "all recordings have length=64, so the effect of"),
        ([(2, 64), (4, 128)], (8, 128), "cannot tell batch and length apart: give 3"),
        ([(2, 64), (4, 128), (8, 256)], (8, 64), "cannot tell batch and length apart"),
    ],
)
def test_recordings_that_show_too_little(
    recorded: list[tuple[int, int]], target: tuple[int, int], message: str
) -> None:
    files = [{"batch": batch, "length": length} for batch, length in recorded]
    with pytest.raises(PytracerError, match=message):
        variables_of(files, [{"batch": target[0], "length": target[1]}])


def test_recordings_that_differ_in_what_was_not_asked() -> None:
    files = [{"batch": 2, "length": 64}, {"batch": 4, "length": 128}]
    with pytest.raises(ConfigError, match=r"length \(64 and 128\): give length with --at"):
        variables_of(files, [{"batch": 8}])
