"""Predictions are compared with the same program at the size that was predicted."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
from commands import invoke
from sized_programs import Requests, routed, training, write

import pytracer
from pytracer.analysis.requests import extract_recording
from pytracer.errors import ConfigError, PytracerError
from pytracer.fitting.program import Peak
from pytracer.reading import load
from pytracer.text import size

RECORDED = [{"batch": 2, "length": 64}, {"batch": 4, "length": 64}, {"batch": 4, "length": 128}]
TARGETS = [
    {"batch": 7, "length": 128},
    {"batch": 4, "length": 256},
    {"batch": 3, "length": 64},
    {"batch": 9, "length": 192},
]


def recordings(folder: Path, program=training, sizes=RECORDED, **options: object) -> list[Path]:  # type: ignore[no-untyped-def]
    found = []
    for each in sizes:
        found.append(folder / f"{'-'.join(map(str, each.values()))}.pickle")
        write(found[-1], program, **each, **options)
    return found


def true_peak(folder: Path, program=training, **options: object) -> Peak:  # type: ignore[no-untyped-def]
    write(folder / "true.pickle", program, **options)
    snapshot = load(folder / "true.pickle")
    usage = extract_recording(snapshot).history.usage
    return Peak(int(usage.allocated_bytes.max()), int(usage.reserved_bytes.max()))


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_estimates_are_the_peaks_of_the_program(target: dict[str, int], tmp_path: Path) -> None:
    found = pytracer.fit(*recordings(tmp_path), at=target)
    assert found.target.peak == true_peak(tmp_path, **target)
    assert found.notes == []
    # AND each answer says that it is an estimate, from what, and how to verify it
    assert found.answer.where == "estimate from batch 2, 4, length 64, 128"
    at = f"batch={target['batch']},length={target['length']}"
    command = (
        f"pytracer fit --on v100-16 --at {at} -- PROGRAM --batch {{batch}} --length {{length}}"
    )
    assert str(found).splitlines()[-2] == f" do      {command}"


def test_the_peak_is_that_of_all_that_was_recorded(tmp_path: Path) -> None:
    # GIVEN an evaluation between two steps, with the highest peak
    def evaluated(batch: int, length: int) -> Requests:
        requests = [*training(batch, length)]
        second = [i for i, (line, *_) in enumerate(requests) if line == "step"][1]
        yield from requests[: second + 1]
        yield "evaluation", "e", 2**20 * batch
        yield "free", "e", 0
        yield from requests[second + 1 :]

    found = pytracer.fit(*recordings(tmp_path, evaluated), at=TARGETS[0])
    truth = true_peak(tmp_path, evaluated, **TARGETS[0])
    assert found.target.peak == truth
    assert found.answer.texts("peak") == [
        f"{size(truth.allocated_bytes)} allocated, {size(truth.reserved_bytes)} reserved"
    ]


@pytest.mark.parametrize(
    ("room_mib", "kind", "exit_code"),
    [(200, "fits", 0), (82, "can't tell", 3), (78, "can't tell", 3), (70, "does not fit", 4)],
)
def test_what_fits(room_mib: int, kind: str, exit_code: int, tmp_path: Path) -> None:
    # GIVEN a program that reserves 82 MiB
    at, room = {"batch": 12, "length": 128}, room_mib << 20
    paths = recordings(tmp_path)
    found = pytracer.fit(*paths, at=at, device_memory_bytes=room)
    assert found.target.peak.reserved_bytes == 82 << 20
    assert found.kind == kind
    expected = f"{kind.upper()}: about 82 MiB of {room_mib} MiB at batch=12, length=128"
    assert str(found).startswith(expected)
    # AND the largest sizes that are named run, AND a script sees the verdict in the exit code
    for name, value in found.largest.items():
        assert value
        run = write(tmp_path / "true.pickle", training, room, **{**at, name: value})
        assert not run.ran_out
        much = {**at, name: 2 * value}
        assert write(tmp_path / "true.pickle", training, room, **much).ran_out
    memory = ["--device-memory", f"{room_mib}MiB", "--json"]
    done = invoke("fit", *paths, "--at", "batch=12,length=128", *memory)
    report = json.loads(done.stdout)
    assert (report["kind"], done.exit_code) == (kind, exit_code)


def test_a_range_of_sizes(tmp_path: Path) -> None:
    done = invoke("fit", *recordings(tmp_path), "--at", "batch=8..32..3,length=256", "--json")
    report = json.loads(done.stdout)
    assert [row["sizes"]["batch"] for row in report["predictions"]] == [*range(8, 33, 3)]
    assert report["target"] == report["predictions"][-1]
    text = invoke("fit", *recordings(tmp_path), "--at", "batch=8..32..3,length=256").stdout
    assert "9 in all, which --json shows" in text
    assert "This size is 16 times the largest recorded one" in " ".join(text.split())


def test_a_further_recording_is_the_check(tmp_path: Path) -> None:
    sizes = [*RECORDED, {"batch": 6, "length": 128}]
    found = pytracer.fit(*recordings(tmp_path, sizes=sizes), at=TARGETS[0])
    assert found.check_error == 0

    # AND its error decides how much has to be spare
    def late(batch: int, length: int) -> Requests:
        yield from training(batch, length)
        if batch > 4:
            yield "late", "late", 2**24 * batch

    found = pytracer.fit(*recordings(tmp_path, late, sizes), at=TARGETS[0])
    assert found.check_error
    assert found.margin >= 2 * found.check_error > 0.05
    assert any(note.startswith("Some recordings lack 1 request:") for note in found.notes)


def test_an_error_that_no_recorded_size_shows(tmp_path: Path) -> None:
    # GIVEN a square with a constant, which two recordings take for a line
    def square(batch: int) -> Requests:
        yield "square", "s", 2**20 * (batch**2 + 64)
        yield "step", "", 0

    paths = recordings(tmp_path, square, [{"batch": batch} for batch in (2, 4, 8)])
    found = pytracer.fit(*paths, at={"batch": 9})
    assert found.target.peak == true_peak(tmp_path, square, batch=9)
    assert found.check_error == pytest.approx(1 - 104 / 128)
    assert found.margin == 2 * found.check_error


def test_a_number_of_requests_that_grows(tmp_path: Path) -> None:
    def rows(batch: int) -> Requests:
        for row in range(batch):
            yield "row", f"r{row}", 2**22
        yield "step", "", 0

    paths = recordings(tmp_path, rows, [{"batch": 2}, {"batch": 4}])
    found = pytracer.fit(*paths, at={"batch": 16})
    truth = true_peak(tmp_path, rows, batch=16)
    assert found.target.peak.allocated_bytes == truth.allocated_bytes


def test_requests_that_depend_on_values(tmp_path: Path) -> None:
    sizes = [*RECORDED, {"batch": 6, "length": 128}, {"batch": 5, "length": 96}]
    found = pytracer.fit(*recordings(tmp_path, routed, sizes), at={"batch": 16, "length": 256})
    truth = true_peak(tmp_path, routed, batch=16, length=256)
    assert found.target.peak.allocated_bytes == pytest.approx(truth.allocated_bytes, rel=0.1)
    assert any("depend on data" in note for note in found.notes)


def test_two_different_programs(tmp_path: Path) -> None:
    (first,) = recordings(tmp_path, sizes=[{"batch": 2, "length": 64}])
    (second,) = recordings(tmp_path, routed, sizes=[{"batch": 4, "length": 64}])
    with pytest.raises(PytracerError, match=r"different programs.*train/model.py:6 expert"):
        pytracer.fit(first, second, at={"batch": 8, "length": 64})


def test_recordings_that_were_not_made_in_the_same_way(tmp_path: Path) -> None:
    paths = recordings(tmp_path, sizes=RECORDED[:2])
    at, other = {"batch": 8, "length": 64}, tmp_path / "other.pickle"
    with pytest.raises(ConfigError, match=r"2-64\.pickle is given twice"):
        pytracer.fit(paths[0], paths[0], at=at)
    # AND one with other settings, AND one of another version of torch
    write(other, training, batch=4, length=64, settings="expandable_segments:True")
    with pytest.raises(PytracerError, match=r"different devices.*''.*expandable_segments:True"):
        pytracer.fit(paths[0], other, at=at)
    content = pickle.loads(paths[1].read_bytes())
    content["pytracer"]["torch"] = "2.6.0"
    other.write_bytes(pickle.dumps(content))
    with pytest.raises(PytracerError, match=r"torch versions.*'2.12.1'.*'2.6.0'"):
        pytracer.fit(paths[0], other, at=at)


def test_sizes_that_the_recordings_do_not_have(tmp_path: Path) -> None:
    # GIVEN sizes in the wrong order, AND two runs of one size
    a, b = recordings(tmp_path, sizes=RECORDED[:2])
    same = shutil.copy(a, tmp_path / "same.pickle")
    for other, batch in ((b, 1), (same, 4)):
        with pytest.raises(
            PytracerError, match="a larger batch did not request more memory: check"
        ):
            pytracer.fit(f"{a}@batch=2", f"{other}@batch={batch}", at={"batch": 8})


@pytest.mark.parametrize("batch", [10**10, 10**12 - 1])
def test_sizes_that_no_device_has(batch: int, tmp_path: Path) -> None:
    with pytest.raises(PytracerError, match="length=64 needs more memory than any device can have"):
        pytracer.fit(*recordings(tmp_path), at={"batch": batch, "length": 64})


def test_recordings_that_are_not_complete(tmp_path: Path) -> None:
    # GIVEN a recording that ran out of memory
    sizes = RECORDED[:2]
    short = recordings(tmp_path, sizes=sizes, device_bytes=24 << 20)
    with pytest.raises(PytracerError, match="ran out of memory"):
        pytracer.fit(*short, at={"batch": 8, "length": 64})


def test_one_recording_whose_lengths_vary(tmp_path: Path) -> None:
    # GIVEN the length of each step in the metadata
    path, at = tmp_path / "1.pickle", {"batch": 4, "length": 320}
    write(path, training, batch=4, length=[64, 128, 64, 192, 96])
    found = pytracer.fit(path, at=at)
    truth = true_peak(tmp_path, **at)
    assert found.target.peak == truth
    # AND other lists of the metadata are not sizes of steps, AND the lengths may be those of a name
    content = pickle.loads(path.read_bytes())
    content["pytracer"]["metadata"]["seeds"] = [1, 2]
    path.write_bytes(pickle.dumps(content))
    assert pytracer.fit(path, at=at).target.peak == truth
    named = f"{path}@batch=4,length=64/128/64/192/96"
    assert pytracer.fit(named, at=at).target.peak == truth
    with pytest.raises(PytracerError, match="has 4 complete steps, but 2 sizes of length: give"):
        pytracer.fit(f"{path}@batch=4,length=64/128", at=at)


def test_the_steps_before_an_out_of_memory_error(tmp_path: Path) -> None:
    # GIVEN a step with a larger length, for which there is no memory
    path, at = tmp_path / "1.pickle", {"batch": 4, "length": 256}
    run = write(path, training, 140 << 20, batch=4, length=[64, 128, 640])
    assert run.ran_out
    found = pytracer.fit(path, at=at)
    assert found.target.peak == true_peak(tmp_path, **at)


def test_more_steps_in_one_recording(tmp_path: Path) -> None:
    paths = [tmp_path / "2.pickle", tmp_path / "4.pickle"]
    write(paths[0], training, batch=2, length=64, steps=3)
    write(paths[1], training, batch=4, length=64, steps=6)
    # The sizes are those given, because the metadata has the steps too.
    named = [f"{path}@batch={batch}" for path, batch in zip(paths, (2, 4), strict=True)]
    found = pytracer.fit(*named, at={"batch": 8})
    assert found.target.peak == true_peak(tmp_path, batch=8, length=64)


def test_the_plot_of_a_range(tmp_path: Path) -> None:
    import matplotlib

    paths, path = recordings(tmp_path), tmp_path / "plot.svg"
    at = "batch=8..32..4,length=256"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        done = invoke("fit", *paths, "--at", at, "--plot", path)
    assert done.exit_code == 0, done.stderr
    for words in ("batch", "MiB", "reserved", "allocated", "limit: 16 GiB"):
        assert f">{words}<" in path.read_text(), words
    # AND one size has no range
    done = invoke("fit", *paths, "--at", "batch=8,length=256", "--plot", path)
    assert "a plot needs a range of values for one size" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--at", "batch=8,length=64,width=3"], "does not say its width: give a whole number as"),
        (["--at", "batch=8"], "give length with --at too"),
        (["--at", "batch"], "give sizes such as batch=16,length=4096"),
        (["--at", "batch=8,length=64", "--device-memory", "10"], "10 has no unit: give 10GiB, 10"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = invoke("fit", *recordings(tmp_path), *arguments)
    assert done.exit_code != 0
    assert message in done.stderr
