"""Whether llama.cpp or torch samples faster: both answer the same prompts, once a model and machine.

Neither is the faster everywhere: on processors that multiply bfloat16, torch makes 1.6 to 3.3 times the tokens of a
prebuilt llama.cpp, and 1.0 to 3.1 times those of a compiled one (docs/records/samplers.csv, sampling.csv).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from sapo_edge.backends.common.request import Request
from sapo_edge.backends.llama.requantise import derived_directory
from sapo_edge.backends.machine.host import torch_build
from sapo_edge.backends.machine.measured import Measured, is_quiet
from sapo_edge.backends.model.gguf_header import GgufHeader, read_header
from sapo_edge.backends.model.llama_library import library_version
from sapo_edge.backends.pytorch.rates import products_for
from sapo_edge.policy import STOP_TEXT, Sample

PROMPTS, ANSWERS, TOKENS = 4, 8, 12
"""Of a measurement: as many answers as half of a round."""
PROMPT, SHARED = 64, 48
"""Tokens of each prompt, and of what they begin with."""
REPEATS = 2
CLEAR = 1.3
"""One is so much faster than the other in the first turn that no second is needed."""
LLAMA, TORCH = "llama.cpp", "torch"

Answer: TypeAlias = Callable[[Request], list[list[Sample]]]


@dataclass(frozen=True, slots=True)
class SamplerRates:
    """Tokens/s of a call of group sampling."""

    llama: float
    torch: float

    @property
    def faster(self) -> str:
        """`LLAMA` or `TORCH`."""
        return TORCH if self.torch > self.llama else LLAMA

    def __str__(self) -> str:
        return f"{self.faster}, the faster here (tokens/s: {LLAMA} {self.llama:.0f}, {TORCH} {self.torch:.0f})"


def remembered_rates(header: GgufHeader, cache: Path, products: str, *, disturbed: bool = False) -> SamplerRates | None:
    """What was measured of this model on this machine; `disturbed` as in `Measured.read`."""
    measured = _measured(header, cache, products)
    return measured.read(lambda record: SamplerRates(float(record[LLAMA]), float(record[TORCH])), disturbed=disturbed)


def rates_here(model: Path, cache: Path, precision: str) -> SamplerRates | None:
    """What was measured of a GGUF file on this machine, however busy that was; measures nothing."""
    products = products_for(precision, cache, measure=False).format
    return remembered_rates(read_header(model), cache, products, disturbed=True)


def compare(
    header: GgufHeader, cache: Path, products: str, samplers: Mapping[str, Answer], vocabulary: int
) -> SamplerRates:
    """Measure both in turn, the faster time of each, since other programs may be busy; remember it.

    `samplers` go by `LLAMA` and `TORCH`; `products` is torch's number format, `vocabulary` the number of tokens.
    """
    quiet, request = is_quiet(), _request(vocabulary)
    best: dict[str, float] = dict.fromkeys(samplers, 0.0)
    for _ in range(REPEATS):
        for name, answer in samplers.items():
            begin = time.perf_counter()
            samples = [sample for group in answer(request) for sample in group]
            rate = sum(len(sample.token_ids) for sample in samples) / (time.perf_counter() - begin)
            best[name] = max(best[name], round(rate, 1))
        if max(best.values()) > CLEAR * min(best.values()):
            break
    _measured(header, cache, products).write(best, quiet=quiet)
    return SamplerRates(best[LLAMA], best[TORCH])


def _measured(header: GgufHeader, cache: Path, products: str) -> Measured:
    subject = {"torch version": torch_build().version, "llama.cpp version": library_version(), "products": products}
    return Measured(derived_directory(header, cache) / "samplers.json", subject)


def _request(vocabulary: int) -> Request:
    rng = random.Random(0)
    common, *others = (
        [rng.randrange(vocabulary) for _ in range(count)] for count in (SHARED, *[PROMPT - SHARED] * PROMPTS)
    )
    return Request([common + own for own in others], ANSWERS, TOKENS, 1.0, 0, STOP_TEXT.encode())
