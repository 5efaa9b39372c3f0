"""Compiles the ready hooks of a release, against headers and without torch's libraries."""

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pins import PACKAGES, Release, fetch

from pytracer.backends.hook_compile import HookCompiler
from pytracer.backends.hook_key import SeenFiles, headers_key
from pytracer.backends.names import AUTOGRAD, HOST
from pytracer.backends.ready_hooks import ReadyHook, digests_in
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
    library, read = headers / f"{backend}-{build.cxx11_abi}.so", headers / f"{backend}.d"
    compiler.compile(cxx(), backend, library, _options(headers, read))
    roots, facts = compiler.roots(backend), compiler.facts(backend)
    names = tuple(sorted(set(_relative(_dependencies(read), roots))))
    digest = digests_in(roots, SeenFiles())
    key = headers_key(names, facts, digest)
    assert key is not None, "a header was read that is in no root"
    read.unlink()
    content = library.read_bytes()
    name = f"{backend}-{key}.so"
    library.chmod(0o755)
    os.replace(library, output / name)
    return ReadyHook(
        backend, name, hashlib.sha256(content).hexdigest(), key, names, (release.version,)
    )


def _options(headers: Path, read: Path) -> list[str]:
    """Return the options that make the library the same wherever it is compiled.

    The compiler writes the names of the files that it read into the file `read`.
    """
    sources = Path(__file__).parents[2]
    return [
        "-MD",
        f"-MF{read}",
        f"-ffile-prefix-map={headers}=.",
        f"-ffile-prefix-map={sources}=.",
        "-Wl,--strip-all,--build-id=none,--no-as-needed",
    ]


def _dependencies(read: Path) -> Iterator[Path]:
    """Yield the files that the compiler read, from its rule for make."""
    text = read.read_text().partition(":")[2].replace("\\\n", " ")
    yield from map(Path, text.split())


def _relative(files: Iterator[Path], roots: list[Path]) -> Iterator[str]:
    """Yield the names of the files under `roots`, as a lookup in `roots` finds them."""
    for file in files:
        path = Path(os.path.normpath(file))
        for root in roots:
            if path.is_relative_to(root):
                yield str(path.relative_to(root))
                break


def merged(hooks: list[ReadyHook]) -> list[ReadyHook]:
    """Return one hook for each key, with all releases that have it."""
    by_key: dict[str, ReadyHook] = {}
    for hook in hooks:
        known = by_key.setdefault(hook.key, hook)
        if known is not hook:
            if known.sha256 != hook.sha256:
                raise SystemExit(f"{hook.library} was compiled twice, and the results differ")
            releases = (*known.releases, *hook.releases)
            by_key[hook.key] = ReadyHook(**{**vars(known), "releases": releases})
    return list(by_key.values())
