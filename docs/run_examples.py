"""Run the commands that the pages show, and put their real output into the pages.

    python docs/run_examples.py                       # every page
    python docs/run_examples.py docs/tutorial.md      # one page

A page is run from top to bottom, in an empty folder that has a copy of `examples/`:

- A block ```` ```python title="train.py" ```` is written to that file.
- In a block ```` ```console ```` each line that begins with `$ ` is a command. What the command
  prints replaces the lines after it. The command ends at the line's end.
- A comment `<!-- run: cuda NAME=VALUE... -->` makes the blocks after it run on simulated CUDA
  devices (`cpu` ends that), and sets variables that the page does not show. With `fails=yes` the
  commands may fail.

Commands find `python` and `pytracer` of `.venv`, or of `.venv-cuda-2.12.1`, where
the page says `cuda`. Both have pytracer installed.
"""

import argparse
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = re.compile(
    r"<!-- run: (?P<device>\w+)(?P<variables>[^>]*?) -->"
    r'|^```python title="(?P<file>[^"]+)"\n(?P<program>.*?)^```$'
    r"|^```console\n(?P<session>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
MODULES = {"python": "", "pytracer": "-m pytracer", "torchrun": "-m torch.distributed.run"}
PACKAGES = re.compile(r"/[\w./-]+/site-packages/")  # paths of this machine
COLUMNS = 100
TIMEOUT_S = 300


def programs(folder: Path, device: str, python: str) -> Path:
    """Make `python` and `pytracer` as they are to be found by commands on `device`."""
    bin_folder = folder / f"bin-{device}"
    bin_folder.mkdir(exist_ok=True)
    if device != "cpu":
        environment = min(ROOT.glob(f".venv-{device}*"))
        python = f"{ROOT}/tests/devices/simulate {device} {environment}/bin/python"
    for name, module in MODULES.items():
        path = bin_folder / name
        path.write_text(f'#!/bin/sh\nexec {python} {module} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return bin_folder


class Session:
    """The folder and the environment in which a page's commands run."""

    def __init__(self, folder: Path, report: Callable[[str], None], python: str) -> None:
        """Make the folder of the commands inside `folder`; `report` gets each command."""
        self.python = python
        self.folder, self.report = folder / "project", report
        self.folder.mkdir()
        shutil.copytree(ROOT / "examples", self.folder / "examples")
        self.temporary = folder
        self.variables: dict[str, str] = {}
        self.device = "cpu"
        self.failures: list[str] = []

    def part(self, match: re.Match[str]) -> str:
        """Run one part of a page, and return what takes its place."""
        if match["device"] is not None:
            self.device = match["device"]
            self.variables = dict(pair.split("=", 1) for pair in match["variables"].split())
        elif match["file"] is not None:
            (self.folder / match["file"]).write_text(match["program"])
        else:
            lines = [line for line in match["session"].splitlines() if line.startswith("$ ")]
            return "```console\n" + "".join(map(self.run, lines)) + "```"
        return match[0]

    def run(self, line: str) -> str:
        """Run one command, and return it with its output."""
        self.report(line)
        env = {name: value for name, value in os.environ.items() if "PYTRACER" not in name}
        env |= {"COLUMNS": str(COLUMNS), "TERM": "dumb", "OMP_NUM_THREADS": "1"}
        env |= {"XDG_CACHE_HOME": "/tmp/cache", **self.variables}
        env["PATH"] = f"{programs(self.temporary, self.device, self.python)}:{env['PATH']}"
        done = subprocess.run(
            ["bash", "-c", line[2:]],
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode and "fails" not in self.variables:
            self.failures.append(f"{line}\n{done.stdout}")
        text = done.stdout.replace(str(self.folder), "/project")
        text = text.replace(f"{ROOT}/.venv/", "/venv/")
        text = PACKAGES.sub("/venv/lib/python3.11/site-packages/", text)
        return line + "\n" + "".join(f"{row.rstrip()}\n" for row in text.splitlines())


def run_page(
    path: Path, report: Callable[[str], None] = print, python: str = str(ROOT / ".venv/bin/python")
) -> tuple[str, list[str]]:
    """Return the page with the output of its commands, and the commands that failed.

    `python` is the Python of the commands on the CPU.
    """
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Path(folder), report, python)
        return PARTS.sub(session.part, path.read_text()), session.failures


def pages() -> list[Path]:
    """Return the pages that have a command to run."""
    found = [*(ROOT / "docs").rglob("*.md")]
    return sorted(path for path in found if "```console\n" in path.read_text())


def main() -> None:
    """Run the pages that are named, and write their output into them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", type=Path)
    failed = []
    for path in parser.parse_args().pages or pages():
        text, failures = run_page(path)
        path.write_text(text)
        failed += [f"{path}: {failure}" for failure in failures]
    if failed:
        sys.exit("\n".join(["These commands failed:", *failed]))


if __name__ == "__main__":
    main()
