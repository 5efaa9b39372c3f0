"""Test `pytracer replay` on a machine without an accelerator."""

import json
from pathlib import Path

import pytest
import torch
from commands import invoke

import pytracer

NATIVE = Path(__file__).parents[1] / "golden/native/cuda-2.13.0.pickle"


@pytest.mark.parametrize("options", [(), ("--set", "expandable_segments:True")])
def test_without_an_accelerator_a_real_replay_fails(options: tuple[str, ...]) -> None:
    # GIVEN a recording of an accelerator, on a machine without one
    # WHEN it is replayed with the real allocator
    done = invoke("replay", NATIVE, "--real", *options)
    # THEN a one-line error gives the reason
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "torch finds no accelerator on this machine: leave out --real" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_replay_needs_no_accelerator() -> None:
    # WHEN a recording is replayed on a machine without an accelerator
    done = invoke("replay", NATIVE, "--set", "expandable_segments:True", "--json")
    # THEN both settings are simulated, and the error bar is known
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["is_simulated"]
    assert document["deviation"] is not None
    assert [len(setting["outcomes"]) for setting in document["settings"]] == [1, 1]


def test_the_plot_has_the_recording_and_the_replays(tmp_path: Path) -> None:
    # WHEN a recording with an out-of-memory is replayed and plotted
    matplotlib = pytest.importorskip("matplotlib")
    path = tmp_path / "plot.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        done = invoke("replay", NATIVE, "--set", "expandable_segments:True", "--plot", path)
    assert done.exit_code == 0, done.stderr
    # THEN the picture has both, the limit, and the request that failed
    text = path.read_text()
    for words in (
        ">recorded<",
        ">expandable_segments:True<",
        ">limit: 104 MiB<",
        ">2 GiB requested<",
    ):
        assert words in text, words


def test_a_recording_of_the_cpu(tmp_path: Path) -> None:
    # GIVEN a recording of the CPU's allocator
    with pytracer.Tracer(tmp_path / "cpu.pickle", device="cpu"):
        torch.empty(1000)
    # WHEN it is replayed
    done = invoke("replay", tmp_path / "cpu.pickle")
    # THEN the error says what is missing
    assert done.exit_code == 1
    assert "cpu.pickle has no events of an accelerator" in done.stderr
    done = invoke("replay", tmp_path / "cpu.pickle", "--device", "0")
    assert "whose allocator has no cache" in done.stderr


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    # GIVEN half a file
    half = tmp_path / "half.pickle"
    half.write_bytes(NATIVE.read_bytes()[: NATIVE.stat().st_size // 2])
    # THEN the error names the file
    done = invoke("replay", half)
    assert done.exit_code == 1
    assert "half.pickle" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("capacity", ["80GiBs", "-1", "0", "much", "1e9"])
def test_an_invalid_capacity(capacity: str) -> None:
    done = invoke("replay", NATIVE, f"--capacity={capacity}")
    assert done.exit_code == 2
    assert f"'{capacity}' is not a size: give one such as 80GiB" in done.stderr


def test_settings_that_are_malformed() -> None:
    done = invoke("replay", NATIVE, "--set", "expandable_segments")
    assert done.exit_code == 1
    assert '"expandable_segments"' in done.stderr
    assert "key:value" in done.stderr
