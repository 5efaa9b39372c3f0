"""Test the command line, the demo, and the example."""

import inspect
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import click
import processes
import pytest
import torch
import viewed_pickles
import viewers
from click.testing import CliRunner

import pytracer
from pytracer.analysis.report import stats
from pytracer.commands.main import COMMANDS, main
from pytracer.errors import PytracerError
from pytracer.reading import load
from pytracer.tracing.option_forms import parse_bool
from pytracer.tracing.options import OPTIONS

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def env() -> dict[str, str]:
    return processes.environment(COLUMNS="200")


def run(*arguments: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)


def test_version_of_the_module_run_as_a_program(env: dict[str, str], tmp_path: Path) -> None:
    done = run("-m", "pytracer", "--version", env=env, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"pytracer, version {pytracer.__version__}\n"


def test_help_does_not_wait_for_torch(env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN an interpreter in which torch cannot be imported
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was imported')")
    env["PYTHONPATH"] = str(tmp_path) + os.pathsep + env["PYTHONPATH"]
    # WHEN the help is requested, THEN it is printed
    done = run("-m", "pytracer", "demo", "--help", env=env, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--steps" in done.stdout


def loaded_modules(*arguments: str, env: dict[str, str], cwd: Path) -> set[str]:
    """Run a command in a new process and return the names of all modules that it imported."""
    program = (
        "import sys\n"
        "from pytracer.commands.main import COMMANDS, main\n"
        "main(sys.argv[1:], standalone_mode=False)\n"
        "print('MODULES', *sys.modules)"
    )
    done = run("-c", program, *arguments, env=env, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("MODULES")[2].split())


def test_help_imports_no_command(env: dict[str, str], tmp_path: Path) -> None:
    # WHEN the list of commands is printed, THEN no command and no large library is imported
    modules = loaded_modules("--help", env=env, cwd=tmp_path)
    commands = {name for name in modules if name.startswith("pytracer.commands.")}
    assert commands == {"pytracer.commands.main"}
    assert not {"numpy", "rich", "torch"} & modules


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["shwo"], "'shwo' is not a command; did you mean pytracer show?"),
        (["a b.pickle"], "'a b.pickle' is not a command; did you mean pytracer show 'a b.pickle'?"),
        (["train.py"], "'train.py' is not a command; did you mean pytracer run train.py?"),
        (["fleet", "reprot"], "'reprot' is not a command; did you mean pytracer fleet report?"),
        (["fleet", "."], "'.' is not a command; did you mean pytracer fleet report .?"),
        (["xyzzy"], "'xyzzy' is not a command\n"),
    ],
)
def test_a_wrong_command_suggests_another(
    arguments: list[str], hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a b.pickle", "train.py"):
        (tmp_path / name).touch()
    done = CliRunner().invoke(main, arguments, prog_name="pytracer")
    assert done.exit_code == 2
    assert hint in done.output


@pytest.mark.parametrize("command", [[], ["show"], ["fleet"], ["fleet", "report"]])
def test_the_short_option_of_help(command: list[str]) -> None:
    short, long = (CliRunner().invoke(main, [*command, name]) for name in ("-h", "--help"))
    assert (short.exit_code, short.output) == (0, long.output)


def test_the_list_of_commands_repeats_their_help() -> None:
    # GIVEN the list that `pytracer --help` prints without importing the commands
    with click.Context(main) as context:
        commands = {name: main.get_command(context, name) for name in COMMANDS}
    for name, question in COMMANDS.items():
        command = commands[name]
        assert command is not None
        assert command.name == name
        # THEN it has the first line of each command's help, and the help contains an example
        lines = inspect.cleandoc(command.help or "").splitlines()
        assert lines[0] == question
        assert any(line.startswith(f"pytracer {name}") for line in lines), name


def test_demo(env: dict[str, str], tmp_path: Path) -> None:
    # WHEN the demo runs for a few steps
    done = run("-m", "pytracer", "demo", "--steps", "8", "--device", "cpu", env=env, cwd=tmp_path)

    # THEN it writes a snapshot that viewers can open, under the printed name
    assert done.returncode == 0
    assert re.fullmatch(
        r"pytracer: wrote pytracer_demo\.pickle: .+ allocated on the CPU\n", done.stderr
    )
    path = tmp_path / "pytracer_demo.pickle"
    viewed_pickles.check_opcodes(path.read_bytes())
    viewers.check_snapshot(pickle.loads(path.read_bytes()))
    assert "segments: " in viewers.run_memory_viz(path, "stats")
    assert f"pytracer view {path.name} --open" in done.stdout

    # AND the loss falls
    first, last = map(float, re.findall(r"loss (\S+) → (\S+) in 8 steps", done.stdout)[0])
    assert last < 0.8 * first

    # AND the model and the optimizer's state are live at the end, the activations are not
    snapshot = load(path)
    (device,) = stats(snapshot).devices
    peak, end = device.peak_allocated, device.end
    assert peak is not None
    assert 0 < end.allocated_bytes < peak.allocated_bytes
    parameters = 421_440
    assert 4 * 4 * parameters <= end.allocated_bytes < 4.2 * 4 * parameters

    # AND the output has what `pytracer show` says
    shown = run("-m", "pytracer", "show", str(path), env=env, cwd=tmp_path).stdout
    answer = shown.replace(str(path), path.name).splitlines()
    assert [line for line in done.stdout.splitlines() if line in answer] == answer
    assert "demo_training.py" in shown


@pytest.mark.slow
def test_demo_on_a_machine_without_a_hook(env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN a user with no hook and no permission to build one
    env |= {"PYTRACER_BUILD": "never", "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    env |= {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    # WHEN the demo runs
    done = run("-m", "pytracer", "demo", "--steps", "1", env=env, cwd=tmp_path)
    # THEN it fails with one line that names the reason
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert re.search(r"^Error: nothing was recorded: .*PYTRACER_BUILD.*\n\Z", done.stderr, re.M)


@pytest.mark.slow
@pytest.mark.long
def test_the_example(env: dict[str, str], tmp_path: Path) -> None:
    # WHEN the example runs
    done = run(str(EXAMPLES / "train_transformer.py"), env=env, cwd=tmp_path)
    # THEN it writes the snapshot that it names, with its lines
    assert done.returncode == 0
    assert re.fullmatch(r"pytracer: wrote snapshot\.pickle: .+ allocated on the CPU\n", done.stderr)
    assert "snapshot.pickle" in done.stdout
    (device,) = stats(load(tmp_path / "snapshot.pickle")).devices
    found = device.held_by("line", "peak")
    assert found is not None
    assert any("train_transformer.py" in str(group.frames) for group in found.groups)


@pytest.mark.slow
def test_the_example_of_memory_by_module(env: dict[str, str], tmp_path: Path) -> None:
    # WHEN the example runs, and its snapshot is reported
    done = processes.run_python(EXAMPLES / "memory_by_module.py", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    text = run("-m", "pytracer", "show", "gpt.pickle", env=env, cwd=tmp_path).stdout
    # THEN the first lines report what fills the memory, which module holds most, and what may help
    assert re.search(r" held .*activations [\d.]+ MiB", text)
    assert re.search(r"optimizer states [\d.]+ MiB", text)
    assert re.search(r" modules +[\d.]+ MiB +\w+", text)
    assert re.search(r"By estimate, half the batch saves [\d.]+ MiB, checkpointing up to", text)
    # AND next to nothing is unknown at the peak, and each layer holds memory
    (device,) = stats(load(tmp_path / "gpt.pickle")).devices
    by_category, by_module = (device.held_by(by, "peak") for by in ("category", "module"))
    assert by_category is not None
    assert by_module is not None
    sizes = {group.category: group.size_bytes for group in by_category.groups}
    assert sizes["unknown"] <= 0.02 * sum(sizes.values())
    modules = {group.module for group in by_module.groups}
    assert {f"layers.{layer}" for layer in range(4)} <= modules


def test_run_shows_the_type_and_the_default_of_each_option() -> None:
    # WHEN the help of `pytracer run` is printed
    result = CliRunner().invoke(main, ["run", "--help"], terminal_width=10_000)
    text = " ".join(result.output.partition("Options:")[2].split())
    # THEN each option of a tracer has its form, and the default of the environment's tracer
    for option in OPTIONS.values():
        _, flag, rest = text.partition(f" --{option.name.replace('_', '-')}")
        assert flag, option.name
        description, default, rest = rest.partition(" Default: ")
        assert default, option.name
        assert " --" not in description.replace(" / --no-", ""), option.name
        if option.parse is not parse_bool:
            assert description.startswith(f" {option.metavar} ")
        assert rest.startswith(f"{option.shown_environment_default}.")


def test_the_demo_on_a_missing_device() -> None:
    # GIVEN a torch without this device
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    # WHEN the demo is to run on it, THEN a one-line error names the remedy
    result = CliRunner().invoke(main, ["demo", "--device", "cuda"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: torch ")
    assert 'device="cpu"' in result.output
    assert result.output.count("\n") == 1
    # AND an unknown device name is a usage error
    assert CliRunner().invoke(main, ["demo", "--device", "tpu"]).exit_code == 2


@pytest.mark.parametrize(
    ("output", "message"),
    [("demo.json", "output='demo.json': the demo writes"), ("file/x.pickle", "cannot be written")],
)
def test_an_output_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, message: str
) -> None:
    # GIVEN a folder in which `file` is a file
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    # WHEN the demo's output is there, THEN a one-line error names the problem
    result = CliRunner().invoke(main, ["demo", "--output", output])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert message in result.output
    assert result.output.count("\n") == 1


def test_a_pytracer_error_is_a_line_and_any_other_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a command that raises a given error
    def fail(error: Exception) -> None:
        raise error

    # WHEN the error is pytracer's, THEN its message is one line
    command = click.Command("fail", callback=lambda: fail(PytracerError("no such thing: 7")))
    monkeypatch.setitem(main.commands, "fail", command)
    result = CliRunner().invoke(main, ["fail"])
    assert (result.exit_code, result.output) == (1, "Error: no such thing: 7\n")

    # WHEN the error is a defect, THEN it is raised
    command = click.Command("fail", callback=lambda: fail(ValueError("a defect")))
    monkeypatch.setitem(main.commands, "fail", command)
    assert isinstance(CliRunner().invoke(main, ["fail"]).exception, ValueError)
