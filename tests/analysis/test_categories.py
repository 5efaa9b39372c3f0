"""Tests of what memory was for, from files of real trainings."""

import pickle
from collections import Counter
from pathlib import Path

import pytest
import torch
from commands import invoke
from torch import nn

import pytracer
from pytracer import text
from pytracer.analysis import explain
from pytracer.analysis.diff.compare import compare
from pytracer.analysis.diff.summaries import summarise
from pytracer.analysis.groups import Group, who_holds
from pytracer.analysis.report import DeviceReport, stats
from pytracer.reading.reader import load

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a snapshot of a training whose peak has activations."""
    path = tmp_path_factory.mktemp("categories") / "x.pickle"
    with pytracer.Tracer(path, device="cpu"):
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            loss = model(torch.ones(512, 64)).square().sum()
            loss.backward()
            optimizer.step()
    return path


@pytest.fixture
def report(path: Path) -> DeviceReport:
    (device,) = stats(load(path)).devices
    return device


def by_name(report: DeviceReport, moment: str) -> dict[str | None, Group]:
    held = report.held_by("category", moment)
    assert held is not None
    sizes = [group.size_bytes for group in held.groups]
    assert sizes == sorted(sizes, reverse=True)
    found = {group.category: group for group in held.groups}
    assert len(found) == len(sizes)
    return found


def owned(report: DeviceReport, moment: str, category: str) -> list[Group]:
    held = report.held_by("owner", moment)
    assert held is not None
    return [each for each in held.groups if each.category == category and each.owner is not None]


def test_the_end_has_the_categories_of_the_blocks(path: Path, report: DeviceReport) -> None:
    # GIVEN the blocks of the file, read by Python's own pickle
    content = pickle.loads(path.read_bytes())
    sizes: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    for segment in content["segments"]:
        for block in segment["blocks"]:
            sizes[block["category"]] += block["size"]
            blocks[block["category"]] += 1
    # THEN the report has the same sums
    found = by_name(report, "end")
    assert {name: usage.size_bytes for name, usage in found.items()} == sizes
    assert {name: usage.count for name, usage in found.items()} == blocks
    assert sum(sizes.values()) == report.end.active_bytes
    # AND the owners add up, the largest first
    state = found["optimizer_state"]
    owners = owned(report, "end", "optimizer_state")
    assert sum(owner.size_bytes for owner in owners) == state.size_bytes
    assert owners[0].size_bytes == 64 * 64 * 4
    assert str(owners[0].owner).endswith("0.weight")
    assert owned(report, "end", "unknown") == []


def test_the_peak_has_the_categories_of_blocks_that_stayed(report: DeviceReport) -> None:
    assert report.peak_allocated is not None
    found = by_name(report, "peak")
    total = sum(usage.size_bytes for usage in found.values())
    assert total == report.peak_allocated.active_bytes
    # All parameters existed at the peak, and the activations were freed later, in backward.
    parameters = 4 * (64 * 64 + 64) * 4
    assert found["parameter"].size_bytes == parameters
    assert found["activation"].size_bytes >= 4 * 512 * 64 * 4
    assert owned(report, "peak", "activation") == []


def test_a_file_without_a_trace_has_the_end(path: Path) -> None:
    content = pickle.loads(path.read_bytes())
    content["device_traces"] = [[]]
    (device,) = stats(load(pickle.dumps(content, protocol=4))).devices
    assert device.held_by("category", "peak") is None
    assert by_name(device, "end")["parameter"].count == 8


def test_groups_are_those_of_the_report(path: Path, report: DeviceReport) -> None:
    snapshot = load(path)
    for at in ("end", "peak"):
        for by in ("line", "category", "owner"):
            assert who_holds(snapshot, at=at, by=by) == [report.held_by(by, at)]
        # AND what has no owner has its category
        categories = by_name(report, at)
        (held,) = who_holds(snapshot, at=at, by="owner")
        sizes: Counter[str | None] = Counter()
        for group in held.groups:
            sizes[group.category] += group.size_bytes
        assert sizes == {name: group.size_bytes for name, group in categories.items()}
        assert held.active_bytes == sum(sizes.values())


def test_the_explanation_says_what_memory_was_for(path: Path, report: DeviceReport) -> None:
    (found,) = explain(load(path))
    assert {usage.category: (usage.size_bytes, usage.count) for usage in found.categories} == {
        name: (group.size_bytes, group.count) for name, group in by_name(report, "peak").items()
    }
    output = " ".join(invoke("show", path).output.split())
    size_bytes = 4 * (64 * 64 + 64) * 4
    assert f" · parameters {text.size(size_bytes)}" in output


def test_a_comparison_has_the_categories_of_both_peaks(path: Path, tmp_path: Path) -> None:
    # GIVEN the recording, and one of a smaller model
    other = tmp_path / "other.pickle"
    with pytracer.Tracer(other, device="cpu"):
        model = nn.Linear(64, 64)
        model(torch.ones(512, 64)).square().sum().backward()
    # WHEN they are compared
    summaries = [summarise(load(source)) for source in (path, other)]
    (difference,) = compare("a", "b", [("", *summaries)]).devices
    # THEN each category has the bytes of both peaks
    peaks = [by_name(summary.devices[0].report, "peak") for summary in summaries]
    sizes = [{name: group.size_bytes for name, group in peak.items()} for peak in peaks]
    assert {
        change.name: (change.before_bytes, change.after_bytes)
        for change in difference.changes["category"]
    } == {name: tuple(size.get(name, 0) for size in sizes) for name in {**sizes[0], **sizes[1]}}
    output = invoke("diff", path, other).output
    assert "By category" in output
    assert "optimizer state" in output
    # AND a file without the owners of blocks is not compared by category
    old = summarise(load(GOLDEN / "snapshot-1.4-cpu.pickle"))
    (difference,) = compare("a", "b", [("", old, summaries[1])]).devices
    assert difference.changes["category"] == []
