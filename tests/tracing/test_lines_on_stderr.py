"""Do the lines about out-of-memories and files reach stderr, whatever the program logs?"""

import errno
import logging
import logging.config
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tools
import torch

import pytracer
from pytracer import log
from pytracer.backends import oom
from pytracer.tracing import snapshot_writer


@pytest.fixture(autouse=True)
def own_logging(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run a test in a folder and with a logging configuration of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(log, "_logged", set())
    logger, root = logging.getLogger("pytracer"), logging.getLogger()
    handlers, level = [*root.handlers], root.level
    yield
    logger.disabled = False
    logger.setLevel(logging.NOTSET)
    root.handlers[:] = handlers
    root.setLevel(level)


def disabled() -> None:
    logging.config.dictConfig({"version": 1})


def to_stdout() -> None:
    logging.getLogger().addHandler(logging.StreamHandler(sys.stdout))


def errors_only() -> None:
    logging.getLogger("pytracer").setLevel(logging.ERROR)


def to_stderr() -> None:
    logging.getLogger().addHandler(logging.StreamHandler(sys.stderr))


@pytest.mark.parametrize("configure", [disabled, to_stdout, errors_only, to_stderr])
def test_an_out_of_memory(
    configure: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a recording, WHEN the program configures its logging, and then runs out of memory
    with pytracer.Tracer("run.pickle", device="cpu"):
        configure()
        oom._notify(oom.OutOfMemory(-1, 2**40, 2**30, 2**20))
    # THEN one line names the file
    lines = [line for line in capsys.readouterr().err.splitlines() if "out of memory" in line]
    assert len(lines) == 1
    assert lines[0].startswith("pytracer: out of memory: wrote ")
    assert lines[0].endswith("; `pytracer show` shows the reason")


@pytest.mark.parametrize(
    ("format", "prefix"),
    [
        ("%(levelname)s:%(name)s:%(message)s", "WARNING:pytracer:"),
        ("%(asctime)s %(message)s", "2 pytracer: "),
    ],
)
def test_each_line_names_pytracer_once(
    format: str, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a program's own format of lines, WHEN a message has two lines
    to_stderr()
    logging.getLogger().handlers[-1].setFormatter(logging.Formatter(format, datefmt="2"))
    log.report_once("first\nsecond")
    # THEN each of them says once where it comes from
    assert capsys.readouterr().err.splitlines() == [f"{prefix}first", f"{prefix}second"]


def test_the_lines_about_an_out_of_memory_name_the_rank(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN one of several ranks, which write into one log
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    # WHEN its memory runs out
    with pytracer.Tracer("run.pickle", device="cpu"):
        oom._notify(oom.OutOfMemory(-1, 2**40, 2**30, 2**20))
    # THEN the line says so
    assert "pytracer: rank 3: out of memory: wrote " in capsys.readouterr().err


def test_a_disk_that_is_full(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a disk that gets full while a recording runs
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytracer.Tracer("run.pickle", device="cpu"):
        torch.empty(1000)
        monkeypatch.setattr(snapshot_writer, "open_atomically", fail)
    # THEN the line says how much is free, and which variable helps
    text = capsys.readouterr().err
    assert re.search(
        r"run.pickle was not written: the disk is full.* free\)\. The job contin", text
    )
    assert "or change PYTRACER_OUTPUT" in text


def test_a_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a bar of tqdm on stderr
    tools.packages("tqdm")
    import tqdm

    with tqdm.tqdm(total=2, file=sys.stderr) as bar:
        bar.update(1)
        bar.refresh()
        # WHEN lines are written while it is shown
        log.print_line("pytracer: first")
        bar.refresh()
        log.report_once("second")
    # THEN each begins on a line of its own
    lines = capsys.readouterr().err.split("\n")
    assert "pytracer: first" in lines
    assert "pytracer: second" in lines
