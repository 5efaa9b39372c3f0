"""Test that a program without a request to trace is left alone, whatever it imports and how."""

from pathlib import Path

import pytest
from unmodified_programs import ALONE, Env, python, snapshots

from pytracer.activation import import_hook

FINDER = """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            spec.loader = Loader(spec.loader)
            return spec

sys.meta_path.insert(1, Finder())
"""
"""Finds torch and loads it with the program's own `Loader`."""

IMPORTED = """import sys
# The import hook of an editable install belongs to the build tool and has pytracer in its name.
pytracer_modules = {
    name for name in sys.modules if "pytracer" in name and not name.startswith("_editable_")
}
print(pytracer_modules)"""
WITHOUT_EDITABLE_INSTALL = """import sys
sys.meta_path[:] = [
    finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable_")
]
"""


def test_no_module_is_imported_without_a_request(tmp_path: Path, env: Env) -> None:
    assert python("-c", IMPORTED, cwd=tmp_path, env=env).stdout == "set()\n"
    with_torch = python("-c", f"import torch\n{IMPORTED}", cwd=tmp_path, env=env).stdout
    assert with_torch == "{'_torch_pytracer'}\n"


def test_a_process_without_torch_imports_little(tmp_path: Path, env: Env) -> None:
    env["PYTRACER"] = "1"
    program = "import sys; print({'numpy', 'pytracer.tracing.tracer', 'torch'} & {*sys.modules})"
    assert python("-c", program, cwd=tmp_path, env=env).stdout == "set()\n"


@pytest.mark.slow
def test_a_user_module_with_the_name_of_the_package(tmp_path: Path, env: Env) -> None:
    # GIVEN a file of the user that hides the package
    (tmp_path / "pytracer.py").write_text("raise ValueError('mine')")
    # WHEN torch is imported, with and without a request to trace, THEN the import works
    untraced = WITHOUT_EDITABLE_INSTALL + ALONE
    assert python("program.py", cwd=tmp_path, env=env, program=untraced).stderr == ""
    program = f"import os\nos.environ['PYTRACER'] = '1'\n{untraced}"
    done = python("-c", program, cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr == "pytracer: nothing is recorded: ValueError('mine')\n"


def test_a_torch_that_cannot_be_imported(tmp_path: Path, env: Env) -> None:
    # GIVEN
    env["PYTRACER"] = "1"
    (tmp_path / "torch.py").write_text("raise OSError('libfoo.so')")
    # WHEN the program imports it twice, THEN it gets torch's own error both times
    program = "for _ in range(2):\n try:\n  import torch\n except OSError as error:\n  print(error)"
    done = python("-c", program, cwd=tmp_path, env=env)
    assert (done.stderr, done.stdout) == ("", "libfoo.so\nlibfoo.so\n")


def test_a_torch_npu_that_cannot_be_imported(tmp_path: Path, env: Env) -> None:
    # GIVEN a program that tries torch_npu first, and continues without it
    env["PYTRACER"] = "1"
    (tmp_path / "torch_npu.py").write_text("import torch\nraise OSError('libascendcl.so')")
    program = f"try:\n    import torch_npu\nexcept OSError as error:\n    print(error)\n{ALONE}"
    done = python("program.py", cwd=tmp_path, env=env, program=program)
    # THEN the program is traced on the CPU
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "libascendcl.so\ndone\n")
    assert [*snapshots(tmp_path).values()] == [1000]


def test_other_import_hooks(tmp_path: Path, env: Env) -> None:
    # GIVEN an import hook of another package that asks all hooks, as pytracer's hook does
    program = f"""
import importlib.util, pickle, sys

class Old:  # the interface before Python 3.4, which Python supported until 3.12
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


@pytest.mark.long
def test_a_loader_that_cannot_be_changed(tmp_path: Path, env: Env) -> None:
    # GIVEN a loader of torch that pytracer cannot modify
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

{FINDER}{ALONE}"""
    env["PYTRACER"] = "1"
    # WHEN torch is imported, THEN torch's entry point starts the tracer
    done = python("program.py", cwd=tmp_path, env=env, program=program)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "done\n")
    assert [*snapshots(tmp_path).values()] == [1000]


@pytest.mark.long
def test_a_loader_without_exec_module(tmp_path: Path, env: Env) -> None:
    # GIVEN a loader of torch with the interface before Python 3.4
    program = f"""
import importlib.machinery, importlib.util, sys, warnings

warnings.simplefilter("ignore")

class Loader:
    def __init__(self, loader):
        self.loader = loader
    def load_module(self, name):
        found = importlib.machinery.PathFinder.find_spec(name)
        module = sys.modules[name] = importlib.util.module_from_spec(found)
        self.loader.exec_module(module)
        return module

{FINDER}{ALONE}"""
    env["PYTRACER"] = "1"
    # WHEN torch is imported, THEN the import works, and torch's entry point starts the tracer
    done = python("program.py", cwd=tmp_path, env=env, program=program)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "done\n")
    assert [*snapshots(tmp_path).values()] == [1000]


def test_any_loader_is_accepted() -> None:
    class Raising:
        @property
        def exec_module(self) -> None:
            raise ValueError

    for loader in (None, object(), Raising()):
        import_hook._note_import(loader, "torch")  # type: ignore[arg-type]
