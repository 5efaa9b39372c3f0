"""The page "Where does it run": what CI runs, what was compiled, and what nobody tried.

The Makefile says on which versions the tests run, `.ci/run` with which Python, and
`.ci/wheels/pins.json` for which releases hooks are compiled.
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTED, COMPILED, NOT_TRIED = "tested in CI", "compiled", "not tried"

HEAD = """# Where does it run

This table says what was tried with each release. The simulated devices of the tests run torch's
and torch_npu's real allocators. **No release was tried on a real GPU or NPU in CI.**

- *tested in CI*: the tests run with this release and Python, with the hooks that the wheel has
  ready.
- *compiled*: the hooks for this release are compiled for the wheel. CI runs nothing with them.
- *not tried*: this should work, and nobody has seen it.

"""
TAIL = """
Hooks do not depend on the version of Python. In the columns of other Pythons, *compiled*
therefore says that the hooks are the same. The tests run with Python {python} alone.

The wheels for Python 3.10, 3.12 and 3.13 were run by hand, once, with torch 2.12.1 and the ready
hooks: `pytracer demo` on the CPU and on simulated CUDA devices, recording with an empty `PATH`, and
the fast tests of the core and of recording on the CPU (`tests/core`,
`tests/tracing/test_cpu_*.py`). All pass: one failed with Python 3.10, and was mended.

On Python 3.14, call stacks are written after its headers and were never tried: Debian 12 does not
have this interpreter, and no package with it was found in the Python Package Index. pytracer
compares its first stack with Python's own, and records without stacks if they differ. Newer
Pythons, and builds without the GIL, are recorded without stacks.

A release that is not in the table needs a C++ compiler at the first start, or may have the same
headers as one that is: see [Install without a compiler](../how-to/hooks.md). torch before 2.6,
releases of torch_npu that are not in the table and are older than 2.13.0, and ROCm are refused.
Linux is the only system.
"""


def page() -> str:
    """Return docs/reference/where-it-runs.md, without the note that it is made."""
    makefile = (ROOT / "Makefile").read_text()
    python = _only(r"with Python (3\.\d+)", (ROOT / ".ci/run").read_text())
    accelerators = _only(r"^ACCELERATORS := (.*)$", makefile).split()
    cpu = _only(r"^TORCH \?= torch==(\S+)$", makefile)
    others = [
        f"3.{minor}"
        for minor in range(10, 14)
        if f"3.{minor}" != python and f"3.{minor}" in _pythons()
    ]
    table = [
        "| torch | torch_npu | records | "
        f"x86-64, Python {python} | x86-64, Python {', '.join(others)} | x86-64, Python 3.14 | "
        "aarch64 |",
        "|---|---|---|---|---|---|---|",
    ]
    pins = json.loads((ROOT / ".ci/wheels/pins.json").read_text())
    for backend in ("cpu", "cuda", "npu"):
        for version in pins["torch-npu" if backend == "npu" else "torch"]:
            tested = version == cpu if backend == "cpu" else f"{backend}-{version}" in accelerators
            torch = ".".join(version.split(".")[:3])
            torch_npu = version if backend == "npu" else ""
            first = TESTED if tested else COMPILED
            table.append(
                f"| {torch} | {torch_npu} | {backend.upper()} | {first} | {COMPILED} | "
                f"{NOT_TRIED} | {NOT_TRIED} |"
            )
    return HEAD + "\n".join(table) + "\n" + TAIL.format(python=python)


def _pythons() -> str:
    """Return what pyproject.toml says of Python's versions."""
    return "\n".join(
        line
        for line in (ROOT / "pyproject.toml").read_text().splitlines()
        if "Programming Language :: Python ::" in line
    )


def _only(pattern: str, text: str) -> str:
    """Return what the one match of a pattern has in its parentheses."""
    (found,) = re.findall(pattern, text, re.MULTILINE)
    assert isinstance(found, str)
    return found
