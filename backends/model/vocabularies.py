"""Tokenizers with a chat template: that of a GGUF file, and that of a Hugging Face directory."""

from __future__ import annotations

import ctypes
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

from sapo_edge.backends.model.chat_template import Turns, lay_out, text_after_answer, with_fixed_date
from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.backends.model.hf_directory import REMEDY, HfDirectory
from sapo_edge.backends.model.llama_library import llama_library, loads_llama
from sapo_edge.backends.model.source import ModelSource
from sapo_edge.errors import ModelError
from sapo_edge.policy import Prompt

END_TOKENS = frozenset(
    ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|end|>", "</s>", "<end_of_turn>")
)
"""Control tokens that end a completion whatever the directory declares; llama.cpp treats them alike."""
FILE_TOKENS = frozenset(("<|fim_pad|>", "<|fim_repo|>", "<|repo_name|>", "<reponame>", "<|file_sep|>"))
"""Control tokens of code models, which llama.cpp takes for ends as well."""
RUN = re.compile(
    r"[^\s\x00-/:-@\[-`{-\x7f\u2000-\u206f\u3000-\u301f\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f]+|[\W_]+"
)
"""Letters, marks and digits side by side, or what stands between words: a tokenizer may take either for one piece."""
LONGEST_RUN = 18_000
"""Characters of a run. Some of llama.cpp's tokenizers call themselves for each, which ended the process at 24,000 for
lack of stack; a question has at most 16 KiB."""
SPACE = "\u2581"
"""SentencePiece's character for a space."""


def open_vocabulary(source: ModelSource, *, thinking: bool = False) -> Vocabulary:
    """The tokenizer of a model; `thinking` as for `Vocabulary`.

    llama.cpp tokenises for GGUF files, on every backend: transformers would build a tokenizer from the file that splits
    digits differently. Where llama.cpp can't be loaded, `gguf_tokenizer` takes its place for the usual families.
    """
    if isinstance(source, HfDirectory):
        return HfVocabulary(source, thinking=thinking)
    if loads_llama():
        return GgufVocabulary(source, thinking=thinking)
    return PlainGgufVocabulary(source, thinking=thinking)


class Vocabulary(ABC):
    """A tokenizer with a chat template.

    Args:
        name: of the model, for messages.
        thinking: whether prompts let the model think before it answers.

    Attributes:
        declared_end: id of the end token that the model's files declare.
        piece: bytes of a token, by its id; control tokens are empty.
    """

    declared_end: int

    def __init__(self, name: object, *, thinking: bool) -> None:
        self._name = name
        self.piece = cache(self._read_piece)
        # All prompts have the same few parts.
        self._template_part = cache(lambda text: self.tokenize(text, special=True))
        # Whoever asks through an API chooses the order of roles.
        self._layout = lru_cache(maxsize=64)(lambda roles: lay_out(self._render, roles, name, thinking=thinking))

    @cached_property
    def end_token(self) -> int:
        """Id of the token that ends a turn of the chat template; it need not be the declared one, as with Gemma."""
        ids = self.tokenize(text_after_answer(self._render, self._name), special=True)
        return next((token for token in ids if self.ends(token)), self.declared_end)

    @abstractmethod
    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Token ids of a text; `special` parses control tokens such as `<|im_start|>` (templates only, never data)."""

    @abstractmethod
    def _read_piece(self, token: int) -> bytes: ...

    @abstractmethod
    def ends(self, token: int) -> bool:
        """Whether the token ends a completion."""

    @abstractmethod
    def _render(self, turns: Turns, variables: dict[str, Any]) -> str:
        """The chat template's text for some turns, with the beginning of the answer's turn.

        Raises:
            ModelError: if the model has no template.
        """

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, rendered with the model's own chat template.

        The turns' texts are tokenised on their own, without control tokens, so that a question can't forge a turn.

        Raises:
            ModelError: if the model has no template, or one that has no place for a turn.
        """
        ids: list[int] = []
        for text, special in self._texts(prompt):
            ids += self._template_part(text) if special else self.tokenize(text, special=False)
        return ids

    def prompt_text(self, prompt: Prompt) -> str:
        """The text whose token ids `encode_prompt` gives, for people: what stands in a turn looks as control tokens do.

        Raises:
            ModelError: as `encode_prompt`.
        """
        return "".join(text for text, _ in self._texts(prompt))

    def _texts(self, prompt: Prompt) -> Iterator[tuple[str, bool]]:
        """The texts of a prompt, and whether each is the template's, which may hold control tokens."""
        layout = self._layout(tuple(message.role for message in prompt))
        turns = layout.prompt(prompt)
        for part in layout.parts:
            yield (part, True) if isinstance(part, str) else (turns[part].content, False)

    def close(self) -> None:  # noqa: B027 - only one kind has native memory
        """Free native memory."""


class GgufVocabulary(Vocabulary):
    """A GGUF file's vocabulary and chat template, through llama.cpp.

    Args:
        weights: file whose weights llama.cpp maps as well: this one, or a copy in another number format; None: none.
        rearranged: whether it keeps a second copy of some matrices, rearranged for faster products.

    Attributes:
        library: the `llama_cpp` module.
        pointer: llama.cpp's model.

    Raises:
        ModelError: if llama.cpp can't load the file.
    """

    def __init__(
        self, header: GgufHeader, *, weights: Path | None = None, rearranged: bool = True, thinking: bool = False
    ) -> None:
        super().__init__(header.model_name, thinking=thinking)
        file = weights or header.path
        self.library = llama_library()
        self.header = header
        parameters = self.library.llama_model_default_params()
        parameters.n_gpu_layers = 0
        parameters.vocab_only = weights is None
        parameters.use_extra_bufts = rearranged
        self.pointer = self.library.llama_model_load_from_file(os.fsencode(file), parameters)
        if not self.pointer:
            remedy = "use a GGUF file of an architecture that llama.cpp supports"
            raise ModelError(f"llama.cpp can't load {file}", remedy)
        self._vocabulary = self.library.llama_model_get_vocab(self.pointer)
        self.vocabulary_size = int(self.library.llama_vocab_n_tokens(self._vocabulary))
        self.declared_end = int(self.library.llama_vocab_eos(self._vocabulary))

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        if len(text) > LONGEST_RUN and any(len(run[0]) > LONGEST_RUN for run in RUN.finditer(text)):
            problem = f"a text has more than {LONGEST_RUN:,} characters without a break between words"
            raise ModelError(problem, "shorten it, or put spaces between its words")
        data = text.encode("utf-8")
        size = len(data) + 8
        buffer = (ctypes.c_int32 * size)()
        count = self.library.llama_tokenize(self._vocabulary, data, len(data), buffer, size, False, special)
        if count < 0:
            raise ModelError(
                "llama.cpp could not tokenise a text", "report this model's name: its tokenizer is unusual"
            )
        return list(buffer[:count])

    def _read_piece(self, token: int) -> bytes:
        length = -256
        # Where the buffer is too short, the answer is minus the length that is needed.
        while length < 0:
            buffer = ctypes.create_string_buffer(-length)
            length = self.library.llama_token_to_piece(self._vocabulary, token, buffer, len(buffer), 0, False)
        return buffer.raw[:length]

    def ends(self, token: int) -> bool:
        return bool(self.library.llama_vocab_is_eog(self._vocabulary, token))

    @cached_property
    def _formatter(self) -> Any:
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        template = self.header.metadata.get("tokenizer.chat_template")
        if not isinstance(template, str):
            raise ModelError(f"{self.header.path} has no chat template", "use an instruction-tuned model")
        # It renders in an immutable sandbox: the template comes with the model.
        return Jinja2ChatFormatter(
            template=with_fixed_date(template), eos_token=self._token_text("eos"), bos_token=self._token_text("bos"),
            add_generation_prompt=True,
        )  # fmt: skip

    def _render(self, turns: Turns, variables: dict[str, Any]) -> str:
        return str(self._formatter(messages=turns, **variables).prompt)

    def _token_text(self, kind: str) -> str:
        token = self.header.metadata.get(f"tokenizer.ggml.{kind}_token_id")
        if not isinstance(token, int):
            return ""
        text = self.library.llama_vocab_get_text(self._vocabulary, token)
        return text.decode("utf-8", errors="replace") if text else ""

    def close(self) -> None:
        if self.pointer:
            self.library.llama_model_free(self.pointer)
            self.pointer = None


class HfVocabulary(Vocabulary):
    """A directory's tokenizer, through transformers.

    Raises:
        ModelError: if it has no tokenizer, no chat template, or a tokenizer whose tokens have no known bytes.
    """

    def __init__(self, directory: HfDirectory, *, thinking: bool = False) -> None:
        super().__init__(directory.path, thinking=thinking)
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                str(directory.path), trust_remote_code=False, local_files_only=True
            )
            decoder = json.dumps(json.loads(self._tokenizer.backend_tokenizer.to_str()).get("decoder"))
        except Exception as error:
            # For a file that a later version of it wrote, the library `tokenizers` raises Exception itself; and
            # transformers checks config.json here, with errors of no common class, whose last line says what is wrong.
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ModelError(f"transformers can't load the tokenizer in {directory.path} ({reason})", REMEDY) from error
        self._to_bytes = _bytes_reader(decoder, directory)
        self._end_tokens = self._find_end_tokens(_declared_ends(directory))
        self._use(directory.path)

    def _use(self, path: Path) -> None:
        """Take what prompts and answers need from the tokenizer."""
        if not self._tokenizer.chat_template:
            raise ModelError(f"{path} has no chat template", "use an instruction-tuned model")
        # Of several, the one for texts without tools.
        self._template = with_fixed_date(self._tokenizer.get_chat_template())
        end = self._tokenizer.eos_token_id
        if end is None and not self._end_tokens:
            raise ModelError(f"{path} names no end token", REMEDY)
        self.declared_end = int(min(self._end_tokens) if end is None else end)

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=not special)
        return [int(token) for token in ids]

    def _read_piece(self, token: int) -> bytes:
        text = None if token in self._special else self._tokenizer.convert_ids_to_tokens(token)
        return b"" if text is None else self._to_bytes(text)

    def ends(self, token: int) -> bool:
        return token in self._end_tokens

    def _render(self, turns: Turns, variables: dict[str, Any]) -> str:
        # transformers renders in an immutable sandbox: the template comes with the model.
        rendered = self._tokenizer.apply_chat_template(
            turns, chat_template=self._template, tokenize=False, add_generation_prompt=True, **variables
        )
        return str(rendered)

    @cached_property
    def _special(self) -> set[int]:
        added = self._tokenizer.added_tokens_decoder.items()
        return set(self._tokenizer.all_special_ids) | {token for token, text in added if text.special}

    def _find_end_tokens(self, declared: Sequence[Any]) -> frozenset[int]:
        values = [self._tokenizer.eos_token_id, *declared]
        ids = [token for value in values for token in (value if isinstance(value, list) else [value])]
        usual = {token for token in self._special if self._tokenizer.convert_ids_to_tokens(token) in END_TOKENS}
        return frozenset({token for token in ids if isinstance(token, int)} | usual)


class PlainGgufVocabulary(HfVocabulary):
    """A GGUF file's vocabulary and chat template without llama.cpp.

    Raises:
        BackendError: if only llama.cpp reads its tokenizer.
        ModelError: if the vocabulary is damaged, or has no chat template or end token.
    """

    def __init__(self, header: GgufHeader, *, thinking: bool = False) -> None:
        Vocabulary.__init__(self, header.model_name, thinking=thinking)
        from sapo_edge.backends.model.gguf_tokenizer import build_tokenizer

        self._tokenizer = build_tokenizer(header)
        self._to_bytes = _byte_level
        ends = [header.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eot", "eom")]
        ends.append([token for token in self._special if self._tokenizer.convert_ids_to_tokens(token) in FILE_TOKENS])
        self._end_tokens = self._find_end_tokens(ends)
        self._use(header.path)


def _declared_ends(directory: HfDirectory) -> list[Any]:
    """Ids, or lists of them, that a directory's files name beside its tokenizer's."""
    declared = [directory.config.get("eos_token_id")]
    # Many directories have none; tokenizer and configuration suffice then.
    with suppress(OSError, ValueError, AttributeError):
        declared.append(json.loads((directory.path / "generation_config.json").read_bytes()).get("eos_token_id"))
    return declared


def _bytes_reader(decoder: str, directory: HfDirectory) -> Callable[[str], bytes]:
    """The function from a token's text to its bytes that belongs to a tokenizer's decoder (JSON)."""
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
    # An added token, which is stored as plain text.
    return text.encode()


def _sentence_piece(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return text.replace(SPACE, " ").encode()


@lru_cache(maxsize=1)
def _byte_table() -> dict[str, int]:
    """The byte for each of GPT-2's printable stand-ins (`bytes_to_unicode` of its encoder)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}
