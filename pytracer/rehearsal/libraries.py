"""Make the libraries of a simulated driver for the torch of the running interpreter.

    python make_libraries.py cuda|npu

prints their folder. The script does not import torch: it reads from the symbol tables of torch's
libraries which symbols of NVIDIA's or CANN's libraries they need. The functions that matter are
written by hand in C++; the others become stubs that report success. The script needs g++ and
binutils.
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

HERE = Path(__file__).resolve().parents[2] / "csrc/devices"
MODEL = "libsimulated_device.so"
NEXT_TO_CUDA = "libsimulated_next_to_cuda.so"  # `simulate` looks for this name
MODEL_SOURCES = ["control.cpp", "memory.cpp", "queues.cpp"]
COMPILE = ["g++", "-std=c++17", "-O2", "-fPIC", "-Wall", "-Wextra", "-pthread"]
LINK = ["g++", "-shared", "-pthread", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"]

# For each library: a pattern of its own symbols, and the sources of the handwritten ones.
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
# Functions that torch looks up by name in the driver, which no symbol table lists.
CUDA_BY_NAME = ["cuMemsetD32Async", "cuStreamWriteValue32_v2"]

NPU_SYMBOLS = r"(acl|rt[A-Z]|[Hh]ccl|Msprof|ge|aml|drv)"
# Functions that torch_npu looks up by name: operators, and these families.
NPU_BY_NAME = re.compile(
    rb"\0(aclnn[A-Z]\w+|aclDestroy\w+|aclprof[A-Z]\w+|aclrt(?:Set|Use|Unuse|Reset)\w+|aclopSet\w+)"
    rb"(?=\0)"
)
NPU_SOURCES = ["npu/devices.cpp", "npu/execution.cpp", "npu/operators.cpp"]
# Libraries that torch_npu opens at run time, in addition to those that it is linked with.
NPU_OPENED = ["libopapi.so", "libnnopbase.so", "libmsprofiler.so", "libascend_dump.so"]

# Stubs for work on the device, which count as a launch.
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
    # The name identifies the contents, so that a folder never changes after it was made. Other
    # processes that need the folder wait.
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
    """Return a hash of everything that the libraries are made from."""
    digest = hashlib.sha256()
    for source in sorted(HERE.rglob("*")):
        if source.suffix in (".cpp", ".h"):
            digest.update(source.read_bytes())
    for library in libraries(*packages):
        digest.update(f"{library.name} {library.stat().st_size}".encode())
    return digest.hexdigest()[:12]


def is_cuda_build(torch: Path) -> bool:
    return (torch / "lib" / "libc10_cuda.so").exists()


def refuse_real_libraries(torch: Path) -> None:
    # torch's own search path precedes LD_LIBRARY_PATH.
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
        # This library needs others, and is called only on request.
        if library.name != "libop_plugin_atb.so"
    )


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(file: Path, *options: str) -> dict[str, str]:
    """Return the names that nm lists, with their versions."""
    names = {}
    for line in output("nm", *options, file).splitlines():
        if line.strip():
            name, _, symbol_version = line.split()[-1].partition("@")
            names[name] = symbol_version.lstrip("@")
    return names


def needed(file: Path) -> set[str]:
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", file)))


class Maker:
    """Compiles and links libraries into one folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.includes: list[str] = ["-I", str(HERE.parent)]

    def make(self, torch: Path, npu: Path | None = None) -> None:
        self.link(MODEL, self.compile(MODEL_SOURCES))
        if is_cuda_build(torch):
            self.make_cuda(torch)
        if npu is not None:
            self.make_npu(torch, npu)
            if is_cuda_build(torch):
                self.link(NEXT_TO_CUDA, self.compile(["npu/next_to_cuda.cpp"]))

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
            for task in making:
                task.result()
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
        self.includes += ["-I", str(npu / "include/third_party/acl/inc")]
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
        # A lookup in a library also finds the symbols of its dependencies, so the others can be
        # empty.
        empty = self.out / "build" / "empty.cpp"
        empty.touch()
        for soname in sonames - {"libascendcl.so"}:
            if re.fullmatch(r"lib[a-z_]+\.so", soname):  # system libraries end in a version
                self.link(soname, [empty], self.out / "libascendcl.so")
        for folder in ("runtime", "compiler", "opp"):
            (self.out / "home" / folder).mkdir(parents=True)

    def compile(self, sources: list[str]) -> list[Path]:
        """Compile C++ sources, relative to this folder, to objects."""
        objects = []
        for source in sources:
            target = self.out / "build" / (re.sub(r"\W", "_", source) + ".o")
            command = [*COMPILE, *self.includes, "-c", HERE / source, "-o", target]
            subprocess.run(command, check=True)
            objects.append(target)
        return objects

    def stubs(self, name: str, wanted: set[str], objects: list[Path]) -> Path:
        """Compile an object with a stub for each wanted symbol that the other objects lack."""
        for written in objects:
            wanted = wanted - set(symbols(written, "--defined-only"))
        lines = ["long simulated_stub(const char*);", "long simulated_launch(const char*);"]
        for symbol in sorted(wanted):
            body = "simulated_launch" if LAUNCHES.fullmatch(symbol) else "simulated_stub"
            lines.append(f'long {symbol}(void) {{ return {body}("{symbol}"); }}')
        source = self.out / "build" / f"{name}_stubs.c"
        source.write_text("\n".join(lines) + "\n")
        target = source.with_suffix(".o")
        # Some names are functions that the compiler knows with other signatures: -w.
        subprocess.run(["gcc", "-O1", "-fPIC", "-w", "-c", source, "-o", target], check=True)
        return target

    def link(self, soname: str, objects: list[Path], *options: str | Path) -> None:
        model = [] if soname == MODEL else [self.out / MODEL]
        target = self.out / soname
        command = [*LINK, f"-Wl,-soname,{soname}", *objects, *model, *options, "-o", target]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
