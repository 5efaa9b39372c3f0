"""Compare the simulator with torch's own allocator, after each of many random requests."""

import os
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simulated
from processes import environment, run_python

from pytracer.analysis.allocator_rules import UNIT_BYTES, UNLIMITED
from pytracer.analysis.requests import (
    ALLOCATE,
    EMPTY_CACHE,
    FREE,
    RELEASE_POOL,
    REQUEST_COLUMNS,
)
from pytracer.reading import _reader
from pytracer.simulator.rules import rules_of
from pytracer.variables import VARIABLE

MIB = 2**20
NO_LIMIT = UNLIMITED
REQUESTS = 10_000
RUNS = int(os.environ.get("SIMULATOR_RUNS", "3"))  # for each of the settings
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

pytestmark = pytest.mark.skipif(not simulated.active(), reason="needs a device of its own")


def make_requests(seed: int, pools: int) -> dict[str, Any]:
    """Return random requests to the default pool and other pools, which are released at the end."""
    rng = np.random.default_rng(seed)
    most_live, largest, streams = [(60, 32, 1), (200, 96, 2), (400, 8, 3)][seed % 3]
    rows: list[tuple[int, int, int, int, int]] = []
    live: list[int] = []
    blocks = 0
    for _ in range(REQUESTS):
        if rng.random() < 0.001:
            rows.append((EMPTY_CACHE, -1, 0, 0, 0))
        elif live and (len(live) > most_live or rng.random() < 0.45):
            block = live.pop(int(rng.integers(len(live))) if rng.random() < 0.7 else -1)
            rows.append((FREE, block, 0, 0, 0))
        else:
            size = int(2 ** rng.uniform(3, np.log2(largest * MIB)))
            size = size if rng.random() < 0.5 else 1 << (size.bit_length() - 1)
            pool = int(rng.integers(pools))
            rows.append((ALLOCATE, blocks, size, int(rng.integers(streams)), pool))
            live.append(blocks)
            blocks += 1
    rows += [(FREE, block, 0, 0, 0) for block in live]
    rows += [(RELEASE_POOL, -1, 0, 0, pool) for pool in range(1, pools)]
    columns = np.array(rows, np.int64).T.copy()
    return dict(zip(REQUEST_COLUMNS, (columns[0].astype(np.uint8), *columns[1:]), strict=True))


def simulate(requests: dict[str, Any], rules: dict[str, Any], limits: dict[str, int]) -> Any:
    return _reader.simulate(
        **requests, rules=rules | limits, with_curve=True, with_calls=True, continues=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("run", range(RUNS))
def test_each_request(tmp_path: Path, backend: str, settings: str, run: int) -> None:
    # GIVEN random requests, on a device, or under a fraction, that is about as large as their peak
    its_version = version("torch-npu" if backend == "npu" else "torch")
    if backend == "npu" and "True,max_split" in settings:
        pytest.skip("torch_npu refuses these settings together")
    rules = asdict(rules_of(settings, backend, its_version))
    seed = run + 3 * SETTINGS.index(settings)
    requests = make_requests(seed, pools=3 if run % 3 == 2 else 1)
    large = {"limit_bytes": NO_LIMIT, "device_bytes": 2**40, "total_bytes": 2**40}
    peak = simulate(requests, rules, large)["peak_allocated_bytes"]
    capacity = int(peak * (1.02, 1.1, 0.9, 1.5)[seed % 4]) // UNIT_BYTES * UNIT_BYTES
    limit = int(capacity * 0.95) if run % 2 == 0 else NO_LIMIT
    np.savez(
        tmp_path / "requests.npz",
        capacity_bytes=capacity,
        has_limit=run % 2 == 0,
        limit_bytes=limit % 2**62,
        **requests,
    )
    # WHEN torch's own allocator and the simulator answer them
    program = Path(__file__).with_name("real_allocator.py")
    env = environment(**{VARIABLE[backend]: settings})
    done = run_python(program, tmp_path, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "answer.npz") as file:
        real = dict(file)
    total = int(real["total_bytes"])
    limits = {"limit_bytes": limit, "device_bytes": capacity, "total_bytes": total}
    answer = simulate(requests, rules, limits)
    # THEN after each request, the same is reserved
    assert np.flatnonzero(answer["reserved_bytes"] != real["reserved_bytes"]).tolist()[:1] == []
    # AND both make the same calls to the device, in the same order
    _, call, address, size = answer["calls"]
    assert call.tolist() == real["calls"][:, 0].tolist()
    assert size.tolist() == real["calls"][:, 2].tolist()
    # AND all blocks and segments are at the same places of the device
    moved = real["address"] - answer["address"]
    assert len(np.unique(moved[answer["address"] != 0])) <= 1
    assert len(np.unique(real["calls"][:, 1] - address)) <= 1
    # AND the same requests find no memory, after as many retries
    assert answer["oom_requests"].tolist() == real["ooms"].tolist()
    assert answer["retries"] == int(real["retries"])
