"""Which lines of a program decide by values that they read."""

import linecache
import sys
import types

import pytest

from pytracer.rehearsal.values import _BRANCH, _OTHER, _SIZE, _parts, _use

PROGRAM = """
def train(x, losses, mask):
    loss = x.mean()
    print(loss.item())
    if loss.item() < 0.1:
        return
    while not loss.isnan():
        pass
    kept = x[x[:, 0] > 0]
    rest = x[~mask]
    found = mask.nonzero()
    first = torch.where(mask)
    chosen = torch.where(mask, x, 0).sum().item()
    for i in range(int(x.max())):
        losses[i] = loss.item()
    done = x.all().item()
    self.stop = x.any().item()
    return [y for y in x if y > 0] if done and self.stop else first

def other(x):
    done2 = x.item()
    loss = x.item()
"""

USES = {
    4: _OTHER,
    5: _BRANCH,
    7: _BRANCH,
    9: _SIZE,
    10: _SIZE,
    11: _SIZE,
    12: _SIZE,
    13: _OTHER,
    14: _SIZE,
    15: _OTHER,
    16: _BRANCH,
    17: _BRANCH,
    18: _BRANCH,
    21: _OTHER,
    22: _OTHER,  # what another function tests has the same name
}


@pytest.mark.parametrize(("line", "use"), USES.items())
def test_the_use_of_a_value(line: int, use: int) -> None:
    # GIVEN a program
    name = "program of test_values.py"
    linecache.cache[name] = (len(PROGRAM), None, PROGRAM.splitlines(keepends=True), name)
    # WHEN one of its lines reads a value
    code = compile(PROGRAM, name, "exec")
    frame = types.SimpleNamespace(f_code=code, f_lineno=line, f_lasti=10**6)
    # THEN it is known what for
    assert _use(frame) == use  # type: ignore[arg-type]


def test_a_file_that_is_no_python_decides_nothing() -> None:
    code = compile("1", "/nowhere/x.py", "exec")
    frame = types.SimpleNamespace(f_code=code, f_lineno=1, f_lasti=0)
    assert _use(frame) == _OTHER  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "uses"),
    [
        ("if x: x.item()", [_BRANCH, _OTHER]),
        ("y = x.item() if ok else 0", [_OTHER]),
        ("y = 0 if x.item() else 1", [_BRANCH]),
        ("assert x", [_BRANCH]),
        ("if ok: z[x.item() > 0]", [_SIZE]),
        ("z[x]", [_SIZE]),
        ("z[0] = x.item()", [_OTHER]),
        ("y = z[0] + x.item()", [_OTHER]),
        ("range(x.item())", [_SIZE]),
        ("n = x.item(); range(n)", [_SIZE]),
        ("n = x.item(); y = lambda: z[0, :n]", [_SIZE]),
        ("n = x.item(); y = z[n]", [_OTHER]),
        ("match x.item():\n case 1: pass", [_BRANCH]),
    ],
)
def test_the_uses_of_one_line(line: str, uses: list[int]) -> None:
    # GIVEN a value that notes what it is read for
    class Value:
        def item(self) -> int:
            found.append(_use(sys._getframe(1)))
            return 1

        def __bool__(self) -> bool:
            found.append(_use(sys._getframe(1)))
            return True

        __index__ = item

    found: list[int] = []
    name = "line of test_values.py"
    linecache.cache[name] = (len(line), None, [line], name)
    # WHEN a line runs that reads it, THEN each part of the line has its own use
    _parts.cache_clear()
    exec(compile(line, name, "exec"), {"x": Value(), "ok": 1, "z": [0, 1]})
    assert found == uses
