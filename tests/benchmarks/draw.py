"""Drawing a token for each of 64 answers in numpy, beside one running sum over the vocabulary."""

from __future__ import annotations

from functools import partial

import numpy as np

from sapo_edge.backends.common.draw import draw
from tests.benchmarks.measure import interleaved, processor_seconds, report
from tests.models import plain_draw

ROWS = 64
VOCABULARIES = (49_152, 151_936, 262_144)


def run(repeats: int) -> None:
    generator = np.random.default_rng(0)
    for size in VOCABULARIES:
        logits = (3.0 * generator.standard_normal((ROWS, size))).astype(np.float32)
        uniforms = generator.random(ROWS)
        work = {
            "sapo-edge, sums of blocks": partial(draw, logits, 1.0, uniforms),
            "one running sum": partial(plain_draw, logits, 1.0, uniforms),
        }
        figures = interleaved({name: partial(processor_seconds, one) for name, one in work.items()}, repeats)
        milliseconds = {name: [1000 * value for value in values] for name, values in figures.items()}
        title = f"Drawing {ROWS} of {size:,} tokens, processor time of one thread"
        report(title, "ms", milliseconds, "sapo-edge, sums of blocks", higher_is_better=False)
