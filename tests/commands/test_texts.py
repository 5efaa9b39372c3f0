"""How are sizes, times, paths and call sites written?"""

import re
import shutil
from pathlib import Path

import commands
import processes
import pytest
from click.testing import CliRunner
from commands import cells
from rich.console import Console
from show_command import CUDA, MIB, invoke, write_content
from synthetic_program import run as run_program
from synthetic_snapshots import Program

from pytracer.analysis.frame_text import call_site_text
from pytracer.commands.main import main
from pytracer.commands.table import add_row, new_table
from pytracer.reading import Frame
from pytracer.text import duration, number, printable, size, size_range, utc_time, wrapped_text

pytestmark = pytest.mark.usefixtures("narrow_terminal")


def test_titles_are_not_interpreted_as_markup(tmp_path: Path) -> None:
    # GIVEN a folder whose name looks like the end of a markup style
    folder = tmp_path / "x[" / "foo]"
    folder.mkdir(parents=True)
    for name in ("a.pickle", "b.pickle"):
        shutil.copy(CUDA, folder / name)
    # WHEN the report is printed, THEN the title has the name
    result = invoke(folder)
    assert result.exit_code == 0
    assert "x[/foo]" in re.sub(r"\s+", "", result.output)


def test_file_names_cannot_control_the_terminal(tmp_path: Path) -> None:
    # GIVEN files with escape sequences in their names, which cannot be read
    for name in ("\x1b[31ma.pickle", "b\x1b]0;x\x07.pickle"):
        (tmp_path / name).write_bytes(b"no pickle")
    # WHEN they are read, THEN no error has an escape sequence, neither of several nor missing files
    several, none = invoke(tmp_path), invoke(tmp_path / "\x1b]0;x\x07", "--device", 1)
    assert several.stderr.count("Error: ") == 2
    assert "\x1b" not in several.stderr + none.stderr
    empty = tmp_path / "\x1b]0;x\x07"
    empty.mkdir()
    result = CliRunner().invoke(main, ["diff", str(empty), str(empty)])
    assert "contains no snapshots" in result.output
    assert "\x1b" not in result.output


def test_a_terminal_without_the_symbols(tmp_path: Path) -> None:
    # GIVEN an encoding without µ and Σ
    env = processes.environment(PYTHONIOENCODING="ascii")
    # WHEN the report is printed, THEN question marks replace these symbols
    done = processes.run_python("-m", "pytracer", "show", "--all", CUDA, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "? free? / (? free)?" in done.stdout


def test_names_cannot_control_the_terminal(tmp_path: Path) -> None:
    # GIVEN a file whose names have an escape sequence and markup
    content = run_program([("alloc", 10, 0)]).content()
    for event in content["device_traces"][1]:
        event["user_metadata"] = "\x1b[31m[red]phase\n"
        event["frames"] = [{"filename": "\x1b]0;x\x07.py", "name": "[bold]", "line": 1}]
    # WHEN it is shown, THEN the names are printed literally
    output = invoke(write_content(tmp_path, content), "--device", 1).output
    assert "\x1b" not in output
    assert "[red]phase" in output
    assert "[bold]" in output


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (-2048, "-2 KiB"),
        (3 << 40, "3 TiB"),
        (12634000, "12.05 MiB"),
        ((1 << 30) - 10_000, "1 GiB"),  # 1023.99 MiB
        (1 - (1 << 20), "-1 MiB"),
        (1 << 80, "1.049e+06 EiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("duration_us", "text"),
    [
        *((0, "0 µs"), (999, "999 µs"), (1500, "1.5 ms"), (2_000_000, "2 s"), (36 * 10**9, "10 h")),
        (999_990, "1 s"),
    ],
)
def test_durations(duration_us: int, text: str) -> None:
    assert duration(duration_us) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 frees"), (1, "1 free"), (2000, "2,000 frees")])
def test_numbers(count: int, text: str) -> None:
    assert number(count, "free") == text
    assert number(2, "retry", "retries") == "2 retries"


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("a.pickle", ["a.pickle"]),
        ("first/second_third.pickle", ["first/", "second_", "third.pickle"]),
        ("a/b/c/averyverylongname", ["a/b/c/", "averyverylongname"]),
        ("", [""]),
    ],
)
def test_folded_paths(path: str, lines: list[str]) -> None:
    assert wrapped_text(path, 12).split("\n") == lines


def test_times_of_any_size() -> None:
    assert utc_time(1_700_000_000_000_001) == "2023-11-14 22:13:20.000001 UTC"
    assert utc_time(2**63 - 1).endswith(" UTC")


@pytest.mark.parametrize(
    ("lower", "upper", "text"),
    [
        (26 * MIB, 26 * MIB, "26 MiB"),
        (26 * MIB, 26 * MIB + 1, "26 MiB"),
        (25 * MIB, 26 * MIB, "25-26 MiB"),
        (1023, 1024, "1023 B-1 KiB"),
    ],
)
def test_ranges_of_sizes(lower: int, upper: int, text: str) -> None:
    assert size_range(lower, upper) == text


def test_ranges_break_between_their_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a table with a range, in a terminal that is too narrow for it
    table = new_table(("peak", "phase"), text=-1)
    add_row(table, "134.8-135.8 MiB", "rollout")
    # WHEN it is shown, THEN no bound is split
    Console(width=26).print(table)
    rows = [row[0] for row in cells(capsys.readouterr().out)]
    assert rows == ["134.8-", "135.8 MiB"]


def test_call_site_texts() -> None:
    assert call_site_text(Frame("/a/b/c.py", "f", 7)) == "b/c.py:7 f"
    assert call_site_text(Frame(r"C:\a\b\c.py", "f", 7)) == "b/c.py:7 f"
    assert call_site_text(Frame("c.py", "f", 7)) == "c.py:7 f"
    assert call_site_text(Frame("??", "at::empty()", 0)) == "at::empty()"
    assert call_site_text(None) == "(unknown)"
    assert printable("a\x1b\n\ud800é") == "a���é"


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (40, "models/llama.py:1234 forward_of_a_layer"),
        (38, "llama.py:1234 forward_of_a_layer"),
        (30, "llama.py:1234 forward_of_a_la…"),
        (25, "llama.py:1234\nforward_of_a_layer"),
        (13, "llama.py:1234\nforward_of_a…"),
        (10, "…a.py:1234\nforward_o…"),
    ],
)
def test_shortened_call_site_texts(width: int, text: str) -> None:
    assert call_site_text(Frame("/a/models/llama.py", "forward_of_a_layer", 1234), width) == text
    assert max(map(len, text.split("\n"))) <= width


def test_file_and_line_stay_together(tmp_path: Path) -> None:
    # GIVEN call sites with long names that do not fit into their columns, one of an out-of-memory
    program = Program()
    file, name = "transformers/models/modeling_of_a_long_name.py", "forward_of_a_decoder_layer"
    for line in (12_345, 67_890):
        program.alloc(1000, (f"/site-packages/{file}", name, line))
    for _ in range(3):
        program.out_of_memory(1 << 40, 0)
        program.events[-1]["frames"] = program.events[-2]["frames"] or [
            {"filename": file, "name": name, "line": 12_345}
        ]
    path = program.write(tmp_path / "a.pickle")
    # WHEN they are shown at 80 columns, THEN file name and line number are not separated
    for arguments in (("show", path), ("show", "--all", path), ("diff", path, path)):
        output = commands.invoke(*arguments).output
        assert all(len(line) <= 80 for line in output.splitlines() if str(path) not in line)
    output = invoke(path).output
    assert max(len(line) for line in output.splitlines() if str(path) not in line) <= 80
    for line in (12_345, 67_890):
        assert len(re.findall(rf"\w+\.py:{line}\b", output)) >= 1
    lines, _, tables = output.partition("events in")
    # AND the tables have the two lines that hold memory, and the line of each out-of-memory
    assert (lines.count(".py:"), tables.count(".py:")) == (1 + 2, 2 + 3 + 2)
    assert len(re.findall(r"\w+\.py:\d{5} forward_of_a", tables)) >= 1
