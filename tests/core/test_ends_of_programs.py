"""What does a program leave when it ends, or is killed?"""

from pathlib import Path

import pytest
from files_left import files, live_sizes, load
from processes import run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "code", "message"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("raise ValueError('the training failed')", 1, "the training failed"),
    ],
)
def test_exit_while_recording(tmp_path: Path, ending: str, code: int, message: str) -> None:
    # GIVEN a program that ends without a stop, with live tensors in various places
    program = f"""
import builtins
import torch
from pytracer import Tracer

Tracer("snapshot.pickle").start()
kept = torch.empty(1000)
builtins.kept = torch.empty(2000)
cycle = [torch.empty(3000)]
cycle.append(cycle)

def down(depth=50, held=torch.empty(4000)):
    if depth:
        return down(depth - 1)
    {ending}

down()
"""
    # WHEN it ends
    done = run(program, cwd=tmp_path, is_finalised=True)
    # THEN its exit status and error are unchanged, and the snapshot has the live blocks
    assert done.returncode == code
    assert message in done.stderr
    assert "pytracer" not in done.stderr
    assert files(tmp_path) == ["snapshot.pickle"]
    assert live_sizes(load(tmp_path / "snapshot.pickle")) == [4000, 8000, 12000, 16000]


@pytest.mark.slow
def test_exit_of_a_multiprocessing_child(tmp_path: Path) -> None:
    # GIVEN a child that multiprocessing forks, and that ends without a stop
    program = """
import multiprocessing
import torch
from pytracer import Tracer

def work():
    global kept
    Tracer("child.pickle").start()
    kept = torch.empty(1000)

with Tracer("parent.pickle"):
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == 0
"""
    # WHEN it ends
    done = run(program, cwd=tmp_path, is_finalised=True)
    # THEN its snapshot is written, although such a child does not run the usual exit callbacks
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path) == ["child.pickle", "parent.pickle"]
    assert live_sizes(load(tmp_path / "child.pickle")) == [4000]


def test_blocks_freed_after_the_interpreter_has_ended(tmp_path: Path) -> None:
    # GIVEN a tensor that C owns, and a recording that starts after pytracer's exit callback
    program = """
import atexit
import ctypes
from pathlib import Path

import torch
from pytracer import Tracer

cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
libc = ctypes.CDLL(None)
at_exit = libc.__cxa_atexit
at_exit.argtypes = [ctypes.c_void_p] * 3

def call_at_exit(function, argument):
    at_exit(ctypes.cast(function, ctypes.c_void_p), argument, None)

libc.strdup.restype = ctypes.c_void_p
late = Tracer()
atexit.register(late.start)
with Tracer("snapshot.pickle"):
    one = (ctypes.c_int64 * 1)(1)
    tensors = []
    for number in (1000, 2000):
        tensors.append(ctypes.c_void_p())
        shape = (ctypes.c_int64 * 1)(number)
        assert not cpu.aoti_torch_empty_strided(
            ctypes.c_int64(1), shape, one, 6, 0, 0, ctypes.byref(tensors[-1])
        )
call_at_exit(libc.puts, libc.strdup(b"freed"))
for tensor in tensors:
    call_at_exit(cpu.aoti_torch_delete_tensor_object, tensor)
"""
    # WHEN it is freed by an exit handler of C
    done = run(program, cwd=tmp_path, is_finalised=True)
    # THEN the process ends normally
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "freed\n")
    assert live_sizes(load(tmp_path / "snapshot.pickle")) == [4000, 8000]
