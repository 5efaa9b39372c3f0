"""Test hooks built with a real compiler for a real torch, in processes of their own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes import HANG_S

from pytracer.backends import hook_compile
from pytracer.backends.hook_attach import Hooks
from pytracer.backends.hook_build import HookBuilder
from pytracer.backends.hook_compile import STANDARDS, HookCompiler
from pytracer.backends.hook_folders import HookFolders
from pytracer.errors import HookError

ATTACH = (
    "from pytracer.backends.hook_attach import HOOKS; HOOKS.attach('cpu');"
    "import torch; torch.ones(10).sum()"
)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user with an empty home and this process's import path."""
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
def hooks(env: dict[str, str], tmp_path: Path) -> Hooks:
    """Return this user's hooks; the package has a copy of the sources that tests may change."""
    source = HookCompiler().source("cpu").parents[1]
    shutil.copytree(source, tmp_path / "package" / "_hook_source")
    folders = HookFolders(env, [tmp_path / "package"])
    return Hooks(HookBuilder(folders, HookCompiler(folders, environment=env)))


@pytest.fixture
def source(hooks: Hooks, tmp_path: Path) -> Path:
    """Return the path of the copied source of the CPU hook."""
    return tmp_path / "package" / "_hook_source" / "hooks" / "cpu.cpp"


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
    """Create a slow compiler that logs each run; return its path and the log's."""
    log, script = tmp_path / "compiler.log", tmp_path / "slow-c++"
    script.write_text(f'#!/bin/sh\necho once >> {log}\nsleep 1\nexec c++ "$@"\n')
    script.chmod(0o755)
    return script, log


@pytest.mark.slow
def test_first_process_builds_and_the_next_finds(env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN an empty cache
    # WHEN
    first = run(ATTACH, env, tmp_path)
    second = run(ATTACH, without_compiler(env, tmp_path), tmp_path)
    # THEN
    assert first.returncode == 0
    assert first.stderr == (
        f"pytracer: compiling the hook cpu for torch {torch.__version__}, once: this can take "
        "some 20 s\n"
    )
    assert (second.returncode, second.stderr) == (0, "")
    built = list((tmp_path / "cache" / "pytracer").glob("*.so"))
    assert len(built) == 1


@pytest.mark.slow
@pytest.mark.long
def test_baked_hook_needs_no_compiler_and_no_home(env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN an image with `pytracer doctor --build --output`
    bake = "from pytracer.commands.doctor import command; command()"
    image = tmp_path / "image"
    baked = subprocess.run(
        [sys.executable, "-c", bake, "--build", "--output", str(image)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (baked.returncode, baked.stderr) == (0, "")
    library, hook = hooks_in(image)
    assert baked.stdout == f"cpu: {hook}\nautograd: {library}\n"
    # WHEN
    bare_env = {**without_compiler(env, tmp_path), "PYTRACER_HOOK_DIR": str(image)}
    bare_env |= {
        "HOME": "/dev/null",
        "XDG_CACHE_HOME": "/dev/null/cache",
        "TMPDIR": "/dev/null/tmp",
    }
    result = run(ATTACH, bare_env, tmp_path)
    # THEN
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(image.iterdir()) == [library, hook]


@pytest.mark.parametrize(
    ("victim", "crash", "ending"),
    [
        ("c10::DataPtr block = allocate", "*reinterpret_cast<volatile int*>(8) = 0;", "SIGSEGV"),
        pytest.param(
            *("c10::DataPtr block = allocate", "__builtin_trap();", "SIG(ILL|TRAP)"),
            marks=pytest.mark.long,
        ),
        ("g_record(&event);", "__builtin_trap();", "SIG(ILL|TRAP)"),
    ],
)
def test_hook_that_crashes_is_never_loaded(
    hooks: Hooks, source: Path, tmp_path: Path, victim: str, crash: str, ending: str
) -> None:
    # GIVEN
    change(source, victim, f"{crash} {victim}")
    # WHEN
    with pytest.raises(HookError, match=f"died of {ending}"):
        hooks.attach("cpu")
    # THEN this process is unharmed and no file is left
    assert torch.ones(10).sum() == 10
    assert list((tmp_path / "cache" / "pytracer").iterdir()) == []
    assert hooks.builder.find("cpu") is None


def test_refusal_of_a_hook_is_quoted(hooks: Hooks, source: Path) -> None:
    # GIVEN
    victim = "if (g_traced == nullptr)"
    refuse = 'return failed(message, size, "not today");'
    change(source, victim, f"{refuse} {victim}")
    # WHEN / THEN
    with pytest.raises(HookError, match=r"^the cpu hook cannot be attached: not today$"):
        hooks.attach("cpu")


@pytest.mark.slow
def test_hook_that_reports_nothing_is_never_loaded(hooks: Hooks, source: Path) -> None:
    # GIVEN
    change(source, "g_record(&event);", "")
    # WHEN / THEN
    with pytest.raises(HookError, match="does not report allocations"):
        hooks.attach("cpu")


def test_error_of_the_compiler_is_quoted(hooks: Hooks, source: Path, tmp_path: Path) -> None:
    # GIVEN
    source.write_text(source.read_text() + "\n#error the header of a vendor\n")
    # WHEN
    with pytest.raises(HookError, match="the header of a vendor") as error:
        hooks.attach("cpu")
    # THEN
    assert torch.__version__ in str(error.value)
    assert list((tmp_path / "cache" / "pytracer").iterdir()) == []


@pytest.mark.long
def test_both_standards_compile(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for standard in STANDARDS:
        # GIVEN
        monkeypatch.setattr(hook_compile, "STANDARDS", (standard, "c++98"))
        folders = HookFolders(env)
        compiler = HookCompiler(folders, environment=env)
        # WHEN / THEN
        assert HookBuilder(folders, compiler).build("cpu", tmp_path / standard).exists()


def upgrade_torch(tmp_path: Path) -> Path:
    """Create a folder whose `torch` is the running one with a changed allocator header."""
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


@pytest.mark.long
def test_upgraded_torch_gets_its_own_hook(env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN a hook for the previous torch
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
    # WHEN no hook can be built
    bare_env = without_compiler({**upgraded, "XDG_CACHE_HOME": str(tmp_path / "other")}, tmp_path)
    shutil.copytree(cache, tmp_path / "other" / "pytracer")
    (tmp_path / "other" / "pytracer" / new.name).unlink()
    result = run(ATTACH, bare_env, tmp_path)
    # THEN the old hook is not used instead
    assert result.returncode == 1
    assert "HookError: no C++ compiler" in result.stderr


# Imports torch once, then forks processes that start simultaneously when the pipe is closed.
SIMULTANEOUS_PROCESSES = """
import os, sys, traceback
import torch
from pytracer import Tracer
from pytracer.backends.hook_attach import HOOKS

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


def run_simultaneously(
    work: str, count: int, env: dict[str, str], cwd: Path
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Return the parent's result, whose exit code counts failures, and each child's stderr."""
    (cwd / "together.py").write_text(SIMULTANEOUS_PROCESSES.format(work=work, count=count))
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "together.py"]
    result = subprocess.run(
        command, env=env, cwd=cwd, capture_output=True, text=True, check=False, timeout=HANG_S
    )
    stderrs = [path.read_text() for path in sorted(cwd.glob("stderr.*"))]
    assert len(stderrs) == count, result.stderr
    return result, stderrs


@pytest.mark.slow
def test_only_one_of_many_processes_builds(env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN
    compiler, log = counting_compiler(tmp_path)
    # WHEN
    work = "HOOKS.attach('cpu'); torch.ones(10).sum()"
    result, stderrs = run_simultaneously(work, 8, {**env, "CXX": str(compiler)}, tmp_path)
    # THEN
    assert result.returncode == 0
    assert sorted(map(bool, stderrs)) == [False] * 7 + [True]  # the one that compiles says so
    assert "compiling the hook cpu" in max(stderrs)
    assert log.read_text() == "once\n"
    assert len(hooks_in(tmp_path / "cache" / "pytracer")) == 1


@pytest.mark.slow
def test_one_failed_build_fails_all_waiting_processes(env: dict[str, str], tmp_path: Path) -> None:
    # GIVEN a compiler that fails
    compiler, log = counting_compiler(tmp_path)
    compiler.write_text(compiler.read_text().replace("exec c++", "exec false"))
    # WHEN
    result, stderrs = run_simultaneously(
        "HOOKS.attach('cpu')", 8, {**env, "CXX": str(compiler)}, tmp_path
    )
    # THEN
    assert result.returncode == 8
    assert all("HookError: compiling the hook" in text for text in stderrs)
    assert log.read_text() == "once\n" * len(STANDARDS)


@pytest.mark.slow
def test_64_processes_without_compiler_and_home_continue(
    env: dict[str, str], tmp_path: Path
) -> None:
    # GIVEN no compiler and no writable folder: nobody, not even root, can create one in a file
    (tmp_path / "file").write_text("")
    nowhere = {name: str(tmp_path / "file" / name) for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR")}
    work = """
    for _ in range(2):
        with Tracer(None, device="cpu") as tracer:
            print("ran", torch.empty(10).numel(), file=sys.stderr, flush=True)
        assert len(tracer.events()) == 0
"""
    # WHEN
    bare_env = {**without_compiler(env, tmp_path), **nowhere}
    result, stderrs = run_simultaneously(work, 64, bare_env, tmp_path)
    # THEN
    assert result.returncode == 0, stderrs
    for text in stderrs:
        lines = text.splitlines()
        assert lines.count("ran 10") == 2
        assert len([line for line in lines if "pytracer" in line]) == 1, text
        assert "no C++ compiler" in text
