"""Files are read without torch, and what records says that torch is missing."""

import re
from pathlib import Path

import pytest
from processes import run_python

ROOT = Path(__file__).parents[2]
CUDA = ROOT / "tests/golden/snapshot-1.12-cuda.pickle"
READERS_NEED = {"numpy", "click", "rich"}

# A Python that has the packages of a reader alone: others of pytracer's are not found.
WITHOUT = """
import importlib.abc, sys

ABSENT = {"torch", "torch_npu", "filelock", "pynvml", "pyarrow", "duckdb"}

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
COMMAND = "from pytracer.commands.main import main\nmain(sys.argv[1:])"


def test_torch_is_no_dependency() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    (listed,) = re.findall(r"^dependencies = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    names = set(re.findall(r'"([\w-]+)', listed))
    assert names >= READERS_NEED
    assert "torch" not in names


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("show", "--all"),
        ("show", "--by", "category"),
        ("show", "--leaks"),
        ("show", "--fragmentation"),
        ("recommend",),
        ("view", "--output", "page.html"),
        ("export", "--to", "collapsed"),
        ("diff", CUDA),
    ],
    ids=lambda arguments: "".join(map(str, arguments[:2])),
)
def test_files_are_read_without_torch(arguments: tuple[object, ...], tmp_path: Path) -> None:
    done = run_python("-c", WITHOUT + COMMAND, *arguments, CUDA, cwd=tmp_path, new=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize("command", ["demo", "experiment"])
def test_a_command_that_records_names_what_is_missing(command: str, tmp_path: Path) -> None:
    arguments = (
        [command, "--set", "current", "--", "python"] if command == "experiment" else [command]
    )
    done = run_python("-c", WITHOUT + COMMAND, *arguments, cwd=tmp_path, new=True)
    assert done.returncode == 1
    message = "Error: torch is not installed for this Python; pip install torch\n"
    assert done.stderr == message


def test_the_doctor_says_what_is_possible_without_torch(tmp_path: Path) -> None:
    done = run_python("-c", WITHOUT + COMMAND, "doctor", cwd=tmp_path, new=True)
    assert done.returncode == 1
    first, second, *_ = done.stdout.splitlines()
    assert (
        first
        == "pytracer cannot record cpu: torch is not installed for this Python; pip install torch"
    )
    assert second == "recordings from other machines can be read here without torch"


@pytest.mark.parametrize(
    "use",
    [
        "pytracer.patch_torch()",
        "pytracer.expandable_segments(True)",
        "pytracer.experiment(print, ['current'])",
    ],
)
def test_a_function_that_needs_torch_says_so(use: str, tmp_path: Path) -> None:
    done = run_python("-c", f"{WITHOUT}import pytracer\n{use}", cwd=tmp_path, new=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.endswith("HookError: torch is not installed for this Python; pip install torch")


def test_a_tracer_without_torch_lets_the_program_continue(tmp_path: Path) -> None:
    code = "with pytracer.Tracer() as tracer:\n    print(tracer.stats()['untraced'])"
    done = run_python("-c", f"{WITHOUT}import pytracer\n{code}", cwd=tmp_path, new=True)
    assert done.returncode == 0
    assert done.stdout == "torch is not installed for this Python; pip install torch\n"
    assert "The job continues untraced" in done.stderr
