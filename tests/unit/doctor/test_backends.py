"""The doctor's checks of backends and memory on several kinds of machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sapo_edge.backends.apple import backend as mlx
from sapo_edge.backends.backend import RoundShape
from sapo_edge.backends.choose import detect
from sapo_edge.backends.llama import compare
from sapo_edge.backends.llama.compare import SamplerRates
from sapo_edge.backends.machine import host
from sapo_edge.backends.machine.host import TorchBuild, this_host
from sapo_edge.backends.machine.nvidia import Gpu, Nvidia
from sapo_edge.backends.pytorch import backend as torch_backend
from sapo_edge.config.settings import Settings
from sapo_edge.doctor import backends as doctor_backends
from sapo_edge.doctor.check import Check
from tests.models import SHAPES, write_model

GPU = Nvidia((Gpu("RTX 4090", 24_000_000_000, 22_000_000_000, (8, 9)),), "570.1")
SHAPE = RoundShape(16, 8, 8, 200, 64)
Look = Callable[..., dict[str, Check]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "tiny.gguf", SHAPES["llama"])


@pytest.fixture
def look(model: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """The checks by name, on a machine that lacks some packages or has a GPU."""

    def examine(
        missing: str = "", torch: TorchBuild | None = None, nvidia: Nvidia | None = None, broken: str = "",
        **settings: str,
    ) -> dict[str, Check]:  # fmt: skip
        real = this_host()
        absent = set(missing.split())
        machine = replace(
            real, installed=lambda name: name not in absent and real.installed(name),
            torch=lambda: torch or TorchBuild("2.13.0"), nvidia=lambda: nvidia, exists=lambda _path: False,
        )  # fmt: skip
        for module in (detect, mlx, torch_backend, host):
            monkeypatch.setattr(module, "this_host", lambda: machine)
        failures = {broken: "ImportError: libomp.so.5 is missing"} if broken else {}
        monkeypatch.setattr(detect, "probe", lambda _backends: failures)
        resolved = Settings(model=str(model), **settings)  # type: ignore[arg-type]
        checks = doctor_backends.backend_checks(resolved, deep=True)
        checks += doctor_backends.sampler_checks(resolved, model.parent)
        checks.append(doctor_backends.memory_check(resolved, SHAPE))
        assert all(bool(check.remedy) == (check.status != "pass") for check in checks), checks
        return {check.name: check for check in checks}

    return examine


def test_a_machine_without_a_gpu_is_fine(look: Look) -> None:
    checks = look(missing="mlx mlx_lm")
    assert {check.status for check in checks.values()} == {"pass"}
    assert "llama.cpp on the CPU" in checks["backend"].detail and "next best: torch" in checks["backend"].detail
    assert checks["mlx"].detail.startswith("not used: mlx, mlx_lm is not installed")
    assert "torch 2." in checks["torch"].detail


def test_it_says_which_sampler_was_measured_to_be_the_faster(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "measured when a node starts" in look()["sampler"].detail
    monkeypatch.setattr(compare, "remembered_rates", lambda *_, **_options: SamplerRates(137.2, 325.4))
    assert look()["sampler"].detail == "torch, the faster here (tokens/s: llama.cpp 137, torch 325)"
    assert look(sampler="llama_cpp")["sampler"].detail == "llama_cpp, as set"
    for one in (look(role="generator"), look(backend="torch"), look(missing="llama_cpp")):
        assert "sampler" not in one


def test_a_gpu_is_chosen_with_its_memory_checked_or_a_warning(look: Look) -> None:
    checks = look(nvidia=GPU)
    assert (checks["backend"].status, checks["torch"].status) == ("pass", "warn")
    assert "torch was built without CUDA" in checks["torch"].detail and "install torch" in checks["torch"].remedy
    checks = look(nvidia=GPU, torch=TorchBuild("2.13.0", cuda="12.8"))
    assert "RTX 4090" in checks["backend"].detail and checks["torch"].status == "pass"
    assert checks["memory"].status == "pass" and "22.0 GB available on the GPU" in checks["memory"].detail
    full = replace(GPU, gpus=(replace(GPU.gpus[0], free=400_000_000),))
    checks = look(nvidia=full, torch=TorchBuild("2.13.0", cuda="12.8"))
    assert checks["memory"].status == "fail" and "on the GPU" in checks["memory"].detail


def test_what_a_missing_or_broken_package_means_for_the_node(look: Look) -> None:
    checks = look(missing="torch")
    assert checks["torch"].status == "fail" and "pip install 'torch>=" in checks["torch"].remedy
    assert checks["llama_cpp"].status == "warn" and "can't train" in checks["llama_cpp"].detail
    assert look(missing="torch", role="generator")["torch"].status == "pass"
    checks = look(missing="llama_cpp")
    assert checks["backend"].status == "pass" and "torch" in checks["backend"].detail
    assert checks["llama_cpp"].status == "warn" and "llama-cpp-python" in checks["llama_cpp"].remedy
    checks = look(missing="mlx", backend="mlx")
    assert checks["backend"].status == "fail" and "mlx is not installed" in checks["backend"].detail
    assert checks["memory"].status == "warn"
    for broken, status in (("llama_cpp", "fail"), ("torch", "pass")):
        checks = look(broken=broken)
        assert checks["backend"].status == status, "it fails if the node would use it"
        assert "libomp" in checks[broken].detail and "reinstall" in checks[broken].remedy


def test_each_backend_has_its_own_estimate(model: Path) -> None:
    needs = [backend.estimate(model, SHAPE) for backend in detect.BACKENDS]
    sampling = [backend.estimate(model, replace(SHAPE, trainable=False)) for backend in detect.BACKENDS]
    assert all(0 < less < need for less, need in zip(sampling, needs, strict=True)) and len(set(needs)) == 3
