"""Tests of `pytracer fleet collect`: the rows of a file, and how a dataset is written."""

import gzip
import importlib
import re
import zipfile
from collections import defaultdict
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import fsspec
import pytest
from commands import invoke
from fleet_tables import CUDA, GOLDEN, InProcess, column, make_run, rows
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis.explanation import explain
from pytracer.analysis.leaks.several_files import examine
from pytracer.analysis.report import stats
from pytracer.atomic_file import open_atomically
from pytracer.errors import PytracerError
from pytracer.fleet import collection, schema
from pytracer.fleet.collection import collect
from pytracer.fleet.dataset import MARK, check_dataset, new_dataset
from pytracer.fleet.report import fleet_report
from pytracer.fleet.schema import TABLES
from pytracer.fleet.sources import find_sources, with_runs
from pytracer.fleet.summary import summarize
from pytracer.reading.reader import estimated_bytes, load

OOM = GOLDEN / "native/cuda-2.13.0.pickle"
FILES = sorted(GOLDEN.rglob("*.pickle"))


def collected(table: Path, *paths: Path | str, **options: str) -> collection.Collected:
    return collect([str(path) for path in paths], table, InProcess(), **options)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@pytest.mark.parametrize("most", [2, 100])
def test_rows_are_those_of_stats_and_leaks(
    path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN the rows of a file, with few or many rows for the sites of a moment
    monkeypatch.setattr(schema, "MOST_GROUPS", most)
    (source,) = find_sources([str(path)])[0]
    snapshot = load(path)
    found = summarize(snapshot, source)
    report, leaks = stats(snapshot), examine(snapshot, is_only=True).devices
    # THEN each device has the peak, the end and the leaks that the commands show
    assert len(found["devices"]) == len(report.devices)
    held: dict[tuple[int, str, str], int] = defaultdict(int)
    for row in found["held"]:
        held[row["device"], row["moment"], row["by"]] += row["size_bytes"]
    for row, device, leak in zip(found["devices"], report.devices, leaks, strict=True):
        peak = device.peak_allocated
        assert row.get("peak_allocated_bytes") == (peak and peak.allocated_bytes)
        assert row["end_allocated_bytes"] == device.end.allocated_bytes
        assert (row["leak_verdict"], row["leak_reason"]) == (leak.verdict, leak.reason)
        # AND the sites of a moment add up to what was active then
        for by in {by for of_device, _, by in held if of_device == device.device}:
            at_peak = peak.active_bytes if peak is not None else 0
            assert held[device.device, "end", by] == device.end.active_bytes
            assert held[device.device, "peak", by] == at_peak
        at_end = [
            r
            for r in found["held"]
            if (r["device"], r["moment"], r["by"]) == (device.device, "end", "line")
        ]
        assert len(at_end) <= most + 1
        assert sum(r["blocks"] for r in at_end) >= len(at_end)
    ooms = [oom for device in report.devices for oom in device.ooms]
    assert [row["requested_bytes"] for row in found["ooms"]] == [
        oom.requested_bytes for oom in ooms
    ]
    # AND no row has a column that its table lacks, apart from those of the report's dataclasses
    for table, of_table in found.items():
        assert of_table == [] or TABLES[table].columns.keys() & of_table[0].keys()


def test_the_oom_has_its_verdict(tmp_path: Path) -> None:
    collected(tmp_path / "t", OOM)
    explained = [each for each in explain(load(OOM)) if each.oom is not None]
    verdicts = [text for text in column(tmp_path / "t", "ooms", "verdict") if text is not None]
    assert verdicts == [explanation.verdicts[0].kind for explanation in explained] != []
    assert "oom" in column(tmp_path / "t", "held", "moment")


def test_files_copied_into_one_folder_keep_their_kind(tmp_path: Path) -> None:
    # GIVEN files of the end, of a step and of an out-of-memory, in one folder with other names
    for rank, changes in enumerate(
        [
            {},
            {"window": {"first": 3, "last": 3, "phase": None}},
            {"oom": {"device": 0, "requested_bytes": 1 << 40, "total_bytes": 1 << 30}},
        ]
    ):
        program = Program()
        program.alloc(512 << rank)
        if "oom" in changes:
            program.out_of_memory(1 << 40, 0)
        program.metadata = file_metadata(rank=rank, **changes)
        program.write(tmp_path / f"files/copy of {rank}.pickle")
    # WHEN they are collected
    collected(tmp_path / "t", tmp_path / "files")
    # THEN each has the kind that the file says
    ranks, found = (column(tmp_path / "t", "files", name) for name in ("rank", "kind"))
    kinds = dict(zip(ranks, found, strict=True))
    assert kinds == {0: "", 1: "step", 2: "oom"}
    # AND the out-of-memory is compared with no end
    report = fleet_report(tmp_path / "t")
    assert {each.slot: each.most_bytes for each in report.spread} == {"end": 512, "step 3": 1024}
    assert [oom.rank for oom in report.oom_order] == [2]


def test_damaged_files_are_rows_with_the_reason(tmp_path: Path) -> None:
    run, table = tmp_path / "run7", tmp_path / "table"
    make_run(run, ranks=2, steps=1)
    damaged = {
        "cut": CUDA.read_bytes()[:1000],
        "empty": b"",
        "text": b"no pickle",
        "code": b"cposix\nsystem\n(S'true'\ntR.",
    }
    for i, content in enumerate(damaged.values()):
        (run / f"step1/torch_memory_rank{10 + i}_pid7.pickle").write_bytes(content)
    (run / "step1/torch_memory_rank20_pid7.pickle").symlink_to("missing")
    # WHEN they are collected
    found = collected(table, run)
    # THEN each has a row with its rank and the reason, and the others are complete
    assert (found.files, len(found.unreadable)) == (7, 5)
    errors = dict(zip(column(table, "files", "rank"), column(table, "files", "error"), strict=True))
    assert errors[0] is None
    assert errors[1] is None
    assert "cut short" in errors[10]
    assert "damaged" in errors[13]
    assert "cannot read" in errors[20]
    assert set(column(table, "files", "file_step")) == {1}
    assert set(column(table, "devices", "rank")) == {0, 1}


def test_an_error_in_our_code_does_not_end_the_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    make_run(tmp_path / "run7", ranks=1, steps=1)
    monkeypatch.setattr("pytracer.fleet.summary.summarize", fail)
    found = collected(tmp_path / "table", tmp_path / "run7")
    assert [re.sub(r".*pickle ", "", text) for text in found.unreadable] == [
        "was not understood: ZeroDivisionError('a defect')"
    ]


def test_a_collection_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a collection of two batches, and a disk that is full when the n-th file is written
    make_run(tmp_path / "run7", ranks=2, steps=2)
    monkeypatch.setattr(collection, "BATCH_FILES", 2)
    opened, table = open_atomically, tmp_path / "table"

    def full(path: Path, last: int) -> AbstractContextManager[BinaryIO]:
        if path.parent == table or len([*table.rglob("*.parquet")]) == last:
            raise OSError(28, "No space left on device")
        return opened(path)

    for last in (0, 1, len(TABLES), len(TABLES) + 3, 1000):
        monkeypatch.setattr("pytracer.atomic_file.open_atomically", partial(full, last=last))
        with pytest.raises(PytracerError, match=r"cannot write .*No space left"):
            collected(table, tmp_path / "run7")
        # THEN nothing is left
        assert [*table.iterdir()] == []
    # AND the same command works when there is room
    monkeypatch.setattr("pytracer.atomic_file.open_atomically", opened)
    assert collected(table, tmp_path / "run7").files == 4
    assert len(rows(table, "files")) == 4


def test_a_dataset_is_written_once(tmp_path: Path) -> None:
    # GIVEN a folder with a file, a file, a dataset, and one that another collection writes
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    collected(tmp_path / "done", CUDA)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    with new_dataset(tmp_path / "running"):
        # THEN each is refused, and stays as it is
        for name in ("notes", "file", "done", "running"):
            with pytest.raises(PytracerError, match=rf"cannot write .*{name}: .*a new folder"):
                collected(tmp_path / name, CUDA)
        # AND what is not complete cannot be read
        with pytest.raises(PytracerError, match="is not a complete dataset"):
            check_dataset(tmp_path / "running")
    check_dataset(tmp_path / "running")
    assert before == {path: path.read_bytes() for path in before}


def test_a_report_on_another_folder_is_refused(tmp_path: Path) -> None:
    for folder in ("missing", ""):
        with pytest.raises(PytracerError, match=r"is not a complete dataset.*: give the folder"):
            check_dataset(tmp_path / folder)
    collected(tmp_path / "table", CUDA)
    (tmp_path / "table" / MARK).write_text('{"schema_version": "7.0"}')
    with pytest.raises(PytracerError, match=r"tables of version 7\.0"):
        check_dataset(tmp_path / "table")


def test_runs_are_named_by_their_folders(tmp_path: Path) -> None:
    for folder in ("a/profile", "b/profile", "c/7"):
        make_run(tmp_path / folder, ranks=1, steps=1)
    table = tmp_path / "table"
    collected(table, tmp_path / "a", tmp_path)
    assert sorted(column(table, "files", "run")) == ["7", "b/profile", "profile"]
    assert all(type(run) is str for run in column(table, "files", "run"))
    collected(tmp_path / "named", tmp_path, run="of today")
    assert set(column(tmp_path / "named", "held", "run")) == {"of today"}


def test_patterns_and_paths_that_name_nothing(tmp_path: Path) -> None:
    make_run(tmp_path / "run7", ranks=2, steps=3)
    sources, errors = find_sources([f"{tmp_path}/run7/step[12]/*rank0*", f"{tmp_path}/*/step3"])
    assert errors == []
    assert len(sources) == 4
    assert [s.name for s in find_sources([f"file://{tmp_path}/run7/step3"])[0]] == [
        s.name for s in find_sources([f"{tmp_path}/run7/step3"])[0]
    ]
    for path, message in (
        (f"{tmp_path}/none", "does not exist"),
        (f"{tmp_path}/*.gz", "matches no file"),
        ("nosuch://bucket/run7", "cannot open nosuch"),
        ("memory://nothing/here", "contains no snapshots"),
    ):
        sources, (error,) = find_sources([path])
        assert sources == []
        assert message in str(error)


def test_files_of_other_file_systems(tmp_path: Path) -> None:
    # GIVEN the same run in a folder, in an archive, and in memory
    paths = make_run(tmp_path / "run7", ranks=2, steps=1)
    memory = fsspec.filesystem("memory")
    with zipfile.ZipFile(tmp_path / "run.zip", "w") as archive:
        for path in paths:
            archive.write(path, path.relative_to(tmp_path))
            memory.pipe(f"/bucket/{path.relative_to(tmp_path)}", path.read_bytes())
    urls = {
        "zip": f"zip://run7/*/*.pickle::file://{tmp_path}/run.zip",
        "memory": "memory://bucket/run7",
    }
    try:
        collected(tmp_path / "expected", tmp_path / "run7")
        for name, url in urls.items():
            table = tmp_path / name
            found = collected(table, url)
            # THEN they have the same rows
            assert (found.errors, found.files) == ([], 2)
            for of_table in ("devices", "held", "steps", "ooms"):
                fields = [f for f in TABLES[of_table].columns if f not in ("source", "leak_path")]
                values = [
                    [column(t, of_table, f) for f in fields] for t in (table, tmp_path / "expected")
                ]
                assert values[0] == values[1]
            assert all(url.partition("://")[0] in s for s in column(table, "files", "source"))
    finally:
        memory.rm("/bucket", recursive=True)


def test_compressed_files_are_read_and_count_with_their_content(tmp_path: Path) -> None:
    (tmp_path / "run7").mkdir()
    path = tmp_path / "run7/a.rank3.step4.pickle.gz"
    path.write_bytes(gzip.compress(CUDA.read_bytes()))
    (source,), _ = find_sources([str(path)])
    assert source.needed_bytes == estimated_bytes(path) > CUDA.stat().st_size
    collected(tmp_path / "t", path)
    (error,) = column(tmp_path / "t", "files", "error")
    assert error is None
    assert column(tmp_path / "t", "files", "last_step") == [4]


def test_every_table_has_its_columns_in_an_empty_dataset(tmp_path: Path) -> None:
    with new_dataset(tmp_path / "table"):
        pass
    for name in TABLES:
        assert rows(tmp_path / "table", name) == []


def test_the_order_of_sources_is_run_step_rank(tmp_path: Path) -> None:
    make_run(tmp_path / "run7", ranks=11, steps=2)
    sources = with_runs(find_sources([str(tmp_path)])[0][::-1], None)
    names = [re.findall(r"step(\d+).*rank(\d+)", source.name)[0] for source in sources]
    assert names == [(str(step), str(rank)) for step in (1, 2) for rank in range(11)]


def test_the_command(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run7", ranks=2, steps=1)[0].parent
    (run / "torch_memory_rank2_pid1.pickle").write_bytes(b"")
    done = invoke("fleet", "collect", tmp_path / "run7", "--output", tmp_path / "t")
    assert done.exit_code == 0, done.output
    assert re.search(r"t: 3 files read in [\d.]+ s, 1 of them cannot be read\.", done.output)
    assert "rank2" in done.output
    # AND the rows of what a path names are written although another path names nothing
    paths = (tmp_path / "run7", tmp_path / "none")
    done = invoke("fleet", "collect", *paths, "--output", tmp_path / "u", "--json")
    assert done.exit_code == 1
    assert '"files": 3' in done.output
    assert "none does not exist" in done.output
    # AND nothing is written without a file
    done = invoke("fleet", "collect", tmp_path / "none", "--output", tmp_path / "v")
    assert done.exit_code == 1
    assert "none does not exist" in done.output
    assert not (tmp_path / "v").exists()
    done = invoke("fleet", "collect", run, "--output", tmp_path / "t", "--engine", "spark")
    assert done.exit_code == 2
    assert "--engine spark is unknown" in done.output


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    present = importlib.import_module

    def missing(name: str) -> object:
        if name.partition(".")[0] in ("duckdb", "pyarrow", "ray"):
            raise ImportError(f"No module named {name!r}")
        return present(name)

    monkeypatch.setattr("pytracer.errors.importlib.import_module", missing)
    with pytest.raises(PytracerError, match="pip install pyarrow"):
        collected(tmp_path / "t", CUDA)
    from pytracer.fleet.ray_engine import RayEngine

    with pytest.raises(PytracerError, match="pip install ray"):
        RayEngine()
    # AND a report names all that it needs at once
    done = invoke("fleet", "report", tmp_path)
    assert "Error: pytracer fleet report needs duckdb and pyarrow (No module" in done.output
    assert "`pip install duckdb pyarrow`" in done.output
