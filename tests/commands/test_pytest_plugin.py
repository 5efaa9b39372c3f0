"""Test the plugin for pytest: each test runs pytest on a file, in a process of its own."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import processes
import pytest

HEAD = """
import pytest
import torch

kept = []

"""


def run_pytest(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest, where every warning is an error, on the text of a test file."""
    entries = {entry.name for entry in importlib.metadata.entry_points(group="pytest11")}
    plugin = [] if "torch-pytracer" in entries else ["-p", "pytracer.commands.pytest_plugin"]
    (folder / "test_it.py").write_text(HEAD + tests)
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-markers -q\n"
        "filterwarnings =\n  error\n  ignore:.*_editable:pytest.PytestAssertRewriteWarning\n"
    )
    return processes.run_python("-m", "pytest", *plugin, *options, "test_it.py", cwd=folder)


@pytest.mark.slow
def test_the_limit_of_a_test(tmp_path: Path) -> None:
    # GIVEN tests below and above their limit
    done = run_pytest(
        tmp_path,
        """
@pytest.mark.max_device_memory("1 MiB", device="cpu")
def test_small():
    for _ in range(10):
        torch.zeros(100_000)

@pytest.fixture
def model():
    return torch.zeros(1_000_000)

@pytest.mark.max_device_memory("1 MiB", device="cpu")
def test_fixtures_do_not_count(model):
    torch.zeros(100_000)

@pytest.mark.max_device_memory("1 MiB", device="cpu")
def test_large():
    first = torch.zeros(200_000)
    second = torch.zeros(300_000)  # the peak

@pytest.mark.max_device_memory("1 MiB", device="cpu")
def test_that_fails():
    torch.zeros(1_000_000)
    assert False, "its own failure"
""",
    )
    # THEN one fails with the lines that held most, the largest first, and a command
    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.startswith("test_large allocated 1.907 MiB"))
    assert "on cpu, 929.1 KiB more than its limit of 1 MiB. At the peak" in lines[at]
    first, second = (line.split() for line in lines[at + 1 : at + 3])
    source = (tmp_path / "test_it.py").read_text().splitlines()
    number = source.index("    second = torch.zeros(300_000)  # the peak") + 1
    assert first[:2] == ["1.144", "MiB"]
    assert first[-2:] == [f"{tmp_path.name}/test_it.py:{number}", "test_large"]
    assert second[-2:] == [f"{tmp_path.name}/test_it.py:{number - 1}", "test_large"]
    # AND the command's file exists
    command, _, path = lines[at + 3].rpartition(" ")
    assert command == "To look further: pytracer show"
    assert (tmp_path / path).exists()
    # AND that of the passing test does not; the other failure is the test's own
    assert len([*(tmp_path / path).parent.iterdir()]) == 1
    assert "its own failure" in done.stdout


@pytest.mark.slow
def test_memory_that_is_left(tmp_path: Path) -> None:
    # GIVEN a test that keeps memory, and others that keep none once their fixtures have ended
    done = run_pytest(
        tmp_path,
        """
@pytest.fixture
def model():
    return torch.nn.Linear(100, 100)

@pytest.mark.no_device_leak(device="cpu")
def test_gradients_of_a_fixture(model):
    model(torch.ones(1, 100)).sum().backward()

@pytest.mark.no_device_leak(device="cpu")
def test_a_cycle():
    cycle = [torch.zeros(1000)]
    cycle.append(cycle)

@pytest.mark.no_device_leak(allow="1 MiB", device="cpu")
def test_little():
    kept.append(torch.zeros(1000))

@pytest.mark.no_device_leak(device="cpu")
@pytest.mark.max_device_memory("1 MiB", device="cpu")
def test_leak():
    kept.append(torch.zeros(1000))
""",
    )
    assert "4 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "ERROR at teardown of test_leak" in done.stdout
    assert "test_leak left 3.906 KiB of its allocations on cpu. After the test" in done.stdout
    assert "3.906 KiB in 1 block: " in done.stdout


@pytest.mark.slow
def test_markers_are_checked(tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path,
        """
@pytest.mark.max_device_memory("much", device="cpu")
def test_text(): ...

@pytest.mark.max_device_memory
def test_nothing(): ...

@pytest.mark.no_device_leak(limit="1 MiB")
def test_other_name(): ...

@pytest.mark.max_device_memory("1 MiB", device="toaster")
def test_device(): ...

@pytest.mark.max_device_memory("1 MiB")
def test_accelerator(): ...
""",
        "-rs",
    )
    assert "marker max_device_memory has wrong arguments: 'much' is not a size" in done.stdout
    assert "max_device_memory() missing 1 required positional argument: 'limit'" in done.stdout
    assert "no_device_leak() got an unexpected keyword argument 'limit'" in done.stdout
    assert "toaster" in done.stdout
    assert "INTERNALERROR" not in done.stdout
    # AND without an accelerator, a test is skipped, with the remedy
    assert "4 failed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert 'give device="cpu" to check' in done.stdout.replace("\n", " ")


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["", "1"])
def test_it_does_nothing_unless_used(variable: str, tmp_path: Path) -> None:
    # GIVEN a test without markers, also where PYTRACER imports pytracer before pytest
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_nothing():\n"
        "    assert 'torch' not in sys.modules\n"
        "    assert 'numpy' not in sys.modules\n"
        "    assert 'pytracer.commands.pytest_checks' not in sys.modules\n"
    )
    entries = {entry.name for entry in importlib.metadata.entry_points(group="pytest11")}
    plugin = [] if "torch-pytracer" in entries else ["-p", "pytracer.commands.pytest_plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *plugin, "test_it.py"],
        cwd=tmp_path,
        env=processes.environment(PYTRACER=variable),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_markers_are_listed(tmp_path: Path) -> None:
    entries = {entry.name for entry in importlib.metadata.entry_points(group="pytest11")}
    plugin = [] if "torch-pytracer" in entries else ["-p", "pytracer.commands.pytest_plugin"]
    listed = processes.run_python("-m", "pytest", *plugin, "--markers", cwd=tmp_path).stdout
    assert "@pytest.mark.max_device_memory(limit, *, device=None):" in listed
