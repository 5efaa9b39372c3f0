"""Tests of the engine on Ray, on a real cluster of several nodes on this machine."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import processes
import pytest
from fleet_tables import InProcess, all_rows, make_run

from pytracer.errors import PytracerError
from pytracer.fleet.collection import collect
from pytracer.fleet.ray_engine import RayEngine, _merged
from pytracer.fleet.sources import find_sources

# Ray changes signal handlers and warns on exit: its driver is a process of its own.
DRIVER = """
import os, signal, sys, threading, time, warnings
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from pytracer.fleet.collection import collect
from pytracer.fleet.ray_engine import RayEngine
from pytracer.fleet.summary import collect_file

run, table, marks, what = sys.argv[1:]

def work(source):
    # The first attempts at some files end their worker, as the kernel does without memory.
    rank = source.name.partition("rank")[2].partition("_")[0]
    mark = Path(marks, Path(source.name).parent.name + rank)
    attempts = len(list(mark.parent.glob(mark.name + ".*")))
    is_once, is_always = rank == "2" and attempts < 1, rank == "3" and "step1/" in source.name
    if what == "worker" and (is_once or is_always):
        Path(f"{mark}.{attempts}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "node":
        Path(f"{mark}.{ray.get_runtime_context().get_node_id()}").touch()
        time.sleep(0.2)
    return collect_file(source)

node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "memory": 2**30}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
others = [cluster.add_node(**node) for _ in range(2)]
cluster.wait_for_nodes()
ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
if what == "node":
    lost = others[0]
    def remove():
        while not list(Path(marks).glob("*." + lost.node_id)):
            time.sleep(0.05)
        cluster.remove_node(lost, allow_graceful=False)
    threading.Thread(target=remove, daemon=True).start()
done = collect([run, run + "-missing"], Path(table), RayEngine(work=work))
nodes = {path.suffix for path in Path(marks).iterdir()}
lists = done.unreadable, done.errors, nodes
print("RESULT", done.files, *map(len, lists))
ray.shutdown()
cluster.shutdown()
"""


def drive(tmp_path: Path, what: str) -> list[int]:
    marks = tmp_path / "marks"
    marks.mkdir()
    arguments = [tmp_path / "run7", tmp_path / "table", marks, what]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *map(str, arguments)],
        cwd=tmp_path,
        env=processes.environment(RAY_USAGE_STATS_ENABLED="0"),
        capture_output=True,
        text=True,
        timeout=processes.HANG_S,
        check=False,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT")] or [
        pytest.fail(done.stdout + done.stderr)
    ]
    return [int(number) for number in line.split()[1:]]


@pytest.mark.slow
@pytest.mark.long
def test_the_rows_are_those_of_the_local_engine_although_workers_are_killed(tmp_path: Path) -> None:
    # GIVEN a run of 10 files, of which Ray's workers are killed: once at some, always at one
    make_run(tmp_path / "run7", ranks=5, steps=2)
    files, unreadable, errors, _ = drive(tmp_path, "worker")
    assert (files, unreadable, errors) == (10, 1, 1)
    # THEN the rows of the others are those of the local engine
    (lost,) = (tmp_path / "run7/step1").glob("*rank3_*")
    lost.unlink()
    collect([str(tmp_path / "run7")], tmp_path / "expected", InProcess())
    expected, found = all_rows(tmp_path / "expected"), all_rows(tmp_path / "table")
    found["files"] = [row for row in found["files"] if str(lost) not in row]
    assert found == expected


@pytest.mark.slow
@pytest.mark.long
def test_a_lost_node_loses_nothing(tmp_path: Path) -> None:
    # GIVEN a cluster of three nodes, one of which is killed while it reads a file
    make_run(tmp_path / "run7", ranks=5, steps=8)
    files, unreadable, _, nodes = drive(tmp_path, "node")
    # THEN the other nodes read its files, because they have the disk too
    assert (files, unreadable) == (40, 0)
    assert nodes == 3
    collect([str(tmp_path / "run7")], tmp_path / "expected", InProcess())
    assert all_rows(tmp_path / "table") == all_rows(tmp_path / "expected")


def test_an_address_without_a_cluster_is_refused_at_once() -> None:
    with socket.socket() as held:  # bound, but nobody listens
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        for text in (address, f"ray://{address}"):
            with pytest.raises(PytracerError, match=f"cannot connect to Ray at {text}"):
                RayEngine(text)


def test_files_of_several_disks(tmp_path: Path) -> None:
    # GIVEN the files of three nodes: one on all, one on two, and one that differs on each
    make_run(tmp_path / "run7", ranks=3, steps=1)
    shared, of_two, first = find_sources([str(tmp_path)])[0]
    shutil.copy(first.path, tmp_path / "copy")
    shutil.move(tmp_path / "copy", first.path)
    (second,) = find_sources([first.path])[0]
    by_node = {"a": [shared, of_two, first], "b": [shared, of_two, second], "c": [shared]}
    hosts = {"a": "host1", "b": "host2", "c": "host3"}
    # WHEN they are put together
    found = {source.name: source.nodes for source in _merged(by_node, hosts)}
    # THEN a file is read where it is, and different files are different sources
    assert found == {
        shared.name: (),
        of_two.name: ("a", "b"),
        f"host1:{first.name}": ("a",),
        f"host2:{first.name}": ("b",),
    }
