"""Which llama.cpp is loaded: its own where llama-cpp-python has one, xllamacpp's where it has none."""

from __future__ import annotations

import ctypes
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sapo_edge.backends.choose.detect import detect
from sapo_edge.backends.model import llama_library as subject
from sapo_edge.errors import BackendError
from tests.unit.backends.fresh import ROOT, python


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with both packages, where llama-cpp-python has no library of its own."""
    for name, file in (("llama_cpp", "_ctypes_extensions.py"), ("xllamacpp", "xllamacpp.abi3.so")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    monkeypatch.setattr(
        subject, "package_directory", lambda name: found if (found := tmp_path / name).is_dir() else None
    )
    subject.prebuilt_library.cache_clear()
    yield tmp_path
    subject.prebuilt_library.cache_clear()


def test_a_library_of_its_own_goes_first(installed: Path) -> None:
    assert subject.prebuilt_library() == installed / "xllamacpp/xllamacpp.abi3.so"
    (installed / "llama_cpp/lib").mkdir()
    subject.prebuilt_library.cache_clear()
    assert subject.prebuilt_library() is None


@pytest.mark.usefixtures("installed")
def test_a_processor_that_is_too_old_gets_torch_and_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "processor_flags", lambda: frozenset({"sse4_2", "avx", "f16c"}))
    assert not subject.loads_llama.__wrapped__()
    with pytest.raises(BackendError, match=r"has no AVX2, BMI2, FMA.*compiled for this processor"):
        subject.llama_library()
    chosen = detect()
    assert chosen.name != "llama_cpp" and any("has no AVX2" in text for text in chosen.missing)
    monkeypatch.setattr(subject, "processor_flags", lambda: frozenset(subject.NEEDED_FLAGS))
    assert not subject.too_old_for_prebuilt()
    # Those of ARM and of Macs are not known, and not needed.
    monkeypatch.setattr(subject, "processor_flags", frozenset)
    assert not subject.too_old_for_prebuilt()


@pytest.mark.usefixtures("installed")
def test_what_samples_faster_is_recommended_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "processor_flags", lambda: frozenset({"avx2"}))
    assert subject.faster_ways() == ""
    monkeypatch.setattr(subject, "processor_flags", lambda: frozenset({"avx2", "avx512f"}))
    assert "AVX-512" in subject.faster_ways()


def test_another_version_is_refused(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter that stands elsewhere would be misread without a word."""
    monkeypatch.setattr(subject, "_Prebuilt", lambda _path: None)
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "2026.11.1")
    with pytest.raises(ImportError, match=r"2026\.11\.1 is installed.*another layout"):
        subject._use(installed / "xllamacpp/xllamacpp.abi3.so")


def test_torchs_openmp_is_taken_where_the_system_has_none(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def load(path: str) -> None:
        if not loaded:
            raise OSError("libgomp.so.1: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(subject, "_Prebuilt", load)
    monkeypatch.setattr(ctypes, "CDLL", lambda path, _mode: loaded.append(path))
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: subject.PREBUILT_VERSION)
    monkeypatch.setitem(sys.modules, "llama_cpp._ctypes_extensions", None)
    file = installed / "xllamacpp/xllamacpp.abi3.so"
    with pytest.raises(OSError, match="libgomp"):
        subject._use(file)
    (installed / "torch/lib").mkdir(parents=True)
    (installed / "torch/lib/libgomp.so.1").touch()
    subject._use(file)
    assert loaded == [str(installed / "torch/lib/libgomp.so.1")]


def test_what_the_library_leaves_out_fails_when_it_is_called() -> None:
    library = subject._Prebuilt(None)
    assert library.strlen(b"abc") == 3
    with pytest.raises(NotImplementedError, match="llama_model_quantize"):
        library.llama_model_quantize()
    with pytest.raises(AttributeError):
        _ = library.there_is_no_such_function


def test_parameters_stand_where_the_library_reads_them() -> None:
    """In a process of its own, which loads what is installed here."""
    code = (
        "from sapo_edge.backends.model.llama_library import llama_library\n"
        "of = llama_library().llama_context_default_params()\n"
        "print(of.n_ctx, of.embeddings, of.offload_kqv, of.no_perf, of.op_offload, of.swa_full, of.kv_unified)"
    )
    assert python(code).split() == ["512", "False", "True", "True", "True", "True", "False"]


def test_the_version_is_that_of_the_constraints() -> None:
    assert f"\nxllamacpp=={subject.PREBUILT_VERSION}\n" in (ROOT / "constraints.txt").read_text("utf-8")
    assert ctypes.sizeof(ctypes.c_size_t) == 8, "the new field's size"
