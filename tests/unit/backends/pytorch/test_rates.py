"""The number format of a CPU's products: measured, not read from the processor's flags."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sapo_edge.backends.machine import measured as measurements
from sapo_edge.backends.machine.host import processor
from sapo_edge.backends.pytorch import rates
from sapo_edge.backends.pytorch.rates import Products, products_for
from sapo_edge.backends.pytorch.runtime import require_torch
from tests.forked import Forked
from tests.undisturbed import UNDISTURBED

SLOW, FAST = {"bfloat16": 82.0, "float32": 150.0}, {"bfloat16": 160.0, "float32": 80.0}
CHOICE = """
from sapo_edge.backends.pytorch import rates

rates.multiplies_bfloat16 = lambda: True
print(rates.products_for("auto").format)
"""


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """What measurements will find, in turn, on a processor with instructions for bfloat16."""
    found: list[dict[str, float]] = []
    monkeypatch.setattr(rates, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(rates, "_rates", lambda: found.pop(0))
    return found


def test_the_faster_format_is_chosen_and_a_named_one_kept(measured: list[dict[str, float]]) -> None:
    measured += [SLOW, FAST]
    reason = "products in float32, the faster here (GFLOP/s of a thread: bfloat16 82, float32 150)"
    assert str(products_for("auto")) == reason
    assert products_for("auto").format == "bfloat16"
    assert [products_for(name) for name in ("float32", "bfloat16")] == [Products("float32"), Products("bfloat16")]


def test_it_is_measured_once_and_again_on_another_processor(
    measured: list[dict[str, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    assert "until it is measured" in products_for("auto", cache, measure=False).reason
    measured += [SLOW, FAST]
    first = products_for("auto", cache)
    assert products_for("auto", cache) == products_for("auto", cache, measure=False) == first
    assert len(measured) == 1
    monkeypatch.setattr(measurements, "processor", lambda: "another")
    assert products_for("auto", cache).format == "bfloat16"
    monkeypatch.setattr(rates, "multiplies_bfloat16", lambda: False)
    assert "no instructions" in products_for("auto", cache).reason and not measured
    assert [file.name for file in cache.iterdir()] == [rates.FILE]


def test_a_processor_is_told_from_another_one(tmp_path: Path) -> None:
    names: list[str] = []
    for model, flags in (("EPYC 9", "avx avx512_bf16"), ("EPYC 9", "avx"), ("Xeon 4", "avx")):
        file = tmp_path / "cpuinfo"
        file.write_text(f"processor\t: 0\nmodel name\t: {model}\ncpu MHz\t: {len(names)}\nflags\t\t: {flags}\n")
        names.append(processor(file))
    assert len(set(names)) == 3 and processor(tmp_path / "missing")
    file.write_text(file.read_text().replace("cpu MHz\t: 2", "cpu MHz\t: 3"))
    assert processor(file) == names[2]


def test_the_measurement_is_short() -> None:
    require_torch()  # loading it takes longer
    begin = time.process_time()
    assert set(rates._rates()) == {"bfloat16", "float32"}
    # A twentieth of a second where bfloat16 is multiplied, a half where it is imitated.
    assert time.process_time() - begin < 3


def test_a_flag_does_not_make_slow_products_fast(tmp_path: Path) -> None:
    # As on processors that have the instruction and no fast code for it: oneDNN is kept from using it. It reads that at
    # its first product.
    environment = os.environ | UNDISTURBED | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    with Forked("-c", CHOICE, directory=tmp_path, environment=environment) as process:
        out, errors = process.communicate(120)
    assert out.strip() == "float32", errors
