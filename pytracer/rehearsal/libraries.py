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

MODEL = "libsimulated_device.so"
_NEXT_TO_CUDA = "libsimulated_next_to_cuda.so"


def folder(backend: str) -> Path:
    """Return the folder of the libraries of "cuda" or "npu"; those for NPUs may be compiled first.

    Raises:
        ConfigError: There are none for this torch, or they cannot be compiled.
    """
    if backend == "npu":
        return _npu_folder()
    name = f"cuda{_cuda_version() // 1000}"
    all_of_them = _own(MODEL).parent
    if not (all_of_them / name).exists():
        others = ", ".join(sorted(path.name for path in all_of_them.glob("cuda*")))
        raise ConfigError(
            f"torch {_version('torch')} is a build for {name}, but simulated devices exist only "
            f"for {others}: install another build of torch"
        )
    return all_of_them / name


def environment(backend: str) -> dict[str, str]:
    """Return the variables of a process in which torch runs on the simulated devices.

    CUDA's are preloaded, because torch looks for NVIDIA's own packages before it looks in
    LD_LIBRARY_PATH, where programs find a driver that they open by its name.
    """
    folders = [folder(backend)]
    # A thread of torch that Python stops while it ends is waited for (csrc/devices/exit.cpp).
    wait = "TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT"
    changes = {wait: os.environ.get(wait, "1")}
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


def _version(package: str, name: str = "__version__") -> str:
    text = (_package(package) / "version.py").read_text()
    found = re.search(rf"^{name}\b.*= '([^']+)'", text, re.MULTILINE)
    return found[1] if found else ""


def _is_cuda_build() -> bool:
    return (_package("torch") / "lib/libc10_cuda.so").exists()


def _cuda_version() -> int:
    """Return the version of CUDA that torch is built for; 13020 means 13.2."""
    if not _is_cuda_build():
        raise ConfigError(
            f"torch {_version('torch')} of {sys.executable} is not built for CUDA, which simulated "
            "GPUs need: install a CUDA build, for example by `pip install --no-deps torch`"
        )
    major, minor = map(int, _version("torch", "cuda").split("."))
    return major * 1000 + minor * 10


def _npu_folder() -> Path:
    packages = [_package("torch"), _package("torch_npu")]
    digest = hashlib.sha256()
    for path in sorted(_own("source").rglob("*.*")):
        if path.parent.name != "__pycache__":  # where running them writes
            digest.update(path.read_bytes())
    for path in sorted(library for package in packages for library in package.glob("lib/*.so")):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
    root = HookFolders().destination().directory
    made = root / f"devices-npu-{_version('torch_npu')}-{digest.hexdigest()[:12]}"
    # The name identifies the contents, so that a folder never changes after it was made. Other
    # processes that need the folder wait.
    with FileLock(root / "devices.lock"):
        if not made.exists():
            print(f"making {made.name}", file=sys.stderr)
            with tempfile.TemporaryDirectory(dir=root) as scratch:
                out = Path(scratch, "out")
                out.mkdir(mode=0o700)
                script = _own("source/devices/npu_libraries.py")
                paths = map(str, (script, out, _own(MODEL), *packages))
                command = [sys.executable, "-E", "-s", *paths]
                if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
                    raise ConfigError(
                        "the libraries of simulated NPUs could not be compiled (g++ and binutils "
                        "are needed): the reason is above"
                    )
                out.rename(made)
    return made


if __name__ == "__main__":
    try:
        if sys.argv[2:]:
            started = [sys.executable, *sys.argv[2:]]
            os.execve(sys.executable, started, {**os.environ, **environment(sys.argv[1])})
        print(folder(sys.argv[1]))
    except ConfigError as error:
        sys.exit(f"simulate: {error}")
