"""Print what each command says of a fixed set of recordings: the oracle for every answer.

    make screens

`texts/` has one file for each recording: the output of the commands, in many forms. A change of the
program that is meant to change no answer changes none of these files; one that is meant to is
reviewed in their diff. `test_screens.py` compares them byte for byte.

Long lists have their first item and a digest of the rest, so that a changed row anywhere changes
the text. The width of the terminal, the time zone and the current folder are fixed.
"""

import functools
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import page_decoder
import planted_fleet
import pyarrow.parquet as parquet
import pytest
from click.testing import CliRunner

from pytracer.commands.main import main

HERE = Path(__file__).parent
TEXTS = HERE / "texts"
RECORDINGS = HERE / "recordings"
SUFFIX = ".pickle.gz"

COLUMNS = ("line", "caller", "stack", "category", "owner", "holder", "module", "phase", "step")
COLUMNS += ("age", "stream", "pool")
MOMENTS = ("end", "100", "+0.001")
FORMS = (("--markdown",), ("--json",), ("--fail-over", "5%"))
"""A checksum of a recording's name chooses its third of the columns, moments and forms of `diff`:
tables take most of the time."""
OUTPUT = "written"
"""What a command writes has this name in the current folder."""
WIDTH = 100
"""The columns of the terminal, and of JSON."""
FIRST = 1
"""So many items of a long list are in the text."""
LINES = 40
"""So many lines of a list of stacks are in the text."""

SHARED = {
    "load": "commands.show commands.show_answer commands.diff recommendation.recommend",
    "device_data": "analysis.explanation analysis.groups analysis.report analysis.diff.summaries "
    "commands.show_answer page.open_file recommendation.recommend",
    "explain_device": "commands.show_answer",
    "report_device": "analysis.report analysis.diff.summaries",
    "summarise": "commands.diff",
}
"""The functions whose results for a recording the commands share, and the modules that call them.

Otherwise, most of the time would be that of reading each recording 25 times.
"""

Arguments = tuple[str, ...]


class Screen(NamedTuple):
    """A recording, or several of one program or job, and what is asked of them."""

    name: str
    commands: list[Arguments]


def screens(folder: Path) -> list[Screen]:
    """Return all screens; `folder` is the current folder of the commands, and gets the files.

    Files have the same names there as in the text: `golden/…`, `recordings/…` and `fleet`.
    """
    for name, source in (("golden", HERE.parent / "golden"), ("recordings", RECORDINGS)):
        (folder / name).symlink_to(source)
    planted_fleet.make(folder / "fleet", planted_fleet.planned(ranks=13, steps=2))
    groups = [sorted(folder.glob(f"golden/{where}*.pickle")) for where in ("", "native/")]
    groups += [sorted(kind.glob(f"*{SUFFIX}")) for kind in sorted(folder.glob("recordings/*/"))]
    found = [_of_directory("fleet", "fleet/run7")]
    for group in groups:
        names = [str(path.relative_to(folder)) for path in group]
        for name, before in zip(names, [names[-1], *names[:-1]], strict=True):
            found.append(Screen(_title(name), [*_of_file(name), *_of_pair(before, name)]))
    fits = sorted(folder.glob("recordings/fit/*@*"))
    for program in sorted({path.name.partition("@")[0] for path in fits}):
        names = [str(path.relative_to(folder)) for path in fits if path.name.startswith(program)]
        found.append(Screen(f"fit/{program}", [*_of_sizes(names)]))
    return found


def _title(name: str) -> str:
    return name.removeprefix("recordings/").removesuffix(".gz").removesuffix(".pickle")


def _of_file(name: str) -> Iterator[Arguments]:
    number = crc32(name.encode())
    yield "show", name
    for option in ("--all", "--leaks", "--fragmentation"):
        yield "show", name, option
    for column in COLUMNS[number % 3 :: 3]:
        yield "show", name, "--by", column, *(("--top", "2") if column == "stack" else ())
    for moment in ("oom", MOMENTS[number % 3]):
        yield "show", name, "--by", "line", "--at", moment
    yield "show", name, "--by", "line", "--depth", "2", "--top", "1"
    yield "show", name, "--json"
    yield "show", name, "--by", "line", "--json"
    yield "recommend", name
    yield "recommend", name, "--json"
    yield "export", name, "--to", "collapsed"
    if name.startswith("golden"):  # the rows of a large file are read slowly
        yield "export", name, "--to", "parquet", "-o", OUTPUT
    yield "view", name, "-o", f"{OUTPUT}.html"


def _of_pair(before: str, name: str) -> Iterator[Arguments]:
    for option in ((), FORMS[crc32(name.encode()) % 3]):
        yield "diff", before, name, *option


def _of_directory(name: str, path: str) -> Screen:
    asked = [("show", path, *more) for more in ((), ("--leaks",), ("--json",))]
    asked += [("fleet", "report", path), ("fleet", "report", path, "--json")]
    asked += [("recommend", path), ("view", path, "-o", f"{OUTPUT}.html")]
    steps = [f"{path}/step{number}" for number in (1, 2)]
    return Screen(name, [*asked, *_of_pair(*steps)])


def _of_sizes(names: list[str]) -> Iterator[Arguments]:
    for target in ("batch=8,length=128", "batch=16", "batch=4..16", "length=96"):
        yield "fit", *names, "--at", target
        yield "fit", *names, "--at", target, "--device-memory", "1GiB", "--json"


def text_of(screen: Screen) -> str:
    """Return the output of a screen's commands, which are run in the current folder."""
    return "\n".join(map(_run, screen.commands))


def _run(arguments: Arguments) -> str:
    done = CliRunner().invoke(main, arguments, env={"COLUMNS": str(WIDTH)}, catch_exceptions=False)
    text = (done.output or done.stdout).replace(f"{Path.cwd()}/", "")
    end = f" (exit code {done.exit_code})" if done.exit_code else ""
    if "--json" in arguments and done.exit_code in (0, 1) and text.startswith(("{", "[")):
        text = _json(_shortened(json.loads(text)))
    if "collapsed" in arguments:
        text = "\n".join(_shortened(text.splitlines(), LINES))
    written = "".join(map(_described, sorted(Path().glob(f"{OUTPUT}*"))))
    quoted = " ".join(arguments)
    return f"$ pytracer {quoted}{end}\n{text.rstrip()}\n{written}"


def _described(path: Path) -> str:
    """Return what a command has written, and remove it."""
    if path.suffix == ".html":
        html = path.read_bytes()
        path.unlink()
        page = {**page_decoder.page_json(html), "created": "(now)"}
        return _json(_shortened({"page": page, "file": page_decoder.page_file(html)})) + "\n"
    tables = {file.parent.name: parquet.read_table(file) for file in path.rglob("*.parquet")}
    shutil.rmtree(path)
    content = {
        name: {
            field.name: [str(field.type), *table[field.name].to_pylist()] for field in table.schema
        }
        for name, table in sorted(tables.items())
    }
    return _json(_shortened(content)) + "\n"


def _shortened(value: Any, first: int = FIRST) -> Any:
    """Return JSON with the first items of each long list, and a digest of the others."""
    are_whole = isinstance(value, np.ndarray) and value.dtype.kind in "iub"
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _shortened(each) for key, each in value.items()}
    if not isinstance(value, list):
        return value
    items = value if are_whole else [_shortened(each) for each in value]
    if len(items) <= first + 1:
        return items
    rest = hashlib.sha256(json.dumps(items[first:], default=str).encode()).hexdigest()[:12]
    return [*items[:first], f"{len(items) - first} more: {rest}"]


def _json(value: Any, indent: str = "") -> str:
    """Return JSON in which what fits is on one line."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(indent) + len(text) <= WIDTH or not isinstance(value, (dict, list)):
        return text
    named = isinstance(value, dict)
    inner = indent + " "
    items = [
        f"{inner}{json.dumps(key)}: {_json(each, inner)}" if named else inner + _json(each, inner)
        for key, each in (value.items() if named else enumerate(value))
    ]
    begin, end = "{}" if named else "[]"
    return begin + "\n" + ",\n".join(items) + f"\n{indent}{end}"


@contextmanager
def folder_of_commands() -> Iterator[Path]:
    """Make the folder in which the commands run the current one, in the time zone UTC."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        for function, modules in SHARED.items():
            places = [import_module(f"pytracer.{module}") for module in modules.split()]
            shared = functools.lru_cache(8)(getattr(places[0], function))
            for place in places:
                patch.setattr(place, function, shared)
        patch.setenv("TZ", "UTC")
        patch.chdir(name)
        time.tzset()
        yield Path(name)
        patch.undo()
        time.tzset()


def write() -> None:
    """Write all texts anew."""
    with folder_of_commands() as folder:
        texts = {screen.name: text_of(screen) for screen in screens(folder)}
    shutil.rmtree(TEXTS, ignore_errors=True)
    for name, text in texts.items():
        path = TEXTS / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    write()
