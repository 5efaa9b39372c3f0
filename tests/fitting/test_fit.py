"""Predictions are compared with the same program at the size that was predicted."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
from commands import invoke
from sized_programs import fed, routed, training, write

import pytracer
from pytracer.analysis.requests import extract_recording
from pytracer.errors import ConfigError, PytracerError
from pytracer.fitting import Fit, prediction
from pytracer.fitting.prediction import Peak
from pytracer.reading import load

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
def test_predictions_are_exact(target: dict[str, int], tmp_path: Path) -> None:
    found = pytracer.fit(*recordings(tmp_path), at=target)
    assert found.is_exact
    assert found.target.peak == true_peak(tmp_path, **target)
    assert found.least == found.most == found.target.peak
    assert found.target.first is not None
    assert found.target.steady is not None
    parts = (found.target.first, found.target.steady)
    assert max(part.reserved_bytes for part in parts) == found.target.peak.reserved_bytes


def test_a_length_that_is_unlike_the_recorded_ones(tmp_path: Path) -> None:
    # GIVEN recordings with multiples of 64, and a length that is none
    found = pytracer.fit(*recordings(tmp_path), at={"batch": 4, "length": 200})
    assert found.target.peak == true_peak(tmp_path, batch=4, length=200)
    assert not found.is_exact
    assert found.notes == [
        "All recordings have a length that is a multiple of 64, and 200 is none: kernels may round "
        "it, which they do not show."
    ]


def test_lengths_that_a_kernel_may_round_to_one(tmp_path: Path) -> None:
    paths = recordings(tmp_path, sizes=[{"batch": 4, "length": 100}, {"batch": 4, "length": 120}])
    found = pytracer.fit(*paths, at={"batch": 4, "length": 512})
    assert not found.is_exact
    assert found.notes == [
        "All recordings have a length from 1 to 128: what a kernel rounds up to a multiple of 128 "
        "seems to be constant."
    ]
    assert pytracer.fit(*paths, at={"batch": 4, "length": 128}).is_exact


def test_other_settings(tmp_path: Path) -> None:
    # GIVEN recordings without settings, and a run with a setting
    setting, target = "expandable_segments:True", TARGETS[0]
    found = pytracer.fit(*recordings(tmp_path), at=target, settings=[setting])
    own, other = found.predictions
    assert (own.settings, other.settings) == ("own settings", setting)
    assert other.peak == true_peak(tmp_path, settings=setting, **target)


def test_the_largest_batch_runs_and_the_next_does_not(tmp_path: Path) -> None:
    room = 300 << 20
    found = pytracer.fit(
        *recordings(tmp_path), at={"batch": 4, "length": 256}, device_memory_bytes=room
    )
    batch, length = found.largest
    for largest, other in ((batch, {"length": 256}), (length, {"batch": 4})):
        assert largest.value is not None
        for value, ran_out in ((largest.value, False), (largest.value + 1, True)):
            sizes = {**other, largest.variable: value}
            run = write(tmp_path / "true.pickle", training, device_bytes=room, **sizes)
            assert run.ran_out == ran_out, sizes
        assert largest.failed is not None
        assert run.events[-1]["size"] == largest.failed.size_bytes
        assert largest.failed.frame is not None
    # AND the smallest device of the target is that, to 2 MiB
    least = found.smallest_device_bytes["own settings"]
    for bytes_, ran_out in ((least, False), (least - (3 << 20), True)):
        run = write(tmp_path / "true.pickle", training, bytes_, batch=4, length=256)
        assert run.ran_out == ran_out


def test_the_largest_values_take_few_simulations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = []
    simulate = prediction.simulate_recording

    def counted(*arguments, **options):  # type: ignore[no-untyped-def]
        simulated.append(arguments)
        return simulate(*arguments, **options)

    monkeypatch.setattr(prediction, "simulate_recording", counted)
    found = pytracer.fit(*recordings(tmp_path), at={"batch": 4, "length": 256})
    assert [largest.value for largest in found.largest] == [2640, 8113]
    assert len(simulated) <= 34  # bisection from the target on takes 48


def test_a_further_recording_is_the_check(tmp_path: Path) -> None:
    sizes = [*RECORDED, {"batch": 6, "length": 128}]
    found = pytracer.fit(*recordings(tmp_path, sizes=sizes), at=TARGETS[0])
    (checked,) = [file for file in found.files if file.foretold is not None]
    assert checked.sizes == sizes[-1]
    assert checked.foretold == checked.recorded
    assert "batch=6, length=128 is foretold by the other recordings to the byte" in str(found)


def test_a_buffer_that_only_large_recordings_have(tmp_path: Path) -> None:
    # GIVEN a recording with the buffer, and three without it
    at, sizes = {"batch": 12, "length": 128}, [*RECORDED, {"batch": 10, "length": 128}]
    paths = [
        f"{path}@batch={each['batch']},length={each['length']}"
        for path, each in zip(
            recordings(tmp_path, sizes=[{**each, "buffer_from": 1000} for each in sizes]),
            sizes,
            strict=True,
        )
    ]
    found = pytracer.fit(*paths, at=at)
    # THEN its growth is not known, and the bounds have the truth
    assert found.unseen == 3
    assert not found.is_exact
    truth = true_peak(tmp_path, **at, buffer_from=1000)
    assert found.least.allocated_bytes <= truth.allocated_bytes <= found.most.allocated_bytes
    assert found.least.reserved_bytes <= truth.reserved_bytes <= found.most.reserved_bytes
    assert any("3 requests begin only above some size" in note for note in found.notes)


def test_requests_that_depend_on_values(tmp_path: Path) -> None:
    found = pytracer.fit(*recordings(tmp_path, routed), at={"batch": 16, "length": 256})
    assert not found.is_exact
    assert found.varying == 12
    assert "The first is of train/model.py:6 expert." in found.notes[0]
    truth = true_peak(tmp_path, routed, batch=16, length=256)
    assert found.least.allocated_bytes <= truth.allocated_bytes <= found.most.allocated_bytes
    assert found.least.reserved_bytes <= truth.reserved_bytes <= found.most.reserved_bytes
    assert "depend on values" in str(found)
    assert "\n largest about batch=" in str(found)
    # AND on a device between the bounds, there is no answer
    room = (found.least.reserved_bytes + found.most.reserved_bytes) // 2
    paths = recordings(tmp_path, routed)
    undecided = pytracer.fit(*paths, at={"batch": 16, "length": 256}, device_memory_bytes=room)
    assert undecided.kind == "can't tell"


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
    with pytest.raises(PytracerError, match="different settings, '' and 'expandable_segments:True"):
        pytracer.fit(paths[0], other, at=at)
    content = pickle.loads(paths[1].read_bytes())
    content["pytracer"]["torch"] = "2.6.0"
    other.write_bytes(pickle.dumps(content))
    with pytest.raises(PytracerError, match=r"versions of torch, '2.12.1' and '2.6.0'"):
        pytracer.fit(paths[0], other, at=at)


def test_sizes_that_the_recordings_do_not_have(tmp_path: Path) -> None:
    # GIVEN sizes in the wrong order, AND two runs of one size
    a, b = recordings(tmp_path, sizes=RECORDED[:2])
    same = shutil.copy(a, tmp_path / "same.pickle")
    for other, size in ((b, 1), (same, 4)):
        with pytest.raises(PytracerError, match="with more batch request no more memory: check"):
            pytracer.fit(f"{a}@batch=2", f"{other}@batch={size}", at={"batch": 8})


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


def test_one_recording_predicts_its_own_sizes(tmp_path: Path) -> None:
    (path,) = recordings(tmp_path, sizes=RECORDED[:1])
    found = pytracer.fit(path, at=RECORDED[0])
    assert found.target.peak == true_peak(tmp_path, **RECORDED[0])
    assert "confirmed" not in str(found)
    with pytest.raises(PytracerError, match="give a recording with another batch"):
        pytracer.fit(path, at={"batch": 4, "length": 128})


def test_an_estimate_from_one_batch(tmp_path: Path) -> None:
    (path,) = recordings(tmp_path, sizes=RECORDED[:1])
    at = {"batch": 6, "length": 64}
    found = pytracer.fit(path, at=at)
    assert str(found).startswith("FITS BY ESTIMATE: batch=6, length=64 in 16 GiB")
    assert found.notes[0].startswith("An estimate from one recording: activations, temporary")
    assert not found.is_exact
    # THEN what the program keeps is as it was, AND the rest grows with the batch
    held = {row.category: row for row in found.categories}
    assert held["parameter"].more_bytes == held["optimizer_state"].more_bytes == {"batch": 0}
    grown = held["unknown"].size_bytes / held["unknown"].more_bytes["batch"]
    assert grown == pytest.approx(6)
    assert found.target.peak.allocated_bytes >= true_peak(tmp_path, **at).allocated_bytes
    assert found.files[0].recorded == found.files[0].predicted
    # AND without a complete step, nothing is estimated
    write(path, training, batch=2, length=64, steps=0)
    with pytest.raises(PytracerError, match="give a recording with another batch"):
        pytracer.fit(path, at=at)


def test_one_recording_whose_lengths_vary(tmp_path: Path) -> None:
    # GIVEN the length of each step in the metadata
    path, at = tmp_path / "1.pickle", {"batch": 4, "length": 320}
    write(path, training, batch=4, length=[64, 128, 64, 192, 96])
    found = pytracer.fit(path, at=at)
    truth = true_peak(tmp_path, **at)
    assert found.target.peak == found.least == found.most == truth
    assert found.is_exact
    # AND the recording has its own peak
    assert found.files[0].predicted == found.files[0].recorded
    # AND other lists of the metadata are not sizes of steps, AND the lengths may be those of a name
    content = pickle.loads(path.read_bytes())
    content["pytracer"]["metadata"]["seeds"] = [1, 2]
    path.write_bytes(pickle.dumps(content))
    assert pytracer.fit(path, at=at).target.peak == truth
    named = f"{path}@batch=4,length=64/128/64/192/96"
    assert pytracer.fit(named, at=at).target.peak == truth
    with pytest.raises(PytracerError, match="has 4 complete steps, and 2 sizes of length: give"):
        pytracer.fit(f"{path}@batch=4,length=64/128", at=at)


def test_two_recordings_whose_lengths_vary(tmp_path: Path) -> None:
    paths = [tmp_path / "2.pickle", tmp_path / "4.pickle"]
    for batch, path in zip((2, 4), paths, strict=True):
        write(path, training, batch=batch, length=[64, 128, 192, 64])
    found = pytracer.fit(*paths, at=TARGETS[-1])
    assert found.is_exact
    assert found.target.peak == true_peak(tmp_path, **TARGETS[-1])
    assert all(file.recorded == file.predicted for file in found.files)


def test_steps_whose_requests_depend_on_values(tmp_path: Path) -> None:
    # GIVEN steps of equal lengths, whose experts get other numbers of tokens
    write(tmp_path / "1.pickle", routed, batch=4, length=[64, 128, 128, 64, 64])
    found = pytracer.fit(tmp_path / "1.pickle", at={"batch": 4, "length": 256})
    assert found.varying == 20
    truth = true_peak(tmp_path, routed, batch=4, length=256)
    assert found.least.allocated_bytes <= truth.allocated_bytes <= found.most.allocated_bytes


def test_the_steps_before_an_out_of_memory_error(tmp_path: Path) -> None:
    # GIVEN a step with a larger length, for which there is no memory
    path, at = tmp_path / "1.pickle", {"batch": 4, "length": 256}
    run = write(path, training, 140 << 20, batch=4, length=[64, 128, 640])
    assert run.ran_out
    found = pytracer.fit(path, at=at)
    assert found.target.peak == true_peak(tmp_path, **at)
    # AND next to another recording, which goes on
    (other,) = recordings(tmp_path, sizes=[{"batch": 4, "length": 192}])
    both = pytracer.fit(path, other, at=at)
    assert both.target.peak == found.target.peak
    assert both.is_exact


def test_more_steps_in_one_recording(tmp_path: Path) -> None:
    paths = [tmp_path / "2.pickle", tmp_path / "4.pickle"]
    write(paths[0], training, batch=2, length=64, steps=3)
    write(paths[1], training, batch=4, length=64, steps=6)
    # The sizes are those given, because the metadata has the steps too.
    named = [f"{path}@batch={batch}" for path, batch in zip(paths, (2, 4), strict=True)]
    found = pytracer.fit(*named, at={"batch": 8})
    assert found.target.peak == true_peak(tmp_path, batch=8, length=64)


def test_the_command(tmp_path: Path) -> None:
    paths = recordings(tmp_path)
    done = invoke("fit", *paths, "--at", "batch=8..32..4,length=256", "--device-memory", "200MiB")
    assert done.exit_code == 4, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("DOES NOT FIT: batch=32, length=256 in 200 MiB")
    assert len(lines) <= 20
    assert any(line.startswith(" largest batch=") for line in lines)
    assert any("a batch" in line for line in lines)
    # AND a script sees the verdict in the exit code
    done = invoke("fit", *paths, "--at", "batch=8..32..4,length=256", "--json")
    report = json.loads(done.stdout)
    assert (report["kind"], done.exit_code) == ("fits", 0)
    assert [row["sizes"]["batch"] for row in report["predictions"]] == [*range(8, 33, 4)]
    assert report["target"] == report["predictions"][-1]


def test_the_plot_of_a_range(tmp_path: Path) -> None:
    import matplotlib

    paths, path = recordings(tmp_path), tmp_path / "plot.svg"
    at, setting = "batch=8..32..4,length=256", "max_split_size_mb:64"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        done = invoke("fit", *paths, "--at", at, "--set", setting, "--plot", path)
    assert done.exit_code == 0, done.stderr
    for words in ("batch", "MiB", "reserved", "allocated", f"reserved, {setting}", "limit: 16 GiB"):
        assert f">{words}<" in path.read_text(), words
    # AND one size has no range
    done = invoke("fit", *paths, "--at", "batch=8,length=256", "--plot", path)
    assert "a plot needs several values of one size" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--at", "batch=8,length=64,width=3"], "does not say its width: give a whole number as"),
        (["--at", "batch=8"], "give length with --at too"),
        (["--at", "batch"], "give sizes such as batch=16,length=4096"),
        (["--at", "batch=8,length=64", "--device-memory", "10"], "10 has no unit: give 10GiB, 10"),
        (["--at", "batch=8,length=64", "--set", "x:1"], 'has no setting "x"'),
        (["--at", "batch=8,length=64", "--scale", "gradient"], "give a category and a factor"),
        (["--at", "batch=8,length=64", "--scale", "gradient=1/0"], "give a category and a factor"),
        (["--at", "batch=8,length=64", "--scale", "parameter=-1"], "a number from 0 to 1000"),
        (["--at", "batch=8,length=64", "--scale", "x=1"], "has no blocks of the category 'x'"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = invoke("fit", *recordings(tmp_path), *arguments)
    assert done.exit_code != 0
    assert message in done.stderr


def test_sizes_are_proposed_where_files_have_none(tmp_path: Path) -> None:
    a, b = recordings(tmp_path, fed, RECORDED[:2])
    with pytest.raises(ConfigError) as raised:
        pytracer.fit(a, b, at={"rows": 8})
    assert str(raised.value).endswith(
        f"Their largest inputs have 1,024 and 2,048 bytes (train/model.py:5 input). If they differ "
        f"in rows alone, the sizes are {a}@rows=1 {b}@rows=2, or the same multiple of each"
    )
    # AND nothing is proposed where inputs are equal, or unknown
    same = shutil.copy(a, tmp_path / "same.pickle")
    for paths in ((a, same), recordings(tmp_path, training, RECORDED[:2])):
        with pytest.raises(ConfigError, match=r'Tracer\(metadata={"rows": 2}\)$'):
            pytracer.fit(*paths, at={"rows": 8})


def test_the_worst_rank_of_directories(tmp_path: Path) -> None:
    # GIVEN directories of three ranks, of which the second needs a buffer more
    roots, at = [tmp_path / "2", tmp_path / "4"], {"batch": 200, "length": 64}
    for root, sizes in zip(roots, RECORDED, strict=False):
        (root / "exit").mkdir(parents=True)
        (root / "step1").mkdir()
        for rank in range(3):
            name = f"torch_memory_rank{rank}_pid{rank + 7}.pickle"
            more = {"buffer_from": 1} if rank == 1 else {}
            write(root / "exit" / name, training, **sizes, **more)
        (root / "step1" / name).touch()  # the file of a step is a part of the run
    found = pytracer.fit(*roots, at=at)
    assert found.process == "rank1"
    assert found.target.peak == found.processes["rank1"]
    assert found.target.peak == true_peak(tmp_path, **at, buffer_from=1)
    assert found.processes["rank0"] == found.processes["rank2"] == true_peak(tmp_path, **at)
    assert "rank1 needs most of 3 processes; others reserve" in str(found)
    # AND a directory that lacks a rank is refused, AND so are two recordings of one
    (other,) = (roots[1] / "exit").glob("*rank2*")
    other.rename(roots[1] / "exit" / "torch_memory_rank1_pid2.pickle")
    with pytest.raises(PytracerError, match="are of one process, rank1: give the files of one run"):
        pytracer.fit(*roots, at=at)
    (roots[1] / "exit" / "torch_memory_rank1_pid2.pickle").unlink()
    with pytest.raises(PytracerError, match="4 has no recording of rank2, and others have"):
        pytracer.fit(*roots, at=at)
    # AND so is a file next to a directory, AND a directory of steps
    (file,) = (roots[0] / "exit").glob("*rank0*")
    with pytest.raises(PytracerError, match="has no recording of rank1, and"):
        pytracer.fit(file, roots[1], at=at)
    with pytest.raises(PytracerError, match="step1 has files of steps or errors alone, and none"):
        pytracer.fit(roots[0] / "step1", at=at)


def test_an_optimizer_with_smaller_states(tmp_path: Path) -> None:
    paths, at = recordings(tmp_path), TARGETS[0]
    found = pytracer.fit(*paths, at=at, scale={"optimizer_state": 0.5})
    assert found.target.peak == true_peak(tmp_path, states=1, **at)
    assert found.target.peak != pytracer.fit(*paths, at=at).target.peak
    # AND it is an estimate, AND recordings are compared with the program as it is
    assert not found.is_exact
    assert str(found).startswith("FITS BY ESTIMATE: batch=7, length=128 in 16 GiB")
    assert found.notes[0].startswith("An estimate: optimizer states x 0.5, and all other requests")
    assert all(file.predicted == file.recorded for file in found.files)
    # AND a shard of each part of the model is one of as many ranks
    shards = "parameter=1/8,optimizer_state=1/8"
    done = invoke("fit", *paths, "--at", "batch=7,length=128", "--scale", shards, "--json")
    report = json.loads(done.stdout)
    assert report["is_estimate"]
    held = {row["category"]: row["size_bytes"] for row in report["categories"]}
    sizes = [held[category] / (3 << 20) for category in ("optimizer_state", "parameter")]
    assert sizes == pytest.approx([1, 0.5], rel=1e-5)


def test_no_settings_as_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give a list of settings"):
        pytracer.fit("a.pickle", at={"batch": 2}, settings="a:1")


def test_results_are_printed(tmp_path: Path) -> None:
    found = pytracer.fit(*recordings(tmp_path), at=TARGETS[0])
    assert isinstance(found, Fit)
    assert str(found).startswith("FITS: batch=7, length=128 in 16 GiB")
