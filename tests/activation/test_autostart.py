"""Test `PYTRACER=1` with unmodified programs, started in various ways."""

from pathlib import Path
from typing import NamedTuple

import pytest
from amount import LONG
from unmodified_programs import ALONE, Env, forked, python, snapshots

PARENT = """
import multiprocessing, os, subprocess, sys
import job
import torch

if __name__ == "__main__":
    job.work(1000)
    {}
    print('done')
"""
CHILD = """child = multiprocessing.get_context("{}").Process(target=job.work, args=(2000,))
    child.start()
    child.join()
    assert child.exitcode == 0"""
LOADER = """loader = torch.utils.data.DataLoader(
        job.Items(), num_workers=2, multiprocessing_context="{}")
    assert len(list(loader)) == 4"""
FORK = """if os.fork() == 0:
        job.work(2000)
        sys.exit()
    assert os.wait()[1] == 0"""
SUBPROCESS = 'subprocess.run([sys.executable, "-c", "import job; job.work(2000)"], check=True)'


class Form(NamedTuple):
    """A way to start: Python's arguments, the content of program.py, and each snapshot's bytes."""

    command: list[str]
    program: str
    expected: list[int]


SCRIPT = ["program.py"]
FORMS = {
    "script": Form(SCRIPT, ALONE, [1000]),
    "module": Form(["-m", "program"], ALONE, [1000]),
    "command": Form(["-c", ALONE], "", [1000]),
    "standard input": Form(["-"], ALONE, [1000]),
    "pytracer run": Form(["-m", "pytracer", "run", "program.py"], ALONE, [1000]),
    "no device used": Form(["-c", "import torch.distributed.run; print('done')"], "", []),
    "fork": Form(SCRIPT, PARENT.format(CHILD.format("fork")), [1000, 2000]),
    "spawn": Form(SCRIPT, PARENT.format(CHILD.format("spawn")), [1000, 2000]),
    "forkserver": Form(SCRIPT, PARENT.format(CHILD.format("forkserver")), [1000, 2000]),
    "torch's spawn": Form(
        SCRIPT, PARENT.format("torch.multiprocessing.spawn(job.nth, nprocs=2)"), [1000, 2000, 2001]
    ),
    "loader, fork": Form(SCRIPT, PARENT.format(LOADER.format("fork")), [1000]),
    "loader, spawn": Form(SCRIPT, PARENT.format(LOADER.format("spawn")), [1000]),
    "loader, forkserver": Form(SCRIPT, PARENT.format(LOADER.format("forkserver")), [1000]),
    "os.fork": Form(SCRIPT, PARENT.format(FORK), [1000]),
    "another Python": Form(SCRIPT, PARENT.format(SUBPROCESS), [1000, 2000]),
    "torchrun": Form(
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py"],
        ALONE,
        [1000],
    ),
}
QUICK = ("command", "fork")
SHORT = (*QUICK, "pytracer run", "spawn", "loader, fork")  # others start alike, or take longest

CASES = [
    pytest.param(form, id=name, marks=[pytest.mark.slow] * (name not in QUICK))
    for name, form in FORMS.items()
    if LONG or name in SHORT
]


# --- ways to start --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", CASES)
def test_a_program_is_traced(form: Form, tmp_path: Path, env: Env) -> None:
    # WHEN the environment requests tracing
    env["PYTRACER"] = "1"
    done = python(*form.command, cwd=tmp_path, env=env, program=form.program)
    # THEN the program works, and each process that uses a device writes a snapshot
    assert (done.returncode, done.stderr) == (0, "")
    assert "".join(done.stdout.split()) in ("done", "donedone")  # writes may share a line
    found = snapshots(tmp_path)
    assert sorted(found.values()) == form.expected
    assert {Path(name).parent for name in found} <= {Path("outputs/profile/exit")}


@pytest.mark.parametrize(
    "name",
    ["fork", *(pytest.param(name, marks=pytest.mark.long) for name in FORMS if "spawn" in name)],
)
def test_a_bad_variable_means_the_default(name: str, tmp_path: Path, env: Env) -> None:
    # WHEN a variable has an invalid value
    form = FORMS[name]
    env.update(PYTRACER="1", PYTRACER_STACK_DEPTH="deep")
    done = forked(*form.command, cwd=tmp_path, env=env, program=form.program)
    # THEN each process is recorded with the default, and logs the reason
    assert done.returncode == 0
    assert {*done.stderr.splitlines()} == {
        "pytracer: PYTRACER_STACK_DEPTH='deep' is not an integer: give an integer from 1 to 1024 "
        "(default 32). The default, 32, is used"
    }
    assert sorted(snapshots(tmp_path).values()) == form.expected


@pytest.mark.parametrize("autoload", ["0", "1"])
def test_a_variable_set_by_the_program(tmp_path: Path, env: Env, autoload: str) -> None:
    # GIVEN a program, such as a notebook, that sets the variable itself before it imports torch
    program = f"import os\nos.environ['PYTRACER'] = '1'\n{ALONE}"
    # WHEN it runs with torch's autoload, THEN it is traced; without, pytracer is never imported
    env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = autoload
    done = python("-c", program, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "done\n")
    assert [*snapshots(tmp_path).values()] == [1000] * int(autoload)


def test_a_program_without_torchs_autoload(tmp_path: Path, env: Env) -> None:
    env.update(PYTRACER="1", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    done = python("program.py", cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "done\n")
    assert [*snapshots(tmp_path).values()] == [1000]


def test_a_program_that_traces_itself_too(tmp_path: Path, env: Env) -> None:
    # GIVEN a program with a tracer of its own that writes into the same directory
    program = f"{ALONE}\nimport pytracer\npytracer.Tracer('outputs/profile').start()"
    env["PYTRACER"] = "1"
    done = forked("program.py", cwd=tmp_path, env=env, program=program)
    # THEN both tracers write the live blocks
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(snapshots(tmp_path).values()) == [1000, 1000]


@pytest.mark.slow
@pytest.mark.long
def test_a_compile_worker_is_not_traced(tmp_path: Path, env: Env) -> None:
    # GIVEN inductor's worker process, and a variable that a traced process would reject
    find = "import torch._inductor.compile_worker as found; print(found.__path__[0])"
    worker = Path(python("-c", find, cwd=tmp_path, env=env).stdout.strip(), "__main__.py")
    env.update(PYTRACER="1", PYTRACER_STACK_DEPTH="deep")
    # WHEN it starts, THEN nothing is logged
    done = python(str(worker), "--help", cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_rank_writes_its_own_file(tmp_path: Path, env: Env) -> None:
    env.update(PYTRACER="1", PYTRACER_OUTPUT="job.pickle", PYTRACER_ALL_RANKS="yes")
    command = FORMS["torchrun"].command
    done = python(*command, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert snapshots(tmp_path) == {"job.rank0.pickle": 1000, "job.rank1.pickle": 1000}


# --- switches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["0", pytest.param("off", marks=pytest.mark.long)])
def test_switched_off(tmp_path: Path, env: Env, value: str) -> None:
    env.update(PYTRACER=value, PYTRACER_STACK_DEPTH="deep", PYTRACER_UNKNOWN="1")
    program = f"{ALONE}\nimport sys; print([name for name in sys.modules if 'pytracer.' in name])"
    done = python("program.py", cwd=tmp_path, env=env, program=program)
    # THEN no module of pytracer is imported
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "done\n[]\n")
    assert snapshots(tmp_path) == {}


def test_the_switch_also_disables_tracers_in_the_code(tmp_path: Path, env: Env) -> None:
    # GIVEN a program that traces and patches torch itself
    env["PYTRACER"] = "0"
    program = f"""
import pytracer, torch
original = torch.cuda.memory._snapshot
pytracer.patch_torch()
with pytracer.Tracer("own.pickle", device="cpu") as tracer:
    torch.empty(10)
print(tracer.stats()["recording"], tracer.stats()["untraced"])
assert torch.cuda.memory._snapshot is original
{ALONE}"""
    # WHEN the environment disables pytracer, THEN it does neither, and works
    done = forked("program.py", cwd=tmp_path, env=env, program=program)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "False PYTRACER=0\ndone\n")
    assert snapshots(tmp_path) == {}


@pytest.mark.parametrize(
    ("variable", "value", "reason", "files"),
    [
        ("PYTRACER", "maybe", "PYTRACER='maybe' is not a boolean: give True or False (1 or 0)", 0),
        ("PYTRACER_PATCH_TORCH", "maybe", "PYTRACER_PATCH_TORCH='maybe' is not a boolean: ", 1),
        ("PYTRACER_OUTPUT", "job.py/x", "PYTRACER_OUTPUT='job.py/x' cannot be written: ", 1),
    ],
)
def test_a_wrong_value_is_reported(
    tmp_path: Path, env: Env, variable: str, value: str, reason: str, files: int
) -> None:
    env.update({"PYTRACER": "1", variable: value})
    done = forked("program.py", cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (0, "done\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"pytracer: {reason}")
    assert len(snapshots(tmp_path)) == files


@pytest.mark.slow
def test_a_function_is_imported_when_a_file_was_written(tmp_path: Path, env: Env) -> None:
    # GIVEN a variable with a function of a missing module
    env.update(PYTRACER="1", PYTRACER_ON_SNAPSHOT="no_such_module:f")
    done = forked("program.py", cwd=tmp_path, env=env)
    # THEN one line is logged at the first file
    assert (done.returncode, done.stdout) == (0, "done\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("pytracer: on_snapshot failed: ModuleNotFoundError")
    # GIVEN a module next to the program, THEN it is imported only when a file was written
    (tmp_path / "uploads.py").write_text("print('imported')\ndef f(path): print('got it')")
    env.update(PYTRACER_ON_SNAPSHOT="uploads:f")
    done = forked("program.py", cwd=tmp_path, env=env)
    assert (done.stderr, done.stdout) == ("", "done\nimported\ngot it\n")
    assert [*snapshots(tmp_path).values()] == [1000] * 2


@pytest.mark.slow
def test_a_process_and_its_child(tmp_path: Path, env: Env) -> None:
    # GIVEN misspelt variables, and one output file for a process and its child
    env.update(PYTRACER="1", PYTRACER_STACK_DEPT="7", PYTRACER_COLOUR="red")
    env.update(PYTRACER_OUTPUT="kept/job.pickle")
    done = forked("program.py", cwd=tmp_path, env=env, program=PARENT.format(SUBPROCESS))
    # THEN the first process alone suggests the correct name
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert sorted(done.stderr.splitlines()) == [
        "pytracer: PYTRACER_COLOUR is not a variable of pytracer and has no effect",
        "pytracer: PYTRACER_STACK_DEPT is not a variable of pytracer and has no effect; "
        "did you mean PYTRACER_STACK_DEPTH?",
    ]
    # AND it writes this file, and the child a file next to it
    found = snapshots(tmp_path)
    assert found.pop("kept/job.pickle") == 1000
    ((name, size),) = found.items()
    assert name.startswith("kept/job.pid")
    assert size == 2000
