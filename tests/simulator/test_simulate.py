"""Test the simulator without a device: its limits, and requests that no program makes."""

from typing import Any

import numpy as np
import pytest

from pytracer.analysis.requests import ALLOCATE, EMPTY_CACHE, FAIL, FREE, LEAVE, Requests
from pytracer.errors import ConfigError
from pytracer.simulator.rules import is_checked, rules_of
from pytracer.simulator.simulate import simulate

MIB = 2**20


def requests_of(*rows: tuple[int, int, int]) -> Requests:
    """Return requests of the default pool and stream: their kind, block and size."""
    columns = np.array(rows, np.int64).reshape(-1, 3).T.copy()
    zeros = np.zeros(len(rows), np.int64)
    numbers: dict[str, Any] = {"older_blocks": 0, "given_back": 0}
    return Requests(
        columns[0].astype(np.uint8), columns[1], columns[2], zeros, zeros, zeros, **numbers
    )


def test_a_left_block_is_freed_early_to_find_memory() -> None:
    # GIVEN a device for one block, which the program has freed for a stream
    requests = requests_of(
        (ALLOCATE, 0, 30 * MIB), (LEAVE, 0, 0), (ALLOCATE, 1, 30 * MIB), (FREE, 0, 0)
    )
    # WHEN a second block is allocated
    done = simulate(
        requests,
        rules_of("", "cuda", "2.12.1"),
        limit_bytes=None,
        device_bytes=30 * MIB,
        with_curve=True,
    )
    # THEN the memory of the first returns to the device, by one retry
    assert (done.failed_request, done.retries) == (None, 1)
    assert (done.device_allocs, done.device_frees) == (2, 1)
    assert done.peak_reserved_bytes == 30 * MIB
    assert done.allocated_bytes is not None
    assert done.allocated_bytes.tolist() == [30 * MIB, 0, 30 * MIB, 30 * MIB]


def test_requests_that_fail_are_counted() -> None:
    requests = requests_of((FAIL, -1, 60 * MIB), (FAIL, -1, 20 * MIB), (ALLOCATE, 0, 60 * MIB))
    rules = rules_of("", "cuda", "2.12.1")
    done = simulate(requests, rules, limit_bytes=None, device_bytes=50 * MIB)
    assert (done.fitted, done.oom_requests.tolist(), done.failed_request) == (1, [0, 2], 2)


def test_pages_may_exceed_the_memory_fraction() -> None:
    # GIVEN a fraction of 30 MiB, and a request whose segment has 26 MiB, in two pages of 20 MiB
    requests = requests_of((ALLOCATE, 0, 25 * MIB), (ALLOCATE, 1, 10 * MIB), (ALLOCATE, 2, 9 * MIB))
    rules = rules_of("expandable_segments:True", "cuda", "2.12.1")
    # WHEN more is allocated than these pages have
    done = simulate(requests, rules, limit_bytes=30 * MIB, device_bytes=None)
    # THEN only the request that needs another page finds no memory
    assert (done.failed_request, done.peak_reserved_bytes) == (2, 40 * MIB)


@pytest.mark.parametrize(
    "settings",
    ["max_split_size_mb:20", "backend:cudaMallocAsync", "garbage_collection_threshold:2", "size:1"],
)
def test_bad_settings_are_refused(settings: str) -> None:
    with pytest.raises(ConfigError, match=settings.partition(":")[0]):
        rules_of(settings, "cuda", "2.12.1")


def test_a_setting_that_is_misspelt() -> None:
    with pytest.raises(ConfigError, match=r"did you mean expandable_segments\?"):
        rules_of("expandable_segment:True", "cuda", "2.12.1")


def test_divisions_have_both_spellings() -> None:
    listed = rules_of("roundup_power2_divisions:[4:2,16:8,>:1]", "cuda", "2.12.1").divisions
    assert listed == (2, 2, 2, 0, 8, *[1] * 11)
    assert rules_of("roundup_power2_divisions:4", "cuda", None).divisions == (4,) * 16


def test_unchecked_versions_are_known() -> None:
    assert is_checked("cuda", "2.12.1+cu130")
    assert not is_checked("cuda", "2.11.0")
    assert not is_checked("npu", None)


@pytest.mark.parametrize("seed", range(50))
def test_any_columns_are_served_or_refused(seed: int) -> None:
    # GIVEN columns that no program makes: sizes up to 2**62, and frees of unknown blocks
    rng = np.random.default_rng(seed)
    rows = [
        (kind, number if kind == ALLOCATE else int(rng.integers(200)), int(2 ** rng.uniform(0, 62)))
        for number, kind in enumerate(rng.integers(6 + seed % 2, size=200).tolist())
    ]
    settings = ("", "expandable_segments:True", "max_split_size_mb:32")[seed % 3]
    requests, rules = requests_of(*rows), rules_of(settings, "cuda", "2.15.0")
    device_bytes = None if seed % 2 else 2**34
    # WHEN they are simulated, THEN an error names the request of an unknown kind
    if np.any(requests.kind > EMPTY_CACHE):
        with pytest.raises(ValueError, match=r"request .* has kind 6"):
            simulate(requests, rules, limit_bytes=None, device_bytes=device_bytes)
        return
    # AND others are served
    done = simulate(requests, rules, limit_bytes=None, device_bytes=device_bytes, with_curve=True)
    assert done.reserved_bytes is not None
    assert done.allocated_bytes is not None
    assert (done.reserved_bytes >= done.allocated_bytes).all()
