"""Makes the libraries of a simulated driver for the torch of the running interpreter.

    python make_libraries.py cuda|npu

prints their folder. Nothing is imported from torch: what its libraries need of NVIDIA's or of
CANN's is read from their symbol tables. What matters of that is written by hand in C++, the rest
becomes stubs that report success. Needs g++ and binutils.
"""

from __future__ import annotations

import concurrent.futures
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = "libsimulated_device.so"
BESIDE_CUDA = "libsimulated_beside_cuda.so"  # simulate looks for it
MODEL_SOURCES = ["control.cpp", "memory.cpp", "queues.cpp"]
COMPILE = ["g++", "-std=c++17", "-O2", "-fPIC", "-Wall", "-Wextra", "-pthread"]
LINK = ["g++", "-shared", "-pthread", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"]

# Of each library: which symbols are its own, and the sources of those written by hand.
CUDA = {
    "libcuda": (r"cu(?!File)[A-Z]", ["cuda/driver.cpp"]),
    "libcudart": (
        r"(__)?cuda[A-Z]",
        ["cuda/runtime.cpp", "cuda/execution.cpp", "cuda/errors.cpp"],
    ),
    "libcublas": (r"cublas(?!Lt[A-Z])", ["cuda/cublas.cpp"]),
    "libcublasLt": (r"cublasLt[A-Z]", ["cuda/cublaslt.cpp"]),
    "libcudnn": (r"cudnn", ["cuda/cudnn.cpp"]),
    "libcufft": (r"cufft", ["cuda/cufft.cpp"]),
    "libcufile": (r"cuFile", []),
    "libcupti": (r"cupti", []),
    "libcurand": (r"curand", []),
    "libcusolver": (r"cusolver", []),
    "libcusparse": (r"cusparse(?!Lt[A-Z])", []),
    "libcusparseLt": (r"cusparseLt[A-Z]", []),
    "libnccl": (r"p?nccl[A-Z]", []),
    "libnvrtc": (r"nvrtc", []),
    "libnvshmem_host": (r"nvshmem", []),
}
# What torch asks the driver for by name, which no symbol table shows.
CUDA_BY_NAME = ["cuMemsetD32Async", "cuStreamWriteValue32_v2"]

NPU_SYMBOLS = r"(acl|rt[A-Z]|[Hh]ccl|Msprof|ge|aml|drv)"
# What torch_npu asks for by name: operators, and these families.
NPU_BY_NAME = re.compile(
    rb"\0(aclnn[A-Z]\w+|aclDestroy\w+|aclprof[A-Z]\w+|aclrt(?:Set|Use|Unuse|Reset)\w+|aclopSet\w+)"
    rb"(?=\0)"
)
NPU_SOURCES = ["npu/devices.cpp", "npu/execution.cpp", "npu/operators.cpp"]
# Opened by torch_npu at run time, beside those that it is linked with.
NPU_OPENED = ["libopapi.so", "libnnopbase.so", "libmsprofiler.so", "libascend_dump.so"]

# Stubs that stand for work on the device, and count as a launch.
LAUNCHES = re.compile(r"aclnn\w+(?<!GetWorkspaceSize)|cublas\w*[gG]emm\w*|cublasLtMatmul")


def main() -> None:
    backend = sys.argv[1]
    torch = package("torch")
    packages = [torch] if backend == "cuda" else [torch, package("torch_npu")]
    if backend == "cuda" and not is_cuda_build(torch):
        sys.exit(f"simulate: {sys.executable} has no CUDA build of torch")
    refuse_real_libraries(torch)
    root = Path(os.environ.get("SIMULATED_BUILD_DIR") or HERE.parents[1] / "build" / "devices")
    root.mkdir(parents=True, exist_ok=True)
    folder = root / f"{backend}-{version(packages[-1])}-{fingerprint(packages)}"
    # The name says what is in it, so a folder is never changed: it is there or it is made. Others
    # that need it wait.
    if not folder.exists():
        with open(root / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                print(f"making {folder.name}", file=sys.stderr)
                with tempfile.TemporaryDirectory(dir=root) as scratch:
                    out = Path(scratch) / "out"
                    (out / "build").mkdir(parents=True)
                    Maker(out).make(*packages)
                    shutil.rmtree(out / "build")
                    out.rename(folder)
    print(folder)


def package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        sys.exit(f"simulate: {sys.executable} has no {name}")
    return Path(found.submodule_search_locations[0])


def version(folder: Path) -> str:
    text = (folder / "version.py").read_text()
    return re.search(r"__version__ = '([^']+)'", text)[1]


def fingerprint(packages: list[Path]) -> str:
    """Of all that the libraries are made from."""
    digest = hashlib.sha256()
    for source in sorted(HERE.rglob("*")):
        if source.suffix in (".cpp", ".h") or source.name == Path(__file__).name:
            digest.update(source.read_bytes())
    for library in libraries(*packages):
        digest.update(f"{library.name} {library.stat().st_size}".encode())
    return digest.hexdigest()[:12]


def is_cuda_build(torch: Path) -> bool:
    return (torch / "lib" / "libc10_cuda.so").exists()


def refuse_real_libraries(torch: Path) -> None:
    # torch's own search path comes before LD_LIBRARY_PATH.
    for real in torch.parent.glob("nvidia/*/lib/libcudart.so*"):
        sys.exit(
            f"simulate: torch would take the real {real.name} from {real.parent}. Install torch "
            "with pip's --no-deps into a virtual environment without the nvidia-* packages."
        )


def libraries(*packages: Path) -> list[Path]:
    return sorted(
        library
        for folder in packages
        for pattern in ("lib/*.so", "_C*.so")
        for library in folder.glob(pattern)
        # Needs libraries that no call comes from unless it is asked for.
        if library.name != "libop_plugin_atb.so"
    )


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(file: Path, *options: str) -> dict[str, str]:
    """The names that nm lists, with their versions."""
    names = {}
    for line in output("nm", *options, file).splitlines():
        if line.strip():
            name, _, symbol_version = line.split()[-1].partition("@")
            names[name] = symbol_version.lstrip("@")
    return names


def needed(file: Path) -> set[str]:
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", file)))


class Maker:
    """Compiles and links into one folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.includes: list[str] = []

    def make(self, torch: Path, npu: Path | None = None) -> None:
        self.link(MODEL, self.compile(MODEL_SOURCES))
        if is_cuda_build(torch):
            self.make_cuda(torch)
        if npu is not None:
            self.make_npu(torch, npu)
            if is_cuda_build(torch):
                self.link(BESIDE_CUDA, self.compile(["npu/beside_cuda.cpp"]))

    def make_cuda(self, torch: Path) -> None:
        wanted: dict[str, str] = dict.fromkeys(CUDA_BY_NAME, "")
        sonames = {"libcuda.so.1"}
        for library in libraries(torch):
            wanted |= symbols(library, "-D", "--undefined-only")
            sonames |= needed(library)
        by_name = {soname.partition(".so")[0]: soname for soname in sonames}
        if by_name.get("libcudart") != "libcudart.so.13":
            sys.exit("simulate: this torch is no build for CUDA 13")
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            making = [
                pool.submit(self.make_one, by_name[name], own, sources, wanted)
                for name, (own, sources) in CUDA.items()
                if name in by_name
            ]
            for one in making:
                one.result()
        self.link("libnvidia-ml.so.1", self.compile(["cuda/nvml.cpp"]))

    def make_one(self, soname: str, own: str, sources: list[str], wanted: dict[str, str]) -> None:
        name = soname.partition(".so")[0]
        objects = self.compile(sources)
        mine = {symbol: wanted[symbol] for symbol in wanted if re.match(own, symbol)}
        objects.append(self.stubs(name, set(mine), objects))
        options = []
        versions = {symbol_version for symbol_version in mine.values() if symbol_version}
        if versions:
            (only,) = versions
            script = self.out / "build" / f"{name}.map"
            script.write_text(f"{only} {{ global: *; }};\n")
            options = [f"-Wl,--version-script={script}"]
        self.link(soname, objects, *options)

    def make_npu(self, torch: Path, npu: Path) -> None:
        self.includes = ["-I", str(npu / "include/third_party/acl/inc")]
        own = libraries(npu)
        wanted: set[str] = set()
        sonames: set[str] = set(NPU_OPENED)
        by_name: set[str] = set()
        for library in own:
            wanted |= set(symbols(library, "-D", "--undefined-only"))
            sonames |= needed(library)
            by_name |= {name.decode() for name in NPU_BY_NAME.findall(library.read_bytes())}
        for library in [*libraries(torch), *own]:
            wanted -= set(symbols(library, "-D", "--defined-only"))
            sonames.discard(library.name)
        wanted = {name for name in wanted if re.match(NPU_SYMBOLS, name)} | by_name
        objects = self.compile(NPU_SOURCES)
        objects.append(self.stubs("libascendcl", wanted, objects))
        self.link("libascendcl.so", objects)
        self.link("libdcmi.so", self.compile(["npu/dcmi.cpp"]))
        # A lookup in a library finds what those it depends on have: the others are empty.
        empty = self.out / "build" / "empty.cpp"
        empty.touch()
        for soname in sonames - {"libascendcl.so"}:
            if re.fullmatch(r"lib[a-z_]+\.so", soname):  # the system's have a version at the end
                self.link(soname, [empty], self.out / "libascendcl.so")
        for folder in ("runtime", "compiler", "opp"):
            (self.out / "home" / folder).mkdir(parents=True)

    def compile(self, sources: list[str]) -> list[Path]:
        """C++ sources, relative to this folder, to objects."""
        objects = []
        for source in sources:
            made = self.out / "build" / (re.sub(r"\W", "_", source) + ".o")
            command = [*COMPILE, *self.includes, "-c", HERE / source, "-o", made]
            subprocess.run(command, check=True)
            objects.append(made)
        return objects

    def stubs(self, name: str, wanted: set[str], objects: list[Path]) -> Path:
        """An object with a stub for each wanted symbol that the other objects lack."""
        for written in objects:
            wanted = wanted - set(symbols(written, "--defined-only"))
        lines = ["long simulated_stub(const char*);", "long simulated_launch(const char*);"]
        for symbol in sorted(wanted):
            body = "simulated_launch" if LAUNCHES.fullmatch(symbol) else "simulated_stub"
            lines.append(f'long {symbol}(void) {{ return {body}("{symbol}"); }}')
        source = self.out / "build" / f"{name}_stubs.c"
        source.write_text("\n".join(lines) + "\n")
        made = source.with_suffix(".o")
        # Some are the compiler's own functions to it, with other signatures: -w.
        subprocess.run(["gcc", "-O1", "-fPIC", "-w", "-c", source, "-o", made], check=True)
        return made

    def link(self, soname: str, objects: list[Path], *options: str | Path) -> None:
        model = [] if soname == MODEL else [self.out / MODEL]
        made = self.out / soname
        command = [*LINK, f"-Wl,-soname,{soname}", *objects, *model, *options, "-o", made]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
