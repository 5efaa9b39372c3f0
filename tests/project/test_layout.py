"""Tests of the direction of imports between folders of pytracer/, and of includes in csrc/."""

import ast
import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import passed
import pytest

from pytracer.reading.metadata import FileMetadata

ROOT = Path(__file__).parents[2]

# Three chains, from top to bottom: a folder may import those below it in its chains.
CHAINS = (
    "commands fitting rehearsal recommendation experiments activation torch_recorder integrations"
    " tracing boxes simulator owners settings backends",
    "commands fitting rehearsal recommendation experiments fleet export page simulator analysis"
    " reading",
    # A tracer explains its snapshots, an integration reads them, a box has the metadata of one.
    "integrations tracing boxes page simulator analysis reading",
)
RECORDING, READING, LIVE = map(str.split, CHAINS)

# The modules next to the folders, below all of them. Reading, which needs no recorder and works
# without the compiled core, may import only the second group.
BASE = ("child_process", "log", "text", "atomic_file", "variables", "errors")
BASE_OF_READING = ("text", "atomic_file", "variables", "errors")

INCLUDES = {
    "python": ("restore", "session", "snapshot", "view", "tensors", "record", "holders")
    + ("frames", "support", "hooks"),
    "restore": ("session", "view", "record", "frames", "support", "hooks"),
    "session": ("view", "record", "frames", "support", "hooks"),
    "snapshot": ("view", "record", "frames", "support", "hooks"),
    "view": ("record", "frames", "support", "hooks"),
    "record": ("frames", "support", "hooks"),
    "holders": ("frames", "support", "hooks"),
    "tensors": ("record", "holders", "frames", "support", "hooks"),
    "frames": ("support", "hooks"),
    "simulator": ("reading", "support"),
    "reading": ("support",),
    "support": (),
    "hooks": (),
    "devices": (),
}
"""The folders of csrc/ that each folder may include; of hooks/ only the C interfaces."""

INTERFACES = ("hooks/hook_abi.h", "hooks/autograd_abi.h")


def allowed(folder: str) -> set[str]:
    """Return the folders and modules of pytracer/ that one of them may import."""
    if folder in BASE:
        return set(BASE[BASE.index(folder) + 1 :])
    below = {
        lower
        for chain in (RECORDING, READING, LIVE)
        if folder in chain
        for lower in chain[chain.index(folder) + 1 :]
    }
    return below | set(BASE if folder in RECORDING else BASE_OF_READING)


def modules(package: Path) -> dict[str, Path]:
    """Return the modules of a package by name; a package is named as its folder."""
    paths = sorted(package.rglob("*.py"))
    return {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in paths
    }


def imports(path: Path, known: Iterable[str]) -> Iterator[str]:
    """Yield the modules of the package that a file imports, inside functions too."""
    known = set(known)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "pytracer")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the import in full"
            if node.module and node.module.split(".")[0] == "pytracer":
                names = [f"{node.module}.{name.name}" for name in node.names]
                yield from (name if name in known else node.module for name in names)


def folder_of(module: str) -> str:
    """Return the folder of a module, or its own name next to the folders; "" for the package."""
    return module.split(".")[1] if "." in module else ""


def wrong_imports(package: Path) -> list[str]:
    """Return the imports against the direction, one line each."""
    known = modules(package)
    found = []
    for module, path in known.items():
        folder = folder_of(module)
        if folder in ("", "__main__"):  # the public names, imported when they are used
            continue
        for imported in imports(path, known):
            target = folder_of(imported)
            is_native = target == "_core" and folder in RECORDING
            is_defined_there = target == ""  # `from pytracer import __version__, ACTIONS`
            if target == folder or is_native or is_defined_there:
                continue
            if target not in allowed(folder):
                found.append(f"{path.relative_to(package.parent)} imports {imported}")
    return found


def cycle(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the nodes of a cycle in a graph; [] if there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_imports_point_down() -> None:
    # GIVEN every folder is in the order
    package = ROOT / "pytracer"
    folders = {folder_of(module) for module in modules(package)} - {"", "__main__"}
    assert folders == {*RECORDING, *READING, *BASE}
    # THEN no import, inside functions too, points up or to the side
    assert wrong_imports(package) == []


def test_modules_import_each_other_in_one_direction() -> None:
    known = modules(ROOT / "pytracer")
    # A package's __init__ exports what its modules define; they do not import it.
    edges = {
        module: {imported for imported in imports(path, known) if imported != module}
        for module, path in known.items()
        if path.name != "__init__.py"
    }
    assert cycle(edges) == []


def test_wrong_imports_are_found(tmp_path: Path) -> None:
    # GIVEN a package whose reader imports the recorder, in a function
    package = tmp_path / "pytracer"
    (package / "reading").mkdir(parents=True)
    (package / "tracing").mkdir()
    (package / "reading" / "a.py").write_text("def f():\n    from pytracer.tracing import b\n")
    (package / "tracing" / "b.py").write_text("import pytracer.errors\n")
    # THEN that import is found, and the other one is not
    assert wrong_imports(package) == ["pytracer/reading/a.py imports pytracer.tracing.b"]
    # AND so is a cycle
    assert {*cycle({"a": ["b"], "b": ["c"], "c": ["b"]})} == {"b", "c"}
    assert cycle({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def wrong_includes(folder: Path) -> list[str]:
    """Return the includes against the direction, one line each."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix not in (".h", ".cpp"):
            continue
        source = path.relative_to(folder).parts[0]
        for target in re.findall(r'^ *# *include "(.+)"', path.read_text(), re.MULTILINE):
            first = target.split("/")[0] if "/" in target else source
            is_interface = first != "hooks" or target in INTERFACES
            if first != source and not (first in INCLUDES[source] and is_interface):
                found.append(f"{path.relative_to(folder.parent)} includes {target}")
    return found


def test_includes_point_down() -> None:
    csrc = ROOT / "csrc"
    assert {path.name for path in csrc.iterdir() if path.is_dir()} == {*INCLUDES}
    assert cycle(INCLUDES) == []
    assert wrong_includes(csrc) == []


def test_wrong_includes_are_found(tmp_path: Path) -> None:
    for name, text in (
        ("record/a.cpp", '#include "session/session.h"\n#include "support/error.h"\n'),
        ("view/b.h", '#include "hooks/caching_allocator.h"\n#include "hooks/hook_abi.h"\n'),
    ):
        (tmp_path / "csrc" / name).parent.mkdir(parents=True)
        (tmp_path / "csrc" / name).write_text(text)
    assert wrong_includes(tmp_path / "csrc") == [
        "csrc/record/a.cpp includes session/session.h",
        "csrc/view/b.h includes hooks/caching_allocator.h",
    ]


def test_the_modules_of_the_page_import_each_other_in_one_direction() -> None:
    # GIVEN the imports of each module, those of types too
    edges = {
        path.name: re.findall(r'from "\./([\w.]+)"', path.read_text())
        for path in (ROOT / "web/src").glob("*.ts")
    }
    # THEN none imports a module that imports it
    assert {"layout.ts", "model.ts", "usage.ts"} <= edges.keys()
    assert cycle(edges) == []


@pytest.mark.parametrize("package", ["reading", "analysis", "page", "export"])
def test_reading_loads_no_recorder(package: str, tmp_path: Path) -> None:
    # GIVEN a process that imports everything in a folder, and each name that it exports
    code = f"""
import importlib, pkgutil, sys
import pytracer.{package} as package
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
for name in getattr(package, "__all__", ()):
    getattr(package, name)
    assert name in dir(package)
allowed = ("reading", "analysis", "page", "export", *{BASE_OF_READING})
print([name for name in sys.modules if name.startswith(("torch", "pytracer._core"))
       or name.startswith("pytracer.") and name.split(".")[1] not in allowed])
"""
    # In another folder than the checkout, whose pytracer/ has no compiled reader.
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    # THEN it has loaded no torch, no core and no folder of the recorder
    assert done.stdout == "[]\n"


def test_show_imports_little(tmp_path: Path) -> None:
    # GIVEN `pytracer show` of a file, in a process of its own
    snapshot = ROOT / "tests" / "golden" / "snapshot-1.4-cuda.pickle"
    code = f"""
import sys
from pytracer.commands.main import main
main(["show", {str(snapshot)!r}], standalone_mode=False)
ours = [name for name in sys.modules if name.split(".")[0] == "pytracer"]
print(len(ours), "torch" in sys.modules, *ours)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    # THEN it has imported at most 59 modules of pytracer, and no torch
    count, has_torch, *_ = done.stdout.splitlines()[-1].split()
    assert (int(count) <= 59, has_torch) == (True, "False"), done.stdout


RAW = "as_written"  # the attribute of `FileMetadata` with the dictionary of the file


def uses_of_raw_metadata(package: Path) -> list[str]:
    """Return where code outside of reading/ does more with raw metadata than pass it on."""
    found = []
    for path in sorted(package.rglob("*.py")):
        if path.parent.name == "reading":
            continue
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        passed = [arg for call in calls for arg in (*call.args, *(k.value for k in call.keywords))]
        for node in nodes:
            is_raw = isinstance(node, ast.Attribute) and node.attr == RAW
            is_text = isinstance(node, ast.Constant) and node.value == RAW  # as for getattr
            if is_text or (is_raw and node not in passed):
                found.append(f"{path.relative_to(package.parent)}:{node.lineno}")
    return sorted(found)


def test_only_reading_reads_raw_metadata() -> None:
    assert RAW in {field.name for field in dataclasses.fields(FileMetadata)}
    assert uses_of_raw_metadata(ROOT / "pytracer") == []


def test_uses_of_raw_metadata_are_found(tmp_path: Path) -> None:
    for name, text in (
        ("analysis/a.py", f"rank = file.{RAW}['rank']\nprint(json.dumps(file.{RAW}, default=str))"),
        ("page/b.py", f"raw = file.{RAW}\nfile.{RAW}.get('rank')\ngetattr(file, '{RAW}')"),
        ("reading/c.py", f"rank = file.{RAW}['rank']"),
    ):
        (tmp_path / "pytracer" / name).parent.mkdir(parents=True)
        (tmp_path / "pytracer" / name).write_text(text)
    assert uses_of_raw_metadata(tmp_path / "pytracer") == [
        "pytracer/analysis/a.py:1",
        *(f"pytracer/page/b.py:{line}" for line in (1, 2, 3)),
    ]


def test_sources_that_are_not_installed_say_so(tmp_path: Path) -> None:
    # GIVEN a folder that has pytracer's sources, WHEN a program that starts there imports them
    (tmp_path / "pytracer").symlink_to(ROOT / "pytracer")
    code = "import pytracer; pytracer.Tracer"
    command = [sys.executable, "-S", "-c", code]  # without the installed package
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    # THEN the error says what it has imported, and what to do
    assert done.returncode == 1
    assert "Start the program in another folder" in done.stderr.splitlines()[-1]


def test_tiers_have_files_and_paths_that_exist() -> None:
    files = [re.sub(r"/(\w+)$", r"/test_\1.py", f"tests/{file}") for file in passed.FILES]
    for tier in map(passed.TIERS.__getitem__, passed.TIERS.sections()):
        paths = {*tier["paths"].split()}
        assert not [path for path in [*paths, *files] if not (ROOT / path).exists()]
        # git would list a nested path in place of the one around it.
        assert not [path for path in paths if {*map(str, Path(path).parents)} & paths]
