"""A GGUF file's tokenizer without llama.cpp, for installs where that can't be compiled.

Only kinds whose splitting is known here, which a test compares with llama.cpp's: transformers' own conversion leaves
out how some families set digits apart.
"""

from __future__ import annotations

from typing import Any

from sapo_edge.backends.model.gguf_header import REMEDY, GgufHeader, read_arrays
from sapo_edge.errors import BackendError, ModelError
from sapo_edge.installing import how_to_install

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
SPLITS = {
    "qwen2": CL100K.replace("DIGITS", ""),
    "llama-bpe": CL100K.replace("DIGITS", "{1,3}"),
    "smollm": GPT2,
    "refact": GPT2,
}
"""Regular expressions that split a text, by llama.cpp's names (`src/llama-vocab.cpp`): Qwen 2.5 and 3; Llama 3 and
SmolLM3; SmolLM2; Granite 3."""
EACH_DIGIT = ("smollm", "refact")
"""Kinds that set each digit apart before."""
CONTROL, USER_DEFINED = 3, 4
"""Types of tokens in GGUF files; the second is recognised in any text."""
TOKENS, TYPES, MERGES = (f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges"))


def build_tokenizer(header: GgufHeader) -> Any:
    """A GGUF file's tokenizer as transformers' `PreTrainedTokenizerFast`, with its chat template.

    Raises:
        BackendError: if only llama.cpp knows its kind.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    kind = str(header.metadata.get("tokenizer.ggml.pre"))
    if header.metadata.get("tokenizer.ggml.model") != "gpt2" or kind not in SPLITS:
        raise BackendError(f"only llama.cpp reads the tokenizer of {header.path}", how_to_install("llama-cpp-python"))
    lists = read_arrays(header.path, (TOKENS, TYPES, MERGES))
    texts, types = lists[TOKENS], lists[TYPES]
    merges: list[Any] = [tuple(str(merge).split(" ")) for merge in lists[MERGES]]
    known = {str(text): token for token, text in enumerate(texts)}
    # The library's own errors for these have no class.
    fits = all(len(merge) == 2 and known.keys() >= {*merge, "".join(merge)} for merge in merges)
    if not fits or len(texts) != len(types) or not all(isinstance(text, str) for text in texts):
        raise ModelError(f"{header.path} has a damaged vocabulary", REMEDY)
    tokenizer = Tokenizer(models.BPE(vocab=known, merges=merges, ignore_merges=kind == "llama-bpe"))
    split: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if kind in EACH_DIGIT else []
    split += [pre_tokenizers.Split(Regex(SPLITS[kind]), behavior="isolated")]
    split += [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    for text, type_ in zip(texts, types, strict=True):
        if type_ == CONTROL:
            tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False)])
        elif type_ == USER_DEFINED:
            tokenizer.add_tokens([AddedToken(text, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=header.metadata.get("tokenizer.chat_template"),
        bos_token=_text(header, texts, "bos"), eos_token=_text(header, texts, "eos"),
    )  # fmt: skip


def _text(header: GgufHeader, texts: list[str], name: str) -> str | None:
    token = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return texts[token] if isinstance(token, int) and 0 <= token < len(texts) else None
