"""The core's C++ tests, plain and under each sanitizer."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sanitizer", ["", "address", "undefined", "thread"])
def test_core(sanitizer: str) -> None:
    # GIVEN the C++ tests, built with the sanitizer; the build is kept for the next time
    build = ROOT / "build" / f"cpp-{sanitizer or 'plain'}"
    options = ["-DPYTRACER_TESTS_ONLY=ON", "-DPYTRACER_WERROR=ON"]
    options += [f"-DPYTRACER_SANITIZER={sanitizer}", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    run("cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", *options)
    run("cmake", "--build", str(build))
    # WHEN they run
    output = run(str(build / "tests" / "cpp" / "core_tests"))
    # THEN all pass, and there were some
    assert int(output.splitlines()[-1].removesuffix(" passed")) >= 20


def run(*command: str) -> str:
    """Its output; its errors become the test's."""
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
