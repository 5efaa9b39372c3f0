"""Which files stay, and what is called with their paths?"""

import logging
import re
from pathlib import Path

import pytest
import torch
from demands import SIGNAL, on_demand_files, send, threads, wait_until
from files_left import load
from processes import run
from torch import nn

from pytracer import ConfigError, Tracer
from pytracer.reading.reader import load as read

pytestmark = pytest.mark.usefixtures("handler", "short_intervals")


@pytest.mark.parametrize("output", ["out", "out/x.pickle"])
def test_keep_last(tmp_path: Path, output: str) -> None:
    # GIVEN a tracer that keeps two snapshots
    reported: list[str] = []
    tracer = Tracer(
        tmp_path / output,
        device="cpu",
        dump_signal=SIGNAL,
        keep_last=2,
        on_snapshot=reported.append,
    )
    with tracer:
        # WHEN five snapshots are written
        for number in range(5):
            send()
            wait_until(lambda number=number: len(reported) > number)
        # THEN the last two are kept, and nothing is left of the others
        found = on_demand_files(tmp_path / "out")
        assert [str(path) for path in found] == reported[3:]
        assert len(list((tmp_path / "out").glob("[!.]*"))) == 2


def test_a_file_on_demand_says_who_holds_the_memory(tmp_path: Path) -> None:
    # GIVEN a program that trains, so that no other thread may read its graphs
    layer = nn.Linear(50, 40)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    kept = []
    with Tracer(tmp_path, device="cpu", dump_signal=SIGNAL):
        layer(torch.ones(30, 50)).sum().backward()
        optimizer.step()
        kept.append(torch.ones(1003))
        # WHEN a signal comes, THEN the file has the holders that a file of the end has
        send()
        wait_until(lambda: on_demand_files(tmp_path))
        (path,) = on_demand_files(tmp_path)
    snapshot = read(path)
    (holder,) = snapshot.blocks.holder[snapshot.blocks.requested_bytes == 4012]
    name = "kept[0] of test_a_file_on_demand_says_who_holds_the_memory()"
    assert snapshot.strings[int(holder)] == name


def test_on_snapshot(tmp_path: Path) -> None:
    # GIVEN a function that reads each file and stops the tracer at the second
    reported: list[tuple[str, bool]] = []

    def look(path: str) -> None:
        reported.append((path, bool(load(Path(path)))))
        if len(reported) == 2:
            tracer.stop()

    tracer = Tracer(tmp_path, device="cpu", dump_signal=SIGNAL, on_snapshot=look)
    tracer.start()
    # WHEN the signal comes, THEN the function is called with the file; it may also stop the tracer
    for number in (1, 2):
        send()
        wait_until(lambda number=number: len(reported) >= number)
    assert reported[:2] == [(str(path), True) for path in on_demand_files(tmp_path)]
    wait_until(lambda: threads() == [])
    assert not tracer.stats()["recording"]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_on_snapshot_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    # GIVEN a user's function that fails, or tries to end the process
    def fail(path: str) -> None:
        raise error(f"bad: {path}")

    tracer = Tracer(
        tmp_path / "x.pickle", device="cpu", dump_signal=SIGNAL, on_snapshot=fail, keep_last=1
    )
    with tracer, caplog.at_level(logging.WARNING, "pytracer"):
        # WHEN the signal comes twice, THEN the failures are counted and logged once, and the files
        # exist
        for number in (1, 2):
            send()
            wait_until(lambda number=number: tracer.stats()["failures"] == number)
            (path,) = on_demand_files(tmp_path)
            assert path.exists()
        assert caplog.text.count(f"on_snapshot failed: {error.__name__}('bad: ") == 1


BROKEN = "raise ValueError('broken')"
FUNCTIONS = [
    ("no_such_module:f", "No module named 'no_such_module'"),
    ("os.no_such_module:f", "No module named 'os.no_such_module'; 'os' is not a package"),
    ("os:no_such_function", "module 'os' has no attribute 'no_such_function'"),
    ("os:sep", "sep is not a function"),
    ("broken_callbacks:f", "broken"),
]


@pytest.mark.parametrize(("name", "problem"), FUNCTIONS)
def test_an_on_snapshot_that_is_not_a_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, problem: str
) -> None:
    (tmp_path / "broken_callbacks.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    # WHEN the code names a function that does not exist, THEN the tracer does not start
    tracer = Tracer(tmp_path / "x.pickle", device="cpu", on_snapshot=name)
    with pytest.raises(ConfigError, match=re.escape(f"on_snapshot={name!r} cannot be used: ")) as e:
        tracer.start()
    assert problem in str(e.value)
    assert not tracer.stats()["recording"]
    # WHEN a variable names it, THEN the program is traced
    monkeypatch.setenv("PYTRACER_ON_SNAPSHOT", name)
    with Tracer(tmp_path / "x.pickle", device="cpu") as tracer:
        assert tracer.stats()["recording"]
    assert tracer.stats()["failures"] == 1
    assert (tmp_path / "x.pickle").exists()


@pytest.mark.slow
def test_an_on_snapshot_that_is_defined_later(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # GIVEN programs that define their function after the tracer starts, in a module or in a class
    module = """
import pytracer
tracer = pytracer.Tracer("x.pickle", device="cpu", on_snapshot="{}:Uploads.add").start()
class Uploads:
    @staticmethod
    def add(path):
        print("got", path)
"""
    (tmp_path / "uploads.py").write_text(module.format("uploads"))
    for program in (module.format("__main__"), "import uploads"):
        # WHEN the programs end, THEN the function is called
        done = run(program, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"got {tmp_path / 'x.pickle'}\n"
