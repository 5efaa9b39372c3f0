"""The lines of a program that read values of a device, which a simulated one does not compute."""

import ast
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from types import CodeType, FrameType

from pytracer.rehearsal import simulated
from pytracer.rehearsal.plan import Report, Value

_OWN = os.path.dirname(os.path.dirname(__file__))
_INSTALLED = tuple({*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), _OWN})
_SIZES = (
    *("nonzero", "unique", "masked_select", "argwhere", "bincount", "repeat_interleave"),
    "range",
)
_MOST = 200  # lines of a program

_found: dict[tuple[CodeType, int], Value] = {}


def watch(report: Report) -> None:
    """Note each line that copies values from a device, in `report`."""
    simulated.on_read(lambda _: _note(report, sys._getframe(1)))


def _note(report: Report, frame: FrameType | None) -> None:
    frame = own_frame(frame)
    if frame is None or len(report.values) >= _MOST:
        return
    code, line = frame.f_code, frame.f_lineno
    value = _found.get((code, line))
    if value is None:
        source = linecache.getline(code.co_filename, line).strip()
        value = Value(_place(frame), source, decides=_decides(code.co_filename, line))
        _found[code, line] = value
        report.values.append(value)
    value.count += 1


def own_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the program itself, or else of any library."""
    found = frame
    while found is not None and found.f_code.co_filename.startswith((*_INSTALLED, "<")):
        found = found.f_back
    return frame if found is None else found


def place_of(frame: FrameType | None) -> str:
    """Return the program's line in a frame or its callers, as in "train.py:31 while True:"."""
    frame = own_frame(frame)
    if frame is None:
        return "an unknown line"
    return f"{_place(frame)} {linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()}"


def _place(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _decides(filename: str, line: int) -> bool:
    """Return whether a branch, a loop or a size hangs on what a line reads.

    That is so of the test of a branch, and of a function whose result has as many elements as
    there are values of some kind. A name that gets the value is followed within its function.
    """
    return any(first <= line <= last and decides for first, last, decides in _statements(filename))


@cache
def _statements(filename: str) -> list[tuple[int, int, bool]]:
    """Return the first and the last line of each statement or test, and whether it decides."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return []
    found = []
    for scope in (node for node in ast.walk(tree) if isinstance(node, _SCOPES)):
        nodes = [*_nodes_of(scope)]
        tests = [node.test for node in nodes if isinstance(node, _TESTS)]
        loops = (node for node in nodes if isinstance(node, ast.comprehension))
        tests += [test for loop in loops for test in loop.ifs]
        tested = _names(tests)
        found += [_lines(test, True) for test in tests]
        for node in nodes:
            if isinstance(node, ast.Assign):
                found.append(_lines(node, not tested.isdisjoint(_names(node.targets))))
            elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
                found.append(_lines(node, not tested.isdisjoint(_names([node.target]))))
            elif isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                found.append(_lines(node, name in _SIZES))
            elif isinstance(node, ast.Subscript):
                found.append(_lines(node, isinstance(node.slice, ast.Compare)))
    return found


_SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)
_TESTS = (ast.If, ast.While, ast.Assert, ast.IfExp)


def _nodes_of(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function or a module without those of its functions."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, _SCOPES):
            yield from _nodes_of(node)


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names of variables and attributes, as in "stop" of `self.stop`."""
    found = (each for node in nodes for each in ast.walk(node))
    return {getattr(each, "id", getattr(each, "attr", "")) for each in found} - {""}


def _lines(node: ast.expr | ast.stmt, decides: bool) -> tuple[int, int, bool]:
    return node.lineno, node.end_lineno or node.lineno, decides
