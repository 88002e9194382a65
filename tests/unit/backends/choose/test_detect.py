"""Which backend is chosen on each kind of machine, and what keeps a better one from running."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sapo_edge.backends.backend import Backend, OpenOptions, RoundShape, Support
from sapo_edge.backends.choose import detect
from sapo_edge.backends.choose.detect import ChosenBackend, find_backend
from sapo_edge.backends.choose.detect import detect as choose
from sapo_edge.backends.machine.host import Host, TorchBuild, this_host
from sapo_edge.backends.machine.nvidia import Gpu, Nvidia
from sapo_edge.backends.pytorch import backend as torch_backend
from sapo_edge.errors import BackendError, ModelError
from tests.directories import change_config, write_directory
from tests.models import SHAPES, opening
from tests.unit.backends.fresh import broken, python

EVERYTHING = ("llama_cpp", "torch", "transformers", "peft", "mlx", "mlx_lm")
CUDA, PLAIN, HIP, XPU = (
    TorchBuild("2.13.0", **build) for build in ({"cuda": "12.8"}, {}, {"hip": "6.3"}, {"xpu": "20250101"})
)
DISPLAY = Gpu("NVIDIA GT 1030", 2_000_000_000, 1_900_000_000, (6, 1), "GPU-1")
BIG = Nvidia((Gpu("NVIDIA RTX 4090", 24_000_000_000, 22_000_000_000, (8, 9), "GPU-2"),), "570.1")


def host(
    system: str = "Linux", machine: str = "x86_64", installed: Iterable[str] = EVERYTHING,
    torch: TorchBuild = PLAIN, nvidia: Nvidia | None = None, devices: Iterable[str] = (),
) -> Host:  # fmt: skip
    packages, files = set(installed), set(devices)
    return Host(system, machine, packages.__contains__, lambda: torch, lambda: nvidia, files.__contains__)


def without(*names: str) -> list[str]:
    return [name for name in EVERYTHING if name not in names]


@pytest.mark.parametrize(
    ("machine", "name", "runner_up"),
    [
        (host(), "llama_cpp", "torch"),
        (host(installed=without("mlx", "mlx_lm")), "llama_cpp", "torch"),
        (host("Darwin", "arm64"), "mlx", "llama.cpp"),
        (host("Darwin", "arm64", without("mlx")), "llama_cpp", "torch"),
        (host("Darwin", "x86_64"), "llama_cpp", "torch"),
        (host(torch=CUDA, nvidia=BIG), "torch", "llama.cpp"),
        (host("Windows", "AMD64", torch=CUDA, nvidia=BIG), "torch", "llama.cpp"),
        (host(torch=HIP, devices=["/dev/kfd"]), "torch", "llama.cpp"),
        (host(torch=HIP), "llama_cpp", "torch"),
        (host(torch=XPU, devices=["/dev/dri"]), "torch", "llama.cpp"),
        (host(torch=PLAIN, devices=["/dev/dri"]), "llama_cpp", "torch"),
        (host(installed=without("llama_cpp"), torch=CUDA, nvidia=BIG), "torch", "MLX"),
        (host(installed=without("llama_cpp")), "torch", "MLX"),
        (host(installed=["mlx", "mlx_lm"]), "mlx", ""),
        (host(installed=["llama_cpp"]), "llama_cpp", ""),
    ],
)
def test_the_best_usable_backend_is_chosen(machine: Host, name: str, runner_up: str) -> None:
    choice = choose("auto", host=machine)
    assert choice.name == name and choice.automatic
    assert choice.reason and choice.runner_up.startswith(runner_up) and bool(choice.runner_up) == bool(runner_up)


@pytest.mark.parametrize(
    ("machine", "problem", "remedy"),
    [
        (host(torch=PLAIN, nvidia=BIG), "NVIDIA RTX 4090 can't be used: torch was built without CUDA", "install torch"),
        (
            host(torch=CUDA, nvidia=replace(BIG, driver="470.82.01")),
            "its driver 470.82.01 is too old for torch, which was built for CUDA 12.8 and needs 525",
            "update NVIDIA's driver",
        ),
        (
            host(torch=CUDA, nvidia=Nvidia((Gpu("an NVIDIA GPU"),), "", "its driver does not run", "install it")),
            "an NVIDIA GPU can't be used: its driver does not run",
            "install it",
        ),
        (host(installed=without("torch"), nvidia=BIG), "torch is not installed", "pip install 'torch>="),
        (host(installed=without("peft"), torch=CUDA, nvidia=BIG), "peft is not installed", "pip install"),
        (host("Darwin", "arm64", without("mlx_lm")), "MLX would run on this Mac's GPU, but mlx_lm", "pip install 'mlx"),
        (host(devices=["/dev/kfd"]), "may have an AMD GPU, but torch was built without ROCm", "ROCm"),
        (host(installed=["llama_cpp"]), "can't train: torch, transformers, peft is not installed", "pip install"),
    ],
)
def test_what_keeps_a_better_backend_from_running_is_reported(machine: Host, problem: str, remedy: str) -> None:
    choice = choose("auto", host=machine)
    assert choice.name == "llama_cpp"
    missing = " | ".join(choice.missing)
    assert problem in missing and remedy in missing


def test_nothing_is_missing_where_the_best_runs() -> None:
    for machine in (host(torch=CUDA, nvidia=BIG), host("Darwin", "arm64"), host(installed=without("mlx", "mlx_lm"))):
        assert choose("auto", host=machine).missing == ()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_directory(tmp_path / "model", SHAPES["qwen2"])


def test_a_gpu_too_small_for_the_model_is_reported(model: Path) -> None:
    choice = choose("auto", model, host(torch=CUDA, nvidia=BIG))
    assert "RTX 4090 with 24 GB" in choice.reason and choice.missing == ()
    change_config(model, hidden_size=8192, num_hidden_layers=60, intermediate_size=28672)
    for installed, remedy in ((EVERYTHING, "pip install 'bitsandbytes>="), ((*EVERYTHING, "bitsandbytes"), "4 bits")):
        choice = choose("auto", model, host(installed=installed, torch=CUDA, nvidia=BIG))
        assert choice.name == "torch" and "CPU" in choice.reason
        assert "GB free" in choice.missing[0] and (remedy in choice.missing[0] or "smaller model" in choice.missing[0])


def test_a_damaged_model_of_some_gb_is_not_too_large_for_a_gpu(tmp_path: Path) -> None:
    damaged = change_config(write_directory(tmp_path / "4 GB", SHAPES["qwen2"]), model_type="gpt2")
    assert choose("auto", damaged, host(torch=CUDA, nvidia=BIG)).missing == ()


def test_a_model_that_mlx_can_not_compute_is_left_to_another_backend(model: Path) -> None:
    mac = host("Darwin", "arm64")
    assert choose("auto", model, mac).name == "mlx"
    choice = choose("auto", change_config(model, model_type="olmo3"), mac)
    assert choice.name == "torch" and "the architecture olmo3, which MLX can't compute" in choice.missing[0]
    with pytest.raises(BackendError, match=r"MLX can't be used: .* has the architecture olmo3"):
        choose("mlx", model, mac)
    # As on a Mac without the extra that brings torch.
    with pytest.raises(BackendError, match="no backend can be used") as alone:
        choose("auto", model, host("Darwin", "arm64", without("torch")))
    assert alone.value.remedy == "use --backend torch"


@pytest.mark.parametrize("others", [(DISPLAY,), (replace(DISPLAY, capability=(8, 6)), DISPLAY)])
@pytest.mark.parametrize("first", [True, False])
def test_the_best_of_several_gpus_is_taken(
    others: tuple[Gpu, ...], first: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = (*BIG.gpus, *others) if first else (*others, *BIG.gpus)
    machine = host(torch=CUDA, nvidia=replace(BIG, gpus=gpus))
    choice = choose("auto", model, machine)
    assert choice.name == "torch" and f"RTX 4090 with 24 GB, the best of {len(gpus)} GPUs" in choice.reason
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2")
    torch_backend._show_cuda_the_best(machine, model)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-2"


def test_a_directory_is_not_for_llama_cpp_or_for_mlx_alone(model: Path) -> None:
    assert choose("auto", model, host()).name == "torch"
    with pytest.raises(BackendError, match="reads GGUF files"):
        choose("llama_cpp", model, host())
    change_config(model, quantization={"group_size": 32, "bits": 4})
    assert choose("auto", model, host()).name == "mlx"
    with pytest.raises(BackendError, match="quantised for MLX"):
        choose("torch", model, host(torch=CUDA, nvidia=BIG))


@pytest.mark.parametrize("name", ["llama_cpp", "torch", "mlx"])
def test_a_backend_that_the_user_set_is_chosen(name: str) -> None:
    choice = choose(name, host=host(torch=CUDA, nvidia=BIG))
    assert choice.name == name and "as set" in choice.reason and not choice.automatic


@pytest.mark.parametrize(
    ("name", "machine", "message"),
    [
        ("llama_cpp", host(installed=without("llama_cpp")), "pip install llama-cpp-python"),
        ("torch", host(installed=without("torch")), "pip install 'torch>="),
        ("mlx", host(installed=without("mlx")), "mlx is not installed"),
        ("mlx", host("Darwin", "x86_64"), "Apple silicon"),
        ("toch", host(), "did you mean torch?"),
        ("zebra", host(), "use one of: auto, llama_cpp, torch, mlx"),
    ],
)
def test_a_backend_that_the_user_set_and_that_cannot_run_is_an_error(name: str, machine: Host, message: str) -> None:
    with pytest.raises(BackendError) as caught:
        choose(name, host=machine)
    assert message in str(caught.value) and caught.value.remedy


def test_without_llama_cpp_torch_takes_a_gguf_file_and_the_faster_way_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    choice = choose("auto", file, host(installed=without("llama_cpp")))
    assert choice.name == "torch" and "CPU" in choice.reason
    (missing,) = choice.missing
    assert "faster on some CPUs" in missing and "install llama-cpp-python" in missing
    assert choose("auto", file, host(installed=without("llama_cpp"), torch=CUDA, nvidia=BIG)).missing == ()
    with pytest.raises(BackendError, match=r"no backend can be used.*; .*pip install llama-cpp-python"):
        choose("auto", host=host(installed=[]))


def test_looking_at_this_machine_loads_no_backend() -> None:
    code = "import sys\nfrom sapo_edge.backends.choose.detect import detect, survey\ndetect(), survey()\n"
    names = "torch", "mlx", "llama_cpp", "transformers", "peft", "numpy"
    assert python(f"{code}print(*sys.modules.keys() & {set(names)})") == ""


def test_how_torch_was_built_is_read_without_loading_it(tmp_path: Path) -> None:
    text = "__version__ = '2.9.1+cu128'\ndebug = False\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
    (broken(tmp_path, "torch") / "torch" / "version.py").write_text(text)
    built = python("from sapo_edge.backends.machine.host import torch_build; print(torch_build())", tmp_path)
    assert built == str(TorchBuild("2.9.1+cu128", cuda="12.8"))
    assert this_host().torch().version != "unknown"


@pytest.mark.parametrize(("name", "left"), [("torch", "llama_cpp"), ("llama_cpp", "mlx"), ("mlx", "llama_cpp")])
def test_a_broken_library_of_one_backend_leaves_the_others_alone(tmp_path: Path, name: str, left: str) -> None:
    """Detection imports none, so only probing shows that one is broken."""
    code = "import json; from sapo_edge.backends.choose.detect import detect, find_backend, probe\n"
    code += f"failed = probe([find_backend({name!r}), find_backend({left!r})])\n"
    program = f"{code}print(json.dumps([detect().name, failed]))"
    chosen, failed = json.loads(python(program, broken(tmp_path, name)))
    assert chosen == "llama_cpp"
    assert "its library is missing" in failed[name] and "its library is missing" not in failed.get(left, "")


def fake(name: str, error: Exception | None = None) -> Backend:
    def open_it(_options: OpenOptions) -> SimpleNamespace:
        if error is not None:
            raise error
        return SimpleNamespace(name=name, reasons=("chosen by itself",))

    return replace(find_backend(name), open=open_it)


TORCH = ChosenBackend("torch", "torch: a GPU", automatic=True)


def test_a_broken_backend_is_replaced_by_the_next_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BackendError("torch can't be loaded (libcudart.so.12 is missing)", "install it again")
    monkeypatch.setattr(detect, "BACKENDS", (fake("llama_cpp"), fake("torch", broken), fake("mlx")))
    lines: list[str] = []
    options = opening(tmp_path / "model.gguf", narrate=lines.append)
    policy, reasons = detect.open_policy(TORCH, options)
    assert policy.name == "llama_cpp" and reasons[-1] == "chosen by itself"
    assert "libcudart" in lines[0] and "install it again" in lines[0] and "libcudart" in reasons[0]
    with pytest.raises(BackendError, match="libcudart"):
        detect.open_policy(replace(TORCH, automatic=False), options)


def test_torch_takes_a_gguf_file_where_llama_cpp_is_installed_and_broken(tmp_path: Path) -> None:
    """In a process of its own, where nothing has loaded llama.cpp before."""
    code = "from pathlib import Path; from sapo_edge.backends.choose.detect import detect, open_policy\n"
    code += "from tests.models import SHAPES, opening, write_model\n"
    code += f"model = write_model(Path({str(tmp_path)!r}) / 'model.gguf', SHAPES['llama-gqa'])\n"
    # Tiny models' own way of splitting texts is not one that torch's backend reads by itself.
    code += "model.write_bytes(model.read_bytes().replace(b'gpt-2', b'qwen2'))\n"
    code += "policy, reasons = open_policy(detect(model=model), opening(model)); print(policy.backend, reasons[0])"
    said = python(code, broken(tmp_path, "llama_cpp"))
    assert said.startswith("torch ") and "its library is missing" in said


@pytest.mark.parametrize(
    ("memory", "error", "message"),
    [
        (2_500_000_000, RuntimeError, "it is loaded"),
        (2_400_000_000, ModelError, r"takes 2\.5 GB .* 2\.4 GB are free.*; .*max_tokens"),
    ],
)
def test_a_round_that_does_not_fit_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, error: type[Exception], message: str
) -> None:
    loaded = fake("torch", RuntimeError("it is loaded"))
    backend = replace(loaded, estimate=lambda *_: 2_500_000_000, look=lambda *_: Support(True, 5, ""))
    monkeypatch.setattr(detect, "BACKENDS", (backend,))
    with pytest.raises(error, match=message):
        detect.open_policy(TORCH, opening(tmp_path, size=RoundShape(16, 8, 8, 200, 64, memory=memory)))


@pytest.mark.parametrize("gpu", [host(torch=HIP, devices=["/dev/kfd"]), host(torch=XPU, devices=["/dev/dri"])])
def test_a_round_on_a_gpu_of_amd_or_intel_need_not_fit_into_the_machines_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: Host
) -> None:
    monkeypatch.setattr(detect, "this_host", lambda: gpu)
    monkeypatch.setattr(detect, "BACKENDS", (fake("torch", RuntimeError("it is loaded")),))
    with pytest.raises(RuntimeError, match="it is loaded"):
        detect.open_policy(TORCH, opening(tmp_path, size=RoundShape(16, 8, 8, 200, 64, memory=1)))


@pytest.mark.parametrize(
    ("first", "second", "raised"),
    [
        # Another backend is not tried after a model error.
        (ModelError("the model is damaged", "copy it again"), None, "the model is damaged"),
        # If all are broken, the first error is raised.
        (BackendError("torch is broken", "mend it"), BackendError("llama_cpp is broken", "mend it"), "torch is broken"),
    ],
)
def test_which_error_ends_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: Exception, second: Exception | None, raised: str
) -> None:
    monkeypatch.setattr(detect, "BACKENDS", (fake("llama_cpp", second), fake("torch", first)))
    with pytest.raises(type(first), match=raised):
        detect.open_policy(TORCH, opening(tmp_path))


def test_a_probe_returns_the_last_line_of_each_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = {"fine": "pass", "bad": "import no_such_module", "slow": "import time; time.sleep(60)"}
    fine, bad, slow = (replace(detect.BACKENDS[0], name=name, probe=code) for name, code in codes.items())
    assert detect.probe([fine, bad]) == {"bad": "ModuleNotFoundError: No module named 'no_such_module'"}
    monkeypatch.setattr(detect, "PROBE_SECONDS", 0.3)
    assert "more than" in detect.probe([slow])["slow"]
