"""The lines of a program that read values of a device, which a simulated one does not compute."""

import ast
import linecache
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from pytracer.rehearsal import simulated
from pytracer.rehearsal.plan import Report, Value

_OWN = os.path.dirname(os.path.dirname(__file__))
_INSTALLED = tuple({*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), _OWN})
_SIZES = (
    *("nonzero", "unique", "masked_select", "argwhere", "bincount", "repeat_interleave"),
    *("range", "zeros", "ones", "empty", "full", "rand", "randn", "randint", "arange", "split"),
    *("view", "reshape", "expand", "repeat", "narrow", "new_zeros", "new_empty", "pad"),
)
"""Functions whose results, or arguments, have as many elements as there are of some kind."""
_MOST, _WIDTH = 200, 100  # lines of a program, and characters of each

_found: set[tuple[CodeType, int]] = set()


def watch(report: Report, answer: Callable[[int, int, int], bool]) -> None:
    """Note each line that copies values from a device, in `report`, if nothing answers it."""

    def read(*copy: int) -> None:
        if not answer(*copy):
            _note(report, sys._getframe().f_back)

    simulated.on_read(read)


def _note(report: Report, frame: FrameType | None) -> None:
    own = own_frame(frame)
    if frame is None or own is None:
        return
    # Libraries read values for many purposes. Of theirs, those matter that become sizes, but not
    # for a tensor's text.
    if frame is not own and _use(frame) == _SIZE and "_tensor_str" not in frame.f_code.co_filename:
        own = frame
    line = own.f_code, own.f_lineno
    if line not in _found and len(_found) < _MOST:
        _found.add(line)
        report.values.append(Value(_place(own), _source(own)[:_WIDTH], _use(own) != _OTHER))


def own_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the program itself, or else of any library."""
    found = frame
    while found is not None and found.f_code.co_filename.startswith((*_INSTALLED, "<")):
        found = found.f_back
    return frame if found is None else found


def place_of(frame: FrameType | None) -> str:
    """Return the program's line in a frame or its callers, as in "train.py:31 while True:"."""
    own = own_frame(frame)
    return "an unknown line" if own is None else f"{_place(own)} {_source(own)}"


def _place(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _source(frame: FrameType) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


def _use(frame: FrameType) -> int:
    """Return what the values are for that a frame reads: a branch or loop, a size, or else.

    A name that gets a value is followed within its function.
    """
    first, last = _span(frame)
    parts = _parts(frame.f_code.co_filename)
    uses = (use for start, end, use in parts if start <= first and last <= end)
    # Python 3.11 says only of which statement a test is.
    return _BRANCH if (first, last, _TEST) in parts else max([_OTHER, *uses])


_TEST, _OTHER, _BRANCH, _SIZE = range(-1, 3)

Place = tuple[int, int]  # a line and a column


def _span(frame: FrameType) -> tuple[Place, Place]:
    """Return where what a frame executes begins and ends. Code may lack columns."""
    found: Any = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,))
    if None in found:
        return (frame.f_lineno, sys.maxsize), (frame.f_lineno, 0)
    first, last, start, end = found
    return (first, start), (last, end)


@cache
def _parts(filename: str) -> list[tuple[Place, Place, int]]:
    """Return where each part of a program begins and ends that uses values, and for what."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return []
    found = []
    for scope in (node for node in ast.walk(tree) if isinstance(node, _SCOPES)):
        nodes = [*_nodes_of(scope)]
        tests = [test for node in nodes for test in _fields(node, "test", "ifs", "subject")]
        sizes = [node for node in nodes if _is_size(node)]
        counts = [count for node in sizes for count in _counts(node)]
        assignments = [node for node in nodes if isinstance(node, _ASSIGNMENTS)]
        found += [_part(node, _TEST) for node in nodes if hasattr(node, "test")]
        for use, parts, decisive in ((_BRANCH, tests, tests), (_SIZE, sizes, counts)):
            names = _names(decisive)
            found += [_part(node, use) for node in parts]
            for node in assignments:
                if names & _names(_fields(node, "target", "targets")):
                    found.append(_part(node, use))
    return found


_SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)
_ASSIGNMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)


def _fields(node: ast.AST, *names: str) -> Iterator[ast.AST]:
    """Yield the nodes in the fields of a node, which are one or a list."""
    for name in names:
        field = getattr(node, name, [])
        yield from field if isinstance(field, list) else [field]


def _is_size(node: ast.AST) -> bool:
    """Return whether a size hangs on a value that is read within an expression, as by a mask."""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return name in _SIZES or (name == "where" and len(node.args) == 1)
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)


def _counts(size: ast.AST) -> Iterator[ast.AST]:
    """Yield the sizes themselves: the arguments of a call, or the bounds of slices."""
    if isinstance(size, ast.Call):
        return iter(size.args)
    return (each for each in ast.walk(size) if isinstance(each, ast.Slice))


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


def _part(node: Any, use: int) -> tuple[Place, Place, int]:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset), use
