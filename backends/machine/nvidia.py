"""NVIDIA's GPUs and driver, found without torch: through the driver's own library, or on Linux's PCI bus.

Nothing here starts CUDA, which takes seconds and hundreds of megabytes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
PCI = Path("/sys/bus/pci/devices")
VENDOR = "0x10de"
MISMATCH = 18
"""NVML_ERROR_LIB_RM_VERSION_MISMATCH: the driver was updated, but the machine was not restarted."""
LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""Oldest driver for each CUDA version (docs.nvidia.com/deploy/cuda-compatibility)."""
LEAST_CAPABILITY = {(13, 0): (7, 5), (12, 8): (7, 0), (12, 0): (5, 0), (11, 0): (3, 5)}
"""Oldest GPUs from each CUDA version on, the newest first, by compute capability. torch's builds for CUDA 12.8 lack
Maxwell and Pascal, newer ones Volta too (pytorch/pytorch#157517, #172352): opening the device finds that out."""
LEAST_BFLOAT16 = (8, 0)
"""Oldest GPUs that multiply bfloat16; Turing's and Volta's have no unit for it."""
UNNAMED = "an NVIDIA GPU"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its name, total and free bytes (0: unknown), compute capability, CUDA's name for it ("": unknown)."""

    name: str
    total: int = 0
    free: int = 0
    capability: tuple[int, int] | None = None
    uuid: str = ""

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether it has units for bfloat16; an unknown one is taken for a newer one."""
        return self.capability is None or self.capability >= LEAST_BFLOAT16


@dataclass(frozen=True, slots=True)
class Nvidia:
    """The GPUs of a machine and their driver.

    Attributes:
        gpus: those that CUDA shows; at least one.
        driver: its version; "" if it does not run.
        trouble: why no GPU can be used, in words; "" if they can.
    """

    gpus: tuple[Gpu, ...]
    driver: str = ""
    trouble: str = ""
    remedy: str = ""

    def unfit_for(self, cuda: str, gpu: Gpu) -> tuple[str, str]:
        """Why a torch built for this version of CUDA can't use a GPU, and the remedy; "" if it can."""
        if self.trouble:
            return self.trouble, self.remedy
        major, driver = _major(cuda), _major(self.driver)
        least = LEAST_DRIVER.get(major, 0)
        if driver and driver < least:
            trouble = (
                f"its driver {self.driver} is too old for torch, which was built for CUDA {cuda} and needs {least}"
            )
            return trouble, "update NVIDIA's driver, or install a torch that was built for an older CUDA"
        least_capability = next((at for since, at in LEAST_CAPABILITY.items() if since <= _version(cuda)), (0, 0))
        if gpu.capability is not None and gpu.capability < least_capability:
            remedy = "install a torch that was built for an older CUDA, such as 12.6"
            return f"it is too old for torch, which was built for CUDA {cuda}", remedy
        return "", ""


def find_nvidia() -> Nvidia | None:
    nvidia = _ask_library() or _read_bus()
    if nvidia is None or not nvidia.gpus:
        return None
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None or nvidia.trouble:
        return nvidia
    visible = _visible(nvidia.gpus, names, by_bus=os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID")
    if not visible:
        return replace(nvidia, trouble="CUDA_VISIBLE_DEVICES hides it", remedy="unset CUDA_VISIBLE_DEVICES")
    return replace(nvidia, gpus=visible)


def _visible(gpus: tuple[Gpu, ...], names: str, *, by_bus: bool) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, by numbers or beginnings of UUIDs, up to the first that fits none.

    Args:
        gpus: in the driver's order, that of the bus.
        by_bus: whether numbers count in that order. Otherwise CUDA puts the fastest first, by a rule of its own: which
            of different GPUs a number means can only be supposed here, and CUDA has to choose.
    """
    anonymous = tuple(replace(gpu, uuid="") for gpu in gpus)
    if "MIG" in names:
        # Parts of a GPU: how much memory they have is not read here.
        return anonymous
    numbered = gpus
    if not by_bus and len({gpu.name for gpu in gpus}) > 1:
        numbered = tuple(sorted(anonymous, key=lambda gpu: (gpu.capability or (0, 0), gpu.total), reverse=True))
    visible: list[Gpu] = []
    for name in map(str.strip, names.split(",")):
        if name.isdigit():
            named = numbered[int(name) : int(name) + 1]
        else:
            named = tuple(gpu for gpu in gpus if name and gpu.uuid.startswith(name))
        if len(named) != 1:
            break
        visible += named
    return tuple(visible)


def _major(version: str) -> int:
    """The major number of a version; 0 if it has none."""
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0


def _version(version: str) -> tuple[int, int]:
    """Major and minor number of a version; 0 for one that it lacks."""
    return _major(version), _major(version.partition(".")[2])


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _ask_library() -> Nvidia | None:
    """What the driver's management library (NVML) reports; None without a driver."""
    try:
        library: Any = ctypes.CDLL(LIBRARY)
        code = library.nvmlInit_v2()
    except (OSError, AttributeError):
        return None
    if code == MISMATCH:
        bus = _read_bus()
        gpus = bus.gpus if bus is not None else (Gpu(UNNAMED),)
        return Nvidia(gpus, "", "its driver was updated after the machine started", "restart the machine")
    if code != 0:
        return None
    try:
        text = ctypes.create_string_buffer(96)
        library.nvmlSystemGetDriverVersion(text, 96)
        return Nvidia(tuple(_devices(library)), text.value.decode(errors="replace"))
    finally:
        library.nvmlShutdown()


def _devices(library: Any) -> Iterator[Gpu]:
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
            continue
        name, uuid, memory = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96), _Memory()
        library.nvmlDeviceGetName(handle, name, 96)
        library.nvmlDeviceGetUUID(handle, uuid, 96)
        library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        major, minor = ctypes.c_int(), ctypes.c_int()
        # Drivers of the time before CUDA 9 lack it; `Nvidia.unfit_for` says that they are too old.
        capability = getattr(library, "nvmlDeviceGetCudaComputeCapability", None)
        failed = capability is None or capability(handle, ctypes.byref(major), ctypes.byref(minor))
        yield Gpu(
            name.value.decode(errors="replace") or UNNAMED,
            memory.total,
            memory.free,
            None if failed else (major.value, minor.value),
            uuid.value.decode(errors="replace"),
        )


def _read_bus() -> Nvidia | None:
    """GPUs that Linux lists on its PCI bus, although no driver runs them; None without any."""
    try:
        gpus = tuple(Gpu(UNNAMED) for device in PCI.iterdir() if _is_gpu(device))
    except OSError:
        return None
    trouble, remedy = "its driver is not installed or does not run", "install NVIDIA's driver"
    return Nvidia(gpus, "", trouble, remedy) if gpus else None


def _is_gpu(device: Path) -> bool:
    try:
        # Classes 0x03.... are displays: NVIDIA makes network cards too.
        return (device / "vendor").read_text().strip() == VENDOR and (device / "class").read_text().startswith("0x03")
    except OSError:
        return False
