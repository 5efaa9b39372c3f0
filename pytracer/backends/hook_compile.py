"""What a hook is compiled from, and the compiler's command.

A new backend needs a source, `hooks/{backend}.cpp`, and its folders in `include_dirs`.
"""

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from itertools import product
from pathlib import Path

from pytracer.backends.hook_folders import PREBUILT_REMEDY, HookFolders
from pytracer.backends.names import AUTOGRAD, HOST
from pytracer.backends.running_torch import TorchBuild, torch_build
from pytracer.child_process import run_captured
from pytracer.errors import HookError
from pytracer.log import warn_once
from pytracer.text import brief, printable

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^<>"\n]+)[>"]', re.MULTILINE)
_VERSION = re.compile(r"^#define TORCH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", re.MULTILINE)
NPU_VERSIONS = (
    "2.13.0 or newer, or 2.12.0.post3, 2.11.0.post3, 2.10.0.post7, 2.9.0.post9, 2.7.1.post11"
)
"""The releases of torch_npu whose allocator reports its events to a tracker."""

STANDARDS = ("c++20", "c++17")  # tried in order; the second is for compilers that do not know C++20

_FLAGS = ("-O2", "-shared", "-fPIC", "-fvisibility=hidden")
# CPU wheels lack the header with the CUDA build's configuration. A hook uses nothing of it.
# The library for autograd needs no operator. Without their declarations it compiles far faster.
_BACKEND_FLAGS = {
    "cuda": ("-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE",),
    AUTOGRAD: ("-DAT_PER_OPERATOR_HEADERS",),
}
# Flags that leave a part out of a hook, for a torch whose headers do not compile with this part.
_WITHOUT_PARTS = {"cuda": ["-DPYTRACER_NO_WORKSPACES"]}
_LIBRARIES = {AUTOGRAD: ("-lc10", "-ltorch_cpu"), HOST: ("-lc10", "-ltorch_cpu")}


class HookCompiler:
    """Names and compiles the hooks for the running torch.

    `environment` has the variables that choose the compiler; it is read at each use. `torch`
    describes the torch to compile for, or raises a HookError; `torch_npu` returns the folder of the
    package torch_npu.
    """

    def __init__(
        self,
        folders: HookFolders | None = None,
        *,
        environment: Mapping[str, str] = os.environ,
        torch: Callable[[], TorchBuild] = torch_build,
        torch_npu: Callable[[], Path] | None = None,
    ) -> None:
        self._folders = folders or HookFolders(environment)
        self._environment = environment
        self.torch = torch
        self._torch_npu = torch_npu or _installed_torch_npu
        self.timeout_s = 300.0

    def source(self, backend: str) -> Path:
        """Return the hook's source, `hooks/{backend}.cpp` in a folder of sources."""
        # The checkout of an editable install comes first. It is newer than what the install copied.
        package, *others = self._folders.package
        candidates = [package / "_hook_source", package.parent / "csrc"]
        candidates += [folder / "_hook_source" for folder in others]
        has_sources = (path for path in candidates if (path / "hooks" / "hook_abi.h").is_file())
        folder = next(has_sources, None)
        if folder is None:
            raise HookError(
                f"the hooks' sources are missing ({candidates[0]}); install torch-pytracer again"
            )
        sources = sorted(path.stem for path in (folder / "hooks").glob("*.cpp"))
        if backend not in sources:
            recorded = [name for name in sources if name not in (AUTOGRAD, HOST)]
            raise HookError(
                f"this version of pytracer records only the {' and '.join(recorded).upper()} "
                f"allocator, not {backend!r}; trace another device, or install a newer pytracer"
            )
        return folder / "hooks" / f"{backend}.cpp"

    def include_dirs(self, backend: str) -> list[Path]:
        """Return the folders in which the compiler finds the headers for `backend`."""
        torch = self.torch()
        headers = torch.root / "include"
        if not (headers / "c10").is_dir():  # those of a distribution are elsewhere
            headers = _headers_of(torch, self._environment.get("CONDA_PREFIX", "/usr"), "/usr")
        if backend == "cuda":
            return [headers, self.source(backend).parent / "stand_in"]
        if backend == "npu":
            return [headers, *_torch_npu_headers(self._torch_npu() / "include")]
        if backend == HOST:
            allocator = headers / "ATen/core/CachingHostAllocator.h"
            if not allocator.is_file() or b"setHostAllocator" not in allocator.read_bytes():
                raise HookError(
                    f"torch {torch.version} has no interface to its pinned-memory allocator; "
                    "install torch 2.8 or newer"
                )
        return [headers]

    def key(self, backend: str, release: str) -> str:
        """Return the key of the hook for a release: 20 digits of a hash of what decides its ABI.

        That is the release of torch or torch_npu, the allocator's headers that the hook names, and
        our own sources. A release alone would not do, because vendors patch headers. The headers
        that those include in turn are not read: there are thousands of them. Paths do not count, so
        that a hook that was built elsewhere for the same torch is found.

        Raises:
            HookError: There is no such hook, no torch, or no headers.
            OSError: A file cannot be read.
        """
        source, roots = self.source(backend), self.include_dirs(backend)
        facts = f"cxx11_abi={self.torch().cxx11_abi} machine={platform.machine()} release={release}"
        parts = [facts.encode(), " ".join(compiler_flags(backend)).encode()]
        named: set[bytes] = set()
        for path in [source, *sorted(source.parent.rglob("*.h"))]:
            content = path.read_bytes()
            named.update(_INCLUDE.findall(content))
            parts += [os.fsencode(path.relative_to(source.parent)), content]
        for name in sorted(named):
            candidates = (root / os.fsdecode(name) for root in roots)
            found = next((path for path in candidates if path.is_file()), None)
            if found is not None:  # the others are the compiler's own
                parts += [name, found.read_bytes()]
        whole = b"".join(hashlib.sha256(part).digest() for part in parts)
        return hashlib.sha256(whole).hexdigest()[:20]

    def release(self, backend: str) -> str:
        """Return the version of the package that has the allocator: torch or torch_npu."""
        return _version("torch_npu") if backend == "npu" else self.torch().version

    def file_name(self, backend: str) -> str:
        """Return the hook's file name, which is the same in all folders."""
        return f"pytracer_{backend}-{self.key(backend, self.release(backend))}.so"

    def is_allowed(self) -> bool:
        """Return whether `PYTRACER_BUILD` lets a hook be compiled here; a wrong value is logged."""
        if (problem := self.mode_problem()) is not None:
            warn_once(f"{problem}. The default, auto, is used")
        return self._mode != "never"

    def mode_problem(self) -> str | None:
        """Return why the value of `PYTRACER_BUILD` is wrong; None: it is not."""
        if self._mode in ("", "auto", "never"):
            return None
        return (
            f"PYTRACER_BUILD is {brief(self._mode)}; set it to 'auto' (the default: a missing "
            "hook is compiled) or 'never'"
        )

    @property
    def _mode(self) -> str:
        return self._environment.get("PYTRACER_BUILD", "").strip()

    def find_command(self) -> list[str]:
        """Return the C++ compiler's command: `$CXX`, else c++, g++ or clang++ on the PATH.

        Raises a HookError if there is none, or if `PYTRACER_BUILD` forbids compiling.
        """
        if not self.is_allowed():
            searched = ", ".join(str(folder.directory) for folder in self._folders.lookup())
            raise HookError(
                "the hook for this torch is not built and PYTRACER_BUILD=never forbids compiling "
                f"it (searched {searched}); unset PYTRACER_BUILD, or {PREBUILT_REMEDY}"
            )
        path = self._environment.get("PATH")
        if command := self._environment.get("CXX", "").split():
            if shutil.which(command[0], path=path) is None:
                raise HookError(
                    f"no C++ compiler: CXX is {' '.join(command)!r}, which cannot be run; "
                    f"correct or unset it, or {PREBUILT_REMEDY}"
                )
            return command
        for name in ("c++", "g++", "clang++"):
            if found := shutil.which(name, path=path):
                return [found]
        raise HookError(
            "no C++ compiler (searched $CXX, and c++, g++ and clang++ on the PATH); install g++, "
            f"or {PREBUILT_REMEDY}"
        )

    def compile(
        self,
        command: Sequence[str],
        backend: str,
        output: Path,
        options: Sequence[str] | None = None,
    ) -> None:
        """Compile the hook for `backend` into the file `output`, or raise a HookError.

        Args:
            command: The compiler, as `find_command` returns it.
            backend: One of `LIBRARIES`.
            output: The library to write.
            options: More options of the compiler; None: the library remembers the folder of
                torch's libraries.
        """
        torch = self.torch()
        library_dir = torch.root / "lib"
        inputs = [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)}"]
        inputs += [f"-I{folder}" for folder in self.include_dirs(backend)]
        inputs += [str(self.source(backend)), f"-L{library_dir}"]
        inputs += [*_LIBRARIES.get(backend, ("-lc10",)), "-o", str(output)]
        options = [f"-Wl,-rpath,{library_dir}"] if options is None else options
        # Its temporary files are in a folder that can be written.
        environment = {**self._environment, "TMPDIR": str(output.parent), "LC_ALL": "C"}
        errors = []
        parts = [[], *([flag] for flag in _WITHOUT_PARTS.get(backend, []))]
        for left_out, standard in product(parts, STANDARDS):
            flags = [*compiler_flags(backend), f"-std={standard}", *left_out, *options]
            try:
                done = run_captured([*command, *flags, *inputs], self.timeout_s, environment)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise HookError(f"the C++ compiler failed: {error}; {PREBUILT_REMEDY}") from error
            if done.returncode == 0:
                if output.exists() and not output.is_file():  # reading a pipe would wait
                    raise HookError(
                        f"{' '.join(command)} wrote no library: {output} is not a regular file; "
                        f"set CXX to another compiler, or {PREBUILT_REMEDY}"
                    )
                return
            errors.append(done.stderr.strip())
        # The first standard's error is the useful one, unless it is about the standard itself.
        useful = errors[-1] if f"-std={STANDARDS[0]}" in errors[0] else errors[0]
        lines = useful.splitlines() or ["it wrote no message"]
        reason = next((line for line in lines if "error" in line), lines[-1])
        raise HookError(
            f"compiling the hook for {backend!r} and torch {torch.version} with "
            f"{' '.join(command)} failed: {quoted(reason)}; set CXX to another compiler, or "
            f"{PREBUILT_REMEDY}"
        )


def compiler_flags(backend: str) -> list[str]:
    """Return the compiler's options that decide what comes out."""
    return [*_FLAGS, *_BACKEND_FLAGS.get(backend, ())]


def quoted(line: str) -> str:
    """Shorten a line of another program for a message, and remove terminal codes."""
    return printable(line if len(line) <= 300 else f"{line[:300]}…")


def _installed_torch_npu() -> Path:
    spec = importlib.util.find_spec("torch_npu")
    if spec is None or spec.origin is None:
        raise HookError("torch_npu is not installed for this Python; pip install torch-npu")
    return Path(spec.origin).parent


def _headers_of(torch: TorchBuild, *prefixes: str) -> Path:
    """Return the folder in which a distribution has the headers of this torch."""
    for folder in (Path(prefix, "include") for prefix in prefixes):
        for header in folder.glob("torch/**/version.h"):
            if _VERSION.findall(header.read_text()) == re.findall(r"\d+", torch.version)[:3]:
                return folder
    raise HookError(
        f"torch's C++ headers are missing ({torch.root}/include/c10 is not a folder); "
        "install torch from a wheel that has them, or its development package"
    )


def _torch_npu_headers(headers: Path) -> list[Path]:
    """Return the folders of torch_npu's headers, if its allocator reports its events."""
    allocator = headers / "torch_npu/csrc/core/npu/NPUCachingAllocator.h"
    if not allocator.is_file():
        raise HookError(
            f"torch_npu's C++ headers are missing ({allocator} is not a file); "
            "install torch_npu from a wheel that has them"
        )
    if b"attachAllocatorTraceTracker" not in allocator.read_bytes():
        raise HookError(
            f"the allocator of torch_npu {_version('torch_npu')} reports no events to other "
            f"libraries; install torch_npu {NPU_VERSIONS}"
        )
    return [headers, headers / "third_party" / "acl" / "inc"]


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(of unknown version)"
