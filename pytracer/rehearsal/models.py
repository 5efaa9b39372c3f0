"""The models of devices that a dry run can simulate.

Sizes are those that torch reports on such a device. They differ by about 1 % between drivers.
"""

from dataclasses import dataclass

from pytracer.errors import ConfigError
from pytracer.text import did_you_mean


@dataclass(frozen=True)
class Model:
    """A model of a device: SIMULATED_ and an attribute's name is the variable of its driver.

    Attributes:
        name: What the driver reports.
        capacity_bytes: The memory of the device.
        compute_capability: 90 means 9.0. It decides how much memory cuBLAS takes for its
            workspaces. 0: an NPU.
        multiprocessors: Their number.
        l2_bytes: The size of the cache of the second level.
        shared_multiprocessor_bytes: The shared memory of a multiprocessor. From 8.0 on, a block can
            have 1 KiB less.
        multiprocessor_threads: The threads of a multiprocessor.
    """

    name: str
    capacity_bytes: int
    compute_capability: int = 0
    multiprocessors: int = 0
    l2_bytes: int = 0
    shared_multiprocessor_bytes: int = 0
    multiprocessor_threads: int = 2048

    @property
    def backend(self) -> str:
        """ "cuda" or "npu"."""
        return "cuda" if self.compute_capability else "npu"

    def variables(self) -> dict[str, str]:
        """Return the variables that describe the device to the simulated drivers."""
        less_bytes = 1024 * (self.compute_capability >= 80)
        block = {"shared_block_bytes": self.shared_multiprocessor_bytes - less_bytes}
        values = (vars(self) | block).items()
        return {f"SIMULATED_{name.upper()}": str(value) for name, value in values if value}


_A100 = (80, 108, 40 << 20, 164 << 10)
_V100 = (70, 80, 6 << 20, 96 << 10)

MODELS = {
    "a100": Model("NVIDIA A100-SXM4-80GB", 81_038 << 20, *_A100),
    "a100-40": Model("NVIDIA A100-SXM4-40GB", 42_298_834_944, *_A100),
    "h100": Model("NVIDIA H100 80GB HBM3", 81_089 << 20, 90, 132, 50 << 20, 228 << 10),
    "h100-96": Model("NVIDIA H100", 102_005_473_280, 90, 132, 60 << 20, 228 << 10),
    "h200": Model("NVIDIA H200", 143_156 << 20, 90, 132, 60 << 20, 228 << 10),
    "b200": Model("NVIDIA B200", 182_642 << 20, 100, 148, 126 << 20, 228 << 10),
    "l4": Model("NVIDIA L4", 22_565 << 20, 89, 58, 48 << 20, 100 << 10, 1536),
    "4090": Model("NVIDIA GeForce RTX 4090", 24_217 << 20, 89, 128, 72 << 20, 100 << 10, 1536),
    "t4": Model("Tesla T4", 15_095 << 20, 75, 40, 4 << 20, 64 << 10, 1024),
    "v100-16": Model("Tesla V100-SXM2-16GB", 16_160 << 20, *_V100),
    "v100-32": Model("Tesla V100-SXM2-32GB", 32_501 << 20, *_V100),
    "ascend910b2": Model("Ascend910B2C", 62_432 << 20),
}


def model_of(name: str) -> Model:
    """Return the model of a name such as "h100".

    Raises:
        ConfigError: There is no such model.
    """
    if name not in MODELS:
        hint = did_you_mean(name, MODELS)
        raise ConfigError(f"{name!r} is not a known device{hint or ': give ' + ', '.join(MODELS)}")
    return MODELS[name]
