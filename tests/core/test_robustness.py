"""Test forks, exits, full disks, paths that cannot be written, and bad arguments."""

import contextlib
import logging
import math
import os
import pickle
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import viewers
from processes import run

from pytracer import ConfigError, Tracer, annotate
from pytracer.tracing.snapshot_files import Files


def load(path: Path) -> dict[str, Any]:
    """Load a snapshot, and check that viewers accept it."""
    snapshot: dict[str, Any] = pickle.loads(path.read_bytes())
    viewers.check_snapshot(snapshot)
    return snapshot


def live_sizes(snapshot: dict[str, Any]) -> list[int]:
    return sorted(segment["total_size"] for segment in snapshot["segments"])


def names(snapshot: dict[str, Any]) -> set[str]:
    """Return the names of all functions on the stacks of all events."""
    events = snapshot["device_traces"][0]
    return {frame["name"] for event in events for frame in event["frames"]}


def files(directory: Path) -> list[str]:
    """List all files, hidden ones too, except the program."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(directory)) for path in found if path.name != "program.py")


# --- fork -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fork_in_a_traced_loop(tmp_path: Path) -> None:
    # GIVEN a program that forks while it is traced
    program = """
import os, sys
import torch
from pytracer import Tracer

tracer = Tracer("parent.pickle")
with tracer:
    kept, inherited = torch.empty(1001), torch.empty(1002)
    for number in range(3):
        child = os.fork()
        if child == 0:
            # WHEN the child continues: untraced, with the inherited tracer, and with its own tracer
            torch.empty(6000)
            assert not tracer.stats()["recording"]
            assert tracer.start() is tracer
            assert not tracer.stats()["recording"]
            assert (len(tracer.events()), tracer.stats()["devices"]) == (0, [])
            tracer.clear()
            tracer.stop()
            assert tracer.snapshot()["segments"] == []
            del inherited  # allocated by the parent
            with Tracer(f"child{number}.pickle") as own:
                mine = torch.empty(2000 + number)
                del kept
            assert own.stats()["devices"][0]["unknown_frees"] == 1
            sys.exit(number)  # leaves the parent's `with` and runs the registered exit callbacks
        torch.empty(3000 + number)
        status = os.waitpid(child, 0)[1]
        assert os.waitstatus_to_exitcode(status) == number, status
        assert not os.path.exists("parent.pickle")
"""
    done = run(program, cwd=tmp_path)
    # THEN each process has written its own events once
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path) == [f"child{n}.pickle" for n in range(3)] + ["parent.pickle"]
    parent = load(tmp_path / "parent.pickle")
    assert live_sizes(parent) == [4 * 1001, 4 * 1002]
    assert parent["pytracer"]["devices"][0]["recorded"] == 2 + 3 * 2
    for number in range(3):
        child = load(tmp_path / f"child{number}.pickle")
        assert live_sizes(child) == [4 * (2000 + number)]
        assert child["pytracer"]["devices"][0]["recorded"] == 1
        assert child["pytracer"]["pid"] != parent["pytracer"]["pid"]


@pytest.mark.slow
def test_a_fork_while_a_thread_dumps(tmp_path: Path) -> None:
    # GIVEN a thread that is in `dump()`, outside the GIL, most of the time
    program = """
import os, sys, threading, time
import torch
from pytracer import Tracer

with Tracer(device="cpu") as tracer:
    kept = [torch.empty(1) for _ in range(5_000)]
    stop = threading.Event()

    def dump() -> None:
        while not stop.is_set():
            tracer.dump("snapshot.pickle")

    thread = threading.Thread(target=dump)
    thread.start()
    start = time.monotonic()
    # WHEN children are forked during the dumps, and exit normally
    for _ in range(4):
        time.sleep(0.01)
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    thread.join()
    # THEN no child waits for a thread that it does not have
    print(time.monotonic() - start < 30)
"""
    done = run(program, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


# A process that hangs is killed by SIGALRM, and its exit status fails the test.
BOUNDED = """
import gc, os, signal, subprocess, sys, threading
import torch
from pytracer import Tracer, annotate

def bound():
    signal.alarm(600)

bound()
os.register_at_fork(after_in_child=bound)

def check_that_a_child_can_trace():
    child = os.fork()
    if child == 0:
        with Tracer(device="cpu") as own:
            kept = torch.empty(2000)
        (event,) = own.events()
        assert event["size_bytes"] == 8000
        assert own.frames(event["stack"])[0]["name"] == "check_that_a_child_can_trace"
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tracer.stats()", "pass"),
        ("leave_a_cycle(); gc.collect()", "pass"),
        ("tracer.dump('snapshot.pickle'); tracer.clear()", "pass"),
        # `logging` does the same with its locks.
        ("lock.acquire()", "lock.release()"),
    ],
)
def test_functions_of_the_program_around_a_fork(tmp_path: Path, before: str, after: str) -> None:
    # GIVEN a program that registers its own functions around forks before a tracer starts, and a
    # thread that dumps while it holds a lock which one of these functions needs
    program = f"""{BOUNDED}
lock = threading.Lock()
tracer = Tracer(device="cpu")

def leave_a_cycle():
    class Holder:
        pass
    holder = Holder()
    holder.itself, holder.tracer = holder, Tracer(device="cpu").start()
    holder.tracer.stop()

def before():
    {before}

def after():
    {after}

os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)
tracer.start()
stop = threading.Event()

def work():
    while not stop.is_set():
        with lock:
            tracer.stats()
            tracer.dump("other.pickle")

thread = threading.Thread(target=work)
thread.start()
# WHEN the program forks, THEN no process hangs
for _ in range(10):
    check_that_a_child_can_trace()
stop.set()
thread.join()
"""
    done = run(program, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_fork_in_c_with_the_gil_while_a_thread_dumps(tmp_path: Path) -> None:
    # GIVEN a thread that dumps all the time
    program = f"""{BOUNDED}
with Tracer(device="cpu") as tracer:
    kept = [torch.empty(1) for _ in range(5_000)]
    stop = threading.Event()

    def dump():
        while not stop.is_set():
            tracer.dump("snapshot.pickle")

    thread = threading.Thread(target=dump)
    thread.start()
    # WHEN a process is started in a way for which Python forks without calling the fork hooks
    for _ in range(20):
        done = subprocess.run([sys.executable, "-S", "-c", ""], user=os.geteuid())
        assert done.returncode == 0
    stop.set()
    thread.join()
"""
    done = run(program, cwd=tmp_path)
    # THEN no process hangs
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_forks_while_threads_record(tmp_path: Path) -> None:
    # GIVEN threads that allocate, read, dump, start tracers and enter phases, so that a fork may
    # happen in the middle of any change
    program = f"""{BOUNDED}
done = threading.Event()

def allocate():
    while not done.is_set():
        exec(compile("[torch.empty(n) for n in range(50)]", f"<{{os.urandom(4)}}>", "exec"))

def trace():
    while not done.is_set():
        with Tracer(trace_alloc_max_entries=500) as second:
            second.snapshot()

def dump():
    while not done.is_set():
        tracer.dump("other.pickle")
        tracer.step()

def phases():
    while not done.is_set():
        with annotate("other"):
            threading.Thread(target=annotate("ended").__enter__).start()

with Tracer(trace_alloc_max_entries=1000) as tracer, annotate("parent"):
    threads = [threading.Thread(target=function) for function in (allocate, trace, dump, phases)]
    for thread in threads:
        thread.start()
    for number in range(40):
        child = os.fork()
        if child == 0:
            # WHEN the child allocates and traces with a new tracer
            torch.empty(5)
            with Tracer("child.pickle") as own, annotate("child"):
                kept = torch.empty(2000)
            (event,) = own.events()
            assert own.phase(event["phase"]) == ("parent", "child")
            assert own.frames(event["stack"])[0]["name"] == "<module>"
            os._exit(number)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == number
    done.set()
    for thread in threads:
        thread.join()
"""
    done = run(program, cwd=tmp_path)
    # THEN it never waits for a thread that does not exist, and records its own events
    assert (done.returncode, done.stderr) == (0, "")
    assert live_sizes(load(tmp_path / "child.pickle")) == [8000]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_data_loader_with_workers(tmp_path: Path, method: str) -> None:
    # GIVEN a loop over a loader whose workers allocate
    program = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset
from pytracer import Tracer

class Numbers(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((1000,), float(index))

def main():
    with Tracer("snapshot.pickle") as tracer:
        loader = DataLoader(
            Numbers(), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1]
        )
        for epoch in range(2):
            total = sum(batch.sum().item() for batch in loader)
    assert total == 1000 * sum(range(24))
    print(tracer.stats()["devices"][0]["recorded"])

if __name__ == "__main__":
    main()
"""
    # WHEN the loop runs
    done = run(program, method, cwd=tmp_path, new=True)  # `spawn` runs the program again
    # THEN the training works, only the parent writes a snapshot, and it has no worker's events
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path) == ["snapshot.pickle"]
    snapshot = load(tmp_path / "snapshot.pickle")
    assert int(done.stdout) > 2 * 6
    assert {"main", "<genexpr>"} <= names(snapshot)
    assert "__getitem__" not in names(snapshot)


# --- exit -----------------------------------------------------------------------------------------


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
    done = run(program, cwd=tmp_path)
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
    done = run(program, cwd=tmp_path)
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
    done = run(program, cwd=tmp_path)
    # THEN the process ends normally
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "freed\n")
    assert live_sizes(load(tmp_path / "snapshot.pickle")) == [4000, 8000]


# --- files ----------------------------------------------------------------------------------------

# No file may grow beyond this size: the only way to a full disk that needs no permission.
LIMITED = """
import resource
import torch
from pytracer import Tracer

def work():
    return [torch.empty(n + 1) for n in range(3000)]

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
"""


def test_full_disk(tmp_path: Path) -> None:
    # GIVEN an earlier snapshot of the same process, and a disk that becomes full
    program = (
        LIMITED
        + """
with Tracer("snapshot.pickle"):
    pass
for _ in range(2):
    with Tracer("snapshot.pickle"):
        kept = work()
        limit(100_000)
    assert sum(tensor.numel() for tensor in kept) == 3000 * 3001 / 2
limit(resource.RLIM_INFINITY)
print("trained")
"""
    )
    path = tmp_path / "snapshot_2.pickle"
    # WHEN snapshots cannot be written
    done = run(program, cwd=tmp_path)
    # THEN the training continues, one message is logged, and the old file is unchanged
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.splitlines() == [
        f"pytracer: the snapshot {path} was not written: [Errno 27] writing the snapshot "
        f"failed: File too large: '{path}'"
    ]
    assert files(tmp_path) == ["snapshot.pickle"]
    assert live_sizes(load(tmp_path / "snapshot.pickle")) == []


def test_a_folder_that_another_process_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN another process that could not write, and removes the folder that both processes use
    original = Files.writing

    @contextlib.contextmanager
    def writing(files: Files, path: Path) -> Iterator[None]:
        with original(files, path):
            path.parent.rmdir()
            yield

    monkeypatch.setattr(Files, "writing", writing)
    # WHEN a snapshot is written into this folder
    with Tracer(tmp_path / "out", device="cpu"):
        pass
    # THEN the snapshot exists
    assert len([*tmp_path.glob("out/exit/*.pickle")]) == 1


def test_full_disk_at_exit_and_in_dump(tmp_path: Path) -> None:
    # GIVEN a disk that is full
    program = (
        LIMITED
        + """
tracer = Tracer("exit.pickle").start()
kept = work()
limit(100_000)
try:
    tracer.dump("dumped.pickle")
except OSError as error:
    print(error.errno, error.filename)
"""
    )
    # WHEN the program dumps, and the process ends
    done = run(program, cwd=tmp_path)
    # THEN `dump()` raises an error, the exit logs one, and no file is left
    assert (done.returncode, done.stdout) == (0, "27 dumped.pickle\n")
    assert len(done.stderr.splitlines()) == 1
    assert "exit.pickle was not written" in done.stderr
    assert files(tmp_path) == []


def test_a_disk_of_64_kilobytes(tmp_path: Path) -> None:
    # GIVEN a small file system of the test's own, if mounting is permitted
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=64k none {disk} 2>/dev/null") != 0:
        pytest.skip("may not mount")
    try:
        # WHEN a snapshot that does not fit is written
        with Tracer() as tracer:
            kept = [torch.empty(1) for _ in range(3000)]
        with pytest.raises(OSError, match="No space left") as raised:
            tracer.dump(disk / "snapshot.pickle")
        # THEN no part of it is left
        assert raised.value.filename == str(disk / "snapshot.pickle")
        assert files(disk) == []
        # AND a snapshot that fits is written
        kept.clear()
        tracer.clear()
        with Tracer(disk / "snapshot.pickle"):
            torch.empty(1)
        assert files(disk) == ["snapshot.pickle"]
    finally:
        os.system(f"umount {disk}")


@pytest.mark.parametrize("output", ["file/x.pickle", "file/deep/x.pickle", "file/d", "file"])
@pytest.mark.parametrize("place", ["", "/proc", "/sys"])
def test_a_path_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, output: str
) -> None:
    # GIVEN a place where nobody, not even root, can create a directory
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    path = f"{place}/{output}" if place else output
    # WHEN a tracer's output is there
    with pytest.raises(ConfigError) as raised:
        Tracer(path).start()
    # THEN the start raises an error that names the path and the remedy
    first = Path(place or tmp_path, "" if place else "file")
    assert f"output={path!r} cannot be written: {first}" in str(raised.value)
    assert "give a path in a directory that exists and is writable" in str(raised.value)
    assert files(tmp_path) == ["file"]


def test_a_directory_named_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.pickle").mkdir()
    with pytest.raises(ConfigError, match=r"x\.pickle' is a directory: give another file name"):
        Tracer(tmp_path / "x.pickle").start()


def test_a_directory_removed_while_recording(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN a recording whose directory is removed and cannot be created again
    directory = tmp_path / "runs"
    with caplog.at_level(logging.WARNING, "pytracer"), Tracer(directory / "x.pickle") as tracer:
        shutil.rmtree(directory)
        directory.touch()
    # WHEN the recording ends, THEN one warning is logged, and the events can still be dumped
    (record,) = caplog.records
    assert f"the snapshot {directory / 'x.pickle'} was not written" in record.getMessage()
    with pytest.raises(NotADirectoryError) as raised:
        tracer.dump(directory / "x.pickle")
    assert raised.value.filename == str(directory / "x.pickle")
    tracer.dump(tmp_path / "y.pickle")
    assert files(tmp_path) == ["runs", "y.pickle"]


@pytest.mark.parametrize("rank", ["3", "", "three"])
def test_layout_of_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str) -> None:
    # GIVEN a process with a rank, or without one
    monkeypatch.setenv("RANK", rank)
    who = "rank3" if rank == "3" else socket.gethostname()
    # WHEN the output is a directory that does not exist yet
    with Tracer(tmp_path / "a" / "b", all_ranks=True):
        pass
    # THEN the files have verl's layout
    name = f"a/b/exit/torch_memory_{who}_pid{os.getpid()}.pickle"
    assert files(tmp_path) == [name]
    load(tmp_path / name)


@pytest.mark.parametrize(
    "name",
    [b"caf\xe9.pickle", "日本語.pickle".encode(), b"n" * 248 + b".pickle"],
    ids=["not UTF-8", "UTF-8", "longest"],
)
def test_any_file_name_the_system_takes(tmp_path: Path, name: bytes) -> None:
    # GIVEN a name that is not UTF-8, or that has the maximum length
    path = tmp_path / os.fsdecode(name)
    # WHEN a snapshot is written to it at exit and by `dump`
    with Tracer(path) as tracer:
        torch.empty(10)
    # THEN the snapshot exists
    load(path)
    path.unlink()
    tracer.dump(path)
    load(path)


def test_a_file_name_with_a_null_character(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="null"):
        Tracer().dump(f"{tmp_path}/x\0.pickle")
    assert files(tmp_path) == []


def test_a_relative_output_is_resolved_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a relative output
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    # WHEN the training changes its working directory
    with Tracer("x.pickle"):
        monkeypatch.chdir(tmp_path / "elsewhere")
    # THEN the snapshot is in the original directory
    assert files(tmp_path) == ["x.pickle"]


@pytest.mark.slow
def test_a_killed_dump_leaves_no_partial_file(tmp_path: Path) -> None:
    # GIVEN processes that write a snapshot repeatedly
    program = """
import os, signal, time
import torch
from pytracer import Tracer

for round in range(12):
    child = os.fork()
    if child == 0:
        tracer = Tracer().start()
        kept = [torch.empty(n + 1) for n in range(3000)]
        while True:
            tracer.dump(f"{round}.pickle")
    while not os.path.exists(f"{round}.pickle"):
        time.sleep(0.001)
    # WHEN one is killed at an arbitrary instant
    time.sleep(0.0017 * round)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""
    done = run(program, cwd=tmp_path)
    # THEN every file with the final name is complete
    assert (done.returncode, done.stderr) == (0, "")
    for number in range(12):
        assert live_sizes(load(tmp_path / f"{number}.pickle"))


# --- arguments ------------------------------------------------------------------------------------

INTEGER = "give an integer from {} to {}".format


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("trace_alloc_max_entries", INTEGER(1, 2**28)),
        ("stack_depth", INTEGER(1, 1024)),
        ("max_stack_bytes", INTEGER(2**16, 2**32)),
    ],
)
@pytest.mark.parametrize(
    "value", [-1, 0, 2**40, 10**30, True, False, None, 100.0, math.nan, math.inf, "100", b"1", [1]]
)
def test_bad_integers(option: str, remedy: str, value: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        Tracer(**{option: value})
    assert f"{option}={value!r} is " in str(raised.value)
    assert remedy in str(raised.value)


@pytest.mark.parametrize(
    ("option", "lowest", "highest"),
    [
        ("trace_alloc_max_entries", 1, 2**28),
        ("stack_depth", 1, 1024),
        ("max_stack_bytes", 2**16, 2**32),
    ],
)
def test_integers_at_their_bounds(option: str, lowest: int, highest: int) -> None:
    for value in (lowest, highest):
        # GIVEN the smallest and the largest allowed value
        with Tracer(**{option: value}) as tracer:  # type: ignore[arg-type]
            torch.empty(10)
        # WHEN the tracer records, THEN it works
        assert 1 <= len(tracer.events()) <= 2
        assert len(tracer.frames(int(tracer.events()["stack"][0]))) >= 1
    for value in (lowest - 1, highest + 1):
        with pytest.raises(ConfigError, match=f"{option}={value} is out of range"):
            Tracer(**{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": "ALL"}, 'context=\'ALL\' is unknown: give None, "state", "alloc" or'),
        ({"context": ""}, "context='' is unknown: give None"),
        ({"context": 0}, "context=0 is unknown: give None"),
        ({"context": True}, "context=True is unknown: give None"),
        ({"context": ["all"]}, "context=['all'] is unknown: give None"),
        ({"context": math.nan}, "context=nan is unknown: give None"),
        ({"device": "gpu"}, 'device=\'gpu\' is unknown: give "auto", "cpu"'),
        ({"device": ""}, "device='' is unknown: give \"auto\""),
        ({"device": "cpu:"}, "device='cpu:' is unknown: give \"auto\""),
        ({"device": "cpu:x"}, "device='cpu:x' is unknown: give \"auto\""),
        ({"device": "cpu:-1"}, "device='cpu:-1' is unknown: give \"auto\""),
        ({"device": "cpu:7"}, "device='cpu:7' does not exist: there is one CPU, \"cpu\""),
        ({"device": "auto:0"}, "device='auto:0' is unknown: give \"auto\""),
        ({"device": ["cpu", "xpu"]}, "device=['cpu', 'xpu'] is unknown: give \"auto\""),
        ({"device": "cuda:64"}, "device='cuda:64' does not exist: indices are below 64"),
        ({"on_oom": 1}, "on_oom=1 is not a boolean: give True or False"),
        ({"max_oom_snapshots": -1}, "max_oom_snapshots=-1 is out of range: give an integer from 0"),
        ({"max_oom_snapshots": 1.5}, "max_oom_snapshots=1.5 is not an integer: give"),
        ({"device": []}, 'device=[] is not a device name: give "auto"'),
        ({"device": None}, 'device=None is not a device name: give "auto"'),
        ({"device": 0}, 'device=0 is not a device name: give "auto"'),
        ({"device": {"cpu"}}, "device={'cpu'} is not a device name: give \"auto\""),
        ({"device": b"cpu"}, "device=b'cpu' is"),
        ({"output": ""}, "output='' is not a path: give a file name ending in .pickle"),
        ({"output": b"x.pickle"}, "output=b'x.pickle' is not a path: give"),
        ({"output": 3}, "output=3 is not a path: give a file name"),
        ({"output": True}, "output=True is not a path: give a file name"),
        ({"output": ["x"]}, "output=['x'] is not a path: give a file name"),
        ({"output": "x\0.pickle"}, "output='x\\x00.pickle' is not a path: give"),
        ({"metadata": "run 7"}, "metadata='run 7' is not a dict: give a dict, or None"),
        ({"metadata": [("run", 7)]}, "metadata=[('run', 7)] is not a dict: give"),
        ({"metadata": {7: "run"}}, "metadata has the key 7: keys are strings"),
        ({"metadata": {"a": {None: 1}}}, "metadata has the key None: keys are strings"),
        ({"metadata": {"run": 2**63}}, f"metadata holds {2**63}: give None, booleans"),
        ({"metadata": {"run": {7}}}, "metadata holds {7}: give None, booleans"),
        ({"metadata": {"run": [{"a": b"7"}]}}, "metadata holds b'7': give None, booleans"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Tracer(**options)
    assert str(raised.value).startswith(message)


def test_values_that_cannot_be_compared_or_printed() -> None:
    # GIVEN a value whose comparison raises an error, and a dict that contains itself
    class Incomparable:
        def __eq__(self, other: object) -> bool:
            raise ValueError("the truth of many")

        __hash__ = None  # type: ignore[assignment]

    endless: dict[str, Any] = {}
    endless["itself"] = endless
    # WHEN they are passed, THEN the error still names the option
    with pytest.raises(ConfigError, match=r"context=.*give None"):
        Tracer(context=Incomparable())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"stack_depth=.*out of range: give an integer"):
        Tracer(stack_depth=10**5000)
    with pytest.raises(ConfigError, match=r"metadata .*give"):
        Tracer(metadata=endless)


def test_good_arguments(tmp_path: Path) -> None:
    # GIVEN the accepted forms of a device, and all types of metadata
    metadata = {"a": [None, True, -(2**63), 2**63 - 1, 1.5, math.inf, "é\ud800"], "b": {"c": (1,)}}
    for device in ("auto", "cpu", "cpu:0", ["cpu", "auto"], ("cpu",), torch.device("cpu")):
        # WHEN a tracer uses them
        with Tracer(tmp_path / "x.pickle", device=device, metadata=metadata) as tracer:
            torch.empty(10)
        # THEN it records, and the metadata is in the file
        assert len(tracer.events()) == 2
        section = load(tmp_path / "x.pickle")["pytracer"]
        assert section["backends"] == ["cpu"]
        assert section["metadata"] == {**metadata, "b": {"c": [1]}}


def test_unknown_stack_and_phase_numbers() -> None:
    # GIVEN a tracer with an event that has a stack and a phase
    with Tracer(device="cpu") as tracer, annotate("phase"):
        torch.empty(1)
    (event, *_) = tracer.events()
    # WHEN unknown numbers are passed, THEN each error names the number and where valid ones are
    for number in (-1, 10**6, 10**12):
        with pytest.raises(IndexError, match=rf"no stack {number}; events\(\) has"):
            tracer.frames(number)
        with pytest.raises(IndexError, match=f"no event has the phase {number}: .* entered 1 to "):
            tracer.phase(number)
    with pytest.raises(IndexError, match="this tracer has no stack 1;"):
        Tracer(device="cpu").frames(1)
    # AND the event's own numbers and 0 are accepted
    assert tracer.frames(event["stack"])[0]["name"] == "test_unknown_stack_and_phase_numbers"
    assert tracer.phase(event["phase"]) == ("phase",)
    assert (tracer.frames(0), tracer.phase(0)) == ([], ())
