"""Test a notebook in a real kernel, traced by environment variables."""

import json
import os
import pickle
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import tools
from page_decoder import page_file, page_json
from processes import installed, run_python

pytestmark = pytest.mark.slow

RUN = """
import json, sys
import nbformat
from nbclient import NotebookClient

cells = json.loads(sys.argv[1])
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
NotebookClient(notebook, kernel_name="python3", timeout=900).execute()
outputs = [output for cell in notebook.cells for output in cell.outputs]
print([output.get("text", "") for output in outputs])
print(json.dumps([output.get("data", {}).get("text/html", "") for output in outputs]))
"""
WORK = ["import torch", "def work():\n    return torch.ones(1000)", "held = work()\nprint('done')"]


def executed(cells: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run cells in a kernel of its own; print the texts, and then the HTML, of their outputs."""
    tools.packages("ipykernel", "nbclient")
    env = installed(folder, **variables)
    env["JUPYTER_PATH"] = os.path.join(sys.prefix, "share", "jupyter")
    return run_python("-c", RUN, json.dumps(cells), cwd=folder, env=env)


@pytest.mark.parametrize(
    ("variables", "first", "files", "message"),
    [
        ({"PYTRACER": "1"}, [], 1, ""),
        ({}, ["%env PYTRACER=1"], 1, ""),
        ({}, [], 0, ""),
        ({"PYTRACER": "1", "PYTRACER_ROLE": "a/b"}, [], 1, "PYTRACER_ROLE='a/b' cannot be part of"),
    ],
    ids=["before the kernel", "in a cell", "unset", "bad"],
)
def test_a_notebook(
    tmp_path: Path, variables: dict[str, str], first: list[str], files: int, message: str
) -> None:
    # GIVEN a notebook without any use of pytracer
    # WHEN its cells are run
    done = executed([*first, *WORK], tmp_path, **variables)
    # THEN the cells work, and the kernel writes a file when it ends
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout
    assert message in done.stdout
    paths = list(tmp_path.rglob("*.pickle"))
    assert len(paths) == files
    for path in paths:
        (trace,) = pickle.loads(path.read_bytes())["device_traces"]
        assert ("work", 4000) in {
            (event["frames"][0]["name"], event["size"]) for event in trace if event["frames"]
        }


class Frame(HTMLParser):
    """Finds the page in the HTML of an output: the document of its frame."""

    page = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "iframe":
            self.page = dict(attrs)["srcdoc"] or ""


def test_the_page_is_the_output_of_a_cell(tmp_path: Path) -> None:
    # GIVEN a tracer in a kernel, and a block of a function of a cell
    cells = [
        "import pytracer, torch\ntracer = pytracer.Tracer(device='cpu').start()",
        *WORK[1:],
        # WHEN its page is the last value of a cell
        "tracer.view()",
        "tracer.stop()",
    ]
    done = executed(cells, tmp_path)
    # THEN the output of the cell is a frame with the page, and the page has the block
    assert done.returncode == 0, done.stderr
    (output,) = filter(None, json.loads(done.stdout.splitlines()[-1]))
    frame = Frame()
    frame.feed(output)
    html = frame.page.encode()
    assert page_json(html)["verdict"]["heading"] == "NO PROBLEM FOUND (cpu)"
    file = page_file(html)
    (device,) = file["devices"]
    rows = (device["blocks"]["requested_bytes"] == 4000).nonzero()[0]
    sites = {file["sites"][file["stacks"]["site"][device["blocks"]["stack"][row]]] for row in rows}
    assert any(site.endswith(" work") for site in sites), sites
