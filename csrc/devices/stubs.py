"""Stubs: functions that report success, and libraries that only have a name.

All functions of the simulated libraries are in one library, the written ones and the stubs. The
libraries by whose names programs are linked are empty and need that one. The build runs:

    python stubs.py source SYMBOLS OUTPUT.cpp
    python stubs.py names LINKER LIBRARY FOLDER
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

# The functions of the driver that torch and triton use. Its others must be missing: programs look
# for a function there to learn the abilities of a driver.
CHOSEN = """
cuCtxGetSharedMemConfig cuCtxPushCurrent_v2 cuCtxSetLimit cuCtxSynchronize cuFuncSetAttribute
cuFuncSetCacheConfig cuLaunchCooperativeKernel cuLaunchKernel cuLaunchKernelEx cuLinkAddData_v2
cuLinkComplete cuLinkCreate_v2 cuMemsetD32Async cuModuleUnload cuMulticastAddDevice
cuMulticastBindMem cuMulticastCreate cuMulticastUnbind cuStreamSynchronize cuStreamWriteValue32
cuStreamWriteValue32_v2 cuTensorMapEncodeIm2col cuTensorMapEncodeTiled
"""

_BOTH = "cuda.1 nvidia-ml.1 cudnn.9 cudnn_adv.9 cudnn_cnn.9 cudnn_graph.9 cudnn_ops.9 cufile.0"
_BOTH += " curand.10 cusparse.12 cusparseLt.0 nccl.2 nvshmem_host.3"
SONAMES = {
    12: f"{_BOTH} cudart.12 cublas.12 cublasLt.12 cufft.11 cupti.12 cusolver.11 nvJitLink.12"
    " nvToolsExt.1 nvrtc.12",
    13: f"{_BOTH} cudart.13 cublas.13 cublasLt.13 cufft.12 cupti.13 cusolver.12 nvJitLink.13"
    " nvrtc.13",
}
"""The libraries of CUDA's major versions: `cuda.1` is libcuda.so.1."""

# The version of the symbols of a library: its name, but for these.
VERSIONS = {"nvshmem_host": "NVSHMEM"}
WITHOUT_VERSION = ("cuda", "nvidia-ml", "cufile", "cusparseLt", "nccl")

LAUNCHES = re.compile(
    r"aclnn\w+(?<!GetWorkspaceSize)|cublas\w*[gG]emm\w*|cublasLtMatmul|cuLaunch\w+"
    r"|cudnn(?:Convolution|RNN|BatchNormalization|CTCLoss)(?!\w*Size)\w*"
)
"""Stubs for work on the device, which count as a launch."""

CREATES = re.compile(r"(?:cudnn|cusparse|cusolver[A-Z][a-z])Create\w*")
"""Stubs that give the caller an object."""

# A stub passes its address, for its name, or its first argument: where the object's address goes.
# A function that is written elsewhere replaces its stub.
MACROS = r"""
#if defined(__x86_64__)
#define PASS "lea 1b(%rip), %rdi\n"
#define JUMP(to) "jmp simulated_" #to "@PLT"
#elif defined(__aarch64__)
#define PASS "adr x0, 1b\n"
#define JUMP(to) "b simulated_" #to
#endif
#define STUB(to, pass)                                                                          \
  asm(".macro " #to " name\n.weak \\name\n.type \\name, %function\n\\name:\n1:\n" pass JUMP(to) \
      "\n.endm")
STUB(stub, PASS);
STUB(launch, PASS);
STUB(create, "");
#define WEAK __attribute__((weak))
extern "C" long simulated_unknown();
"""


def source(symbols: Iterable[str]) -> str:
    """Return C++ with a stub for each symbol.

    A symbol is a name, and the results that the function writes: "7:8" is the address of 8 bytes,
    which is the argument 7 among those that are no floating-point numbers. All of them are sizes.
    "data" stands for a variable.
    """
    simple, sized = [], []
    for name, *results in map(str.split, sorted(symbols)):
        is_launch, creates = LAUNCHES.fullmatch(name), CREATES.fullmatch(name)
        if results == ["data"]:
            sized.append(f"WEAK char {name}[4096];\n")
        elif results:
            sized.append(_sized(name, dict(each.split(":") for each in results)))
        else:
            simple.append(f"{'launch' if is_launch else 'create' if creates else 'stub'} {name}\n")
    return f'{MACROS}asm(R"(.text\n{"".join(simple)})");\nextern "C" {{\n{"".join(sized)}}}\n'


def _sized(name: str, results: dict[str, str]) -> str:
    places = range(1 + max(map(int, results)))
    arguments = ", ".join(f"void* {f'a{at}' if str(at) in results else ''}" for at in places)
    kinds = {"4": "int", "8": "long"}
    writes = "".join(f"*({kinds[width]}*)a{at} = 0; " for at, width in results.items())
    return f"WEAK long {name}({arguments}) {{ {writes}return simulated_unknown(); }}\n"


def name_library(linker: str, library: Path, target: Path, version: str = "") -> None:
    """Make an empty library that needs `library`, of the same folder or the one above."""
    command = [linker, "-shared", "-soname", target.name, "-z", "noseparate-code"]
    command += ["--build-id=none", "--hash-style=gnu", "--no-as-needed", str(library)]
    command += ["-rpath", "$ORIGIN:$ORIGIN/..", "-o", str(target)]
    with tempfile.NamedTemporaryFile("w") as script:
        if version:
            script.write(f"{version} {{ }};\n")
            script.flush()
            command += ["--version-script", script.name]
        subprocess.run(command, check=True)


def main(task: str, first: str, *rest: str) -> None:
    """Write the source of all stubs, or make the libraries that have the names."""
    if task == "source":
        symbols = {*Path(first).read_text().splitlines(), *CHOSEN.split()}
        Path(rest[0]).write_text(source(symbols))
        return
    library, folder = map(Path, rest)
    for major, sonames in SONAMES.items():
        (folder / f"cuda{major}").mkdir(parents=True, exist_ok=True)
        for name, number in (each.split(".") for each in sonames.split()):
            soname = f"lib{name}.so.{number}"
            version = "" if name in WITHOUT_VERSION else VERSIONS.get(name, soname)
            name_library(first, library, folder / f"cuda{major}" / soname, version)


if __name__ == "__main__":
    main(*sys.argv[1:])
