"""Peak memory of rounds of 8 x 8 on the CPU, with models of real sizes and random weights."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.shaped import shaped_model
from tests.memory_probe import measure_memory

LIMITS = {"0.5B": 2.0, "1.7B": 4.5}
"""GB that a round may take, by the model's name."""
PROMPT = 200
TRAINED = 2
"""Groups to learn from: each is a pack, so more of them take more time and no more memory."""
TIMEOUT = 6 * 3600.0


def run(cache: Path, names: list[str], tokens: int) -> None:
    """Print a table: a round of each model in a process of its own, after a small one.

    Args:
        cache: directory for the models' files, 0.4 and 1.1 GB.
        names: of the models.
        tokens: of an answer.
    """
    print(f"\n### Memory of a round of 8 x 8, prompts of {PROMPT} tokens, answers of {tokens}\n")
    print("| model | limit | peak of the process | without Python itself | estimated |\n|---|---|---|---|---|")
    for name in names:
        model = shaped_model(name, cache)
        shape = "8", "8", str(PROMPT), str(tokens), str(model), str(LIMITS[name]), str(TRAINED)
        found = measure_memory("llama_cpp", cache, shape, TIMEOUT)
        peak, measured, estimate = (f"{found[key] / 1e9:.2f} GB" for key in ("peak", "measured", "estimate"))
        print(f"| {name} | {LIMITS[name]} GB | {peak} | {measured} | {estimate} |", flush=True)
