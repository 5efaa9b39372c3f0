"""The cells of a notebook, by the names of the files as which IPython compiles them.

A kernel compiles a cell as `/tmp/ipykernel_22515/1824502432.py`, which does not exist, and which is
different in the next run of the notebook. A snapshot has the name that IPython's own tracebacks
have, `In[3]`. If a cell was run again without a change, it is the later number, as in the notebook.
"""

import itertools
import linecache
import sys
from typing import Any

MAX_CELLS = 10_000
"""How many files of IPython's and other programs' are looked at, the newest first."""


def cell_names() -> dict[str, str]:
    """Return the names of cells by file; {} outside of IPython, which is never imported.

    Never raises.
    """
    try:
        ipython: Any = sys.modules.get("IPython")
        shell = None if ipython is None else ipython.get_ipython()
        if shell is None:
            return {}
        names = {}
        for file in itertools.islice(reversed([*linecache.cache]), MAX_CELLS):
            label_and_name = shell.compile.format_code_name(file)
            if label_and_name is not None:
                names[file] = label_and_name[1]
        return names
    except Exception:  # another IPython than expected: the files keep their names
        return {}
