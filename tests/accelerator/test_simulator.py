"""Compare the simulator with torch's own allocator, after each of many random requests.

`make compare-simulator` makes more requests, and other ones, and keeps the counts. It sets
`SIMULATOR_RUNS`, the runs of each setting; `SIMULATOR_REQUESTS`, the requests of a run;
`SIMULATOR_SEED`, the first seed; and `SIMULATOR_RESULTS`, the file to which the counts are added.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simulated
import torch
from amount import amount
from processes import environment, run_python
from public_reports import DEVICE_BYTES, REPORTS, STREAMS, Report

from pytracer.analysis.allocator_rules import UNIT_BYTES, UNLIMITED
from pytracer.analysis.requests import (
    ALLOCATE,
    EMPTY_CACHE,
    FREE,
    LEAVE,
    RELEASE_POOL,
    REQUEST_COLUMNS,
)
from pytracer.reading import _reader
from pytracer.simulator.rules import rules_of
from pytracer.variables import VARIABLE

MIB = 2**20
NO_LIMIT = UNLIMITED
REQUESTS = int(os.environ.get("SIMULATOR_REQUESTS", amount(3_000, 10_000)))
RUNS = int(os.environ.get("SIMULATOR_RUNS", amount(1, 3)))
FIRST_SEED = int(os.environ.get("SIMULATOR_SEED", "0"))
RESULTS = os.environ.get("SIMULATOR_RESULTS")
SETTINGS = [
    "",
    "max_split_size_mb:32",
    "max_split_size_mb:128,max_non_split_rounding_mb:64",
    "garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.5,max_split_size_mb:64",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[4:2,16:8,>:1]",
    "expandable_segments:True",
    "expandable_segments:True,roundup_power2_divisions:8",
    "expandable_segments:True,max_split_size_mb:64",
    "large_segment_size_mb:64",
    "expandable_segments:True,large_segment_size_mb:64",
]
IN_LONG = [
    *("max_split_size_mb:32", "garbage_collection_threshold:0.6", "roundup_power2_divisions:4"),
    *("expandable_segments:True", "expandable_segments:True,max_split_size_mb:64"),
    "large_segment_size_mb:64",
]
"""Settings that others of the list include."""

pytestmark = pytest.mark.skipif(not simulated.active(), reason="needs a device of its own")


def allocator_version(backend: str) -> str:
    return version("torch-npu" if backend == "npu" else "torch")


@pytest.fixture(scope="module")
def counts(backend: str) -> Iterator[Counter[str]]:
    """Return counts that are added to `RESULTS` at the end."""
    found: Counter[str] = Counter()
    began = time.monotonic()
    yield found
    if RESULTS is None:
        return
    path = Path(RESULTS)
    content = json.loads(path.read_text()) if path.exists() else {"what": "make compare-simulator"}
    name = f"{'torch_npu' if backend == 'npu' else 'torch'} {allocator_version(backend)}"
    settings = [text for text in SETTINGS if are_allowed(text, backend)]
    content[name] = {
        "settings": len(settings),
        "runs": RUNS * len(settings),
        "requests_of_a_run": REQUESTS,
        "first_seed": FIRST_SEED,
        **found,
        "deviating_runs": found["runs_begun"] - found["runs_equal"],
        "seconds": round(time.monotonic() - began),
    }
    path.write_text(json.dumps(content, indent=2) + "\n")


def are_allowed(settings: str, backend: str) -> bool:
    """Return whether the allocator has these settings together."""
    return backend == "cuda" or "True,max_split" not in settings


def make_requests(seed: int, pools: int) -> dict[str, Any]:
    """Return random requests to the default pool and other pools, which are released at the end."""
    rng = np.random.default_rng(seed)
    most_live, largest, streams = [(60, 32, 1), (200, 96, 2), (400, 8, 3)][seed % 3]
    rows: list[tuple[int, int, int, int, int]] = []
    live: list[int] = []
    left: list[int] = []
    blocks = 0

    def free(numbers: list[int]) -> None:
        rows.extend((FREE, block, 0, 0, 0) for block in numbers)
        numbers.clear()

    for _ in range(REQUESTS):
        if rng.random() < 0.001:
            free(left)
            rows.append((EMPTY_CACHE, -1, 0, 0, 0))
        elif live and (len(live) > most_live or rng.random() < 0.45):
            block = live.pop(int(rng.integers(len(live))) if rng.random() < 0.7 else -1)
            waits = rng.random() < 0.1
            rows.append((LEAVE if waits else FREE, block, 0, 0, 0))
            left += [block] * waits
        else:
            pool = int(rng.integers(pools))
            # torch 2.12.1 does not look for complete frees when it allocates from another pool.
            if pool == 0 and rng.random() < 0.05:
                free(left)
            size = int(2 ** rng.uniform(3, np.log2(largest * MIB)))
            size = size if rng.random() < 0.5 else 1 << (size.bit_length() - 1)
            rows.append((ALLOCATE, blocks, size, int(rng.integers(streams)), pool))
            live.append(blocks)
            blocks += 1
    free(left)
    rows.append((EMPTY_CACHE, -1, 0, 0, 0))  # with which the allocator sees that these are complete
    free(live)
    rows += [(RELEASE_POOL, -1, 0, 0, pool) for pool in range(1, pools)]
    columns = np.array(rows, np.int64).T.copy()
    return dict(zip(REQUEST_COLUMNS, (columns[0].astype(np.uint8), *columns[1:]), strict=True))


def simulate(requests: dict[str, Any], rules: dict[str, Any], limits: dict[str, int]) -> Any:
    return _reader.simulate(
        **requests, rules=rules | limits, with_curve=True, with_calls=True, continues=True
    )


def answered(folder: Path, backend: str, settings: str, **requests: Any) -> dict[str, Any]:
    """Return what torch's own allocator answers."""
    np.savez(folder / "requests.npz", **requests)
    program = Path(__file__).parents[1] / "devices" / "real_allocator.py"
    env = environment(**{VARIABLE[backend]: settings})
    done = run_python(program, folder, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "answer.npz") as file:
        return dict(file)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [pytest.param(one, marks=pytest.mark.long if one in IN_LONG else ()) for one in SETTINGS],
)
@pytest.mark.parametrize("run", range(RUNS))
def test_each_request(
    tmp_path: Path, backend: str, counts: Counter[str], settings: str, run: int
) -> None:
    # GIVEN random requests, on a device, or under a fraction, that is about as large as their peak
    if not are_allowed(settings, backend):
        pytest.skip("torch_npu refuses these settings together")
    rules = asdict(rules_of(settings, backend, allocator_version(backend)))
    seed = FIRST_SEED + run + 3 * SETTINGS.index(settings)
    # In nine runs, each number of streams has pools once.
    requests = make_requests(seed, pools=3 if (run + run // 3) % 3 == 2 else 1)
    large = {"limit_bytes": NO_LIMIT, "device_bytes": 2**40, "total_bytes": 2**40}
    peak = int(simulate(requests, rules, large)["allocated_bytes"].max())
    capacity = int(peak * (1.02, 1.1, 0.9, 1.5)[seed % 4]) // UNIT_BYTES * UNIT_BYTES
    has_limit = (run + run // 4) % 2 == 0
    limit = int(capacity * 0.95) if has_limit else NO_LIMIT
    limited = {"capacity_bytes": capacity, "has_limit": has_limit, "limit_bytes": limit % 2**62}
    # WHEN torch's own allocator and the simulator answer them
    real = answered(tmp_path, backend, settings, **limited, **requests)
    total = int(real["total_bytes"])
    limits = {"limit_bytes": limit, "device_bytes": capacity, "total_bytes": total}
    answer = simulate(requests, rules, limits)
    counts["runs_begun"] += 1
    # THEN after each request, the same is reserved
    assert np.flatnonzero(answer["reserved_bytes"] != real["reserved_bytes"]).tolist()[:1] == []
    # AND both make the same calls to the device, in the same order
    _, call, address, size = answer["calls"]
    assert call.tolist() == real["calls"][:, 0].tolist()
    assert size.tolist() == real["calls"][:, 2].tolist()
    kinds = [answer[name] for name in ("device_allocs", "device_frees", "maps", "unmaps")]
    assert kinds == np.bincount(call, minlength=4).tolist()
    # AND all blocks and segments are at the same places of the device
    moved = real["address"] - answer["address"]
    assert len(np.unique(moved[answer["address"] != 0])) <= 1
    assert len(np.unique(real["calls"][:, 1] - address)) <= 1
    # AND the same requests find no memory, after as many retries
    assert answer["oom_requests"].tolist() == real["ooms"].tolist()
    assert answer["retries"] == int(real["retries"])
    counts["runs_equal"] += 1
    counts["requests"] += len(requests["kind"])
    counts["device_calls"] += len(call)
    counts["retries"] += answer["retries"]
    counts["out_of_memories"] += len(answer["oom_requests"])
    counts["delayed_frees"] += int(np.count_nonzero(requests["kind"] == LEAVE))


@pytest.mark.slow
@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.name or report.what)
def test_public_reports(tmp_path: Path, backend: str, report: Report) -> None:
    if not are_allowed(report.settings, backend):
        pytest.skip("torch_npu refuses these settings together")
    # GIVEN the requests of a public report
    columns = report.program().columns()
    limits = {"limit_bytes": NO_LIMIT, "device_bytes": DEVICE_BYTES, "total_bytes": DEVICE_BYTES}
    limited = {"capacity_bytes": DEVICE_BYTES, "has_limit": False, "limit_bytes": 0}
    # WHEN torch's own allocator and the simulator serve them
    real = answered(tmp_path, backend, report.settings, **limited, **columns)
    rules = asdict(rules_of(report.settings, backend, allocator_version(backend)))
    answer = simulate(columns, rules, limits)
    # THEN after each request, the same is reserved, and the same requests find no memory
    assert answer["reserved_bytes"].tolist() == real["reserved_bytes"].tolist()
    assert answer["oom_requests"].tolist() == real["ooms"].tolist()


def test_torch_has_so_many_streams(backend: str) -> None:
    if backend != "cuda":
        pytest.skip("a fact of CUDA's streams")
    made = {torch.cuda.Stream().cuda_stream for _ in range(3 * STREAMS)}
    assert len(made) == STREAMS
