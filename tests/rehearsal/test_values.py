"""Which lines of a program decide by values that they read."""

import linecache
import types

import pytest

from pytracer.rehearsal.values import _BRANCH, _OTHER, _SIZE, _use

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
    frame = types.SimpleNamespace(f_code=code, f_lineno=line)
    # THEN it is known what for
    assert _use(frame) == use  # type: ignore[arg-type]


def test_a_file_that_is_no_python_decides_nothing() -> None:
    frame = types.SimpleNamespace(f_code=compile("1", "/nowhere/x.py", "exec"), f_lineno=1)
    assert _use(frame) == _OTHER  # type: ignore[arg-type]
