"""Run the C++ tests of the core, and the fuzzing of the reader, also under each sanitizer."""

import fcntl
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
import tools
from amount import amount

from pytracer.backends.hook_compile import HookCompiler
from pytracer.backends.names import AUTOGRAD, HOST

ROOT = Path(__file__).parents[2]
# The first two sanitizers can be in one program; the thread sanitizer cannot be with others.
# Without a sanitizer, the code is optimised as in the package.
PLAIN = pytest.param("", id="optimised", marks=pytest.mark.long)
AFTER_OTHERS = "the_phases_of_a_thread_that_ended_are_over"


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", [PLAIN, "address,undefined", "thread"])
def test_core(sanitizer: str) -> None:
    # GIVEN the C++ tests, built with the sanitizer
    tests = built("core_tests", sanitizer)
    # WHEN they run, THEN all pass, and there were some
    assert passed(run(str(tests))) >= 20


@pytest.mark.slow
@pytest.mark.long
def test_core_on_aarch64(tmp_path: Path) -> None:
    # GIVEN a compiler for another processor, and its emulator
    compiler = tools.program("g++-aarch64-linux-gnu", "aarch64-linux-gnu-g++")
    emulator = tools.program("qemu-user", "qemu-aarch64")
    # WHEN the C++ tests run in their short form, THEN all pass
    options = ("-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_CXX_COMPILER={compiler}")
    tests = built("core_tests", "", "cpp-aarch64", *options)
    # Each alone: after many threads, the emulator does not end a fork. One needs those before it.
    emulated = emulator, "-L", "/usr/aarch64-linux-gnu", "-E", "LONG_TESTS=0", str(tests)
    for name in {*re.findall(r"^\w+$", run(str(built("core_tests", ""))), re.M)} - {AFTER_OTHERS}:
        assert passed(run(*emulated, name)) == 1
    # AND the hooks compile
    for backend in ("cpu", "cuda", AUTOGRAD, HOST):
        HookCompiler().compile([compiler], backend, tmp_path / "hook.so", ["-fsyntax-only"])


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", [PLAIN, "address,undefined"])
def test_the_reader_survives_any_file(sanitizer: str) -> None:
    # GIVEN all golden files, and a fixed seed, except in `make fuzz`
    files = sorted(map(str, (ROOT / "tests" / "golden").rglob("*.pickle")))
    count = int(os.environ.get("FUZZ_FILES", amount(3_000, 20_000)))
    seed = time.time_ns() // 1000 if "FUZZ_FILES" in os.environ else 0
    # WHEN mutations of them are read and replayed
    output = run(str(built("fuzz_reader", sanitizer)), str(count), str(seed), *files)
    # THEN each gives a result or an error, and there are many of both
    read, replayed, refused = (int(part.split()[0]) for part in output.split(", "))
    assert read + refused == count + len(files)
    assert min(read, replayed, refused) > count // 20


def passed(output: str) -> int:
    return int(output.splitlines()[-1].removesuffix(" passed"))


def built(program: str, sanitizer: str, folder: str = "", *others: str) -> Path:
    """Build a program of tests/cpp; the build is kept, and other test runs wait for it."""
    build = ROOT / "build" / (folder or f"cpp-{sanitizer or 'plain'}")
    options = ["-DPYTRACER_TESTS_ONLY=ON", "-DPYTRACER_WERROR=ON", *others]
    options += [f"-DPYTRACER_SANITIZER={sanitizer}", "-DCMAKE_BUILD_TYPE=Release"]
    build.mkdir(parents=True, exist_ok=True)
    with open(build / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run("cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", *options)
        run("cmake", "--build", str(build), "--target", program)
    return build / "tests" / "cpp" / program


def run(*command: str) -> str:
    """Run a command and return its output; fail with its output on an error."""
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
