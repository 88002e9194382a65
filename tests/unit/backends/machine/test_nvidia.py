"""NVIDIA's GPUs and driver, as reported by the driver's library and by Linux."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from sapo_edge.backends.machine import nvidia
from sapo_edge.backends.machine.nvidia import Gpu, Nvidia, find_nvidia


def library(code: int = 0, count: int = 1) -> Any:
    """NVML's functions, as ctypes shows them."""

    def give(target: Any, **values: object) -> int:
        for name, value in values.items():
            setattr(target, name, value)
        return 0

    def capability(_gpu: Any, major: Any, minor: Any) -> int:
        return give(major._obj, value=8) + give(minor._obj, value=6)

    def text(value: bytes) -> Any:
        return lambda *arguments: give(arguments[-2], value=value)

    return SimpleNamespace(
        nvmlInit_v2=lambda: code, nvmlShutdown=lambda: 0, nvmlSystemGetDriverVersion=text(b"550.54.14"),
        nvmlDeviceGetCount_v2=lambda to: give(to._obj, value=count), nvmlDeviceGetHandleByIndex_v2=lambda at, _to: at,
        nvmlDeviceGetName=text(b"NVIDIA GeForce RTX 3060"), nvmlDeviceGetUUID=text(b"GPU-1f"),
        nvmlDeviceGetMemoryInfo=lambda _gpu, to: give(to._obj, total=12_000_000_000, free=11_000_000_000),
        nvmlDeviceGetCudaComputeCapability=capability,
    )  # fmt: skip


def bus(tmp_path: Path, *devices: tuple[str, str]) -> Path:
    """Linux's list of devices on the bus: vendor and class of each."""
    for index, (vendor, kind) in enumerate(devices):
        device = tmp_path / f"0000:0{index}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
        (device / "class").write_text(kind + "\n")
    return tmp_path


@pytest.fixture(autouse=True)
def _nothing_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ctypes, "CDLL", Mock(side_effect=OSError("no such library")))
    monkeypatch.setattr(nvidia, "PCI", tmp_path / "none")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


def test_the_drivers_library_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library())
    result = find_nvidia()
    gpu = Gpu("NVIDIA GeForce RTX 3060", 12_000_000_000, 11_000_000_000, (8, 6), "GPU-1f")
    assert result == Nvidia((gpu,), "550.54.14") and result.unfit_for("12.8", result.gpus[0]) == ("", "")


@pytest.mark.parametrize("nvml", [library(code=9), library(count=0), SimpleNamespace()])
def test_without_a_library_or_a_gpu_there_is_none(monkeypatch: pytest.MonkeyPatch, nvml: Any) -> None:
    assert find_nvidia() is None
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: nvml)
    assert find_nvidia() is None


def test_a_driver_that_is_too_old_or_was_updated_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = library()
    del nvml.nvmlDeviceGetCudaComputeCapability
    nvml.nvmlSystemGetDriverVersion = lambda text, _size: setattr(text, "value", b"340.108")
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: nvml)
    result = find_nvidia()
    assert result is not None and result.gpus[0].capability is None
    assert "340.108 is too old" in result.unfit_for("12.8", result.gpus[0])[0]
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library(code=nvidia.MISMATCH))
    result = find_nvidia()
    assert result is not None and result.unfit_for("12.8", result.gpus[0])[1] == "restart the machine"


def test_a_gpu_without_a_driver_is_found_on_the_bus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    devices = bus(tmp_path / "pci", ("0x10de", "0x030000"), ("0x10de", "0x0c0330"), ("0x8086", "0x030000"))
    monkeypatch.setattr(nvidia, "PCI", devices)
    result = find_nvidia()
    assert result is not None and len(result.gpus) == 1
    assert "driver" in result.unfit_for("12.8", result.gpus[0])[0] and "install" in result.remedy


GPUS = (Gpu("GT 1030", 2, 2, (6, 1), "GPU-1f03"), Gpu("RTX 4090", 24, 22, (8, 9), "GPU-1f4c"))


@pytest.mark.parametrize(
    ("names", "order", "expected"),
    [
        (None, "", "GPU-1f03 GPU-1f4c"), ("GPU-1f4", "", "GPU-1f4c"), ("GPU-1f4c,GPU-1f03", "", "GPU-1f4c GPU-1f03"),
        ("1", "PCI_BUS_ID", "GPU-1f4c"),
        ("1,0", "PCI_BUS_ID", "GPU-1f4c GPU-1f03"), ("0,7,1", "PCI_BUS_ID", "GPU-1f03"),
        # More than one begins like this; none has this number.
        ("GPU-1f", "", None), ("2", "PCI_BUS_ID", None), ("", "", None), ("-1", "", None),
    ],
)  # fmt: skip
def test_the_gpus_are_those_that_cuda_shows(
    names: str | None, order: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "_ask_library", lambda: Nvidia(GPUS, "570.1"))
    monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    if names is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    result = find_nvidia()
    assert result is not None
    if expected is None:
        assert "CUDA_VISIBLE_DEVICES hides it" in result.unfit_for("12.8", result.gpus[0])[0]
    else:
        assert " ".join(gpu.uuid for gpu in result.gpus) == expected and not result.trouble


@pytest.mark.parametrize(("names", "name"), [("0", "RTX 4090"), ("1", "GT 1030"), ("MIG-5", "GT 1030")])
def test_what_only_cuda_can_tell_is_left_to_it(names: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # By default CUDA counts from the fastest.
    monkeypatch.setattr(nvidia, "_ask_library", lambda: Nvidia(GPUS, "570.1"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    result = find_nvidia()
    assert result is not None and result.gpus[0].name == name and not any(gpu.uuid for gpu in result.gpus)


@pytest.mark.parametrize(
    ("driver", "capability", "cuda", "fits"),
    [
        ("450.80.02", (8, 6), "11.8", True), ("440.33", (8, 6), "11.8", False), ("525.60.13", (8, 6), "12.1", True),
        ("520.61", (8, 6), "12.1", False), ("580.65.06", (8, 6), "13.0", True), ("575.57", (8, 6), "13.0", False),
        ("", (8, 6), "12.8", True), ("strange", (8, 6), "12.8", True), ("600.1", (8, 6), "14.0", True),
        ("999.0", (6, 1), "12.6", True), ("999.0", (6, 1), "12.8", False), ("999.0", (6, 1), "12.9", False),
        ("999.0", (7, 0), "12.8", True), ("999.0", (7, 0), "13.0", False), ("999.0", (7, 5), "13.0", True),
        ("999.0", (7, 5), "14.1", True), ("999.0", (3, 5), "12.1", False), ("999.0", (5, 0), "strange", True),
    ],
)  # fmt: skip
def test_each_build_of_torch_needs_a_driver_and_leaves_old_gpus_out(
    driver: str, capability: tuple[int, int], cuda: str, fits: bool
) -> None:
    gpu = Gpu("GTX", capability=capability)
    trouble, remedy = Nvidia((gpu,), driver).unfit_for(cuda, gpu)
    assert bool(trouble) != fits and bool(remedy) == bool(trouble)
    assert fits or capability == (8, 6) or "12.6" in remedy
