"""docs/reference/schema.json describes what `--json` of each command prints, and nothing else."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import sized_programs
from commands import invoke
from fleet_rows import Fleet, add_oom
from fleet_tables import make_run
from processes import start
from synthetic_snapshots import Program, file_metadata

from pytracer.experiments.comparison import Comparison, Outcome, Setting
from pytracer.experiments.conclusions import report

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden"
SCHEMA = json.loads((ROOT / "docs/reference/schema.json").read_text())
OPEN = {"experiment"}  # its metadata are further keys


def strict(part: Any, name: str = "") -> Any:
    """Return a schema that allows no key without a description of its own.

    The published schema allows more keys, because a later version may add some.
    """
    if isinstance(part, list):
        return [strict(each) for each in part]
    if not isinstance(part, dict):
        return part
    inner = {key: strict(each, key) for key, each in part.items()}
    if "properties" in part and part.get("type") == "object" and name not in OPEN:
        inner["additionalProperties"] = False
    return inner


def check(text: str, document: str) -> Any:
    """Check a command's output against the schema of its document, and return its content."""
    content = json.loads(text)
    definitions = strict(SCHEMA["$defs"])
    schema = {"$ref": f"#/$defs/{document}", "$defs": definitions}
    jsonschema.Draft202012Validator(schema).validate(content)
    return content


def shown(document: str, *arguments: object) -> Any:
    return check(invoke(*arguments, "--json").stdout, document)


CUDA = GOLDEN / "snapshot-1.12-cuda.pickle"
FILES = [CUDA, GOLDEN / "snapshot-1.12-cpu.pickle", *(GOLDEN / "native").glob("*2.15.0*.pickle")]


@pytest.fixture
def leak(tmp_path: Path) -> Path:
    """Return the file of a program that keeps a MiB in each step, and runs out of memory."""
    program = Program()
    steps = []
    for step in range(1, 31):
        steps.append([step, len(program.events)])
        program.alloc(2**20, ("/job/train.py", "step", 4), ("/job/train.py", "main", 9))
        program.free(program.alloc(2**16, ("/job/model.py", "forward", 2)))
    program.metadata = file_metadata(current_step=30)
    program.metadata["devices"][0]["steps"] = steps
    return program.write(tmp_path / "leak.pickle")


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert all("description" in part for part in SCHEMA["$defs"].values())


def test_a_key_that_the_schema_lacks_is_found() -> None:
    content = json.loads(invoke("show", CUDA, "--json").stdout)
    content["files"][0]["devices"][0]["new"] = 1
    with pytest.raises(jsonschema.ValidationError, match="'new' was unexpected"):
        check(json.dumps(content), "show")
    del content["files"][0]["devices"][0]["new"], content["files"][0]["path"]
    with pytest.raises(jsonschema.ValidationError, match="'path' is a required property"):
        check(json.dumps(content), "show")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_show(path: Path) -> None:
    content = shown("show", "show", path)
    assert content["files"][0]["devices"]
    assert content["answer"]["lines"]


def test_show_of_a_leak(leak: Path) -> None:
    assert shown("show", "show", leak)["answer"]["kind"] == "leak"
    assert shown("show_leaks", "show", "--leaks", leak)["devices"][0]["growths"]


def test_show_of_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(b"no pickle")
    for document, *question in (("show",), ("show_by", "--by", "line"), ("show_leaks", "--leaks")):
        assert len(shown(document, "show", path, *question)["errors"]) == 1


@pytest.mark.parametrize("by", ["line", "caller", "stack", "category", "holder", "phase", "age"])
def test_show_by(by: str) -> None:
    assert shown("show_by", "show", CUDA, "--by", by)["files"][0][0]["groups"]


def test_show_fragmentation(leak: Path) -> None:
    (device,) = shown("show_fragmentation", "show", "--fragmentation", leak)["files"][0]
    assert device["pins"]


def test_diff(leak: Path) -> None:
    assert shown("diff", "diff", CUDA, leak)["devices"]
    limited = shown("diff", "diff", CUDA, leak, "--fail-over", "5%")
    assert limited["limit"]
    run = [make_run(leak.parent / name)[0].parents[1] for name in ("a", "b")]
    assert shown("diff", "diff", *run)["pairs"] == 4


def test_recommend(leak: Path) -> None:
    assert shown("recommend", "recommend", leak, "--capacity", "20MiB")["recommendations"]


def test_fit(tmp_path: Path) -> None:
    paths = [tmp_path / f"{batch}.pickle" for batch in (2, 4, 8)]
    for path in paths:
        sized_programs.write(path, sized_programs.training, batch=int(path.stem), length=64)
    found = shown("fit", "fit", *paths, "--at", "batch=16", "--device-memory", "1GiB")
    assert found["answer"]["lines"]


def test_experiment() -> None:
    runs = [Outcome(peak_reserved_bytes=5, wall_s=1.5), Outcome(failure="exit code 1")]
    settings = [Setting("a", "a", [run]) for run in runs]
    comparison = Comparison(settings, ["a note"], {"kind": "program", "repeat": 1})
    assert check(json.dumps(report(comparison)), "experiment")["kind"] == "program"


def test_fleet(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    collected = shown(
        "fleet_collect", "fleet", "collect", tmp_path / "run", "--output", tmp_path / "t"
    )
    assert collected["files"] == 4
    # A run with an outlier, an error and a damaged file
    fleet = Fleet()
    for rank in range(30):
        more = 500 if rank < 2 else 0
        sites = {"/a.py:1 f": 900, "/b.py:2 g": 100 + more}
        if rank != 17:
            fleet.add(rank, 1, None if rank == 20 else 1000 + more, sites=sites)
            fleet.add(rank, 2, 1000)
    add_oom(fleet, 3, 5)
    found = shown("fleet_report", "fleet", "report", fleet.write(tmp_path / "table"))
    rows = ("spread", "outliers", "outlier_sites", "oom_order", "damaged")
    assert all(found[name] for name in rows)


def test_live(tmp_path: Path) -> None:
    program = "import pytracer, torch; tracer = pytracer.Tracer('out', device='cpu').start(); "
    with start(
        program + "kept = torch.empty(10); print('.', flush=True); input()", cwd=tmp_path
    ) as it:
        assert it.stdout is not None
        it.stdout.readline()
        assert shown("live", "live", it.pid, "--once")["devices"]


def test_doctor() -> None:
    assert shown("doctor", "doctor")["backends"]
