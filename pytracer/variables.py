"""The environment variables of the allocators' settings.

These names work in every version of torch and torch_npu: docs/reference/allocator-settings.md.
"""

VARIABLE = {"cuda": "PYTORCH_CUDA_ALLOC_CONF", "npu": "PYTORCH_NPU_ALLOC_CONF"}
