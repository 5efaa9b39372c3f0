"""The files that a program has left, and what is in them."""

import pickle
from pathlib import Path
from typing import Any

import viewers


def load(path: Path) -> dict[str, Any]:
    """Load a snapshot, and check that viewers accept it."""
    snapshot: dict[str, Any] = pickle.loads(path.read_bytes())
    viewers.check_snapshot(snapshot)
    return snapshot


def live_sizes(snapshot: dict[str, Any]) -> list[int]:
    return sorted(segment["total_size"] for segment in snapshot["segments"])


def files(directory: Path) -> list[str]:
    """List all files, hidden ones too, except the program and boxes, which a lost file leaves."""
    found = (path for path in directory.rglob("*") if path.is_file() and path.suffix != ".box")
    return sorted(str(path.relative_to(directory)) for path in found if path.name != "program.py")
