"""Take the pictures of `pytracer view` that the README and the pages show.

    python docs/screenshots.py

They are pictures of real recordings: the leak is the program of docs/how-to/leak.md, on the CPU;
the difference compares it with the program without the leak; the fragmentation is that of
docs/explanation/fragmentation.md, and the modules are those of examples/memory_by_module.py, on a
simulated CUDA device. Needs playwright, Pillow, Chromium, and pytracer in `.venv` and
`.venv-cuda-2.12.1`.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
CUDA = (ROOT / "tests/devices/simulate", "cuda", ROOT / ".venv-cuda-2.12.1/bin/python")
SIZE = {"width": 1280, "height": 720}
COLOURS = 128  # of a picture: more would be larger, and look the same


def leak(folder: Path, *, leaks: bool = True) -> list[str]:
    """Record the program of the page about leaks."""
    page = (DOCS / "how-to/leak.md").read_text()
    (program,) = re.findall(r'^```python title="train\.py"\n(.*?)^```$', page, re.M | re.S)
    name = "run.pickle" if leaks else "before.pickle"
    program = program.replace("run.pickle", name)
    if not leaks:
        program = program.replace("history.append(loss)", "history.append(loss.item())")
    (folder / "train.py").write_text(program)
    subprocess.run([PYTHON, "train.py"], cwd=folder, check=True)
    return [name]


def difference(folder: Path) -> list[str]:
    """Record the program of the page about leaks, and the program without the leak."""
    return [*leak(folder), "--baseline", *leak(folder, leaks=False)]


def simulated(folder: Path, *program: str) -> None:
    """Run an example on a simulated CUDA device."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    variables = {
        "SIMULATED_CAPACITY_MB": "39936",
        "PYTRACER_OUTPUT": "snapshot.pickle",
        "PATH": "/usr/bin:/bin",
    }
    if program[0] == "examples/fsdp_gathers.py":
        variables["PYTRACER"] = "1"
    command = [*CUDA, *program]
    subprocess.run(command, cwd=folder, env=variables, stderr=subprocess.DEVNULL, check=False)


def fragmentation(folder: Path) -> list[str]:
    """Record the out-of-memory of the 3B model."""
    simulated(folder, "examples/fsdp_gathers.py", "3b")
    return [next(folder.glob("snapshot.rank0.oom-*.pickle")).name]


def modules(folder: Path) -> list[str]:
    """Record a small GPT with its modules."""
    simulated(folder, "examples/memory_by_module.py")
    return ["gpt.pickle"]


def main() -> None:
    """Record, write the pages, and take the pictures."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if chromium is None:
        sys.exit("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as name:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for record, shows in (
            (leak, "tab=blocks&colour=site"),
            (fragmentation, "tab=map&colour=site"),
            (modules, "tab=modules"),
            (difference, "tab=difference&colour=site"),
        ):
            folder = Path(name, record.__name__)
            folder.mkdir()
            command = [PYTHON, "-m", "pytracer", "view", *record(folder), "-o", "page.html"]
            subprocess.run(command, cwd=folder, check=True)
            shown = browser.new_page(viewport=SIZE)
            shown.goto(f"{(folder / 'page.html').as_uri()}#{shows}")
            shown.wait_for_timeout(3000)
            path = DOCS / f"view-{record.__name__}.png"
            shown.screenshot(path=path)
            Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
