"""`PYTRACER=1` and `pytracer run`: programs that know nothing of pytracer, however they start."""

import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import processes
import pytest
import viewers
from click.testing import CliRunner
from processes import Done

from pytracer.cli import main
from pytracer.config import OPTIONS

Env = dict[str, str]

JOB = """
import torch

def work(size):
    global held
    held = torch.empty(size, dtype=torch.uint8)

def nth(number):
    work(2000 + number)

class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.ones(4000)
"""
ALONE = "import job\njob.work(1000)\nprint('done')"
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
OTHER = 'subprocess.run([sys.executable, "-c", "import job; job.work(2000)"], check=True)'


class Form(NamedTuple):
    """A way to start: the command line after "python", program.py, and of each file the bytes."""

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
    "another Python": Form(SCRIPT, PARENT.format(OTHER), [1000, 2000]),
    "torchrun": Form(
        ["-m", "torch.distributed.run", "--nproc-per-node", "2", "program.py"], ALONE, [1000]
    ),
}
QUICK = ("script", "command", "fork")
forms = pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, form in FORMS.items()
    ],
)


@pytest.fixture
def env(tmp_path_factory: pytest.TempPathFactory) -> Env:
    return processes.installed(tmp_path_factory.mktemp("installed"))


def python(*arguments: str, cwd: Path, env: Env, program: str = ALONE) -> Done:
    """Runs Python in a folder with the program, which is its standard input too."""
    (cwd / "job.py").write_text(JOB)
    (cwd / "program.py").write_text(program)
    return subprocess.run(
        # From 3.12 on a fork is warned of where there are threads; torch has some.
        [sys.executable, "-W", "ignore::DeprecationWarning", *arguments],
        cwd=cwd,
        env=env,
        input=program,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def snapshots(cwd: Path) -> dict[str, int]:
    """The files, and of each the bytes that are alive and were allocated by `work`."""
    found = {}
    for path in cwd.rglob("*.pickle"):
        snapshot = pickle.loads(path.read_bytes())
        viewers.check_snapshot(snapshot)
        found[str(path.relative_to(cwd))] = sum(
            block["size"]
            for segment in snapshot["segments"]
            for block in segment["blocks"]
            if block["frames"] and block["frames"][0]["name"] == "work"
        )
    return found


# --- ways to start --------------------------------------------------------------------------------


def assert_done(done: processes.Done) -> None:
    """Said by each process; what two write at once may stand in one line."""
    assert "".join(done.stdout.split()).replace("done", "", 2) == ""
    assert "done" in done.stdout


@forms
def test_a_program_is_traced(form: Form, tmp_path: Path, env: Env) -> None:
    # WHEN the environment asks for tracing
    env["PYTRACER"] = "1"
    done = python(*form.command, cwd=tmp_path, env=env, program=form.program)
    # THEN the program runs as without, and each process that uses a device leaves a snapshot
    assert (done.returncode, done.stderr) == (0, "")
    assert_done(done)
    found = snapshots(tmp_path)
    assert sorted(found.values()) == form.expected
    assert {Path(name).parent for name in found} <= {Path("outputs/profile/exit")}


@forms
def test_a_bad_variable_costs_the_trace_alone(form: Form, tmp_path: Path, env: Env) -> None:
    # WHEN an option cannot be used
    env.update(PYTRACER="1", PYTRACER_STACK_DEPTH="deep")
    done = python(*form.command, cwd=tmp_path, env=env, program=form.program)
    # THEN the program runs untraced, and it says why
    assert done.returncode == 0
    assert_done(done)
    assert set(done.stderr.splitlines()) == {
        "pytracer: not recording: PYTRACER_STACK_DEPTH='deep' is not an integer: "
        "give an integer from 1 to 1024 (default 32)"
    }
    assert snapshots(tmp_path) == {}


@pytest.mark.parametrize("autoload", ["0", "1"])
def test_a_variable_set_by_the_program(tmp_path: Path, env: Env, autoload: str) -> None:
    # GIVEN a program, a notebook perhaps, that sets the variable itself before it imports torch
    program = f"import os\nos.environ['PYTRACER'] = '1'\n{ALONE}"
    # WHEN it runs with torch's autoload on, THEN it is traced; without, nothing can tell us
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
    # GIVEN a tracer of the program's own, in the same directory
    program = f"{ALONE}\nimport pytracer\npytracer.Tracer('outputs/profile').start()"
    env["PYTRACER"] = "1"
    done = python("program.py", cwd=tmp_path, env=env, program=program)
    # THEN both write what is alive
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(snapshots(tmp_path).values()) == [1000, 1000]


def test_a_compile_worker_is_not_traced(tmp_path: Path, env: Env) -> None:
    # GIVEN inductor's worker process; a variable that a traced process would complain of
    find = "import torch._inductor.compile_worker as found; print(found.__path__[0])"
    worker = Path(python("-c", find, cwd=tmp_path, env=env).stdout.strip(), "__main__.py")
    env.update(PYTRACER="1", PYTRACER_STACK_DEPTH="deep")
    # WHEN it starts, THEN nothing is said
    done = python(str(worker), "--help", cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")


# --- files ----------------------------------------------------------------------------------------


def test_children_do_not_overwrite_the_file(tmp_path: Path, env: Env) -> None:
    # GIVEN one file for a process and its child
    env.update(PYTRACER="1", PYTRACER_OUTPUT="kept/job.pickle")
    program = PARENT.format(OTHER)
    done = python("program.py", cwd=tmp_path, env=env, program=program)
    # THEN the first process has it, and the other one beside it
    assert (done.returncode, done.stderr) == (0, "")
    found = snapshots(tmp_path)
    assert found.pop("kept/job.pickle") == 1000
    ((name, size),) = found.items()
    assert name.startswith("kept/job.pid")
    assert size == 2000


@pytest.mark.slow
def test_every_rank_has_its_file(tmp_path: Path, env: Env) -> None:
    env.update(PYTRACER="1", PYTRACER_OUTPUT="job.pickle", PYTRACER_ALL_RANKS="yes")
    command = FORMS["torchrun"].command
    done = python(*command, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert snapshots(tmp_path) == {"job.rank0.pickle": 1000, "job.rank1.pickle": 1000}


# --- switches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["0", "off", ""])
def test_switched_off(tmp_path: Path, env: Env, value: str) -> None:
    env.update(PYTRACER=value, PYTRACER_STACK_DEPTH="deep", PYTRACER_UNKNOWN="1")
    program = f"{ALONE}\nimport sys; print([each for each in sys.modules if 'pytracer.' in each])"
    done = python("program.py", cwd=tmp_path, env=env, program=program)
    # THEN nothing of pytracer is even imported
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "done\n[]\n")
    assert snapshots(tmp_path) == {}


def test_switched_off_for_the_code_too(tmp_path: Path, env: Env) -> None:
    # GIVEN a program that traces and patches by itself
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
    # WHEN the environment forbids it, THEN it does neither, and runs
    done = python("program.py", cwd=tmp_path, env=env, program=program)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "False PYTRACER=0\ndone\n")
    assert snapshots(tmp_path) == {}


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("PYTRACER", "maybe", "PYTRACER='maybe' is not a boolean: give True or False (1 or 0)"),
        ("PYTRACER_OUTPUT", "job.py/x", "PYTRACER_OUTPUT='job.py/x' cannot be written: "),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, env: Env, variable: str, value: str, reason: str
) -> None:
    env.update({"PYTRACER": "1", variable: value})
    done = python("program.py", cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (0, "done\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"pytracer: not recording: {reason}")


def test_an_unknown_variable_is_said_once(tmp_path: Path, env: Env) -> None:
    # GIVEN a slip; a process that starts another
    env.update(PYTRACER="1", PYTRACER_STACK_DEPT="7", PYTRACER_COLOUR="red")
    done = python("program.py", cwd=tmp_path, env=env, program=PARENT.format(OTHER))
    # THEN the first of them says what was perhaps meant, and both are traced
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert sorted(done.stderr.splitlines()) == [
        "pytracer: PYTRACER_COLOUR is not a variable of pytracer's",
        "pytracer: PYTRACER_STACK_DEPT is not a variable of pytracer's; PYTRACER_STACK_DEPTH is",
    ]
    assert sorted(snapshots(tmp_path).values()) == [1000, 2000]


# --- what it must not do --------------------------------------------------------------------------

IMPORTED = "import sys; print({name for name in sys.modules if 'pytracer' in name})"


def test_nothing_is_imported_unasked(tmp_path: Path, env: Env) -> None:
    assert python("-c", IMPORTED, cwd=tmp_path, env=env).stdout == "set()\n"
    with_torch = python("-c", f"import torch; {IMPORTED}", cwd=tmp_path, env=env).stdout
    assert with_torch == "{'_torch_pytracer'}\n"


def test_a_process_without_torch_pays_little(tmp_path: Path, env: Env) -> None:
    env["PYTRACER"] = "1"
    program = "import sys; print({'numpy', 'pytracer.tracer', 'torch'} & {*sys.modules})"
    assert python("-c", program, cwd=tmp_path, env=env).stdout == "set()\n"


def test_another_module_of_the_same_name(tmp_path: Path, env: Env) -> None:
    # GIVEN a file of the user's that takes our package's place
    (tmp_path / "pytracer.py").write_text("raise ValueError('mine')")
    # WHEN torch is imported, with tracing asked for and without, THEN that works
    assert python("program.py", cwd=tmp_path, env=env).stderr == ""
    program = f"import os\nos.environ['PYTRACER'] = '1'\n{ALONE}"
    done = python("-c", program, cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr == "pytracer: not recording: ValueError('mine')\n"


def test_a_torch_that_cannot_be_imported(tmp_path: Path, env: Env) -> None:
    # GIVEN
    env["PYTRACER"] = "1"
    (tmp_path / "torch.py").write_text("raise OSError('libfoo.so')")
    # WHEN it is tried twice, THEN the program sees torch's own error both times
    program = "for _ in range(2):\n try:\n  import torch\n except OSError as error:\n  print(error)"
    done = python("-c", program, cwd=tmp_path, env=env)
    assert (done.stderr, done.stdout) == ("", "libfoo.so\nlibfoo.so\n")


def test_a_torch_npu_that_cannot_be_imported(tmp_path: Path, env: Env) -> None:
    # GIVEN a program that tries torch_npu first, and does without
    env["PYTRACER"] = "1"
    (tmp_path / "torch_npu.py").write_text("import torch\nraise OSError('libascendcl.so')")
    program = f"try:\n    import torch_npu\nexcept OSError as error:\n    print(error)\n{ALONE}"
    done = python("program.py", cwd=tmp_path, env=env, program=program)
    # THEN it is traced, on the CPU
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "libascendcl.so\ndone\n")
    assert [*snapshots(tmp_path).values()] == [1000]


def test_other_import_hooks(tmp_path: Path, env: Env) -> None:
    # GIVEN a hook of somebody else's that asks all hooks, as ours does
    program = f"""
import importlib.util, pickle, sys

class Old:  # of before Python 3.4, and looked at until 3.12
    def find_module(self, name, path=None):
        return None

class Finder:
    asking = False
    def find_spec(self, name, path=None, target=None):
        if name == "torch" and not self.asking:
            self.asking = True
            return importlib.util.find_spec(name)

sys.meta_path[:0] = [Finder(), Old()]
{ALONE}
loader = sys.modules["torch"].__spec__.loader
assert type(loader).__name__ == "SourceFileLoader"
assert loader.get_source("torch")
assert pickle.dumps(loader)
"""
    env["PYTRACER"] = "1"
    done = python("program.py", cwd=tmp_path, env=env, program=program)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "done\n")
    assert [*snapshots(tmp_path).values()] == [1000]


def test_a_loader_that_cannot_be_changed(tmp_path: Path, env: Env) -> None:
    # GIVEN a torch that is loaded by something with no place for our function
    program = f"""
import importlib.machinery, sys

class Loader:
    __slots__ = ("loader",)
    def __init__(self, loader):
        self.loader = loader
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        self.loader.exec_module(module)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            spec.loader = Loader(spec.loader)
            return spec

sys.meta_path.insert(1, Finder())
{ALONE}"""
    env["PYTRACER"] = "1"
    # WHEN it is imported, THEN torch's entry point starts the tracer
    done = python("program.py", cwd=tmp_path, env=env, program=program)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "done\n")
    assert [*snapshots(tmp_path).values()] == [1000]


# --- pytracer run ---------------------------------------------------------------------------------

REPORT = """
import job, sys
job.work(1000)
print(__name__, sys.argv[1:])
sys.exit(7)
"""


@pytest.mark.parametrize("program", [["program.py"], ["-m", "program"], ["--", "program.py"]])
def test_run_becomes_the_program(tmp_path: Path, env: Env, program: list[str]) -> None:
    # WHEN a program is run with options of ours and of its own
    command = ["-m", "pytracer", "run", "-o", "job.pickle", "--stack-depth", "1", "--no-on-oom"]
    arguments = ["--output", "mine", "-m", "--", "x y"]
    done = python(*command, *program, *arguments, cwd=tmp_path, env=env, program=REPORT)
    # THEN it has what it would have without us, and its exit code is that of the command
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == f"__main__ {arguments}\n"
    # AND ours were obeyed
    assert snapshots(tmp_path) == {"job.pickle": 1000}
    snapshot = pickle.loads((tmp_path / "job.pickle").read_bytes())
    assert snapshot["pytracer"]["stack_depth"] == 1


def test_run_obeys_the_absolute_switch(tmp_path: Path, env: Env) -> None:
    env["PYTRACER"] = "0"
    done = python("-m", "pytracer", "run", "program.py", cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "done\n")
    assert snapshots(tmp_path) == {}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--stack-depth", "deep"], "--stack-depth='deep' is not an integer"),
        (["--device", "gpu"], "--device=['gpu'] is unknown"),
        (["--output", ""], "--output is empty: give a value, or leave it out"),
        (["--schedule", "active=1", "--steps", "3"], "both select steps: give one of them"),
        (["--discrete", "rollout"], "give `steps` or `schedule`, or leave it out"),
        (["--nonsense"], "No such option"),
    ],
)
def test_run_refuses_bad_options(arguments: list[str], problem: str) -> None:
    # WHEN an option is wrong, THEN that is told before the program is looked for
    result = CliRunner().invoke(main, ["run", *arguments, "nowhere.py"])
    assert result.exit_code == 2
    assert problem in result.output


def test_run_has_every_option() -> None:
    text = CliRunner().invoke(main, ["run", "--help"], terminal_width=300).output
    for name in OPTIONS:
        flag = re.escape(f"--{name.replace('_', '-')} ")
        (description,) = re.findall(rf"^ +(?:-o, )?{flag}.*?\s\s+(\S.*)$", text, re.MULTILINE)
        assert len(description) > 10, f"{name} is not described"
