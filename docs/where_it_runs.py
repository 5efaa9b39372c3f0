"""The page "Where does it run": what CI runs, what was compiled, and what nobody tried.

The Makefile says on which versions the tests run, `.ci/run` with which Python, and
`.ci/wheels/pins.json` for which releases hooks are compiled.
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTED, COMPILED = "tested in CI", "compiled"

HEAD = """# Where does it run

**torch 2.6 to 2.15 on Linux on x86-64, Python 3.11 to 3.14, without a compiler if you use the
wheel.** Another release [needs a C++ compiler](../how-to/hooks.md) at the first start.

- *tested in CI*: the tests run with this release and Python {python}, over simulated devices, which
  run torch's and torch_npu's real allocators. The newest is tested if the sources that depend on a
  release have changed. **No release was tried on a real GPU or NPU in CI.**
- *compiled*: the hooks for this release are in the wheel.

"""
TAIL = """
- **Python 3.12 and 3.13** were run by hand, once, with torch 2.12.1: the demo, recording with an
  empty `PATH`, and the fast tests of the core. **3.14** passed the tests of frames and owners, by
  hand, with Debian's torch 2.14.1; **3.15** was only compiled for. Newer Pythons, and builds
  without the GIL, are recorded without stacks and names of holders: `pytracer doctor` says so.
- **aarch64**: `make test-long` runs the core's C++ tests on an emulated processor. No wheel was
  built.
- **Refused** are torch before 2.6, ROCm, and releases of torch_npu before 2.13.0 that are not in
  the table. Linux is the only system. [Reading files](../how-to/read-files.md) needs no torch.
"""


def page() -> str:
    """Return docs/reference/where-it-runs.md, without the note that it is made."""
    makefile = (ROOT / "Makefile").read_text()
    python = _only(r"with Python (3\.\d+)", (ROOT / ".ci/run").read_text())
    accelerators = _only(r"^ACCELERATORS := (.*)$", makefile).split()
    cpu = _only(r"^TORCH \?= torch==(\S+)$", makefile)
    table = ["| records | release | state |", "|---|---|---|"]
    pins = json.loads((ROOT / ".ci/wheels/pins.json").read_text())
    for backend in ("cpu", "cuda", "npu"):
        versions = pins["torch-npu" if backend == "npu" else "torch"]
        package = "torch_npu (with torch of the same number)" if backend == "npu" else "torch"
        for state in (TESTED, COMPILED):
            names = [
                version
                for version in versions
                if (state == TESTED)
                == (version == cpu if backend == "cpu" else f"{backend}-{version}" in accelerators)
            ]
            if names:
                table.append(f"| {backend.upper()} | {package} {', '.join(names)} | {state} |")
    return HEAD.format(python=python) + "\n".join(table) + "\n" + TAIL


def _only(pattern: str, text: str) -> str:
    """Return what the one match of a pattern has in its parentheses."""
    (found,) = re.findall(pattern, text, re.MULTILINE)
    assert isinstance(found, str)
    return found
