"""Test that exports have what blocks were for."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from commands import invoke
from processes import run
from pyarrow.parquet import read_table
from synthetic_snapshots import Program
from torch import nn

import pytracer
from pytracer.analysis import who_holds
from pytracer.export.collapsed_stacks import collapse_stacks
from pytracer.reading import load

PROGRAM = """
import sys
import torch
from torch import nn
import pytracer

with pytracer.Tracer(sys.argv[1], device="cpu", forward_stacks=True):
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        model(torch.ones(256, 64)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "x.pickle"
    done = run(
        PROGRAM, path, cwd=path.parent
    )  # in this process, models of other tests may change the names
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize("at", ["peak", "end"])
def test_collapsed_stacks_begin_with_the_category(path: Path, at: str) -> None:
    snapshot = load(path)
    stacks = collapse_stacks(snapshot, at, by_category=True)  # type: ignore[arg-type]
    # THEN the bytes by the outermost frame are those of the groups
    found: Counter[str] = Counter()
    for stack, size_bytes in stacks.items():
        found[stack.split(";")[0]] += size_bytes
    (held,) = who_holds(snapshot, at=at, by="category")
    assert found == {group.category: group.size_bytes for group in held.groups}
    # AND without the category, the same stacks hold as much
    plain = collapse_stacks(snapshot, at)  # type: ignore[arg-type]
    merged: Counter[str] = Counter()
    for stack, size_bytes in stacks.items():
        merged[stack.split(";", 1)[1]] += size_bytes
    assert merged == plain


def test_the_end_needs_no_trace_for_its_categories() -> None:
    # GIVEN a file without events, with a block whose owner is known
    program = Program()
    weight = program.alloc(512, ("model.py", "load", 1), events=False)
    program.own(weight, "parameter", "module", "weight")
    program.alloc(1024, ("train.py", "step", 2), events=False)
    # THEN the categories of the end are those of the file
    found = collapse_stacks(program.snapshot(), "end", by_category=True)
    assert found == {"parameter;load (model.py:1)": 512, "unknown;step (train.py:2)": 1024}


def test_the_option_is_of_collapsed_stacks_only(path: Path, tmp_path: Path) -> None:
    output = tmp_path / "x"
    assert not invoke("export", path, "--to", "collapsed", "--by-category", "-o", output).exit_code
    assert output.read_text().startswith("activation;")
    result = invoke("export", path, "--to", "parquet", "--by-category", "-o", output)
    assert result.exit_code == 2
    assert "--by-category works only with --to collapsed" in result.output


def test_tables_have_the_category_of_each_block(path: Path, tmp_path: Path) -> None:
    invoke("export", path, "--to", "parquet", "-o", tmp_path)
    rows = read_table(next(tmp_path.glob("blocks/*"))).to_pylist()
    # THEN the rows that were active at the peak add up to the categories of the peak
    (held,) = who_holds(load(path), at="peak", by="category")
    event = held.moment.event
    assert event is not None
    found: Counter[str] = Counter()
    for row in rows:
        begins = -1 if row["alloc_event"] is None else row["alloc_event"]
        ends = row["free_event"] is None or row["free_event"] > event
        if begins <= event and ends:
            found[row["category"]] += row["size_bytes"]
    assert found == {group.category: group.size_bytes for group in held.groups}
    # AND rules, owners, nodes and forward stacks are there
    rules = {(row["category"], row["category_rule"]) for row in rows}
    assert ("activation", "freed_by_node") in rules
    assert ("parameter", "module") in rules
    assert {row["owner"] for row in rows} >= {"0.weight", "2.bias", None}
    backward = [row for row in rows if row["autograd_node"] == "AddmmBackward0"]
    assert any("linear.py" in (row["forward_stack"] or "") for row in backward)
    # AND parameters and their gradients have the module, and no phase is made up
    assert {row["module"] for row in rows if row["owner"] == "0.weight"} == {"0"}
    assert {row["forward_phase"] for row in rows} == {None}
    # AND frees say which node ran
    events = read_table(next(tmp_path.glob("events/*"))).to_pylist()
    assert any(e["autograd_node"] for e in events if e["action"] == "free_requested")


def test_tables_have_the_holder_of_each_block(tmp_path: Path) -> None:
    # GIVEN a recording whose end a list of this function's has a part of
    path = tmp_path / "x.pickle"
    with pytracer.Tracer(path, device="cpu"):
        kept = [torch.zeros(30_011) for _ in range(2)]
        torch.zeros(40_009)
    invoke("export", path, "--to", "parquet", "-o", tmp_path)
    # THEN its rows name it, and a block that was freed has no holder
    rows = read_table(next(tmp_path.glob("blocks/*"))).to_pylist()
    holders = {(row["requested_bytes"], row["holder"]) for row in rows}
    here = "test_tables_have_the_holder_of_each_block()"
    assert holders >= {(4 * len(each), f"kept[{i}] of {here}") for i, each in enumerate(kept)}
    assert (4 * 40_009, None) in holders


def test_tables_have_the_module_of_each_block(tmp_path: Path) -> None:
    # GIVEN a recording with phases for modules
    path = tmp_path / "x.pickle"
    with pytracer.Tracer(path, device="cpu", forward_stacks=True):
        model = nn.Sequential(nn.Linear(31, 37), nn.Linear(37, 41))
        with pytracer.annotate_modules(model):
            model(torch.ones(53, 31)).square().sum().backward()
    invoke("export", path, "--to", "parquet", "-o", tmp_path)
    rows = read_table(next(tmp_path.glob("blocks/*"))).to_pylist()
    # THEN what forward and backward allocate for a module has its path
    for size, module in ((53 * 37 * 4, {"0", "1"}), (37 * 41 * 4, {"1"})):
        assert {row["module"] for row in rows if row["requested_bytes"] == size} == module
    # AND events have the phase of the forward call
    events = read_table(next(tmp_path.glob("events/*"))).to_pylist()
    gradients = {e["forward_phase"] for e in events if e["size_bytes"] == 37 * 41 * 4}
    assert gradients == {None, "1"}
