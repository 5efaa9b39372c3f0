"""Test `%%pytracer` in a real kernel, and the names of cells."""

import json
import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tools
from processes import installed, run_python

import pytracer

RUN = """
import json, sys
import nbformat
from nbclient import NotebookClient

cells = json.loads(sys.argv[1])
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
NotebookClient(notebook, kernel_name="python3", timeout=300, allow_errors=True).execute()
print(json.dumps([cell.outputs for cell in notebook.cells]))
"""

CELLS = [
    "%load_ext pytracer",
    "import torch\ndef work(size):\n    return torch.ones(size)",
    "%%pytracer --output out stack_depth=8 device=cpu\nkept = work(100_000)\nmore = torch.ones(5)",
    "%%pytracer\nraise ValueError('broken')",
    "%%pytracer stack_depth=no\nran = 1",
    "%%pytracer --no\nran = 1",
    "%%pytracer\nimport asyncio\nawait asyncio.sleep(0)\nprint('awaited')",
    "assert 'ran' not in globals()\n"
    "import pytracer\nwith pytracer.Tracer('x.pickle', device='cpu') as tracer: work(7)\n"
    "events = tracer.events()\n"
    "(one,) = events[(events['action'] == 0) & (events['size_bytes'] == 28)]\n"
    "print([f['filename'] for f in tracer.frames(one['stack'])][:2])",
]


def frames(path: Path, size: int) -> list[tuple[str, str, int]]:
    (trace,) = pickle.loads(path.read_bytes())["device_traces"]
    (found,) = {
        tuple((f["filename"], f["name"], f["line"]) for f in event["frames"])
        for event in trace
        if event["action"] == "alloc" and event["size"] == size
    }
    return list(found)


def text(output: dict[str, Any]) -> str:
    return str(output["data"]["text/plain"] if "data" in output else output.get("text", ""))


@pytest.mark.slow
def test_cells_of_a_notebook(tmp_path: Path) -> None:
    # GIVEN a notebook that records cells
    tools.packages("ipykernel", "nbclient")
    env = installed(tmp_path, JUPYTER_PATH=os.path.join(sys.prefix, "share", "jupyter"))
    # WHEN it is run
    done = run_python("-c", RUN, json.dumps(CELLS), cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    outputs = json.loads(done.stdout)
    # THEN a cell has the report below it, which names the cells
    (report,) = outputs[2]
    assert "\n peak    390.6 KiB\n" in text(report), outputs[2]
    assert "In[2]:3 work" in text(report)
    assert "← In[3]:1 <module>" in text(report)
    # AND links to the page and the snapshot, in which the frames are those of the cells
    assert 'href="out/cell3.html"' in "".join(report["data"]["text/html"])
    assert (tmp_path / "out" / "cell3.html").stat().st_size > 100_000
    names = frames(tmp_path / "out" / "cell3.pickle", 400_000)
    assert names[:2] == [("In[2]", "work", 3), ("In[3]", "<module>", 1)]
    assert len(names) == 8
    # AND a cell that raises has its own traceback once, and the execution ends there
    errors = [output for output in outputs[3] if output["output_type"] == "error"]
    assert [error["ename"] for error in errors] == ["ValueError", "CellFailedError"]
    assert errors[1]["traceback"] == ["The cell raised ValueError: its traceback is above."]
    # AND a wrong option is named, and the cell does not run
    assert "stack_depth='no'" in json.dumps(outputs[4]).replace("\\u001b", "")
    assert "'--no' is unknown. Usage: " in json.dumps(outputs[5])
    # AND so is code that only IPython's own loop can run
    assert "cannot be recorded as a cell. Call tracer = " in json.dumps(outputs[6])
    # AND so are the frames of a tracer in the code
    assert outputs[7] == [
        {"name": "stdout", "output_type": "stream", "text": "['In[2]', 'In[8]']\n"}
    ] or "['In[2]', 'In[8]']" in json.dumps(outputs[7]), outputs[7]
    assert frames(tmp_path / "x.pickle", 28)[:2] == [("In[2]", "work", 3), ("In[8]", "<module>", 3)]


def test_cells_without_history_have_files_of_their_own(tmp_path: Path) -> None:
    # GIVEN a shell that stores no history, so that the numbers of its cells are equal
    tools.packages("IPython")
    from pytracer.integrations.ipython import _Magic

    class Shell:
        history_manager = SimpleNamespace(input_hist_raw=[""])
        execution_count = 1

        def should_run_async(self, _cell: str, *, transformed_cell: str) -> bool:
            return False

        def transform_cell(self, cell: str) -> str:
            return cell

        def run_cell(self, cell: str, store_history: bool) -> SimpleNamespace:
            exec(cell, {})
            return SimpleNamespace(error_before_exec=None, error_in_exec=None)

    magic = _Magic(Shell())
    # WHEN several cells are recorded
    for size in (1001, 2002, 3003):
        magic(f"--output {tmp_path} device=cpu", f"import torch; torch.ones({size})")
    # THEN each has a file
    for name, size in (("cell0", 4004), ("cell0_2", 8008), ("cell0_3", 12012)):
        assert frames(tmp_path / f"{name}.pickle", size)
        assert (tmp_path / f"{name}.html").exists()


def test_names_are_those_of_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN code that was compiled as a cell is, and a shell that knows it
    import linecache

    file = "/tmp/ipykernel_22515/1824502432.py"

    class Compile:
        def format_code_name(self, name: str) -> tuple[str, str] | None:
            return ("Cell", "In[4]") if name == file else None

    class IPython:
        compile = Compile()

        def get_ipython(self) -> "IPython":
            return self

    monkeypatch.setitem(sys.modules, "IPython", IPython())  # type: ignore[arg-type]
    monkeypatch.setitem(linecache.cache, file, (1, None, ["\n"], file))
    names: dict[str, Any] = {}
    exec(compile("import torch\ndef work(): return torch.ones(321)\n", file, "exec"), names)
    # WHEN it allocates
    with pytracer.Tracer(tmp_path / "x.pickle", device="cpu") as tracer:
        kept = names["work"]()
    # THEN the file has the name of the cell, and so has the live recording
    assert frames(tmp_path / "x.pickle", kept.nbytes)[0] == ("In[4]", "work", 2)
    assert "In[4]:2 work" in str(tracer.report())
    # AND a shell that fails changes nothing
    monkeypatch.setattr(IPython, "compile", None)
    tracer.dump(tmp_path / "y.pickle")
    assert frames(tmp_path / "y.pickle", kept.nbytes)[0] == (file, "work", 2)
