"""Given settings are compared, and no others."""

import re
from pathlib import Path

import pytest
from allocator_workloads import constant, pinned_segments, write
from commands import cells, invoke
from needed_memory import JOINED, fits, least_device
from reference_allocator import Allocator
from reference_history import MIB

from pytracer.analysis.requests import extract_recording
from pytracer.errors import ConfigError
from pytracer.reading import load
from pytracer.recommendation import recommend

GOLDEN = Path(__file__).parents[1] / "golden"


def test_given_settings(tmp_path: Path) -> None:
    # GIVEN a recording that does not fit, and settings of which one would help
    path = write(tmp_path / "recorded.pickle", pinned_segments)
    recording = extract_recording(load(path))
    given = ["max_split_size_mb:1024", "max_split_size_mb:512", JOINED]
    # WHEN they are compared
    found = recommend(path, settings=given, capacity_bytes=1800 * MIB)
    # THEN these and the own settings are simulated, and no others, each with its smallest device
    assert found.settings == given
    assert sorted(tried.name for tried in found.tried) == sorted([*given, found.own.name])
    assert found.recommended is not None
    assert found.recommended.name == JOINED
    for tried in found.tried:
        assert tried.fits == fits(recording, tried.settings, 1800 * MIB)
        assert tried.smallest_device_bytes is not None
        assert abs(tried.smallest_device_bytes - least_device(recording, tried.settings)) < 6 * MIB
    # AND the table has a row for each
    options = [word for text in given for word in ("--set", text)]
    done = invoke("recommend", path, "--capacity", "1800MiB", *options)
    assert done.exit_code == 0, done.stderr
    names = [row[0] for row in cells(done.stdout)]
    assert sorted(names) == sorted([*given, "own settings"])
    assert names[:2] == [JOINED, "own settings"]
    # AND a note has the event at which each of the others ended
    for tried in found.tried[1:]:
        assert tried.failed_event is not None
        note = f"{tried.name}: out of memory at event {tried.failed_event}, for 700 MiB."
        assert (note in done.stdout.splitlines()) == (tried.name in given)
    # AND without the one that helps, the answer is that none does
    for settings, begin in (given[:1], given[0]), (given[:2], "None of the 2 given settings"):
        found = recommend(path, settings=settings, capacity_bytes=1800 * MIB)
        assert found.kind == "no setting"
        assert re.match(f"{begin} (does not fit|fits) into 1.758 GiB, although ", found.answer)


def test_given_settings_that_do_not_help(tmp_path: Path) -> None:
    # GIVEN a recording that needs no other settings
    path = write(tmp_path / "recorded.pickle", constant, 700 * MIB)
    # THEN a sentence says so of one, and of several
    saves = "more than 2 % of the 640 MiB reserved"
    for settings, clause in (
        ([JOINED], f"{JOINED} does not save {saves}"),
        ([JOINED, "max_split_size_mb:512"], f"none of the 2 given settings saves {saves}"),
    ):
        found = recommend(path, settings=settings)
        assert found.kind == "keep"
        assert found.answer == f"Keep your settings: {clause}."

    # AND of a setting that needs more
    def ten_blocks(allocator: Allocator) -> None:
        for _ in range(10):
            allocator.malloc(65 * MIB)

    blocks = write(tmp_path / "blocks.pickle", ten_blocks, 700 * MIB)
    found = recommend(blocks, settings=["roundup_power2_divisions:2"])
    assert found.answer == "Keep your settings: roundup_power2_divisions:2 does not fit."
    # AND of a setting that has no effect
    notes = recommend(path, settings=["garbage_collection_threshold:0.6"]).notes
    assert notes[0].endswith("no effect without a memory fraction, and the recording has none.")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("expandable_segments", "key:value"),
        ("expandable_segment:True", 'no setting "expandable_segment"'),
        ("", "give NAME:VALUE"),
        ("current", '"current"'),
        ("backend:cudaMallocAsync", "is not simulated"),
    ],
)
def test_given_settings_that_are_wrong(settings: str, reason: str) -> None:
    done = invoke("recommend", GOLDEN / "snapshot-1.5-cuda.pickle", "--set", settings)
    assert (done.exit_code, done.stdout) == (1, "")
    assert reason in done.stderr


def test_a_text_is_no_list_of_settings() -> None:
    with pytest.raises(ConfigError, match="give a list"):
        recommend(GOLDEN / "snapshot-1.5-cuda.pickle", settings=JOINED)
