"""Test how `make hardware` goes on when a part fails; accelerator/test_hardware.py runs parts."""

import json
import sys
from pathlib import Path

import hardware
import pytest
from hardware import Part


def test_parts_that_fail_leave_the_others_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a part that fails, one that crashes, one that ignores its limit, tests of which one
    # fails, programs without and with a snapshot, and a part for which no time is left
    file = tmp_path / "test_two.py"
    file.write_text("def test_good(): pass\ndef test_bad(): assert 0\n")
    stubborn = "import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(600)"
    golden = Path(__file__).parents[1] / "golden" / "snapshot-1.12-cpu.pickle"
    copy = f"import shutil; shutil.copy({str(golden)!r}, 'out')"

    def parts(device: str, short: bool, report: Path, extra: Path | None) -> list[Part]:
        pytest_options = ["-m", "pytest", "-q", "-c", "/dev/null", f"--junitxml={report}"]
        return [
            Part("wrong", ["-c", "print('one'); raise SystemExit(3)"], 60),
            Part("crash", ["-c", "import os; os.abort()"], 60),
            Part("stubborn", ["-c", stubborn], 1),
            Part("tests", [*pytest_options, str(file)], 60),
            Part("no file", ["-c", ""], 60, ("show",)),
            Part("file", ["-c", copy], 60, ("show",)),
            Part("other words", ["-c", copy], 60, ("show",), "fragmented"),
            Part("good | well", ["-c", "print('last')"], 60),
            Part("too late", ["-c", "print('never')"], -1e9),
        ]

    monkeypatch.setattr(hardware, "parts", parts)
    monkeypatch.setattr(hardware, "END_SECONDS", 0.1)
    monkeypatch.setattr(sys, "argv", ["hardware.py", "--output", str(tmp_path / "results")])
    # WHEN all run, THEN the exit names those that failed
    with pytest.raises(SystemExit) as end:
        hardware.main()
    assert end.value.code == "failed: wrong, crash, stubborn, tests, other words, too late"
    # AND the output of each part was printed
    printed = capfd.readouterr().out
    assert "=== wrong\none\n" in printed
    assert "last\n" in printed
    assert "3 of 9 parts succeeded" in printed
    assert "never" not in printed
    # AND each has a result, in one JSON file and in one table
    found = {each["part"]: each for each in json.loads(_text(tmp_path, "json"))["parts"]}
    assert [each["status"] for each in found.values()] == [3, -6, -9, 1, 0, 0, 0, 0, None]
    assert [name for name, each in found.items() if each["is_late"]] == ["stubborn", "too late"]
    assert found["tests"]["result"] == "1 passed, 1 failed, 0 skipped"
    assert found["no file"]["result"] == "no snapshot"
    assert found["file"]["result"].startswith("NO PROBLEM FOUND")
    table = _text(tmp_path, "md")
    for row in ("| wrong | 3 |", "| stubborn | late |", "| tests | 1 |", "| file | 0 |"):
        assert row in table
    assert "Failed: `test_two::test_bad`" in table
    assert "not run: no time was left" in table


def test_all_tests_of_accelerators_run() -> None:
    # WHEN the parts of the trial are listed
    parts = hardware.parts("cuda", False, Path("tests.xml"), None)
    # THEN each file of tests is in one part, and the one that fills the device is alone in its
    chosen = [
        [Path(argument).stem for argument in part.arguments if argument.endswith(".py")]
        for part in parts
        if "pytest" in part.arguments
    ]
    folder = Path(hardware.__file__).parent / "accelerator"
    every = sorted(path.stem for path in folder.glob("test_*.py"))
    assert sorted(name for names in chosen for name in names) == every
    assert ["test_saved_tensors"] in chosen
    # AND ten programs and four benchmarks
    assert sum("benchmark" in part.name for part in parts) >= 4
    assert sum(bool(part.answer) or part.name == "demo" for part in parts) >= 10


def _text(folder: Path, ending: str) -> str:
    return (folder / "results" / f"hardware.{ending}").read_text()
