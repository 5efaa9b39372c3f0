"""Test how much memory the commands may use."""

import gzip
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from commands import invoke
from synthetic_snapshots import Program

from pytracer.commands import parallel
from pytracer.fleet import pool
from pytracer.fleet.memory_budget import free_bytes
from pytracer.fleet.pool import Pool
from pytracer.reading.reader import estimated_bytes

GIB = 2**30


def write_root(root: Path, files: dict[str, object]) -> Path:
    """Write a folder with the parts of /proc and /sys that `free_bytes` reads."""
    for name, content in {"proc/meminfo": f"MemAvailable: {8 * GIB // 1024} kB\n", **files}.items():
        (path := root / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def v2(folder: str, limit: object, used: int, cached: int = 0) -> dict[str, object]:
    return {
        f"sys/fs/cgroup/{folder}/memory.max": limit,
        f"sys/fs/cgroup/{folder}/memory.current": used,
        f"sys/fs/cgroup/{folder}/memory.stat": f"anon 1\ninactive_file {cached}",
    }


@pytest.mark.parametrize(
    ("files", "free"),
    [
        pytest.param({}, 8 * GIB, id="no cgroups"),
        pytest.param({"proc/self/cgroup": "0::/a", **v2("a", "max", GIB)}, 8 * GIB, id="no limit"),
        pytest.param(
            {"proc/self/cgroup": "0::/a/b", **v2("a/b", "max", 1), **v2("a", 3 * GIB, GIB)},
            2 * GIB,
            id="an outer limit",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/a", **v2("a", 3 * GIB, 2 * GIB, GIB)},
            2 * GIB,
            id="cached memory is free",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/../else", **v2("", 4 * GIB, GIB)},
            3 * GIB,
            id="limit of a container",
        ),
        pytest.param({"proc/self/cgroup": "0::/", **v2("", GIB, 2 * GIB)}, 0, id="no free memory"),
        pytest.param(
            {
                "proc/self/cgroup": "3:cpu:/a\n2:hugetlb,memory:/a",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": GIB,
                "sys/fs/cgroup/memory/a/memory.usage_in_bytes": 1000,
                "sys/fs/cgroup/memory/a/memory.stat": "total_inactive_file 400",
            },
            GIB - 600,
            id="version 1",
        ),
    ],
)
def test_free_memory(tmp_path: Path, files: dict[str, object], free: int) -> None:
    assert free_bytes(write_root(tmp_path, files)) == free


def test_the_memory_for_reading_a_file_is_estimated(tmp_path: Path) -> None:
    # GIVEN an uncompressed and a compressed file
    content = os.urandom(1000)
    (uncompressed := tmp_path / "uncompressed").write_bytes(content)
    (compressed := tmp_path / "compressed").write_bytes(gzip.compress(content))
    assert estimated_bytes(uncompressed) == 4000
    assert estimated_bytes(compressed) == 60 * compressed.stat().st_size
    # AND missing files, and pipes, which may have no end
    os.mkfifo(tmp_path / "pipe")
    for name in ("nothing", "pipe", "x" * 300):
        assert estimated_bytes(tmp_path / name) == 0


def test_the_budget_is_a_quarter_of_the_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN the commands that read several files, in processes
    monkeypatch.setattr(parallel, "SMALL_BYTES", 0)
    monkeypatch.setattr(pool, "free_bytes", lambda: 8 * GIB)
    budgets: list[int] = []

    class InThisProcess(Pool[Path, object]):
        def results(
            self, jobs: Iterable[tuple[Path, int]]
        ) -> Iterator[tuple[Path, object | Exception]]:
            budgets.append(self.limit_bytes)
            return ((path, self._function(path)) for path, _ in jobs)

    monkeypatch.setattr(pool, "Pool", InThisProcess)
    files = [Program().write(tmp_path / f"{name}.pickle") for name in "ab"]
    commands = (
        ["show", *files],
        ["show", *files, "--leaks"],
        ["view", *files, "-o", tmp_path / "page.html"],
        ["diff", *files],
        ["export", *files, "--to", "collapsed"],
    )
    for command in commands:
        assert invoke(*command).exit_code == 0
    assert budgets == [2 * GIB] * len(commands)
