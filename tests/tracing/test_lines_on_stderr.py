"""Do the lines about out-of-memories and files reach stderr, whatever the program logs?"""

import logging
import logging.config
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import pytracer
from pytracer import log
from pytracer.backends import oom


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


def test_a_file_that_could_not_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a disabled logger, and a folder that another program removes
    disabled()
    with pytracer.Tracer("folder/run.pickle", device="cpu"):
        torch.empty(1000)
        Path("folder").rmdir()
        Path("folder").touch()
    # THEN the line on stderr says so
    assert capsys.readouterr().err.count("run.pickle was not written: ") == 1


def test_a_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a bar of tqdm on stderr
    tqdm = pytest.importorskip("tqdm")
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
