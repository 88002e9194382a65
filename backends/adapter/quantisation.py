"""Number formats of a merged model. Importing this loads nothing heavy."""

from __future__ import annotations

from enum import StrEnum


class Quantisation(StrEnum):
    """Number formats of a merged GGUF file, by llama.cpp's names."""

    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q6_K = "q6_k"
    Q5_K_M = "q5_k_m"
    Q4_K_M = "q4_k_m"
    Q4_0 = "q4_0"


BITS = {"f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q6_k": 6.6, "q5_k_m": 5.7, "q4_k_m": 4.9, "q4_0": 4.6}
"""About how many bits a weight takes."""
