"""Names of the allocators that pytracer records, and what holds for each of them by name."""

ACCELERATORS = ("cuda", "npu")
BACKENDS = ("cpu", *ACCELERATORS)
# The library that reads autograd's state, and torch's pinned host memory, which is a device of its
# own next to a CUDA device. Both are found and built as the hooks are.
AUTOGRAD, HOST = "autograd", "host"
LIBRARIES = (*BACKENDS, AUTOGRAD, HOST)  # all that is compiled for a release of torch
MAX_ACCELERATORS = 64  # how many accelerators of one process can be recorded
NO_CACHING_VARIABLE = {
    "cuda": "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "npu": "PYTORCH_NO_NPU_MEMORY_CACHING",
}
"""Variables that make torch's allocator bypass its cache. It then reports no events."""

RECORD_THE_CPU = 'set device="cpu" (PYTRACER_DEVICE=cpu)'
"""The remedy where there is no device: an option of a program, or its variable for a job."""


def package_of(library: str) -> str:
    """Return the package whose release decides which hook fits: torch or torch_npu."""
    return "torch_npu" if library == "npu" else "torch"
