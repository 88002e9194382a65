"""A model that costs next to nothing, writes answer tags, and guesses digits: some of its answers are right.

A random model never earns a reward, so that nothing is ever learned from it and a node's update is never made. This one
is the random one with a direction for each kind of token added, so large that the last token decides the next one's
kind: the tag that opens, one digit, the tag that closes.
"""

from __future__ import annotations

from pathlib import Path

from tests.models import ANSWER_CLOSE, ANSWER_OPEN, SHAPES, VOCABULARY, write_model

STRENGTH = 8.0
"""Length of the added direction; the random part of an embedding has length 2."""
LEAN = 2.0
"""What a token's kind adds to its weight, so that the logit of the next kind stands well above the others."""
# Others cut an answer to so many tokens, and tokenise the tags of a text as bytes: 18 for all of it.
MANIFEST = """
name = "soak-{name}"
max_tokens = 32
[[tasks]]
name = "sums"
generator = "chain_sum"
config = {{ min_terms = 2, max_terms = 2, min_digits = 1, max_digits = 1 }}
[[tasks]]
name = "divisors"
generator = "gcd"
config = {{ min_numbers = 2, max_numbers = 2, min_value = 1, max_value = 99 }}
"""


def write_guesser(path: Path) -> Path:
    from gguf import GGUFReader

    write_model(path, SHAPES["llama-gqa"])
    reader = GGUFReader(path, "r+")
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    embedding, output = tensors["token_embd.weight"], tensors["output.weight"]
    digits = [*b"0123456789"]
    others = [token for token in range(VOCABULARY) if token not in {*digits, ANSWER_OPEN}]
    follows = (others, [ANSWER_OPEN]), ([ANSWER_OPEN], digits), (digits, [ANSWER_CLOSE])
    for direction, (before, after) in enumerate(follows):
        embedding[before, direction] += STRENGTH
        output[after, direction] += LEAN
    for array in (embedding, output):
        array.flush()
    return path
