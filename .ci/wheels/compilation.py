"""Compiles the prebuilt hooks of a release, against headers and without torch's libraries."""

import hashlib
import os
import subprocess
from pathlib import Path

from pins import PACKAGES, Release, fetch

from pytracer.backends.hook_compile import HookCompiler
from pytracer.backends.names import AUTOGRAD, HOST
from pytracer.backends.ready_hooks import ReadyHook
from pytracer.backends.running_torch import TorchBuild

# The hook finds torch's libraries by their names, because a process has them loaded before: these
# stand-ins give the linker the names, and nothing else.
STAND_INS = ("libc10.so", "libtorch_cpu.so")

# torch 2.6 was published with both ABIs of libstdc++, later releases with the new one alone.
OLD_ABI_BEFORE = (2, 7)
# Since then, torch's allocator of pinned memory can be wrapped.
HOST_SINCE = (2, 8)


def compile_release(release: Release, headers: Path, output: Path) -> list[ReadyHook]:
    """Fetch the headers of a release, compile its hooks into `output`, and describe them.

    Args:
        release: A pinned release.
        headers: An empty folder for the headers.
        output: The folder of the libraries.
    """
    for package in dict.fromkeys((release.torch, release)):
        fetch(package, headers)
    root = headers / "torch"
    (root / "lib").mkdir()
    make_stand_ins(root / "lib")
    minor = tuple(map(int, release.version.split(".")[:2]))
    host = (HOST,) if minor >= HOST_SINCE else ()
    is_npu = release.distribution == "torch-npu"
    backends = ("npu",) if is_npu else ("cpu", "cuda", AUTOGRAD, *host)
    new_abi_only = minor >= OLD_ABI_BEFORE
    return [
        compile_hook(backend, release, TorchBuild(release.version, root, abi), headers, output)
        for abi in ((True,) if new_abi_only else (True, False))
        for backend in backends
    ]


def cxx() -> list[str]:
    """Return the command of the compiler."""
    return HookCompiler().find_command()


def make_stand_ins(folder: Path) -> None:
    """Make empty libraries with the names of torch's."""
    for name in STAND_INS:
        link = ["-shared", "-nostdlib", "-x", "c++", os.devnull, f"-Wl,-soname,{name}"]
        subprocess.run([*cxx(), *link, "-o", folder / name], check=True)


def compile_hook(
    backend: str, release: Release, build: TorchBuild, headers: Path, output: Path
) -> ReadyHook:
    """Compile one hook into `output`, and describe it.

    Args:
        backend: "cpu", "cuda", "npu" or "autograd".
        release: The release for which it is compiled.
        build: Where the torch of the release is, under `headers`, and its ABI.
        headers: The folder of the unpacked packages.
        output: The folder of the libraries.
    """
    compiler = HookCompiler(torch=lambda: build, torch_npu=lambda: headers / PACKAGES["torch-npu"])
    library = headers / f"{backend}-{build.cxx11_abi}.so"
    compiler.compile(cxx(), backend, library, _options(headers))
    sha256 = hashlib.sha256(library.read_bytes()).hexdigest()
    name = f"{backend}-{sha256[:20]}.so"
    library.chmod(0o755)
    os.replace(library, output / name)
    key = compiler.key(backend, release.version)
    return ReadyHook(backend, release.version, key, name, sha256)


def _options(headers: Path) -> list[str]:
    """Return the options that make the library the same wherever it is compiled."""
    sources = Path(__file__).parents[2]
    return [
        f"-ffile-prefix-map={headers}=.",
        f"-ffile-prefix-map={sources}=.",
        "-Wl,--strip-all,--build-id=none,--no-as-needed",
    ]
