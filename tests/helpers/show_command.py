"""`pytracer show --all` as a function, and files for it."""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import commands

GOLDEN = Path(__file__).parents[1] / "golden"
CUDA = GOLDEN / "snapshot-1.3-cuda.pickle"
MIB = 2**20


invoke = partial(commands.invoke, "show", "--all")


def write_content(tmp_path: Path, content: dict[str, Any]) -> Path:
    path = tmp_path / "made.pickle"
    path.write_bytes(pickle.dumps(content, protocol=4))
    return path
