"""Take the pictures of `pytracer view` that the README and the pages show.

    python docs/screenshots.py

They are pictures of real recordings: the leak is the program of docs/how-to/leak.md, on the CPU;
the fragmentation is that of docs/explanation/fragmentation.md, on a simulated CUDA device. Needs
playwright, Pillow, Chromium, and pytracer in `.venv` and `.venv-cuda-2.12.1`.
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


def leak(folder: Path) -> Path:
    """Record the program of the page about leaks."""
    page = (DOCS / "how-to/leak.md").read_text()
    (program,) = re.findall(r'^```python title="train\.py"\n(.*?)^```$', page, re.M | re.S)
    (folder / "train.py").write_text(program)
    subprocess.run([PYTHON, "train.py"], cwd=folder, check=True)
    return folder / "run.pickle"


def fragmentation(folder: Path) -> Path:
    """Record the out-of-memory of the 3B model."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    variables = {
        "SIMULATED_CAPACITY_MB": "39936",
        "PYTRACER": "1",
        "PYTRACER_OUTPUT": "snapshot.pickle",
        "PATH": "/usr/bin:/bin",
    }
    command = [*CUDA, "examples/fsdp_gathers.py", "3b"]
    subprocess.run(command, cwd=folder, env=variables, stderr=subprocess.DEVNULL, check=False)
    return next(folder.glob("snapshot.rank0.oom-*.pickle"))


def main() -> None:
    """Record, write the pages, and take the pictures."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if chromium is None:
        sys.exit("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as name:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for record, tab in ((leak, "blocks"), (fragmentation, "map")):
            folder = Path(name, record.__name__)
            folder.mkdir()
            command = [PYTHON, "-m", "pytracer", "view", record(folder).name, "-o", "page.html"]
            subprocess.run(command, cwd=folder, check=True)
            shown = browser.new_page(viewport=SIZE)
            shown.goto(f"{(folder / 'page.html').as_uri()}#tab={tab}&colour=site")
            shown.wait_for_timeout(3000)
            path = DOCS / f"view-{record.__name__}.png"
            shown.screenshot(path=path)
            Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
