"""Answers from a snapshot: reports, usage over time, call sites, comparisons.

    from pytracer.analysis import explain, stats
    from pytracer.reading import load

    snapshot = load("snapshot.pickle")
    report = stats(snapshot)                       # the figures of `pytracer show --all`
    explanations = explain(snapshot)               # the last out-of-memory, or the peak

Nothing here imports torch or needs a device. The names are imported when they are used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytracer.analysis.diff.compare import compare_snapshots as compare_snapshots
    from pytracer.analysis.explanation import explain as explain
    from pytracer.analysis.groups import who_holds as who_holds
    from pytracer.analysis.history import ContradictionError as ContradictionError
    from pytracer.analysis.history import replay as replay
    from pytracer.analysis.holders import sites_at as sites_at
    from pytracer.analysis.leaks.several_files import find_leaks as find_leaks
    from pytracer.analysis.pinned_segments import fragmentation as fragmentation
    from pytracer.analysis.report import stats as stats

_HOMES = {
    "ContradictionError": "history",
    "compare_snapshots": "diff.compare",
    "explain": "explanation",
    "find_leaks": "leaks.several_files",
    "fragmentation": "pinned_segments",
    "replay": "history",
    "sites_at": "holders",
    "stats": "report",
    "who_holds": "groups",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
