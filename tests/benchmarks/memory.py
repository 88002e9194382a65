"""Peak memory of rounds of 8 x 8 on the CPU, with models of real sizes and random weights."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.shaped import shaped_model
from tests.memory_probe import measure_memory

LIMITS = {"0.5B": 2.0, "1.7B": 4.5}
"""GB that a round may take, by the model's name."""
PROMPT = 200
TIMEOUT = 6 * 3600.0


def run(cache: Path, names: list[str], tokens: int, trained: int) -> None:
    """Print a table: a round of each model in a process of its own, of whose 8 groups some are trained on."""
    print(f"\n### A round of 8 x 8, prompts of {PROMPT} tokens, answers of {tokens}, {trained} groups trained on\n")
    print("| model | limit | peak of the process | without Python itself | estimated |\n|---|---|---|---|---|")
    for name in names:
        shape = "8", "8", str(PROMPT), str(tokens), str(shaped_model(name, cache)), str(LIMITS[name]), str(trained)
        found = measure_memory("llama_cpp", cache, shape, TIMEOUT)
        peak, measured, estimate = (f"{found[key] / 1e9:.2f} GB" for key in ("peak", "measured", "estimate"))
        print(f"| {name} | {LIMITS[name]} GB | {peak} | {measured} | {estimate} |", flush=True)
