"""Makes the libraries of the simulated NPUs, for one torch_npu, with its headers.

    python npu_libraries.py FOLDER MODEL TORCH TORCH_NPU

FOLDER is empty, MODEL is libsimulated_device.so, and the others are the folders of packages. What
the libraries need is read from symbol tables. The functions that matter are written in C++; the
others become stubs.
"""

import re
import subprocess
import sys
from pathlib import Path

import stubs

HERE = Path(__file__).resolve().parent
COMPILE = ["g++", "-std=c++17", "-O2", "-fPIC", "-pthread", "-shared", "-Wl,--no-as-needed"]

SYMBOLS = r"(acl|rt[A-Z]|[Hh]ccl|Msprof|ge|aml|drv)"
# Functions that torch_npu looks up by name: operators, and these families.
BY_NAME = re.compile(
    rb"\0(acl(?:nn[A-Z]|Rfft|Stft|Destroy|prof[A-Z]|rt(?:Set|Use|Unuse|Reset)|opSet)\w*)(?=\0)"
)
# Libraries that torch_npu opens at run time, in addition to those that it is linked with.
OPENED = ("libopapi.so", "libnnopbase.so", "libmsprofiler.so", "libascend_dump.so")


def libraries(*packages: Path) -> list[Path]:
    """Return the libraries of packages."""
    return sorted(
        library
        for package in packages
        for pattern in ("lib/*.so", "_C*.so")
        for library in package.glob(pattern)
        # This library needs others, and is called only on request.
        if library.name != "libop_plugin_atb.so"
    )


def output(*command: str | Path) -> str:
    """Return what a command prints."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def symbols(library: Path, which: str) -> set[str]:
    """Return symbols of a library; CANN's have no versions, as those of libc have."""
    lines = output("nm", "-D", which, library).splitlines()
    return {line.split()[-1] for line in lines if line.strip() and "@" not in line}


def main(folder: Path, model: Path, torch: Path, npu: Path) -> None:
    """Make the libraries."""
    wanted: set[str] = set()
    sonames, by_name = set(OPENED), set()
    for library in libraries(npu):
        wanted |= symbols(library, "--undefined-only")
        needed = output("readelf", "-d", library)
        sonames |= set(re.findall(r"\(NEEDED\).*\[(lib[a-z_]+\.so)\]", needed))
        by_name |= {name.decode() for name in BY_NAME.findall(library.read_bytes())}
    for library in libraries(torch, npu):
        wanted -= symbols(library, "--defined-only")
        sonames.discard(library.name)
    generated = folder / "stubs.cpp"
    generated.write_text(
        stubs.source({name for name in wanted if re.match(SYMBOLS, name)} | by_name)
    )
    parts = {
        "libascendcl.so": ["devices.cpp", "execution.cpp", "operators.cpp", str(generated)],
        "libdcmi.so": ["dcmi.cpp"],
    }
    if (torch / "lib/libc10_cuda.so").exists():
        parts["libsimulated_next_to_cuda.so"] = ["next_to_cuda.cpp"]
    includes = ["-I", str(HERE.parent), "-I", str(npu / "include/third_party/acl/inc")]
    for soname, names in parts.items():
        sources = [str(HERE / "npu" / name) for name in names]
        named = f"-Wl,-soname,{soname}"
        output(*COMPILE, *includes, named, str(model), *sources, "-o", folder / soname)
    generated.unlink()
    # A lookup in a library also finds the symbols of its dependencies.
    for soname in sonames - {"libascendcl.so"}:
        stubs.name_library("ld", folder / "libascendcl.so", folder / soname)
    for name in ("runtime", "compiler", "opp"):
        (folder / "home" / name).mkdir(parents=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
