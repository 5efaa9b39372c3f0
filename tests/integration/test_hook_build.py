"""Hooks built with a real compiler for a real torch, in processes of their own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pytracer import hook_compile, hooks
from pytracer.errors import HookError

ATTACH = "from pytracer import hooks; hooks.attach('cpu'); import torch; torch.ones(10).sum()"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A user with an empty home, who imports what we import."""
    (tmp_path / "tmp").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTRACER")}
    kept.pop("CXX", None)
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path / "tmp"),
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture
def here(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process that user, whatever other tests have attached in it."""
    monkeypatch.setattr(hooks, "_ready", set())
    monkeypatch.setattr(hooks, "_failures", {})
    for name in ("PYTRACER_BUILD", "PYTRACER_HOOK_DIR", "CXX"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR"):
        monkeypatch.setenv(name, env[name])


@pytest.fixture
def source(tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the CPU hook's source, to be changed."""
    copy = tmp_path / "source"
    shutil.copytree(hook_compile.source_dir("cpu"), copy)
    monkeypatch.setattr(hook_compile, "source_dir", lambda backend: copy)
    return copy / "hooks" / "cpu.cpp"


def change(source: Path, old: str, new: str) -> None:
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new))


def run(code: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=cwd, capture_output=True, text=True, check=False
    )


def hooks_in(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.so"))


def without_compiler(env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    return {**env, "PATH": str(tmp_path / "no-such-bin")}


def counting_compiler(tmp_path: Path) -> tuple[Path, Path]:
    """A compiler that takes a while, and the file it writes a line to each time."""
    log, script = tmp_path / "compiler.log", tmp_path / "slow-c++"
    script.write_text(f'#!/bin/sh\necho once >> {log}\nsleep 1\nexec c++ "$@"\n')
    script.chmod(0o755)
    return script, log


def test_first_process_builds_and_the_next_finds(env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN an empty cache
    # WHEN
    first = run(ATTACH, env, tmp_path)
    second = run(ATTACH, without_compiler(env, tmp_path), tmp_path)
    # THEN
    assert (first.returncode, first.stderr) == (0, "")
    assert (second.returncode, second.stderr) == (0, "")
    built = list((tmp_path / "cache" / "pytracer").iterdir())
    assert [path.suffix for path in built] == [".so"]


def test_baked_hook_needs_no_compiler_and_no_home(env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN an image with `pytracer build-hooks --output`
    bake = "from pytracer.cli_hooks import build_hooks; build_hooks()"
    image = tmp_path / "image"
    baked = subprocess.run(
        [sys.executable, "-c", bake, "--output", str(image)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (baked.returncode, baked.stderr) == (0, "")
    assert baked.stdout == f"cpu: {hooks_in(image)[0]}\n"
    # WHEN
    poor = {**without_compiler(env, tmp_path), "PYTRACER_HOOK_DIR": str(image)}
    poor |= {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/cache", "TMPDIR": "/dev/null/tmp"}
    result = run(ATTACH, poor, tmp_path)
    # THEN
    assert (result.returncode, result.stderr) == (0, "")
    assert len(list(image.iterdir())) == 1


@pytest.mark.parametrize(
    ("victim", "crash", "ending"),
    [
        ("c10::DataPtr block = allocate", "*reinterpret_cast<volatile int*>(8) = 0;", "SIGSEGV"),
        ("c10::DataPtr block = allocate", "__builtin_trap();", "SIG(ILL|TRAP)"),
        ("g_record(&event);", "__builtin_trap();", "SIG(ILL|TRAP)"),
    ],
)
def test_hook_that_crashes_is_never_loaded(
    source: Path, tmp_path: Path, victim: str, crash: str, ending: str
) -> None:
    # GIVEN
    change(source, victim, f"{crash} {victim}")
    # WHEN
    with pytest.raises(HookError, match=f"died of {ending}"):
        hooks.attach("cpu")
    # THEN it harmed nobody and nothing is left
    assert torch.ones(10).sum() == 10
    assert list((tmp_path / "cache" / "pytracer").iterdir()) == []
    assert hooks.find("cpu") is None


def test_hook_that_refuses_is_quoted(source: Path) -> None:
    # GIVEN
    victim = "static TracedAllocator"
    refuse = 'std::snprintf(message, message_size, "not today"); return 1;'
    change(source, victim, f"{refuse} {victim}")
    # WHEN / THEN
    with pytest.raises(HookError, match=r"^the cpu hook cannot be attached: not today$"):
        hooks.attach("cpu")


def test_hook_that_reports_nothing_is_never_loaded(source: Path) -> None:
    # GIVEN
    change(source, "g_record(&event);", "")
    # WHEN / THEN
    with pytest.raises(HookError, match="does not report what is allocated"):
        hooks.attach("cpu")


def test_compilers_error_is_quoted(source: Path, tmp_path: Path) -> None:
    # GIVEN
    source.write_text(source.read_text() + "\n#error the header of a vendor\n")
    # WHEN
    with pytest.raises(HookError, match="the header of a vendor") as error:
        hooks.attach("cpu")
    # THEN
    assert torch.__version__ in str(error.value)
    assert list((tmp_path / "cache" / "pytracer").iterdir()) == []


def test_both_standards_compile(
    here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for standard in hook_compile._STANDARDS:
        # GIVEN
        monkeypatch.setattr(hook_compile, "_STANDARDS", (standard, "c++98"))
        # WHEN / THEN
        assert hooks.build("cpu", tmp_path / standard).exists()


def test_key_covers_what_the_compiler_reads(here: None, tmp_path: Path) -> None:
    # GIVEN every header the preprocessor opens
    folder, include = hook_compile.source_dir("cpu"), hook_compile.include_dirs("cpu")[0]
    source = folder / "hooks" / "cpu.cpp"
    command = [*hook_compile.find_compiler(), "-std=c++20", "-M", f"-I{include}", str(source)]
    rule = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    opened = {Path(word).resolve() for word in rule.replace("\\\n", " ").split()[1:]}
    # WHEN
    hashed = hook_compile._included(source, [folder, include])
    # THEN
    roots = (folder.resolve(), include.resolve())
    ours = {path for path in opened if any(root in path.parents for root in roots)}
    assert len(ours) > 5
    assert {path.relative_to(include.resolve()) for path in ours if roots[1] in path.parents} <= {
        Path(name) for name in hashed
    }
    assert {"hook.h", "hooks/cpu.cpp"} <= set(hashed)


def upgrade_torch(tmp_path: Path) -> Path:
    """A folder whose `torch` is the running one with a changed allocator header."""
    real = Path(torch.__file__).parent
    fake = tmp_path / "upgraded" / "torch"
    (fake / "include").mkdir(parents=True)
    for path in real.iterdir():
        if path.name not in ("include", "__pycache__"):
            (fake / path.name).symlink_to(path)
    for path in (real / "include").iterdir():
        if path.name != "c10":
            (fake / "include" / path.name).symlink_to(path)
    shutil.copytree(real / "include" / "c10", fake / "include" / "c10")
    with (fake / "include" / "c10" / "core" / "Allocator.h").open("a") as header:
        header.write("\nnamespace c10 { inline int vendor_patch() { return 1; } }\n")
    return fake.parent


@pytest.mark.slow
def test_upgraded_torch_gets_its_own_hook(env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN a hook for the torch of yesterday
    assert run(ATTACH, env, tmp_path).returncode == 0
    cache = tmp_path / "cache" / "pytracer"
    (old,) = hooks_in(cache)
    upgraded = {**env, "PYTHONPATH": f"{upgrade_torch(tmp_path)}:{env['PYTHONPATH']}"}
    mapped = "; print([l.split()[-1] for l in open('/proc/self/maps') if 'pytracer_cpu' in l][0])"
    # WHEN
    result = run(ATTACH + mapped, upgraded, tmp_path)
    # THEN
    assert (result.returncode, result.stderr) == (0, "")
    (new,) = set(hooks_in(cache)) - {old}
    assert result.stdout.strip() == str(new)
    # WHEN nothing can be built
    poor = without_compiler({**upgraded, "XDG_CACHE_HOME": str(tmp_path / "other")}, tmp_path)
    shutil.copytree(cache, tmp_path / "other" / "pytracer")
    (tmp_path / "other" / "pytracer" / new.name).unlink()
    result = run(ATTACH, poor, tmp_path)
    # THEN the old hook is not used instead
    assert result.returncode == 1
    assert "HookError: no C++ compiler" in result.stderr


# Imports once, then starts processes that all begin together: each waits for the pipe to close.
TOGETHER = """
import os, sys, traceback
import torch
from pytracer import Tracer, hooks

def work():
    {work}

gate, opener = os.pipe()
children = []
for number in range({count}):
    child = os.fork()
    if child == 0:
        os.close(opener)
        os.dup2(os.open(f"stderr.{{number}}", os.O_WRONLY | os.O_CREAT), 2)
        os.read(gate, 1)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    children.append(child)
os.close(opener)
sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""


def run_together(
    work: str, count: int, env: dict[str, str], cwd: Path
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Returns the parent's result (its exit code counts failures) and what each child said."""
    (cwd / "together.py").write_text(TOGETHER.format(work=work, count=count))
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "together.py"]
    result = subprocess.run(
        command, env=env, cwd=cwd, capture_output=True, text=True, check=False, timeout=240
    )
    said = [path.read_text() for path in sorted(cwd.glob("stderr.*"))]
    assert len(said) == count, result.stderr
    return result, said


@pytest.mark.slow
def test_of_many_processes_one_builds(env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN
    compiler, log = counting_compiler(tmp_path)
    # WHEN
    work = "hooks.attach('cpu'); torch.ones(10).sum()"
    result, said = run_together(work, 8, {**env, "CXX": str(compiler)}, tmp_path)
    # THEN
    assert (result.returncode, set(said)) == (0, {""})
    assert log.read_text() == "once\n"
    assert len(hooks_in(tmp_path / "cache" / "pytracer")) == 1


@pytest.mark.slow
def test_of_many_processes_one_fails_for_all(env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN a compiler that fails
    compiler, log = counting_compiler(tmp_path)
    compiler.write_text(compiler.read_text().replace("exec c++", "exec false"))
    # WHEN
    result, said = run_together("hooks.attach('cpu')", 8, {**env, "CXX": str(compiler)}, tmp_path)
    # THEN
    assert result.returncode == 8
    assert all("HookError: compiling the hook" in text for text in said)
    assert log.read_text() == "once\n" * len(hook_compile._STANDARDS)


@pytest.mark.slow
def test_64_processes_without_compiler_and_home_run_on(env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN no compiler, and nowhere to write: a folder cannot be made in a file, not even by root
    (tmp_path / "file").write_text("")
    nowhere = {name: str(tmp_path / "file" / name) for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR")}
    work = """
    for _ in range(2):
        with Tracer(None, device="cpu") as tracer:
            print("ran", torch.empty(10).numel(), file=sys.stderr, flush=True)
        assert len(tracer.events()) == 0
"""
    # WHEN
    poor = {**without_compiler(env, tmp_path), **nowhere}
    result, said = run_together(work, 64, poor, tmp_path)
    # THEN
    assert result.returncode == 0, said
    for text in said:
        lines = text.splitlines()
        assert lines.count("ran 10") == 2
        assert len([line for line in lines if "pytracer" in line]) == 1, text
        assert "no C++ compiler" in text
