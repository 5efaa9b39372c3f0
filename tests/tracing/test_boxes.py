"""Tests of what outlives a process that ends without writing."""

import json
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import killed_programs
import pytest
from amount import amount
from processes import environment, installed, run, run_python, start

from pytracer import _core
from pytracer.boxes import places
from pytracer.boxes.restoring import restore

START = """
import os, sys, threading, torch, pytracer
tracer = pytracer.Tracer(device="cpu", output="out")
tracer.start()
kept = torch.empty(1000)
tracer.step()
more = torch.empty(2000)
"""


def boxes(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.box"))


def content(path: Path) -> dict[str, Any]:
    snapshot: dict[str, Any] = pickle.loads(path.read_bytes())
    return snapshot


def restored(folder: Path) -> list[Path]:
    """Return the snapshots that are made of the boxes in a folder, which are gone then."""
    lines = [*restore(folder)]
    assert not boxes(folder), lines
    return sorted(folder.rglob("killed_*/*.pickle"))


def test_a_worker_of_ray_did_not_crash(tmp_path: Path) -> None:
    # GIVEN a worker of Ray, as its variable says, WHEN Ray ends it at the end of the job
    run(START + "os._exit(1)", cwd=tmp_path, env=environment(RAY_RAYLET_PID="7"))
    # THEN the answer says how Ray ends workers, and does not call it killed
    shown = run_python("-m", "pytracer", "show", "out", cwd=tmp_path)
    assert shown.stdout.startswith("NO PROBLEM FOUND: ended by Ray, or crashed")
    assert "Ray ends workers this way at the end of the job" in " ".join(shown.stdout.split())
    assert "KILLED" not in shown.stdout


@pytest.mark.parametrize("seed", range(amount(3, 300)))
def test_a_killed_process_leaves_what_it_had_recorded(seed: int, tmp_path: Path) -> None:
    # Event by event, and live block by live block, but for what was in flight
    killed_programs.check(tmp_path, seed, "cpu")


@pytest.mark.parametrize("seed", range(amount(2, 500)))
def test_a_process_is_killed_while_tables_change(seed: int, tmp_path: Path) -> None:
    # While the ring grows and shrinks, generations of stacks follow each other, and snapshots are
    # written
    killed_programs.check(tmp_path, 1000 + seed, "cpu", is_changing=True)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os._exit(3)", 3),
        ("os.abort()", -signal.SIGABRT),
        ("os.kill(os.getpid(), 15)", -signal.SIGTERM),
        ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
        ("threading.Thread(target=os._exit, args=[4]).start()\nwhile True: pass", 4),
    ],
)
def test_any_end_leaves_a_snapshot(end: str, code: int, tmp_path: Path) -> None:
    # WHEN a program ends without writing
    done = run(START + end, cwd=tmp_path)
    # THEN its exit status is its own, and the next command finds its snapshot and says so
    assert done.returncode == code
    shown = run_python("-m", "pytracer", "show", "out", cwd=tmp_path)
    assert "ended without writing; what it had recorded is in" in shown.stderr
    assert "KILLED OR CRASHED" in shown.stdout
    assert "without writing" in shown.stdout
    [path] = tmp_path.rglob("killed_*/*.pickle")
    assert not boxes(tmp_path)
    snapshot = content(path)
    assert snapshot["pytracer"]["current_step"] == 2
    frame = snapshot["segments"][0]["blocks"][0]["frames"][0]
    assert (frame["name"], frame["line"] > 1) == ("<module>", True)


def test_a_process_that_has_written_leaves_no_box(tmp_path: Path) -> None:
    # WHEN a tracer has written its file, is started again, and is stopped
    done = run(
        START + "tracer.stop(); tracer.start(); torch.empty(7); tracer.stop(); os._exit(0)",
        cwd=tmp_path,
    )
    # THEN nothing is made of its box, which is removed
    assert done.returncode == 0
    assert restored(tmp_path) == []
    # WHEN a program ends as usual THEN there is no box at all
    assert run(START, cwd=tmp_path / "out").returncode == 0
    assert not boxes(tmp_path)


def test_a_forked_child_does_not_write_into_its_parents_box(tmp_path: Path) -> None:
    # WHEN a child allocates, with and without a tracer of its own, and all are killed
    program = (
        START
        + """
if os.fork() == 0:
    child = torch.empty(3000)
    if os.fork() == 0:
        tracer = pytracer.Tracer(device="cpu", output="child")
        tracer.start()
        own = torch.empty(4000)
        os._exit(1)
    os.wait()
    os._exit(1)
os.wait()
os.kill(os.getpid(), 9)
"""
    )
    run(program, cwd=tmp_path)
    # THEN each box has the allocations of its process alone
    sizes = []
    for folder in ("out", "child"):
        [path] = restored(tmp_path / folder)
        blocks = [segment["total_size"] for segment in content(path)["segments"]]
        sizes.append(sorted(blocks))
    assert sizes == [[4 * 1000, 4 * 2000], [4 * 4000]]


def test_a_clone_without_handlers_goes_on_unrecorded(tmp_path: Path) -> None:
    # WHEN a process is cloned without the handlers of fork(), and both allocate
    program = (
        START
        + """
import ctypes, platform
number = {"x86_64": 57, "aarch64": None}[platform.machine()]
libc = ctypes.CDLL(None)
if libc.syscall(number) == 0:
    for i in range(100): torch.empty(3000 + i)
    exec("def f(): pass"); del f
    try: tracer.snapshot()
    except pytracer.PytracerError: os._exit(5)
status = os.wait()[1]
assert os.WEXITSTATUS(status) == 5, status
os.kill(os.getpid(), 9)
"""
    )
    done = run(program, cwd=tmp_path)
    # THEN the clone ends as it wants to, and the box is the parent's
    assert done.returncode == -signal.SIGKILL, done.stderr
    [path] = restored(tmp_path)
    blocks = [segment["total_size"] for segment in content(path)["segments"]]
    assert sorted(blocks) == [4 * 1000, 4 * 2000]


def test_a_limit_of_files_ends_the_box_and_not_the_program(tmp_path: Path) -> None:
    # WHEN files may have 256 KiB, or 4 KiB
    for limit in (2**18, 2**12):
        program = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
{START}
for i in range(20_000): torch.empty(i + 1)
for i in range(2_000): exec(f"def f{{i}}(): return torch.empty(9)\\nf{{i}}()")
print("alive", tracer.stats()["devices"][0]["recorded"])
os._exit(0)
"""
        done = run(program, cwd=tmp_path)
        # THEN the program goes on, and so does the recording
        assert done.returncode == 0, done.stderr
        alive, events = done.stdout.split()
        assert (alive, int(events) > 40_000) == ("alive", True)
        assert ("everything it recorded is lost" in done.stderr) == (limit < 2**18)


def test_a_truncated_box_ends_the_recording_and_not_the_program(tmp_path: Path) -> None:
    # WHEN somebody truncates the file, in a program with a handler of its own or without
    program = """
from pathlib import Path
[box] = Path(".").rglob("*.box")
os.truncate(box, 0)
for i in range(10_000): torch.empty(i + 1)
for _ in range(3): tracer.step()
tracer.stop()
print("alive")
import ctypes, mmap
with open("other", "wb+") as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
    file.truncate(0)
    memory[0]
"""
    handler = "import faulthandler; faulthandler.enable()\n"
    for number, (first, later) in enumerate([("", ""), (handler, ""), ("", handler)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        done = run(first + START + later + program, cwd=folder)
        # THEN it goes on, and a line says so; a bus error of its own ends it as usual
        assert done.stdout == "alive\n", done.stderr
        assert "nothing is recorded any more" in done.stderr
        assert done.returncode == -signal.SIGBUS
        # A later handler may first run in the box's thread, which has no stderr.
        assert later or ("Fatal Python error: Bus error" in done.stderr) == bool(first)


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_bus_error_that_is_raised_ends_the_program(order: str, tmp_path: Path) -> None:
    # GIVEN a box that is whole, and a handler that calls the one before it
    handler = "import faulthandler; faulthandler.enable()\n"
    program = handler + START if order == "before" else START + handler
    # WHEN the program raises the signal itself THEN it ends as without pytracer
    done = run(program + "os.kill(os.getpid(), 7)\nprint('alive')", cwd=tmp_path)
    assert done.returncode == -signal.SIGBUS, done.stderr
    assert not done.stdout


def test_an_error_of_a_file_says_what_failed_on_what_and_why(tmp_path: Path) -> None:
    # WHEN a box is made in a pipe, and read from a folder
    pipe = os.pipe()
    name = os.readlink(f"/proc/self/fd/{pipe[1]}")
    with pytest.raises(OSError, match="Illegal seek") as made:
        _core.open_box(pipe[1])
    os.close(pipe[0])
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(IsADirectoryError) as read:
        _core.Box(folder)
    os.close(folder)
    # THEN the error has all three
    assert str(made.value) == f"[Errno 29] cannot make a box: Illegal seek: {name!r}"
    text = f"[Errno 21] cannot read the box: Is a directory: {str(tmp_path)!r}"
    assert str(read.value) == text


def test_a_truncated_box_of_many_functions(tmp_path: Path) -> None:
    # WHEN the file is truncated after many functions have allocated
    program = """
names = [f"f{i}" for i in range(400)]
for name in names: exec(f"def {name}(): return torch.empty(9)")
calls = [globals()[name] for name in names]
for call in calls: call()
[box] = __import__("pathlib").Path(".").rglob("*.box")
os.truncate(box, 0)
for _ in range(3):
    for call in calls: call()
tracer.stop(); tracer.start()
for call in calls: call()
print("alive", tracer.stats()["devices"][0]["held"])
"""
    # THEN nothing hangs, and nothing is recorded any more
    done = run(START + program, cwd=tmp_path, timeout=60)
    assert done.stdout == "alive 0\n", done.stderr


def test_a_child_that_writes_its_parents_view_does_not_crash(tmp_path: Path) -> None:
    program = (
        START
        + """
view = tracer._session.view()
if os.fork() == 0:
    view.to_bytes({}, {})
    os._exit(6)
assert os.WEXITSTATUS(os.wait()[1]) == 6
"""
    )
    assert run(program, cwd=tmp_path).returncode == 0


def test_devices_that_appear_late_are_in_the_box(tmp_path: Path) -> None:
    # WHEN a tracer's session is replaced, as for devices that appear late
    program = (
        START
        + """
recording = tracer._recording
recording.session.stop()
recording.start({"cpu": [-1], "cuda": [0]}, 2, True)
late = torch.empty(5000)
os.kill(os.getpid(), 9)
"""
    )
    run(program, cwd=tmp_path)
    # THEN what came then is in the box
    [path] = restored(tmp_path)
    sizes = [segment["total_size"] for segment in content(path)["segments"]]
    assert 4 * 5000 in sizes


def test_a_tracer_that_is_started_again_has_its_box(tmp_path: Path) -> None:
    # GIVEN a tracer that is stopped, and another one that is gone
    program = (
        START
        + """
tracer.stop()
other = pytracer.Tracer(device="cpu", output="other").start()
other.stop()
del other
import gc; gc.collect()
# WHEN the first is started again, and the process is killed
tracer.start()
again = torch.empty(6000)
os.kill(os.getpid(), 9)
"""
    )
    run(program, cwd=tmp_path)
    # THEN what it recorded is there
    [path] = restored(tmp_path)
    assert 4 * 6000 in [segment["total_size"] for segment in content(path)["segments"]]


def test_killed_runs_of_one_file_keep_their_snapshots(tmp_path: Path) -> None:
    # GIVEN two killed runs with the same name of a file, whose folder is moved afterwards
    program = START.replace('"out"', '"out/x.pickle"') + "os.kill(os.getpid(), 9)"
    (tmp_path / "out").mkdir()
    left = tmp_path / "left"
    left.mkdir()
    for _ in range(2):
        run(program, cwd=tmp_path)
        for box in boxes(tmp_path / "out"):  # else the second run may restore the first one's
            box.rename(left / box.name)
    for box in boxes(left):
        box.rename(tmp_path / "out" / places.FOLDER / box.name)
    (tmp_path / "out").rename(tmp_path / "moved")
    # WHEN they are restored THEN there are two files, where the boxes were
    assert len([*restore(tmp_path / "moved")]) == 2
    assert len([*(tmp_path / "moved").glob("x.killed-*.pickle")]) == 2
    assert not (tmp_path / "out").exists()


def test_boxes_that_nobody_reads_do_not_pile_up(tmp_path: Path) -> None:
    # GIVEN more boxes than are kept, of processes that are gone
    folder = tmp_path / "out" / places.FOLDER
    folder.mkdir(parents=True, mode=0o700)
    left = [folder / f"{2**22 + i}-1-1-{i:016x}-0.box" for i in range(places.MOST_LEFT + 5)]
    for number, path in enumerate(left):
        path.touch(0o600)
        os.utime(path, (number, number))
    # WHEN a process records into the same folder THEN the oldest ones go
    assert run(START + "os._exit(0)", cwd=tmp_path).returncode == 0
    assert [path for path in left if path.exists()] == left[5:]


def test_a_live_process_keeps_its_box(tmp_path: Path) -> None:
    # WHEN a process looks for boxes while it records
    done = run(
        START + "from pytracer.boxes.restoring import restore\n"
        "from pathlib import Path\n"
        "print('lines', [*restore(Path('.'))], len([*Path('.').rglob('*.box')]))",
        cwd=tmp_path,
    )
    # THEN its own is left alone
    assert "lines [] 1" in done.stdout


def test_a_live_process_is_shown_from_outside(tmp_path: Path) -> None:
    # GIVEN a process that hangs while it holds the GIL
    hanging = (
        START.replace('"out"', '"other"')
        + """
torch.empty(9000)
print(os.getpid(), flush=True)
import ctypes
ctypes.PyDLL(None).pause()
"""
    )
    with start(hanging, cwd=tmp_path) as process:
        assert process.stdout is not None
        pid = process.stdout.readline().strip()
        # WHEN it is looked at
        shown = run_python("-m", "pytracer", "live", pid, "--once", "--json", cwd=tmp_path)
        [device] = json.loads(shown.stdout)["devices"]
        dumped = run_python("-m", "pytracer", "live", pid, "--dump", cwd=tmp_path)
        table = run_python("-m", "pytracer", "live", pid, "--once", cwd=tmp_path)
        (tmp_path / "empty").mkdir()
        of_folders = [
            run_python("-m", "pytracer", "live", folder, "--once", "--json", cwd=tmp_path)
            for folder in (".", "other", "empty")
        ]
        process.kill()
    # THEN its memory and its step are there, and a file has its blocks
    assert (device["pid"], device["device"], device["step"]) == (int(pid), "cpu", 2)
    assert (device["allocated_bytes"], device["reserved_bytes"]) == (4 * 3000, None)
    assert device["peak_bytes"] == 4 * 12000
    assert "11.72 KiB" in table.stdout
    assert [pid in done.stdout for done in of_folders] == [True, True, False]
    [path] = (tmp_path / "other").rglob("demand_*/*.pickle")
    assert dumped.stdout == f"wrote {path}\n"
    assert len(content(path)["segments"]) == 2
    assert "killed" not in content(path)["pytracer"]


KILLED = START + "os.kill(os.getpid(), 9)"


def test_the_next_process_restores_what_a_killed_one_has_left(tmp_path: Path) -> None:
    # GIVEN a killed process
    run(KILLED, cwd=tmp_path)
    # WHEN another one with the same output runs, however short THEN the snapshot is there
    done = run(START.replace("kept", "import time; time.sleep(0.1); kept"), cwd=tmp_path)
    assert done.stderr.count("ended without writing; what it had recorded is in") == 1
    assert len([*tmp_path.rglob("killed_*/*.pickle")]) == 1
    assert not boxes(tmp_path)
    # WHEN one with another output runs THEN nothing is touched
    run(KILLED, cwd=tmp_path)
    run(START.replace('"out"', '"elsewhere"'), cwd=tmp_path)
    assert len(boxes(tmp_path)) == 1


def test_the_agent_of_torchrun_restores_its_killed_workers(tmp_path: Path) -> None:
    # GIVEN two workers, one of which is killed, which torchrun tells the other
    (tmp_path / "train.py").write_text(
        """
import os, pathlib, time, torch
kept = torch.empty(1000)
other = pathlib.Path("other is ready")
if os.environ["RANK"] == "1":
    other.touch()
    time.sleep(600)
while not other.exists():
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""
    )
    # WHEN the agent ends
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = installed(tmp_path, PYTRACER="1")
    done = run_python(*launcher, "train.py", cwd=tmp_path, env=env)
    # THEN the snapshots of both are there
    assert done.returncode == 1
    assert [*tmp_path.rglob("killed_*/torch_memory_rank0_*.pickle")], done.stderr
    assert [*tmp_path.rglob("killed_*/torch_memory_rank1_*.pickle")], done.stderr
    assert not boxes(tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        ["diff", "out", "out"],
        ["export", "out", "--to", "collapsed"],
        ["recommend", "out"],
        ["fleet", "collect", "out", "--output", "table"],
        ["fleet", "report", "out"],
    ],
)
def test_each_command_finds_what_killed_processes_have_left(
    command: list[str], tmp_path: Path
) -> None:
    run(KILLED, cwd=tmp_path)
    done = run_python("-m", "pytracer", *command, cwd=tmp_path)
    assert "ended without writing" in done.stderr
    assert not boxes(tmp_path)


def test_a_box_elsewhere_is_named_and_found(tmp_path: Path) -> None:
    # GIVEN an output on a file system of other machines
    elsewhere = START.replace(
        "tracer = ",
        """
from pathlib import Path
from pytracer.boxes import places
kind = places._file_system
places._file_system = lambda folder: "nfs4" if "out" in folder.parts else kind(folder)
tracer = """,
    )
    (tmp_path / "local").mkdir()
    env = environment(TMPDIR=str(tmp_path / "local"))
    # WHEN a process is killed THEN it has said where the box is
    done = run(elsewhere + "os.kill(os.getpid(), 9)", cwd=tmp_path, env=env)
    [box] = boxes(tmp_path)
    assert f"in {box.parent} on its machine, where `pytracer show {tmp_path}/out`" in done.stderr
    # AND the next process makes its snapshot in the output
    run(START + "import time; time.sleep(0.1)", cwd=tmp_path, env=env)
    assert [*(tmp_path / "out").rglob("killed_*/*.pickle")]
    assert not boxes(tmp_path)


def test_a_box_that_cannot_be_read_is_tried_once(tmp_path: Path) -> None:
    # GIVEN a box of another version, whose process is gone
    run(KILLED, cwd=tmp_path)
    [box] = boxes(tmp_path)
    content = bytearray(box.read_bytes())
    content[8] += 1
    box.write_bytes(content)
    # WHEN processes and commands look for boxes THEN the first one says so
    readers = [run(START + "import time; time.sleep(0.1)", cwd=tmp_path) for _ in range(2)]
    assert [done.stderr.count("cannot be read") for done in readers] == [1, 0]
    assert [path.suffix for path in tmp_path.rglob(".pytracer_boxes/*")] == [places.UNREADABLE]


@pytest.mark.parametrize("error", ["ValueError", "SystemExit", "KeyboardInterrupt"])
@pytest.mark.parametrize("end", ["", "tracer.stop()"])
def test_a_failing_on_snapshot_leaves_no_box(error: str, end: str, tmp_path: Path) -> None:
    program = f"def fail(path): raise {error}\n" + START
    done = run(
        program.replace("output=", "on_snapshot=fail, output=") + end,
        cwd=tmp_path,
        is_finalised=True,
    )
    assert not boxes(tmp_path), done.stderr
    assert [*tmp_path.rglob("exit/*.pickle")]
    assert end or "Traceback" not in done.stderr


def test_control_c_before_the_snapshot_keeps_the_box(tmp_path: Path) -> None:
    program = """
def interrupted(): raise KeyboardInterrupt
tracer._recording.view = interrupted
"""
    run(START + program, cwd=tmp_path, is_finalised=True)
    assert len(boxes(tmp_path)) == 1
