"""The names in which torch.cuda and torch.npu differ."""

import ctypes
import importlib.util
import os

import torch


class Cuda:
    name = "cuda"
    api = torch.cuda
    graph = torch.cuda.CUDAGraph if hasattr(torch.cuda, "CUDAGraph") else None
    attach_observer = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    visible = "CUDA_VISIBLE_DEVICES"
    settings = "PYTORCH_CUDA_ALLOC_CONF"
    # The bytes added to a request before it is rounded to 512 bytes.
    padding = 0

    @staticmethod
    def set_allocator(settings):
        torch._C._accelerator_setAllocatorSettings(settings)

    @staticmethod
    def process_bytes(device):
        """Return this process's bytes as nvidia-smi shows them; None if it shows no process."""

        class Process(ctypes.Structure):
            _fields_ = [
                ("pid", ctypes.c_uint),
                ("used", ctypes.c_ulonglong),
                ("instances", ctypes.c_uint * 2),
            ]

        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        assert nvml.nvmlInit_v2() == 0
        handle = ctypes.c_void_p()
        assert nvml.nvmlDeviceGetHandleByIndex_v2(device, ctypes.byref(handle)) == 0
        uuid = ctypes.create_string_buffer(80)
        assert nvml.nvmlDeviceGetUUID(handle, uuid, len(uuid)) == 0
        same = ctypes.c_void_p()
        assert nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(same)) == 0
        assert same.value == handle.value
        bus = f"00000000:{torch.cuda.get_device_properties(device).pci_bus_id:02x}:00.0".encode()
        assert nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(same)) == 0
        assert same.value == handle.value
        count = ctypes.c_uint(8)
        processes = (Process * 8)()
        listed = nvml.nvmlDeviceGetComputeRunningProcesses_v3(
            handle, ctypes.byref(count), processes
        )
        assert listed == 0
        assert [process.pid for process in processes[: count.value]] in ([], [os.getpid()])
        return processes[0].used if count.value else None


class Npu:
    name = "npu"
    api = getattr(torch, "npu", None)
    graph = getattr(api, "NPUGraph", None)
    visible = "ASCEND_RT_VISIBLE_DEVICES"
    settings = "PYTORCH_NPU_ALLOC_CONF"
    padding = 32

    @staticmethod
    def attach_observer(function):
        import torch_npu

        torch_npu._C._npu_attach_out_of_memory_observer(function)

    @staticmethod
    def set_allocator(settings):
        torch.npu.memory._set_allocator_settings(settings)

    @staticmethod
    def process_bytes(device):
        class Process(ctypes.Structure):
            _fields_ = [("pid", ctypes.c_int), ("used", ctypes.c_ulong)]

        dcmi = ctypes.CDLL("libdcmi.so")
        assert dcmi.dcmi_init() == 0
        card, chip = ctypes.c_int(), ctypes.c_int()
        found = dcmi.dcmi_get_card_id_device_id_from_logicid(
            ctypes.byref(card), ctypes.byref(chip), device
        )
        assert found == 0
        count = ctypes.c_int()
        processes = (Process * 32)()
        assert dcmi.dcmi_get_device_resource_info(card, chip, processes, ctypes.byref(count)) == 0
        assert [process.pid for process in processes[: count.value]] in ([], [os.getpid()])
        return processes[0].used if count.value else None


backend = Npu if importlib.util.find_spec("torch_npu") else Cuda
