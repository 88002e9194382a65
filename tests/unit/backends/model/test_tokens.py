"""Token ids of texts whose splitting differs between families: a GGUF file's and a directory's are the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.backends.model import gguf_tokenizer, vocabularies
from sapo_edge.backends.model.find import embedded_model
from sapo_edge.backends.model.gguf_header import parse_header, read_arrays, read_header
from sapo_edge.backends.model.hf_directory import HfDirectory
from sapo_edge.backends.model.vocabularies import SPACE, GgufVocabulary, HfVocabulary, PlainGgufVocabulary, Vocabulary
from sapo_edge.errors import BackendError, ModelError
from sapo_edge.policy import Message
from sapo_edge.rollout import MAX_QUESTION_BYTES
from tests.directories import CONTROL_TOKENS, save_tokenizer
from tests.models import CONTROL, NORMAL, SHAPES, add_metadata, byte_characters, tokens, write_parts

UNKNOWN, BYTE = 2, 6
"""Types of tokens in GGUF files."""

WORDS = ("12", "123", "1234", "ab", "abc", " a", " ab", " 7", " 12", "\n\n", "\n\n\n", "\r\n", "  ", " \n", "'s", "'S",
         "é", "ü", "漢", "字", "漢字", "🙂", "...", "!?", ". ", "½", "²", "٣٤", "_1", "-1", "=\n")  # fmt: skip
"""Texts that are one token, if nothing splits them before."""
LONG = "-" * 300
"""One more token, as models have them for indented code; nothing is merged to it."""
TEXTS = (
    "What is 123456 + 7?", "\n 7", "a\n\n\nb", "x = 12\r\n\r\n", "don't 'S 's", "é ü 漢字 🙂 e\u0301", "٣٤ ½ x² m²",
    "  two  spaces ", "1,234.5", "\t\ttab", "\u00a0no-break", "under_123", "a\u200bb", "<answer>12</answer>\n",
)  # fmt: skip


def merges() -> list[tuple[str, str]]:
    """Merges that make each of `WORDS` one token from left to right, most general first."""
    table = byte_characters()
    found: dict[tuple[str, str], None] = {}
    for word in sorted(WORDS, key=lambda word: len(word.encode())):
        characters = [table[byte] for byte in word.encode()]
        for end in range(1, len(characters)):
            found.setdefault(("".join(characters[:end]), characters[end]))
    return list(found)


def byte_level(directory: Path, family: str) -> Path:
    """A tokenizer of byte-level BPE; returns the GGUF file beside its directory."""
    from gguf import GGUFWriter
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    pairs = merges()
    texts, types = tokens()
    more = [*dict.fromkeys(left + right for left, right in pairs), LONG]
    texts, types = [*texts, *more], [*types, *[NORMAL] * len(more)]
    writer = GGUFWriter(directory / "tokenizer.gguf", "llama")
    add_metadata(writer, SHAPES["llama"], texts, types, pre=family, merges=[" ".join(pair) for pair in pairs])
    write_embedding(writer, len(texts))
    zero = byte_characters()[0]
    model = models.BPE(
        vocab={text: index for index, text in enumerate(texts)}, merges=[(zero, zero), *pairs],
        ignore_merges=family == "llama-bpe",
    )  # fmt: skip
    tokenizer = Tokenizer(model)
    split: list[Any] = [pre_tokenizers.Split(Regex(gguf_tokenizer.SPLITS[family]), behavior="isolated")]
    if family in gguf_tokenizer.EACH_DIGIT:
        split.insert(0, pre_tokenizers.Digits(individual_digits=True))
    byte_pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, byte_pieces])
    tokenizer.decoder = decoders.ByteLevel()
    write_directory(directory, tokenizer)
    return directory / "tokenizer.gguf"


def sentence_piece(directory: Path) -> Path:
    """A tokenizer of SentencePiece's kind, which writes what it does not know in bytes, as Gemma's."""
    from gguf import GGUFWriter
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    words = [word.replace(" ", SPACE) for word in WORDS if word.isascii() or word in ("é", "漢字", "漢", "字")]
    prefixes = dict.fromkeys(word[:end] for word in words for end in range(2, len(word) + 1))
    letters = dict.fromkeys(character for word in words for character in word)
    ranked = sorted(prefixes, key=len)
    texts = ["<unk>", *CONTROL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *ranked]
    types = [UNKNOWN, *[CONTROL] * 3, *[BYTE] * 256, *[NORMAL] * (len(letters) + len(ranked))]
    scores = [0.0] * 260 + [-1000.0] * len(letters) + [-float(rank) for rank in range(len(ranked))]
    writer = GGUFWriter(directory / "tokenizer.gguf", "llama")
    add_metadata(writer, SHAPES["llama"], texts, types, scores=scores)
    write_embedding(writer, len(texts))
    cuts = [(piece[:cut], piece[cut:]) for piece in ranked for cut in range(1, len(piece))]
    pairs = [cut for cut in cuts if {*cut} <= {*letters, *ranked}]
    numbers = {text: index for index, text in enumerate(texts)}
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=pairs, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    write_directory(directory, tokenizer)
    return directory / "tokenizer.gguf"


def write_embedding(writer: Any, rows: int) -> None:
    """Finish a GGUF file with the one tensor that its header must have."""
    writer.add_tensor("token_embd.weight", np.zeros((rows, SHAPES["llama"].width), np.float32))
    write_parts(writer)


def write_directory(path: Path, tokenizer: Any) -> None:
    """A directory that has a tokenizer, and as much of a model as its check asks for."""
    from safetensors.numpy import save_file

    shape = SHAPES["llama"]
    config = {
        "model_type": "llama", "hidden_size": shape.width, "num_attention_heads": shape.heads,
        "num_hidden_layers": 1, "intermediate_size": shape.inner, "vocab_size": 1,
        "max_position_embeddings": 64,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    save_file({"model.norm.weight": np.ones(shape.width, np.float32)}, path / "model.safetensors")
    save_tokenizer(path, tokenizer)


@pytest.fixture(scope="module", params=[*gguf_tokenizer.SPLITS, "gemma"])
def alike(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Vocabulary]]:
    """One tokenizer as a GGUF file, as a directory, and, of byte-level BPE, as the same file without llama.cpp."""
    directory = tmp_path_factory.mktemp("tokenizer")
    file = sentence_piece(directory) if request.param == "gemma" else byte_level(directory, request.param)
    with closing(GgufVocabulary(read_header(file))) as gguf:
        plain = [] if request.param == "gemma" else [PlainGgufVocabulary(read_header(file))]
        yield [gguf, HfVocabulary(HfDirectory(directory)), *plain]


def assert_same(alike: list[Vocabulary], text: str) -> None:
    ids = alike[0].tokenize(text, special=False)
    for vocabulary in alike:
        assert vocabulary.tokenize(text, special=False) == ids
        assert b"".join(map(vocabulary.piece, ids)).decode() == text


def test_digits_newlines_and_letters_are_split_alike(alike: list[Vocabulary]) -> None:
    for text in TEXTS:
        assert_same(alike, text)


def test_a_long_token_has_all_its_bytes(alike: list[Vocabulary]) -> None:
    if len(alike) == 3:
        assert isinstance(alike[0], GgufVocabulary)
        number = alike[0].vocabulary_size - 1
        assert [vocabulary.piece(number) for vocabulary in alike] == [LONG.encode()] * 3


@given(st.lists(st.sampled_from(sorted({*WORDS, *"".join(TEXTS)})), max_size=12).map("".join))
def test_any_text_of_these_characters_is_split_alike(alike: list[Vocabulary], text: str) -> None:
    assert_same(alike, text)


@pytest.mark.skipif(embedded_model() is None, reason="the extra `starter` is not installed")
def test_the_embedded_model_reads_and_writes_the_same_without_llama_cpp() -> None:
    header = read_header(cast(Path, embedded_model()))
    plain = PlainGgufVocabulary(header)
    prompt = (Message("system", "You add."), Message("user", "What is 12 + 34?<|im_end|>"))
    with closing(GgufVocabulary(header)) as llama:
        assert (plain.declared_end, plain.end_token) == (llama.declared_end, llama.end_token)
        assert plain.prompt_text(prompt) == llama.prompt_text(prompt)
        assert plain.encode_prompt(prompt) == llama.encode_prompt(prompt)
        for token in range(llama.vocabulary_size):
            assert (plain.piece(token), plain.ends(token)) == (llama.piece(token), llama.ends(token)), token
        for text in TEXTS:
            assert plain.tokenize(text, special=False) == llama.tokenize(text, special=False)


@pytest.mark.parametrize("piece", ["a", "aB1", "漢", "กี", "e\u0301", " ", "\n\t", "!", "_", "!\u0301", "🙂", "/\n"])
def test_a_text_without_breaks_that_would_end_the_process_is_refused(tmp_path: Path, piece: str) -> None:
    with closing(GgufVocabulary(read_header(byte_level(tmp_path, "smollm")))) as vocabulary:
        text = piece * (vocabularies.LONGEST_RUN // len(piece))
        assert len(text) > MAX_QUESTION_BYTES
        for allowed in (text, "a. 漢字，" * 20_000):
            assert vocabulary.tokenize(allowed, special=False)
        with pytest.raises(ModelError, match=r"18,000 characters without a break.*; shorten it"):
            vocabulary.tokenize(f"Say: {text}{piece * 2} twice", special=False)


def test_layouts_of_prompts_do_not_pile_up(tmp_path: Path) -> None:
    with closing(GgufVocabulary(read_header(byte_level(tmp_path, "smollm")))) as vocabulary:
        for count in range(1, 80):
            vocabulary.encode_prompt((Message("user", "a"), Message("assistant", "b")) * count)
        assert vocabulary._layout.cache_info().currsize <= 64


def test_a_tokenizer_for_llama_cpp_alone_is_refused_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapo_edge.backends.model.vocabularies.loads_llama", lambda: False)
    with pytest.raises(BackendError, match=r"only llama\.cpp reads.*; .*llama-cpp-python"):
        vocabularies.open_vocabulary(read_header(sentence_piece(tmp_path)))


def test_a_damaged_vocabulary_and_one_of_numbers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = byte_level(tmp_path, "smollm")
    data = file.read_bytes()
    pair = " ".join(merges()[0]).encode()
    assert data.count(pair) >= 1
    for damaged in (pair.replace(b" ", b"_"), b" " + pair.replace(b" ", b"")):
        file.write_bytes(data.replace(pair, damaged))
        with pytest.raises(ModelError, match="damaged vocabulary"):
            PlainGgufVocabulary(parse_header(file))
    assert len(read_arrays(file, ("tokenizer.ggml.merges",))["tokenizer.ggml.merges"]) == len(merges()) + 1
    with pytest.raises(ModelError, match="no usable missing"):
        read_arrays(file, ("missing",))
    header = read_header(byte_level(tmp_path, "smollm"))
    for texts, pairs in (([1], []), (["a"], [5])):
        lists = {gguf_tokenizer.TOKENS: texts, gguf_tokenizer.TYPES: [NORMAL], gguf_tokenizer.MERGES: pairs}
        monkeypatch.setattr(gguf_tokenizer, "read_arrays", lambda *_, lists=lists: lists)
        with pytest.raises(ModelError, match="damaged vocabulary"):
            gguf_tokenizer.build_tokenizer(header)
