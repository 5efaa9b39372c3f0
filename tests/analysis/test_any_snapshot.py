"""Check that each command handles files with arbitrary values: a result, or a one-line error."""

import contextlib
import copy
import json
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from amount import amount
from click.testing import CliRunner

from pytracer.analysis import explain, who_holds
from pytracer.analysis.diff.compare import compare, compare_snapshots
from pytracer.analysis.diff.limit import check_limit, parse_limit
from pytracer.analysis.diff.summaries import summarise
from pytracer.analysis.report import stats
from pytracer.commands.main import main
from pytracer.errors import PytracerError
from pytracer.export.collapsed_stacks import collapse_stacks
from pytracer.export.parquet import write_tables
from pytracer.page.difference import difference_of
from pytracer.page.open_file import open_file
from pytracer.page.page import page_of
from pytracer.reading import load
from pytracer.reading.to_json import to_json
from pytracer.simulator.trials import try_settings

GOLDEN = sorted((Path(__file__).parents[1] / "golden").rglob("*.pickle"))
PYTRACER_FILES = [path for path in GOLDEN if path.name.startswith("snapshot-1.")]
ACCELERATOR_FILES = [path for path in GOLDEN if path.name.startswith(("cuda-", "npu-"))]
"""Most of them have an out-of-memory."""
BAD_VALUES: list[Any] = [
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
    "\x1b[2J",
    "[/x]",
    "\ud800",
    [],
    {},
    (),
    [[1, 0]],
    [0, "[/x]"],
    {"a": [1, {"b": None}]},
    {3: 0.5, "[/x]": {-1: ""}},
]
METADATA_KEYS = ("pytracer", "external_annotations", "allocator_settings")
"""The keys whose values the reader passes on without checks, so that commands get bad values."""


def containers(value: Any, found: list[Any]) -> list[Any]:
    """Return all lists and dicts in a snapshot that are not empty."""
    if isinstance(value, dict | list) and value:
        found.append(value)
        for element in value.values() if isinstance(value, dict) else value:
            containers(element, found)
    return found


def distort(snapshot: Any, rng: random.Random) -> None:
    """Change, remove, duplicate and move a few values."""
    for _ in range(rng.randrange(1, 6)):
        container = rng.choice(containers(snapshot, []))
        key = rng.choice([*container] if isinstance(container, dict) else range(len(container)))
        kind = rng.randrange(6)
        if kind == 0 and len(container) > 1:
            del container[key]
        elif kind == 1 and isinstance(container, list):
            container.insert(rng.randrange(len(container)), container[key])
        elif kind == 2 and isinstance(container, list):
            container.append(container.pop(key))
        else:  # a value of the same type passes more of the checks
            same_type = [bad for bad in BAD_VALUES if type(bad) is type(container[key])]
            container[key] = copy.deepcopy(
                rng.choice(same_type if kind > 3 and same_type else BAD_VALUES)
            )


def distorted_content(golden: Path, rng: random.Random) -> Any:
    """Return a golden file's content with a few bad values, three times in four in its metadata.

    Commands handle bad metadata. The reader refuses most other bad values as contradictions.
    """
    content = pickle.loads(golden.read_bytes())
    metadata = {
        key: content[key] for key in METADATA_KEYS if isinstance(content, dict) and content.get(key)
    }
    if metadata and rng.random() < 0.75:
        distort(metadata, rng)
        content.update(metadata)
    else:
        distort(content, rng)
    return content


def commands(path: Path, golden: Path, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield every command on a file, with its name."""
    snapshot, baseline = load(path), load(golden)

    def command(*arguments: object) -> None:
        result = CliRunner().invoke(main, [*map(str, arguments)])
        if isinstance(result.exception, SystemExit):
            assert result.stderr.splitlines()[-1].startswith("Error: ")
            raise PytracerError(result.stderr)
        if result.exception is not None:
            raise result.exception
        assert "\x1b" not in result.output

    def directories() -> None:
        summaries = summarise(snapshot), summarise(baseline)
        pairs = [("step 1", *summaries), ("step 2", *summaries[::-1])]
        json.dumps(to_json(compare("a", "b", pairs)))

    def limit() -> None:
        pairs = [("", summarise(baseline), summarise(snapshot))]
        json.dumps(to_json(check_limit(pairs, parse_limit("5%"))))

    yield "stats as JSON", lambda: json.dumps(to_json(stats(snapshot)))
    for options in ([], ["--all"], ["--leaks"], ["--fragmentation"]):
        yield " ".join(["show", *options]), partial(command, "show", path, *options)
    yield "diff", partial(command, "diff", golden, path)
    yield "diff with swapped files", lambda: compare_snapshots(snapshot, baseline)
    yield "diff of directories", directories
    yield "diff with a limit", limit
    yield "show two files", partial(command, "show", golden, path)
    yield "leaks of two files", partial(command, "show", "--leaks", golden, path)
    yield "tables", lambda: write_tables(snapshot, "name", folder)
    yield "explain", lambda: to_json(explain(snapshot))
    yield "explain with settings", lambda: to_json(explain(snapshot, try_settings=try_settings))
    yield "recommend", partial(command, "recommend", path)
    yield (
        "recommend --set",
        partial(command, "recommend", path, "--set", "expandable_segments:True"),
    )
    yield "page", lambda: page_of(open_file(snapshot)).html()
    yield "page of the last events", lambda: page_of(open_file(snapshot), 9).html()
    yield "page with a baseline", lambda: difference_of(open_file(snapshot), open_file(baseline))
    yield "held by step", lambda: to_json(who_holds(snapshot, by="step"))
    yield "held by line", lambda: to_json(who_holds(snapshot, by="line", depth=1))
    yield "held by pool", lambda: to_json(who_holds(snapshot, by="pool"))
    yield from (
        (f"stacks at {at}", partial(collapse_stacks, snapshot, at)) for at in ("peak", "end", "oom")
    )


def count_results(rng: random.Random, cases: int, folder: Path) -> Counter[str]:
    """Run all commands on distorted files, and count for each how often it has a result."""
    counts: Counter[str] = Counter()
    for _ in range(cases):
        # GIVEN a golden file with a few bad values
        golden = rng.choice(rng.choice((PYTRACER_FILES, ACCELERATOR_FILES, GOLDEN)))
        path = folder / "bad.pickle"
        path.write_bytes(pickle.dumps(distorted_content(golden, rng), protocol=4))
        # WHEN all commands run on it
        # THEN each has a result, or raises a one-line error
        with contextlib.suppress(PytracerError):
            for name, command in commands(path, golden, folder):
                counts[name] += 0
                with contextlib.suppress(PytracerError):
                    command()
                    counts[name] += 1
    return counts


@pytest.mark.parametrize("seed", range(amount(2, 30)))
def test_distorted_snapshots(tmp_path: Path, seed: int) -> None:
    count_results(random.Random(seed), 15, tmp_path)


@pytest.mark.slow
def test_most_commands_have_a_result(tmp_path: Path) -> None:
    # GIVEN distorted files, THEN each command has a result for many of them
    files = amount(25, 100)
    counts = count_results(random.Random("results"), files, tmp_path)
    assert len(counts) == 25
    assert counts.pop("stacks at oom") >= files / 20  # most files of accelerators have one
    # Only some of the files are of an accelerator.
    for name in ("recommend", "recommend --set", "show --fragmentation"):
        assert counts.pop(name) > files / 5
    assert min(counts.values()) > files / 3, counts
