"""Whatever a file says, each command answers, or raises what is one line for the user."""

import contextlib
import pickle
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytracer.cli_files import write_json
from pytracer.errors import PytracerError
from pytracer.reading import load
from pytracer.reading.diff import diff
from pytracer.reading.export import origin
from pytracer.reading.export_arrow import write_tables
from pytracer.reading.export_perfetto import Writer
from pytracer.reading.export_stacks import collapsed
from pytracer.reading.files import Place
from pytracer.reading.stats import stats

GOLDEN = sorted((Path(__file__).parents[1] / "golden").rglob("*.pickle"))
ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    512,
    2**20,
    2**31,
    2**62,
    2**63 - 1,
    -(2**63),
    2**64,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "alloc",
    "\x1b[2J[/bold]",
    [],
    {},
    (),
    [[1, 0]],
    {"a": [1, {"b": None}]},
]


def places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every container in a snapshot, with each of its keys."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            found.append((value, key))
            places(value[key], found)
    return found


def distort(snapshot: Any, rng: random.Random) -> None:
    """Changes, takes away, doubles and moves a few values."""
    for _ in range(rng.randrange(1, 6)):
        container, key = rng.choice(places(snapshot, []))
        kind = rng.randrange(5)
        if kind == 0 and len(container) > 1:
            del container[key]
        elif kind == 1 and isinstance(container, list):
            container.insert(rng.randrange(len(container)), container[key])
        elif kind == 2 and isinstance(container, list):
            container.append(container.pop(key))
        else:
            container[key] = rng.choice(ODD)


def ask(path: Path, golden: Path, folder: Path) -> Iterator[Callable[[], object]]:
    """Everything that can be asked of a file."""
    snapshot = load(path)
    of = origin(snapshot, "name", Place())

    def trace() -> None:
        with open(folder / "trace.json", "wb") as file:
            (writer := Writer(file)).add(snapshot, of)
            writer.finish()

    yield lambda: write_json(stats(snapshot), str(folder / "stats.json"))
    yield lambda: diff(snapshot, load(golden))
    yield lambda: diff(load(golden), snapshot)
    yield lambda: write_tables(snapshot, of, folder, "parquet")
    yield trace
    yield from (partial(collapsed, snapshot, at) for at in ("peak", "end", "oom"))


@pytest.mark.parametrize("seed", range(40))
def test_distorted_snapshots(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    answers = 0
    for _ in range(20):
        # GIVEN a golden file with a few odd values
        golden = rng.choice(GOLDEN)
        content = pickle.loads(golden.read_bytes())
        only_about = isinstance(content, dict) and "pytracer" in content and rng.random() < 0.5
        distort(content["pytracer"] if only_about else content, rng)
        (path := tmp_path / "odd.pickle").write_bytes(pickle.dumps(content))
        # WHEN everything is asked of it
        # THEN there is an answer, or one line that says why not
        with contextlib.suppress(PytracerError):
            for question in ask(path, golden, tmp_path):
                with contextlib.suppress(PytracerError):
                    question()
                    answers += 1
    assert answers > 0
