"""Test a notebook in a real kernel, traced by environment variables."""

import json
import os
import pickle
import sys
from pathlib import Path

import pytest
from processes import installed, run_python

pytestmark = pytest.mark.slow

RUN = """
import json, sys
import nbformat
from nbclient import NotebookClient

cells = json.loads(sys.argv[1])
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
NotebookClient(notebook, kernel_name="python3", timeout=900).execute()
print([output.get("text", "") for cell in notebook.cells for output in cell.outputs])
"""
WORK = ["import torch", "def work():\n    return torch.ones(1000)", "held = work()\nprint('done')"]


@pytest.mark.parametrize(
    ("variables", "first", "files", "message"),
    [
        ({"PYTRACER": "1"}, [], 1, ""),
        ({}, ["%env PYTRACER=1"], 1, ""),
        ({}, [], 0, ""),
        ({"PYTRACER": "1", "PYTRACER_ROLE": "a/b"}, [], 0, "PYTRACER_ROLE='a/b' cannot be part of"),
    ],
    ids=["before the kernel", "in a cell", "unset", "bad"],
)
def test_a_notebook(
    tmp_path: Path, variables: dict[str, str], first: list[str], files: int, message: str
) -> None:
    # GIVEN a notebook without any use of pytracer
    for module in ("ipykernel", "nbclient"):
        pytest.importorskip(module, exc_type=ImportError)
    env = installed(tmp_path, **variables)
    env["JUPYTER_PATH"] = os.path.join(sys.prefix, "share", "jupyter")
    # WHEN its cells are run
    done = run_python("-c", RUN, json.dumps([*first, *WORK]), cwd=tmp_path, env=env)
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
