"""The cells of a notebook, by the names of the files as which IPython compiles them.

A kernel compiles a cell as `/tmp/ipykernel_22515/1824502432.py`, which does not exist, and which is
different in the next run of the notebook. A snapshot has the name that IPython's own tracebacks
have, `In[3]`. If a cell was run again without a change, it is the later number, as in the notebook.
"""

import itertools
import linecache
import re
import sys
from types import FrameType
from typing import Any
from weakref import WeakValueDictionary

MAX_CELLS = 10_000  # of files of IPython's and other programs that are looked at, the newest first

_started: WeakValueDictionary[tuple[str, int], Any] = WeakValueDictionary()  # tracers, by line
_runs: dict[tuple[str, int], int] = {}  # the run of the cell that started them


def earlier_of_cell(tracer: Any) -> Any | None:
    """Return the tracer that an earlier run of the same line of a cell has started; None: none.

    A cell that is run again and again would otherwise keep the tracers of all its runs.
    """
    try:
        found = _line_and_run()
        if found is None:
            return None
        line, run = found
        earlier = _started.get(line) if _runs.get(line) != run else None
        _started[line], _runs[line] = tracer, run
        return None if earlier is tracer else earlier
    except Exception:  # another IPython than expected
        return None


def _line_and_run() -> tuple[tuple[str, int], int] | None:
    """Return the line of a cell that calls pytracer, and the number of the run; None: no cell."""
    shell = _shell()
    if shell is None:
        return None
    frame: FrameType | None = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("pytracer."):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename not in cell_names():
        return None
    # A kernel names a cell by its text alone, a terminal by the number of the run, too.
    cell = re.sub(r"^<ipython-input-\d+-", "", frame.f_code.co_filename)
    return (cell, frame.f_lineno), shell.execution_count


def _shell() -> Any:
    ipython: Any = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def cell_names() -> dict[str, str]:
    """Return the names of cells by file; {} outside of IPython. Never imports it, never raises."""
    try:
        shell = _shell()
        newest = itertools.islice(reversed([*linecache.cache]), 0 if shell is None else MAX_CELLS)
        found = ((file, shell.compile.format_code_name(file)) for file in newest)
        return {file: label_and_name[1] for file, label_and_name in found if label_and_name}
    except Exception:  # another IPython than expected: the files keep their names
        return {}
