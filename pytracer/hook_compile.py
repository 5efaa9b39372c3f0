"""What a hook is compiled from, the key that stands for it, and the compiler's command.

A new backend needs a source in `hooks/{backend}.cpp`, and here what `include_dirs` must add.
"""

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pytracer.errors import HookError
from pytracer.hook_places import PREBUILT_REMEDY, package_dirs, places

COMPILE_SECONDS = 120.0
NPU_VERSIONS = (
    "2.13.0 or newer, or 2.12.0.post3, 2.11.0.post3, 2.10.0.post7, 2.9.0.post9, 2.7.1.post11"
)
"""The releases whose allocator has a tracker."""

_FLAGS = ("-O2", "-shared", "-fPIC", "-fvisibility=hidden")
# The CPU wheels have no header for the CUDA build's configuration; nothing in it matters to a hook.
_BACKEND_FLAGS = {"cuda": ("-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE",)}
_STANDARDS = ("c++20", "c++17")  # the second for compilers and headers that know no C++20
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^<>"\n]+)[>"]', re.MULTILINE)


@dataclass(frozen=True)
class Torch:
    """What a hook must match of the torch that is running."""

    version: str
    root: Path
    cxx11_abi: bool


def running_torch() -> Torch:
    """Describes the running torch, importing it if need be.

    Raises:
        HookError: It is not installed, or its import fails.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise HookError("torch is not installed for this Python; pip install torch") from error
        raise HookError(f"importing torch failed ({error}); install what it lacks") from error
    except Exception as error:
        raise HookError(f"importing torch failed ({error}); mend that installation") from error
    return Torch(
        torch.__version__, Path(torch.__file__).parent, bool(torch.compiled_with_cxx11_abi())
    )


def source_dir(backend: str) -> Path:
    """The folder with `hook.h` and `hooks/{backend}.cpp`.

    Raises:
        HookError: This version has no hook for the backend, or the installation has no sources.
    """
    here = Path(__file__).parent
    # In an editable install the checkout is newer than what the install copied.
    candidates = [here / "_hook_source", here.parent / "csrc"]
    candidates += [folder / "_hook_source" for folder in package_dirs()]
    folder = next((each for each in candidates if (each / "hook.h").is_file()), None)
    if folder is None:
        raise HookError(
            f"the hooks' sources are missing ({candidates[0]}); install torch-pytracer again"
        )
    recorded = sorted(path.stem for path in (folder / "hooks").glob("*.cpp"))
    if backend not in recorded:
        raise HookError(
            f"this version of pytracer records the {' and '.join(recorded).upper()} allocator "
            f"only, not {backend!r}; trace another device, or install a newer pytracer"
        )
    return folder


def include_dirs(backend: str) -> list[Path]:
    """The folders the compiler finds the headers of `backend` in.

    Raises:
        HookError: torch's are not there.
    """
    headers = running_torch().root / "include"
    if not (headers / "c10").is_dir():
        raise HookError(
            f"torch's C++ headers are missing ({headers / 'c10'} is not a folder); "
            "install torch from a wheel that has them"
        )
    if backend == "cuda":
        return [headers, source_dir(backend) / "hooks" / "stand_in"]
    if backend == "npu":
        return [headers, *_torch_npu_headers()]
    return [headers]


def _torch_npu_headers() -> list[Path]:
    """Those of a torch_npu whose allocator can be listened to."""
    spec = importlib.util.find_spec("torch_npu")
    if spec is None or spec.origin is None:
        raise HookError("torch_npu is not installed for this Python; pip install torch-npu")
    headers = Path(spec.origin).parent / "include"
    allocator = headers / "torch_npu/csrc/core/npu/NPUCachingAllocator.h"
    if not allocator.is_file():
        raise HookError(
            f"torch_npu's C++ headers are missing ({allocator} is not a file); "
            "install torch_npu from a wheel that has them"
        )
    if b"attachAllocatorTraceTracker" not in allocator.read_bytes():
        raise HookError(
            f"the allocator of torch_npu {_version('torch_npu')} reports no events to others; "
            f"install torch_npu {NPU_VERSIONS}"
        )
    return [headers, headers / "third_party" / "acl" / "inc"]


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(of unknown version)"


def key(backend: str) -> str:
    """Identifies what the hook is compiled from, in 20 hexadecimal digits.

    A hash of the hook's source, of every header of ours and torch's that it includes, directly or
    not, and of what else decides the ABI. Not a version string: vendors patch. Install paths do
    not count, so that a hook built elsewhere for the same torch is found.

    Raises:
        HookError: No such hook, no torch, or no headers.
    """
    folder = source_dir(backend)
    parts = {
        "machine": platform.machine().encode(),
        "cxx11_abi": str(running_torch().cxx11_abi).encode(),
        "flags": " ".join(flags(backend)).encode(),
        **_included(folder / "hooks" / f"{backend}.cpp", [folder, *include_dirs(backend)]),
    }
    digest = hashlib.sha256()
    for name, content in sorted(parts.items()):
        digest.update(b"%s\0%d\0%s" % (os.fsencode(name), len(content), content))
    return digest.hexdigest()[:20]


def flags(backend: str) -> list[str]:
    """The compiler's options that decide what comes out."""
    return [*_FLAGS, *_BACKEND_FLAGS.get(backend, ())]


def file_name(backend: str) -> str:
    """The hook's file name, in whatever place it lies.

    Raises:
        HookError: As for `key`.
    """
    return f"pytracer_{backend}-{key(backend)}.so"


def building_allowed() -> bool:
    """Whether `PYTRACER_BUILD` lets a hook be compiled here.

    Raises:
        HookError: It is neither `auto` nor `never`.
    """
    mode = os.environ.get("PYTRACER_BUILD") or "auto"
    if mode not in ("auto", "never"):
        raise HookError(
            f"PYTRACER_BUILD is {mode!r}; set it to 'auto' (the default: a missing hook is "
            "compiled) or 'never'"
        )
    return mode == "auto"


def find_compiler() -> list[str]:
    """The C++ compiler's command: `$CXX`, else the first of c++, g++ and clang++ on the PATH.

    Raises:
        HookError: There is none, or `PYTRACER_BUILD` forbids compiling.
    """
    if not building_allowed():
        looked = ", ".join(str(place.directory) for place in places())
        raise HookError(
            "the hook for this torch is not built and PYTRACER_BUILD=never forbids compiling it "
            f"(looked in {looked}); unset PYTRACER_BUILD, or {PREBUILT_REMEDY}"
        )
    if given := os.environ.get("CXX", "").split():
        if shutil.which(given[0]) is None:
            raise HookError(
                f"no C++ compiler: CXX is {' '.join(given)!r}, which cannot be run; "
                f"correct or unset it, or {PREBUILT_REMEDY}"
            )
        return given
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            return [path]
    raise HookError(
        "no C++ compiler (looked for $CXX, and for c++, g++ and clang++ on the PATH); "
        f"install g++, or {PREBUILT_REMEDY}"
    )


def compile_hook(compiler: list[str], backend: str, output: Path) -> None:
    """Compiles the hook for `backend` into the file `output`.

    Raises:
        HookError: The compiler failed; the message has its first error.
    """
    torch = running_torch()
    lib = torch.root / "lib"
    inputs = [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)}"]
    inputs += [f"-I{folder}" for folder in include_dirs(backend)]
    inputs += [str(source_dir(backend) / "hooks" / f"{backend}.cpp")]
    inputs += [f"-L{lib}", "-lc10", f"-Wl,-rpath,{lib}", "-o", str(output)]
    # The compiler's own temporary files go where the hook goes: that folder can be written.
    env = {**os.environ, "TMPDIR": str(output.parent), "LC_ALL": "C"}
    complaints = []
    for standard in _STANDARDS:
        try:
            done = subprocess.run(
                [*compiler, *flags(backend), f"-std={standard}", *inputs],
                timeout=COMPILE_SECONDS,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HookError(f"the C++ compiler failed: {error}; {PREBUILT_REMEDY}") from error
        if done.returncode == 0:
            return
        complaints.append(done.stderr.strip())
    # The first standard's complaint says more, unless it is about the standard itself.
    said = complaints[1] if f"-std={_STANDARDS[0]}" in complaints[0] else complaints[0]
    lines = said.splitlines() or ["it wrote no message"]
    reason = next((line for line in lines if "error" in line), lines[-1])
    raise HookError(
        f"compiling the hook for {backend!r} and torch {torch.version} with "
        f"{' '.join(compiler)} failed: {reason}; set CXX to another compiler, or {PREBUILT_REMEDY}"
    )


def _included(source: Path, roots: list[Path]) -> dict[str, bytes]:
    """Every file under `roots` that `source` includes, directly or not, by its name there."""
    contents: dict[str, bytes] = {}
    # torch_npu's headers name 200,000 files, most of them again and again: each is looked for once.
    prefixes = [str(root) for root in roots]
    tried: set[tuple[str, str]] = set()
    seen: set[str] = set()
    todo = [str(source)]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        root = next((root for root in prefixes if path.startswith(f"{root}{os.sep}")), None)
        if root is None or not os.path.isfile(path):
            continue
        content = Path(path).read_bytes()
        contents[os.path.relpath(path, root)] = content
        for name in map(os.fsdecode, set(_INCLUDE.findall(content))):
            for folder in (os.path.dirname(path), *prefixes):
                if (folder, name) not in tried:
                    tried.add((folder, name))
                    todo.append(os.path.normpath(os.path.join(folder, name)))
    return contents
