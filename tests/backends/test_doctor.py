"""Test the doctor, and the command `pytracer doctor`."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hook_world import World

import pytracer
from pytracer.backends.doctor import BackendReport, examine
from pytracer.backends.hook_attach import Hooks
from pytracer.backends.names import BACKENDS
from pytracer.commands.main import main
from pytracer.errors import HookError
from pytracer.reading.to_json import SCHEMA_VERSION


def cpu_report(hooks: Hooks) -> BackendReport:
    """Return the doctor's report on the CPU."""
    examination = examine((), hooks)
    assert [report.backend for report in examination.backends] == list(BACKENDS)
    json.dumps(asdict(examination))
    return examination.backends[0]


def call(arguments: Sequence[str], world: World) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments], obj=world.hooks())


def test_doctor_finds_the_hook(world: World) -> None:
    # GIVEN
    path = world.put_hook(world.cache)
    # WHEN / THEN
    assert cpu_report(world.hooks()) == BackendReport(
        "cpu", True, "9.9.0", str(path), "the user's cache", "ready"
    )


def test_doctor_reports_what_the_first_tracer_will_do(world: World) -> None:
    # WHEN
    report = cpu_report(world.hooks())
    # THEN
    assert report.available
    assert report.hook is None
    assert str(world.root / "c++") in report.message
    assert str(world.cache) in report.message
    assert world.compilations == []


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PYTRACER_BUILD": "never"}, "PYTRACER_BUILD=never"),
        ({"CXX": "", "PATH": "/dev/null"}, "no C++ compiler"),
        ({"XDG_CACHE_HOME": "/dev/null/a", "TMPDIR": "/dev/null/b"}, "/dev/null/b"),
    ],
)
def test_doctor_names_what_is_missing(
    world: World, variables: dict[str, str], message: str
) -> None:
    # GIVEN
    world.environment |= variables
    # WHEN
    report = cpu_report(world.hooks())
    # THEN
    assert not report.available
    assert message in report.message


def test_a_wrong_build_variable_counts_next_to_a_hook(world: World) -> None:
    # GIVEN a hook, and a value in place of which a tracer takes the default
    world.put_hook(world.cache)
    world.environment["PYTRACER_BUILD"] = "bogus"
    # WHEN
    report = cpu_report(world.hooks())
    done = call([], world)
    # THEN
    assert report.available
    assert "record with the given options: PYTRACER_BUILD is 'bogus'; set it to" in done.output
    assert done.exit_code == 1


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PYTRACER": "0"}, "PYTRACER=0 switches off tracing; unset PYTRACER"),
        ({"PYTRACER": "perhaps"}, "PYTRACER='perhaps'"),
        ({"PYTRACER_PATCH_TORCH": "perhaps"}, "PYTRACER_PATCH_TORCH='perhaps'"),
        ({"PYTRACER_STACK_DEPTH": "x"}, "PYTRACER_STACK_DEPTH='x'"),
        ({"PYTRACER": "1", "PYTRACER_STEPS": "x"}, "PYTRACER_STEPS='x'"),
    ],
)
def test_the_command_reports_variables_that_prevent_recording(
    world: World, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    # GIVEN everything that recording needs
    world.put_hook(world.cache)
    assert call([], world).exit_code == 0
    # WHEN
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    table = call([], world)
    to_stdout = call(["--json"], world)
    # THEN
    assert (table.exit_code, to_stdout.exit_code) == (1, 1)
    assert re.match(
        f"pytracer cannot record (anything|with .+): {re.escape(message)}", table.output
    )
    assert "pytracer can record" not in table.output
    (problem,) = json.loads(to_stdout.output)["problems"]
    assert f": {message}" in problem


def test_doctor_reports_what_accelerators_lack(world: World) -> None:
    # GIVEN a torch without accelerators
    # WHEN
    cpu, cuda, npu = examine((), world.hooks()).backends
    # THEN
    assert cpu.available
    assert not cuda.available
    assert "is built without CUDA; install a CUDA build of torch" in cuda.message
    assert not npu.available
    assert "torch_npu is not installed" in npu.message


def test_doctor_tries_the_hook_it_finds(world: World) -> None:
    # GIVEN
    path = world.put_hook(world.cache)

    def probe(backend: str, path: Path) -> None:
        raise HookError("died of SIGSEGV")

    # WHEN
    report = cpu_report(world.hooks(probe))
    # THEN
    assert not report.available
    assert report.hook == str(path)
    assert "SIGSEGV" in report.message


@pytest.mark.parametrize("failure", [HookError("torch is not installed"), RuntimeError("bug")])
def test_doctor_never_raises(
    world: World, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    # GIVEN
    def fail(*_: object) -> None:
        raise failure

    hooks = world.hooks()
    if isinstance(failure, HookError):
        monkeypatch.setattr(hooks.builder.compiler, "torch", fail)
    monkeypatch.setattr(hooks.builder, "find", fail)
    monkeypatch.setattr(world.core, "frame_walk_problem", fail)
    # WHEN
    report, interpreter = cpu_report(hooks), examine((), hooks).interpreter
    # THEN
    assert not report.available
    assert str(failure) in report.message
    assert not interpreter.stacks
    assert str(failure) in interpreter.message


def test_doctor_without_the_core(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    world.put_hook(world.cache)
    monkeypatch.delattr(pytracer, "_core", raising=False)
    monkeypatch.setitem(sys.modules, "pytracer._core", None)
    hooks = Hooks(world.builder())
    # WHEN / THEN
    assert "core cannot be imported" in cpu_report(hooks).message
    assert "core cannot be imported" in examine((), hooks).interpreter.message


def test_doctor_on_an_unsupported_interpreter(world: World) -> None:
    # GIVEN
    assert examine((), world.hooks()).interpreter.stacks
    world.core.frame_walk_problem = lambda: "unknown CPython 3.99"  # type: ignore[attr-defined]
    # WHEN
    examination = examine((), world.hooks())
    # THEN
    assert not examination.interpreter.stacks
    assert examination.interpreter.message == "unknown CPython 3.99"
    # AND a job that depends on the doctor's exit code does not start
    assert examination.problems == ["call stacks: unknown CPython 3.99"]


def test_without_the_library_for_autograd_all_else_is_available(world: World) -> None:
    # GIVEN an installation in which the library does not compile
    result = call(["--build"], world)
    # THEN the hooks are built, and one line says what is missing
    assert result.exit_code == 0
    assert "autograd: not built, so no forward stacks: " in result.output
    # AND the doctor says it, once, and has no problem with it
    report = examine((), world.hooks())
    assert report.problems == []
    assert not report.autograd.available
    result = call([], world)
    assert (result.exit_code, result.output.count("forward stacks")) == (0, 1)
    # AND a tracer goes on without it
    attached = world.hooks()
    attached.attach_autograd(build=True)
    assert not attached.reads_autograd


def test_build_prints_the_files(world: World) -> None:
    # GIVEN the sources of the CPU hook and of the library for autograd
    (world.source / "hooks" / "autograd.cpp").write_text('#include "hook_abi.h"\n')
    # WHEN
    result = call(["--build"], world)
    # THEN
    path = world.cache / world.hook_name
    library = world.cache / world.compiler().file_name("autograd")
    assert (result.exit_code, result.output) == (0, f"cpu: {path}\nautograd: {library}\n")
    assert path.exists()
    assert "-ltorch_cpu" in world.compilations[-1]
    # WHEN
    result = call(["--build", "--output", str(world.root / "image")], world)
    # THEN
    assert result.exit_code == 0
    assert (world.root / "image" / path.name).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--output", "/dev/null/out"],
            "pytracer doctor --build --output` a folder that you can write to",
        ),
        (["--device", "cuda"], "records only the CPU allocator"),
    ],
)
def test_build_reports_the_failure(world: World, arguments: list[str], message: str) -> None:
    # WHEN
    result = call(["--build", *arguments], world)
    # THEN
    assert result.exit_code == 1
    assert message in result.output


def test_doctor_command(world: World) -> None:
    # GIVEN
    path = world.put_hook(world.cache)
    # WHEN
    table = call([], world)
    to_stdout = call(["--json"], world)
    # THEN the first line has the result
    assert table.exit_code == 0
    assert table.output.splitlines()[0] == "pytracer can record cpu, with call stacks"
    assert "ready" in table.output
    report = json.loads(to_stdout.output)
    assert (report["requested"], report["problems"]) == (["cpu"], [])
    assert report["backends"][0]["hook"] == str(path)
    assert report["interpreter"]["stacks"] is True
    assert report["schema_version"] == SCHEMA_VERSION


@pytest.mark.parametrize("output", [[], ["--json"]])
def test_the_exit_code_reports_devices_that_cannot_be_recorded(
    world: World, output: list[str]
) -> None:
    # GIVEN a torch that has only the CPU
    world.put_hook(world.cache)
    # WHEN devices are requested, THEN the exit code is 0 only if all of them can be recorded
    assert call(["--device", "cpu", *output], world).exit_code == 0
    assert call(["--device", "cuda", *output], world).exit_code == 1
    both = call(["--device", "cpu", "--device", "cuda", *output], world)
    assert both.exit_code == 1
    if not output:
        first = both.output.splitlines()[0]
        assert first.startswith("pytracer cannot record cuda: torch ")
        assert "built without CUDA; install a CUDA build of torch" in first


def test_doctor_lists_the_ready_hooks(world: World) -> None:
    # GIVEN a package with hooks for two releases, which fit the installed torch
    ready = world.put_ready_hook("9.9.0", "9.10.0")
    # WHEN
    examination = examine((), world.hooks())
    # THEN
    assert examination.ready_hooks == {
        "cpu": ["9.9.0", "9.10.0"],
        "cuda": [],
        "npu": [],
        "autograd": [],
        "host": [],
    }
    assert examination.backends[0].hook == str(ready)
    # AND the command's last table and its JSON have the versions
    output = call([], world).output
    assert "9.9.0, 9.10.0" in output[output.rindex("┏") :]
    report = json.loads(call(["--json"], world).output)
    assert report["ready_hooks"] == examination.ready_hooks


def test_doctor_says_that_no_hook_is_ready(world: World) -> None:
    assert "no prebuilt hooks here" in call([], world).output


def test_doctor_names_the_ready_releases_where_there_is_no_compiler(world: World) -> None:
    world.put_ready_hook("9.8.0")
    (world.include / "c10/core/B.h").write_text("int patched;\n")
    world.environment.update({"CXX": "", "PATH": "/dev/null"})
    report = cpu_report(world.hooks())
    assert not report.available
    assert "the prebuilt hooks are for torch 9.8.0, and this is torch 9.9.0" in report.message


def test_doctor_reports_what_pinned_memory_lacks(world: World) -> None:
    # GIVEN a torch without CUDA, WHEN it is examined
    host = examine((), world.hooks()).host
    # THEN the report on pinned memory says so, and the exit code does not count it
    assert (host.backend, host.available) == ("host", False)
    assert host.message == "pinned memory is recorded only with CUDA; without it, ignore this"
    world.put_hook(world.cache)
    assert call([], world).exit_code == 0
    # AND where it is requested, the exit code counts it
    requested = call(["--device", "cpu", "--device", "host"], world)
    assert requested.exit_code == 1
    assert requested.output.startswith(f"pytracer cannot record host: {host.message}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "hooks"], "--output is for the hooks that --build makes: add --build"),
        (["--build", "--json"], "leave out --json"),
    ],
)
def test_options_of_building_and_of_checking_do_not_mix(
    world: World, arguments: list[str], message: str
) -> None:
    result = call(arguments, world)
    assert (result.exit_code, world.compilations) == (2, [])
    assert message in result.output
