"""Writes golden files of PyTorch's own recorder: what a reader has to understand beside ours.

    tests/devices/simulate cuda .venv-cuda-2.15.0/bin/python tests/golden/make_native.py
    tests/devices/simulate npu .venv-npu-2.13.0/bin/python tests/golden/make_native.py

writes `native/cuda-2.15.0.pickle`, named by the version of torch (torch_npu), and beside it a JSON
with what each device's allocator itself said at that moment. With an argument, another way to
record: `ring` (its beginning is lost), `alloc`, `state` (contexts), `host` (pinned memory too),
`address` (what allocators tag themselves; g++), `all` (C++ frames). Nothing is overwritten: a file
belongs to the version that wrote it.

torch before 2.11 is built for CUDA 12 or 11, of which the simulated driver knows too little: the
files of 2.0 to 2.6 were made with a copy of tests/devices under `older_cuda.patch`.

torch 1.13 has its CUDA runtime inside and runs on no simulated driver. Its file is made by hand, by
`python tests/golden/make_native.py by-hand`, from that of torch 2.0.1. What is known of it: torch
1.13.1's torch/cuda/_memory_viz.py takes the list of the segments, whose blocks have `history`, of
`addr`, `real_size` and `frames`; its library has no word for requested sizes and for traces.
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

# Ways to record, by the arguments of torch's recorder (2.1 and newer).
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

# Every event comes from a line of this: torch's own Python functions that allocate or free would
# leave their paths on this machine in the file.
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
    make(64 * MIB)  # is cached, and given back for the next one
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
    make(100)  # the allocator looks what has become free
    out_of_memory(number, other)
    snapshot()
    expand("True")
    step(4, kept)
    large = forward([14 * MIB] * 4)
    del large[1:3]
    annotate(large[0], "a note")
    kept += large
    del large
    empty_cache()  # unmaps what lies between the large ones
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
    """Writes one file."""
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
    # The frames of a thread that is started so begin in train.py.
    _thread.start_new_thread(scope["main"], ())
    done.acquire()
    if scope["failures"]:
        raise scope["failures"][0]
    said = [
        {name: module.memory_stats(number).get(key) for name, key in STATS.items()}
        for number in range(2)
    ]
    path.write_bytes(pickle.dumps(without_folders(module.memory._snapshot())))
    simulated.set_busy(False)
    path.with_suffix(".json").write_text(json.dumps(said, indent=2) + "\n")
    print(path, path.stat().st_size)


def allocate_at():
    """What C++ alone can ask of the allocator."""
    import torch

    folder = Path(tempfile.mkdtemp())
    source, library = folder / "allocate_at.cpp", folder / "allocate_at.so"
    source.write_text(ALLOCATE_AT)
    installed = Path(torch.__file__).parent
    include = [installed / "include", NATIVE.parents[2] / "csrc" / "hooks" / "stand_in"]
    command = ["g++", "-std=c++20", "-w", "-shared", "-fPIC", "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE"]
    command += [f"-I{each}" for each in include] + [f"-L{installed / 'lib'}", source]
    subprocess.run([*command, "-lc10", "-o", library], check=True)
    function = ctypes.CDLL(str(library)).allocate_at
    function.argtypes = [ctypes.c_size_t, ctypes.c_void_p]
    return function


def by_hand() -> None:
    """Writes the file of torch 1.13.1 out of that of 2.0.1."""
    path = NATIVE / "cuda-1.13.1.pickle"
    if path.exists():
        raise SystemExit(f"{path} exists")
    source = NATIVE / "cuda-2.0.1.pickle"
    segments = pickle.loads(source.read_bytes())["segments"]
    for segment in segments:
        for each in (segment, *segment["blocks"]):
            del each["requested_size"]
    path.write_bytes(pickle.dumps(segments, protocol=4))
    said = json.loads(source.with_suffix(".json").read_text())
    said = [{**each, "requested_bytes": None} for each in said]
    path.with_suffix(".json").write_text(json.dumps(said, indent=2) + "\n")


def record(module, options) -> None:
    """Switches torch's recorder on."""
    function = module.memory._record_memory_history
    if "trace_alloc_max_entries" in inspect.signature(function).parameters:  # torch 2.0
        for number in range(2):
            traced = {"trace_alloc_max_entries": 10_000, "trace_alloc_record_context": True}
            function(True, device=number, **traced)
    else:
        function(**{"stacks": "python", "max_entries": 10_000, **options})


def expand(module, value: str) -> None:
    """Whether segments do from now on; torch 2.0 has none that do."""
    import torch

    setting = f"expandable_segments:{value}"
    if module is torch.cuda and hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        torch._C._accelerator_setAllocatorSettings(setting)
    elif not torch.__version__.startswith("2.0."):
        module.memory._set_allocator_settings(setting)


def without_folders(content):
    """The same, but for where libraries, which C++ frames name, lie on this machine."""
    if isinstance(content, dict):
        if "filename" in content:
            content["filename"] = Path(content["filename"]).name
        without_folders(list(content.values()))
    elif isinstance(content, (list, tuple)):
        for each in content:
            without_folders(each)
    return content


if __name__ == "__main__":
    (argument,) = sys.argv[1:] or [""]
    by_hand() if argument == "by-hand" else main(argument)
