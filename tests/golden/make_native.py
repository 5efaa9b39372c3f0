"""Write golden files of PyTorch's own recorder, which readers must understand too.

    tests/devices/simulate cuda .venv-cuda-2.15.0/bin/python tests/golden/make_native.py
    tests/devices/simulate npu .venv-npu-2.13.0/bin/python tests/golden/make_native.py

The script writes `native/cuda-2.15.0.pickle`, named after the version of torch (or torch_npu), and
a JSON file with the statistics of each device's allocator at the same moment. An argument selects
another way to record: `ring` (the beginning of the trace is lost), `alloc`, `state` (contexts),
`host` (also pinned memory), `address` (allocations at given addresses; needs g++), `all` (C++
frames). The script overwrites no file, because a file belongs to the version that wrote it.

torch before 2.11 is built for CUDA 12 or 11, which the simulated driver supported only in part: the
files of 2.0 to 2.6 were made with tests/devices of commit 1ac73082 under `older_cuda.patch`.

torch 1.13 contains its CUDA runtime and runs on no simulated driver. `python
tests/golden/make_native.py by-hand` makes its file from the file of torch 2.0.1. This is what is
known of the format: torch 1.13.1's torch/cuda/_memory_viz.py takes the list of the segments, whose
blocks have `history`, with `addr`, `real_size` and `frames`; its library does not contain the words
for requested sizes and traces.
"""

import _thread
import ctypes
import inspect
import json
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

NATIVE = Path(__file__).with_name("native")

# Ways to record, as arguments of torch's recorder (2.1 and newer).
VARIANTS = {
    "": {},
    "ring": {"max_entries": 60},
    "alloc": {"context": "alloc"},
    "state": {"enabled": "state", "context": "state"},
    "host": {"record_pinned_host_memory": True},
    "address": {},
    "all": {"stacks": "all"},
}

STATS = {
    "allocated_bytes": "allocated_bytes.all.current",
    "active_bytes": "active_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "requested_bytes": "requested_bytes.all.current",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
    "segments": "segment.all.current",
    "num_alloc_retries": "num_alloc_retries",
    "num_ooms": "num_ooms",
}

# All events come from lines of this program: torch's own Python functions that allocate or free
# would add their paths on this machine to the file.
TRAINING = """
KIB, MIB = 2**10, 2**20

def make(size):
    return torch.empty(size, dtype=torch.uint8, device=BACKEND)

def forward(sizes):
    return [make(size) for size in sizes]

def delayed(size, stream):
    block = make(size)
    block.record_stream(stream)
    simulated.set_busy(True)
    del block  # its memory is still in use on the stream

def step(number, kept):
    set_metadata(f"step {number}")
    activations = forward([600, 70 * KIB, 3 * MIB, 11 * MIB + number])
    kept.append(make(1000 * number + 1))
    activations.append(make(900 * KIB))
    del activations[::2]
    kept.append(make(2 * MIB + 512 * number))
    set_metadata("")

def pooled(kept):
    if hasattr(device_module, "MemPool"):
        pool = device_module.MemPool()
        with device_module.use_mem_pool(pool):
            kept += [make(3000), make(30 * KIB)]
        kept.append(pool)

def out_of_memory(number, other):
    make(64 * MIB)  # is cached, and released for the next request
    capacity = simulated.capacity(number)
    simulated.set_capacity(simulated.used_bytes(number) + 16 * MIB, number)
    with device_module.stream(other):
        kept = make(48 * MIB)
    try:
        make(2048 * MIB)
    except RuntimeError:
        pass
    simulated.set_capacity(capacity, number)

def annotate(block, text):
    annotate_memory(block.data_ptr(), text)

def train(number, kept):
    device_module.set_device(number)
    other = device_module.Stream()
    for count in range(1, 4):
        step(count, kept)
    pooled(kept)
    delayed(5 * MIB, other)
    simulated.set_busy(False)
    make(100)  # the allocator checks which blocks have become free
    out_of_memory(number, other)
    snapshot()
    expand("True")
    step(4, kept)
    large = forward([14 * MIB] * 4)
    del large[1:3]
    annotate(large[0], "a note")
    kept += large
    del large
    empty_cache()  # unmaps the free memory between the large blocks
    expand("False")
    delayed(700 * KIB, other)
    if variant == "host":
        kept.append(torch.empty(5000, dtype=torch.uint8, pin_memory=True))
    if variant == "address":
        place = make(1 * MIB).data_ptr()
        allocate_at(5000, place + 4096)

def main():
    try:
        for number in range(2):
            train(number, kept)
    except BaseException as error:
        failures.append(error)
    finally:
        done.release()
"""


ALLOCATE_AT = """
#include <c10/cuda/CUDACachingAllocator.h>
extern "C" void allocate_at(size_t size, void* address) {
  using c10::cuda::CUDACachingAllocator::CUDAAllocator;
  auto* cuda = static_cast<CUDAAllocator*>(c10::GetAllocator(c10::DeviceType::CUDA));
  new c10::DataPtr(cuda->allocateWithAddress(size, address));
}
"""


def main(variant: str) -> None:
    """Write one file."""
    import simulated
    import torch

    backend, version = "cuda", torch.__version__.partition("+")[0]
    if torch.version.cuda is None or hasattr(torch, "npu"):
        import torch_npu

        backend, version = "npu", torch_npu.__version__.partition("+")[0]
    path = NATIVE / f"{backend}-{version}{variant and '-' + variant}.pickle"
    if path.exists():
        raise SystemExit(f"{path} exists: it belongs to the version that wrote it")

    native = torch._C if backend == "cuda" else torch_npu._C
    module = getattr(torch, backend)
    module.init()
    record(module, VARIANTS[variant])
    done = _thread.allocate_lock()
    done.acquire()
    scope = {
        "torch": torch,
        "simulated": simulated,
        "device_module": module,
        "BACKEND": backend,
        "set_metadata": getattr(module.memory, "_set_memory_metadata", lambda text: None),
        "annotate_memory": getattr(native, f"_{backend}_annotateMemory", lambda *what: None),
        "empty_cache": getattr(native, f"_{backend}_emptyCache"),
        "expand": lambda value: expand(module, value),
        "snapshot": module.memory._snapshot,
        "variant": variant,
        "allocate_at": variant == "address" and allocate_at(),
        "kept": [],
        "failures": [],
        "done": done,
    }
    exec(compile(TRAINING, "train.py", "exec"), scope)
    # The frames of a thread that is started in this way begin in train.py.
    _thread.start_new_thread(scope["main"], ())
    done.acquire()
    if scope["failures"]:
        raise scope["failures"][0]
    reported = [
        {name: module.memory_stats(number).get(key) for name, key in STATS.items()}
        for number in range(2)
    ]
    path.write_bytes(pickle.dumps(without_folders(module.memory._snapshot())))
    simulated.set_busy(False)
    path.with_suffix(".json").write_text(json.dumps(reported, indent=2) + "\n")
    print(path, path.stat().st_size)


def allocate_at():
    """Return a function that allocates at a given address, which only C++ can request."""
    import torch

    folder = Path(tempfile.mkdtemp())
    source, library = folder / "allocate_at.cpp", folder / "allocate_at.so"
    source.write_text(ALLOCATE_AT)
    installed = Path(torch.__file__).parent
    include = [installed / "include", NATIVE.parents[2] / "csrc" / "hooks" / "stand_in"]
    command = ["g++", "-std=c++20", "-w", "-shared", "-fPIC", "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE"]
    command += [f"-I{folder}" for folder in include] + [f"-L{installed / 'lib'}", source]
    subprocess.run([*command, "-lc10", "-o", library], check=True)
    function = ctypes.CDLL(str(library)).allocate_at
    function.argtypes = [ctypes.c_size_t, ctypes.c_void_p]
    return function


def by_hand() -> None:
    """Make the file of torch 1.13.1 from the file of torch 2.0.1."""
    path = NATIVE / "cuda-1.13.1.pickle"
    if path.exists():
        raise SystemExit(f"{path} exists")
    source = NATIVE / "cuda-2.0.1.pickle"
    segments = pickle.loads(source.read_bytes())["segments"]
    for segment in segments:
        for entry in (segment, *segment["blocks"]):
            del entry["requested_size"]
    path.write_bytes(pickle.dumps(segments, protocol=4))
    reported = json.loads(source.with_suffix(".json").read_text())
    reported = [{**stats, "requested_bytes": None} for stats in reported]
    path.with_suffix(".json").write_text(json.dumps(reported, indent=2) + "\n")


def record(module, options) -> None:
    """Start torch's recorder."""
    function = module.memory._record_memory_history
    if "trace_alloc_max_entries" in inspect.signature(function).parameters:  # torch 2.0
        for number in range(2):
            traced = {"trace_alloc_max_entries": 10_000, "trace_alloc_record_context": True}
            function(True, device=number, **traced)
    else:
        function(**{"stacks": "python", "max_entries": 10_000, **options})


def expand(module, value: str) -> None:
    """Switch expandable segments on or off; torch 2.0 has none."""
    import torch

    setting = f"expandable_segments:{value}"
    if module is torch.cuda and hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        torch._C._accelerator_setAllocatorSettings(setting)
    elif not torch.__version__.startswith("2.0."):
        module.memory._set_allocator_settings(setting)


def without_folders(content):
    """Remove the folders of libraries, which C++ frames name, and return the content."""
    if isinstance(content, dict):
        if "filename" in content:
            content["filename"] = Path(content["filename"]).name
        without_folders(list(content.values()))
    elif isinstance(content, (list, tuple)):
        for part in content:
            without_folders(part)
    return content


if __name__ == "__main__":
    (argument,) = sys.argv[1:] or [""]
    by_hand() if argument == "by-hand" else main(argument)
