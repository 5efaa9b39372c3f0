"""Whatever a file says, each command answers, or raises what is one line for the user."""

import contextlib
import copy
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pytracer.cli import main
from pytracer.cli_files import write_json
from pytracer.errors import PytracerError
from pytracer.reading import load
from pytracer.reading.diff import diff, diff_directories, summarise
from pytracer.reading.export import origin
from pytracer.reading.export_arrow import write_tables
from pytracer.reading.export_perfetto import Writer
from pytracer.reading.export_stacks import collapsed
from pytracer.reading.files import Place
from pytracer.reading.stats import stats

GOLDEN = sorted((Path(__file__).parents[1] / "golden").rglob("*.pickle"))
OURS = [path for path in GOLDEN if path.name.startswith("snapshot-1.")]
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
TOLD = ("pytracer", "external_annotations", "allocator_settings")
"""What the reader takes as it is: most of what is odd there is left for the commands."""


def containers(value: Any, found: list[Any]) -> list[Any]:
    """Every list and dict in a snapshot with anything in it."""
    if isinstance(value, dict | list) and value:
        found.append(value)
        for each in value.values() if isinstance(value, dict) else value:
            containers(each, found)
    return found


def distort(snapshot: Any, rng: random.Random) -> None:
    """Changes, takes away, doubles and moves a few values."""
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
        else:  # what is of the same type goes furthest
            alike = [odd for odd in ODD if type(odd) is type(container[key])]
            container[key] = copy.deepcopy(rng.choice(alike if kind > 3 and alike else ODD))


def distorted(golden: Path, rng: random.Random) -> Any:
    """A golden file's content with a few odd values: in three of four in what it tells of itself.

    These are answered; most of the others are refused by the reader, or contradict themselves.
    """
    content = pickle.loads(golden.read_bytes())
    told = {key: content[key] for key in TOLD if isinstance(content, dict) and content.get(key)}
    if told and rng.random() < 0.75:
        distort(told, rng)
        content.update(told)
    else:
        distort(content, rng)
    return content


def ask(path: Path, golden: Path, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Everything that can be asked of a file, by name."""
    snapshot, other = load(path), load(golden)
    of = origin(snapshot, "name", Place())

    def trace() -> None:
        with open(folder / "trace.json", "wb") as file:
            (writer := Writer(file)).add(snapshot, of)
            writer.finish()

    def command(*arguments: object) -> None:
        result = CliRunner().invoke(main, [*map(str, arguments)])
        if isinstance(result.exception, SystemExit):
            assert result.stderr.splitlines()[-1].startswith("Error: ")
            raise PytracerError(result.stderr)
        if result.exception is not None:
            raise result.exception
        assert "\x1b" not in result.output

    def directories() -> None:
        summaries = summarise(snapshot), summarise(other)
        pairs = [("step 1", *summaries), ("step 2", *summaries[::-1])]
        write_json(diff_directories("a", "b", pairs), str(folder / "diff.json"))

    yield "stats as JSON", lambda: write_json(stats(snapshot), str(folder / "stats.json"))
    yield "stats", partial(command, "stats", path)
    yield "diff", partial(command, "diff", golden, path)
    yield "diff the other way round", lambda: diff(snapshot, other)
    yield "diff of directories", directories
    yield "tables", lambda: write_tables(snapshot, of, folder, "parquet")
    yield "trace", trace
    yield from (
        (f"stacks at {at}", partial(collapsed, snapshot, at)) for at in ("peak", "end", "oom")
    )


def answers(rng: random.Random, cases: int, folder: Path) -> Counter[str]:
    """How often each command answered."""
    answered: Counter[str] = Counter()
    for _ in range(cases):
        # GIVEN a golden file with a few odd values
        golden = rng.choice(rng.choice((OURS, GOLDEN)))
        path = folder / "odd.pickle"
        path.write_bytes(pickle.dumps(distorted(golden, rng), protocol=4))
        # WHEN everything is asked of it
        # THEN there is an answer, or one line that says why not
        with contextlib.suppress(PytracerError):
            for name, question in ask(path, golden, folder):
                answered[name] += 0
                with contextlib.suppress(PytracerError):
                    question()
                    answered[name] += 1
    return answered


@pytest.mark.parametrize("seed", range(30))
def test_distorted_snapshots(tmp_path: Path, seed: int) -> None:
    answers(random.Random(seed), 15, tmp_path)


def test_most_questions_are_answered(tmp_path: Path) -> None:
    # GIVEN a hundred distorted files, THEN not all that is odd is refused at once
    answered = answers(random.Random("answers"), 100, tmp_path)
    assert len(answered) == 10
    assert answered.pop("stacks at oom") > 5  # memory ran out in some of the files alone
    assert min(answered.values()) > 100 / 3, answered
