"""The libraries of the simulated devices, for the torch of this interpreter.

torch is not imported. Those for CUDA are in this package, ready-made. Those for NPUs are compiled
at first use, with torch_npu's own headers, into a folder that no other user can write to.

    python -I -m pytracer.rehearsal.libraries cuda|npu                # prints their folder
    python -I -m pytracer.rehearsal.libraries cuda|npu ARGUMENTS...   # python ARGUMENTS on them
"""

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

from pytracer.backends.hook_folders import HookFolders
from pytracer.errors import ConfigError
from pytracer.rehearsal import stubs

MODEL = "libsimulated_device.so"
_NEXT_TO_CUDA = "libsimulated_next_to_cuda.so"
_COMPILE = ["g++", "-std=c++17", "-O2", "-fPIC", "-pthread"]

_NPU_SYMBOLS = r"(acl|rt[A-Z]|[Hh]ccl|Msprof|ge|aml|drv)"
# Functions that torch_npu looks up by name: operators, and these families.
_NPU_BY_NAME = re.compile(
    rb"\0(aclnn[A-Z]\w+|aclDestroy\w+|aclprof[A-Z]\w+|aclrt(?:Set|Use|Unuse|Reset)\w+|aclopSet\w+)"
    rb"(?=\0)"
)
# Libraries that torch_npu opens at run time, in addition to those that it is linked with.
_NPU_OPENED = {"libopapi.so", "libnnopbase.so", "libmsprofiler.so", "libascend_dump.so"}


def folder(backend: str) -> Path:
    """Return the folder of the libraries of "cuda" or "npu"; those for NPUs may be compiled first.

    Raises:
        ConfigError: There are none for this torch, or they cannot be compiled.
    """
    if backend == "npu":
        return _npu_folder()
    major = _cuda_version() // 1000
    if major not in stubs.SONAMES:
        raise ConfigError(
            f"the simulated devices are for CUDA {' and '.join(map(str, stubs.SONAMES))}, and "
            f"torch {_version('torch')} is a build for CUDA {major}: install another build of it"
        )
    return _own(f"cuda{major}")


def environment(backend: str) -> dict[str, str]:
    """Return the variables of a process in which torch runs on the simulated devices.

    CUDA's are preloaded, because torch looks for NVIDIA's own packages before it looks in
    LD_LIBRARY_PATH, where programs find a driver that they open by its name.
    """
    folders = [folder(backend)]
    changes: dict[str, str] = {}
    preloaded = [_own(MODEL)]
    if backend == "npu":
        # torch_npu looks for CANN's Python packages and operators here; there are none.
        home = folders[0] / "home"
        changes |= {"ASCEND_HOME_PATH": str(home), "ASCEND_OPP_PATH": str(home / "opp")}
        preloaded = [*folders[0].glob(_NEXT_TO_CUDA)]
        if _is_cuda_build():
            folders.append(folder("cuda"))
            changes["CUDA_VISIBLE_DEVICES"] = ""
    if _is_cuda_build():
        changes["SIMULATED_CUDA_VERSION"] = str(_cuda_version())
        preloaded += sorted(folders[-1].glob("lib*.so.*"))
    # The loader ends a path in LD_PRELOAD at a space, and looks names up in LD_LIBRARY_PATH.
    preload = [path.name if " " in str(path) else str(path) for path in preloaded]
    searched = [str(each) for each in (*folders, _own(MODEL).parent)]
    for name, first in (("LD_PRELOAD", preload), ("LD_LIBRARY_PATH", searched)):
        others = [each for each in os.environ.get(name, "").split(":") if each not in ("", *first)]
        changes[name] = ":".join([*first, *others])
    return changes


def _own(name: str) -> Path:
    for package in HookFolders().package:
        if (path := package / "rehearsal/_devices" / name).exists():
            return path
    raise ConfigError(f"this pytracer has no simulated devices ({name}): install its wheel again")


def _package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise ConfigError(f"{sys.executable} has no {name}, which simulated devices need")
    return Path(found.submodule_search_locations[0])


def _version(package: str) -> str:
    text = (_package(package) / "version.py").read_text()
    found = re.search(r"__version__ = '([^']+)'", text)
    return found[1] if found else "?"


def _is_cuda_build() -> bool:
    return (_package("torch") / "lib/libc10_cuda.so").exists()


def _cuda_version() -> int:
    """Return the version of CUDA that torch is built for; 13020 means 13.2."""
    text = (_package("torch") / "version.py").read_text()
    found = re.search(r"^cuda\b.*= '(\d+)\.(\d+)", text, re.MULTILINE)
    if found is None or not _is_cuda_build():
        raise ConfigError(
            f"torch {_version('torch')} of {sys.executable} is no build for CUDA, which simulated "
            "GPUs need: install one, for example by `pip install --no-deps torch`"
        )
    return int(found[1]) * 1000 + int(found[2]) * 10


def _npu_folder() -> Path:
    packages = [_package("torch"), _package("torch_npu")]
    digest = hashlib.sha256(stubs.MACROS.encode())
    for path in sorted(_own("source").rglob("*.*")):
        digest.update(path.read_bytes())
    for path in _libraries(*packages):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
    root = HookFolders().destination().directory
    made = root / f"devices-npu-{_version('torch_npu')}-{digest.hexdigest()[:12]}"
    # The name identifies the contents, so that a folder never changes after it was made. Other
    # processes that need the folder wait.
    with FileLock(root / "devices.lock"):
        if not made.exists():
            print(f"making {made.name}", file=sys.stderr)
            with tempfile.TemporaryDirectory(dir=root) as scratch:
                out = Path(scratch) / "out"
                out.mkdir()
                try:
                    _make_npu(out, Path(scratch), *packages)
                except (OSError, subprocess.CalledProcessError) as error:
                    why = getattr(error, "stderr", "") or error
                    raise ConfigError(
                        f"simulated NPUs need g++ and binutils, once: {why}"
                    ) from error
                out.rename(made)
    return made


def _libraries(*packages: Path) -> list[Path]:
    return sorted(
        library
        for package in packages
        for pattern in ("lib/*.so", "_C*.so")
        for library in package.glob(pattern)
        # This library needs others, and is called only on request.
        if library.name != "libop_plugin_atb.so"
    )


def _output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _symbols(library: Path, which: str) -> set[str]:
    lines = _output("nm", "-D", which, library).splitlines()
    # CANN's have no versions, as those of libc have.
    return {line.split()[-1] for line in lines if line.strip() and "@" not in line}


def _make_npu(out: Path, scratch: Path, torch: Path, npu: Path) -> None:
    wanted: set[str] = set()
    sonames, by_name = set(_NPU_OPENED), set()
    own = _libraries(npu)
    for library in own:
        wanted |= _symbols(library, "--undefined-only")
        needed = _output("readelf", "-d", library)
        sonames |= set(re.findall(r"\(NEEDED\).*\[(lib[a-z_]+\.so)\]", needed))
        by_name |= {name.decode() for name in _NPU_BY_NAME.findall(library.read_bytes())}
    for library in _libraries(torch, npu):
        wanted -= _symbols(library, "--defined-only")
        sonames.discard(library.name)
    source = _own("source")
    generated = scratch / "stubs.cpp"
    generated.write_text(
        stubs.source({name for name in wanted if re.match(_NPU_SYMBOLS, name)} | by_name)
    )
    includes = ["-I", str(source), "-I", str(npu / "include/third_party/acl/inc")]
    link = [*_COMPILE, *includes, "-shared", "-Wl,--no-as-needed", str(_own(MODEL))]
    parts = {
        "libascendcl.so": ["devices.cpp", "execution.cpp", "operators.cpp", str(generated)],
        "libdcmi.so": ["dcmi.cpp"],
        **({_NEXT_TO_CUDA: ["next_to_cuda.cpp"]} if _is_cuda_build() else {}),
    }
    for soname, names in parts.items():
        sources = [str(source / "devices/npu" / name) for name in names]
        _output(*link, f"-Wl,-soname,{soname}", *sources, "-o", out / soname)
    # A lookup in a library also finds the symbols of its dependencies.
    for soname in sonames - {"libascendcl.so"}:
        stubs.name_library("ld", out / "libascendcl.so", out / soname)
    for name in ("runtime", "compiler", "opp"):
        (out / "home" / name).mkdir(parents=True)


if __name__ == "__main__":
    try:
        if sys.argv[2:]:
            started = [sys.executable, *sys.argv[2:]]
            os.execve(sys.executable, started, {**os.environ, **environment(sys.argv[1])})
        print(folder(sys.argv[1]))
    except ConfigError as error:
        sys.exit(f"simulate: {error}")
