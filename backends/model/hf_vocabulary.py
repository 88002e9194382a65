"""The tokenizer and chat template of a Hugging Face directory."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from sapo_edge.backends.model.hf_directory import REMEDY, HfDirectory
from sapo_edge.backends.model.vocabulary import encode_turns
from sapo_edge.errors import ModelError
from sapo_edge.policy import Prompt

ENDING = frozenset(
    ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|end|>", "</s>", "<end_of_turn>")
)
"""Control tokens that end a completion whatever the directory says: those that llama.cpp takes for such too."""
SPACE = "\u2581"
"""SentencePiece's stand-in for a space."""


class HfVocabulary:
    """A directory's tokenizer; see `sapo_edge.backends.model.vocabulary.Vocabulary`.

    Args:
        directory: the model's.

    Raises:
        ModelError: if it has no tokenizer, no chat template, or a tokenizer whose tokens can't be told as bytes.
    """

    def __init__(self, directory: HfDirectory) -> None:
        from transformers import AutoTokenizer

        self._path = directory.path
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                str(directory.path), trust_remote_code=False, local_files_only=True
            )
            description = json.loads(self._tokenizer.backend_tokenizer.to_str())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise ModelError(f"the tokenizer in {directory.path} can't be loaded ({first})", REMEDY) from error
        self._bytes_of = _piece_reader(json.dumps(description.get("decoder")), directory)
        if not self._tokenizer.chat_template:
            raise ModelError(f"{directory.path} has no chat template", "use an instruction-tuned model")
        self._special = set(self._tokenizer.all_special_ids) | {
            token for token, added in self._tokenizer.added_tokens_decoder.items() if added.special
        }
        self._ending = self._find_ending(directory)
        end = self._tokenizer.eos_token_id
        if end is None and not self._ending:
            raise ModelError(f"{directory.path} names no end token", REMEDY)
        self._end_token = int(min(self._ending) if end is None else end)

    @property
    def end_token(self) -> int:
        """The id that ends a turn."""
        return self._end_token

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Token ids of a text."""
        ids = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=not special)
        return [int(token) for token in ids]

    def piece(self, token: int) -> bytes:
        """Bytes of one token; control tokens are empty."""
        text = None if token in self._special else self._tokenizer.convert_ids_to_tokens(token)
        return b"" if text is None else self._bytes_of(text)

    def ends(self, token: int) -> bool:
        """Whether the token ends a completion."""
        return token in self._ending

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, rendered with the directory's chat template; see `encode_turns`."""
        return encode_turns(prompt, self._render, lambda text, special: self.tokenize(text, special=special))

    def close(self) -> None:
        """Nothing to free."""

    def _render(self, messages: list[dict[str, str]]) -> str:
        # transformers renders in an immutable sandbox: the template comes with the model.
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _find_ending(self, directory: HfDirectory) -> frozenset[int]:
        declared: list[Any] = [self._tokenizer.eos_token_id, directory.config.get("eos_token_id")]
        try:
            generation = json.loads((directory.path / "generation_config.json").read_bytes())
            declared.append(generation.get("eos_token_id"))
        except (OSError, ValueError, AttributeError):
            # Many directories have none; then the other two say it.
            pass
        listed = [one for value in declared for one in (value if isinstance(value, list) else [value])]
        known = {token for token in self._special if self._tokenizer.convert_ids_to_tokens(token) in ENDING}
        return frozenset({one for one in listed if isinstance(one, int)} | known)


def _piece_reader(decoder: str, directory: HfDirectory) -> Any:
    """How a token's text becomes bytes, by the tokenizer's own decoder."""
    if '"ByteLevel"' in decoder:
        return _byte_level
    if SPACE in decoder or "\\u2581" in decoder or '"Metaspace"' in decoder:
        return _sentence_piece
    raise ModelError(
        f"the tokenizer in {directory.path} is of a kind that is not supported",
        "use a model with a byte-level or SentencePiece tokenizer, or a GGUF file of it",
    )


def _byte_level(text: str) -> bytes:
    table = _byte_table()
    if all(character in table for character in text):
        return bytes(table[character] for character in text)
    # A token that was added as it is.
    return text.encode()


def _sentence_piece(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return text.replace(SPACE, " ").encode()


@lru_cache(maxsize=1)
def _byte_table() -> dict[str, int]:
    """The byte of each of GPT-2's printable stand-ins (`bytes_to_unicode` of its encoder)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}
