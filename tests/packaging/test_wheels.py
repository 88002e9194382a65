"""`packaging/wheels.py` changes metadata and nothing else; what `make test-lowest` and `make test-newest` install."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import io
import sys
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from sapo_edge.backends.model.llama_library import PREBUILT_VERSION
from sapo_edge.tasks import library
from tests.packaging.script import load_script

METADATA = """Metadata-Version: 2.4
Name: Some_Thing
Version: 1.2
Requires-Dist: sapo-edge[swarm,tui]
Requires-Dist: sapo-edge[models]; extra == "train"
Requires-Dist: Big.Library>=3; python_version > "3"
Requires-Dist: big-library[more]; extra == "test"
Requires-Dist: other

A text.
"""


@pytest.fixture(scope="module")
def wheels() -> Any:
    return load_script("wheels")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "some_thing-1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("some_thing/a.py", "print()\n")
        archive.writestr("some_thing-1.2.dist-info/METADATA", METADATA)
        archive.writestr("some_thing-1.2.dist-info/entry_points.txt", "[console_scripts]\na = some_thing.a:a\n")
        archive.writestr("some_thing-1.2.dist-info/RECORD", "")
    return path


def read(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_slim_wheel_differs_in_its_metadata_alone(wheels: Any, wheel: Path, tmp_path: Path) -> None:
    new = wheels.rewrite(wheel, tmp_path, "sapo", lambda lines: wheels.without(lines, ("big-library",)))
    assert new.name == "some_thing-1.2+sapo-py3-none-any.whl"
    files = read(new)
    folder = "some_thing-1.2+sapo.dist-info/"
    assert set(files) == {"some_thing/a.py", f"{folder}METADATA", f"{folder}RECORD"}
    assert files["some_thing/a.py"] == b"print()\n"
    metadata = files[f"{folder}METADATA"].decode()
    assert "Version: 1.2+sapo\n" in metadata and "take the original" in metadata and metadata.endswith("A text.\n")
    lines = [Requirement(line) for line in wheels.requirements(new)]
    plain = [line.name for line in lines if line.marker is None or line.marker.evaluate({"extra": ""})]
    full = [line.name for line in lines if line.marker is None or line.marker.evaluate({"extra": "full"})]
    assert plain == ["sapo-edge", "other"] and "Big.Library" in full
    for name, digest, size in csv.reader(io.StringIO(files[f"{folder}RECORD"].decode())):
        if not name.endswith("RECORD"):
            data = files.pop(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert (digest, int(size)) == (f"sha256={expected}", len(data))
    assert list(files) == [f"{folder}RECORD"]
    with pytest.raises(SystemExit, match="does not require gone"):
        wheels.without(METADATA.splitlines(), ("big-library", "gone"))


def test_the_core_requires_no_extra_of_its_own_and_keeps_its_commands(wheels: Any, wheel: Path, tmp_path: Path) -> None:
    new = wheels.rewrite(wheel, tmp_path, "core", wheels.without_own_extras)
    assert any(name.endswith("entry_points.txt") for name in read(new))
    required = [line for line in wheels.requirements(new) if "extra" not in line]
    assert required == ['Big.Library>=3; python_version > "3"', "other"]
    with pytest.raises(SystemExit, match="nothing to leave out"):
        wheels.without_own_extras(["Requires-Dist: other", ""])


def test_llama_cpp_python_without_llama_cpp_requires_the_library_that_is_known_to_fit(wheels: Any) -> None:
    lines = wheels.with_prebuilt(["Version: 1", "Requires-Dist: numpy", "", "A text."])
    assert lines[2] == f"Requires-Dist: xllamacpp=={PREBUILT_VERSION}" and lines[-1] == "A text."
    assert "take the original" in " ".join(lines)
    assert Version("0.3.36+sapo.native") > Version("0.3.36+sapo") > Version("0.3.36"), "pip takes the highest"


def test_what_is_left_out_is_required_by_the_originals_and_answered_here(wheels: Any) -> None:
    for name, unused in wheels.SLIM.items():
        declared = {canonicalize_name(Requirement(line).name) for line in importlib.metadata.requires(name) or ()}
        assert set(unused) <= declared, f"update SLIM: {name} changed"
        assert wheels._version(name) == Version(importlib.metadata.version(name)).public
    assert set(wheels.SLIM["reasoning-gym"]) == set(library._UNUSED)


def test_tasks_keep_their_references_with_a_slim_library(monkeypatch: pytest.MonkeyPatch) -> None:
    library.library_version.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.1.25+sapo")
    assert library.library_version() == "0.1.25"
    library.library_version.cache_clear()


def test_llama_cpp_is_compiled_for_another_machine_with_its_compiler(
    wheels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That what comes of it runs there is shown by `python -m tests.debian --architecture arm64`."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"there is no aarch64-linux-gnu-gcc: apt-get install g\+\+-aarch64-linux-gnu"):
        list(wheels.native(tmp_path, "aarch64"))
    for tool in ("gcc", "g++"):
        (tmp_path / f"aarch64-linux-gnu-{tool}").touch(0o755)
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod")
    called: list[tuple[list[str], dict[str, str]]] = []

    def pip(command: list[str], *, check: bool, env: dict[str, str]) -> None:
        assert check
        called.append((command, env))
        with zipfile.ZipFile(Path(command[-2]) / "llama_cpp_python-1-py3-none-linux_aarch64.whl", "w") as archive:
            archive.writestr("llama_cpp_python-1.dist-info/METADATA", "Version: 1\n\n")

    monkeypatch.setattr(wheels.subprocess, "run", pip)
    made = tmp_path / "llama_cpp_python-1+sapo.native-py3-none-linux_aarch64.whl"
    assert list(wheels.native(tmp_path, "aarch64")) == [made] and made.exists()
    ((command, environment),) = called
    assert "--no-cache-dir" in command and command[-1].startswith("llama-cpp-python==")
    assert environment["_PYTHON_HOST_PLATFORM"] == "linux-aarch64"
    options = environment["CMAKE_ARGS"].split()
    assert "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++" in options and "-DGGML_NATIVE=OFF" in options
    # CMake takes the last of those that contradict each other.
    assert options[-1] == "-DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod"


@pytest.mark.parametrize("flags", ["fpu amx_bf16 avx512_fp16 amx_tile amx_int8", "fpu avx2"])
def test_llama_cpp_is_compiled_without_units_that_an_old_compiler_configures_wrongly(
    wheels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str
) -> None:
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_BLAS=ON")
    monkeypatch.delenv("CXXFLAGS", raising=False)
    processors = tmp_path / "cpuinfo"
    processors.write_text(f"model name\t: a\nflags\t\t: {flags}\n")
    variables = wheels.native_variables(processors)
    assert wheels.native_variables(tmp_path / "missing") == {}
    if "amx" not in flags:
        assert variables == {}
        return
    assert variables["CMAKE_ARGS"] == "-DGGML_NATIVE=OFF -DGGML_BLAS=ON"
    assert variables["CXXFLAGS"] == "-march=native -mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


def test_llama_cpp_for_other_processors_too_is_compiled_with_no_flag_of_this_one(
    wheels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (processors := tmp_path / "cpuinfo").write_text("flags\t\t: fpu amx_tile\n")
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_BLAS=ON -DGGML_NATIVE=OFF")
    assert wheels.native_variables(processors) == {}


def test_a_python_without_pip_is_told_how_to_get_it(
    wheels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    monkeypatch.setattr(sys, "argv", ["wheels.py", "--to", str(tmp_path / "dist")])
    monkeypatch.setattr(wheels.subprocess, "run", Mock(side_effect=AssertionError("pip was called")))
    with pytest.raises(SystemExit, match=r"has no pip; install it .*apt install python3-pip"):
        wheels.main()
    assert not (tmp_path / "dist").exists()


def test_the_lowest_versions_are_the_lower_bounds_and_the_newest_are_left_to_pip() -> None:
    script = load_script("bounds")
    lowest, newest = ([Requirement(line) for line in script.requirements(name)] for name in ("lowest", "newest"))
    assert {"torch", "transformers", "peft", "mlx-lm", "numpy"} <= {line.name for line in lowest}
    for low, new in zip(lowest, newest, strict=True):
        (bound,) = low.specifier
        assert (low.name, low.extras, low.marker) == (new.name, new.extras, new.marker)
        assert bound.operator == "==" and bound.version in new.specifier
