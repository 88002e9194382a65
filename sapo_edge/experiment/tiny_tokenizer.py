"""The tokenizer of the tiny model: all bytes, the phrases of its questions, the answer tags, two control tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sapo_edge.experiment.tiny_tasks import PHRASES
from sapo_edge.tasks.answers import CLOSE_TAG, OPEN_TAG

START = "<|im_start|>"
END = "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}" + START + "{{ message['content'] }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}" + START + "{% endif %}"
)
"""ChatML without the roles: a turn costs two tokens."""


def make_tokenizer() -> Any:
    """A `tokenizers.Tokenizer`: a text has one encoding, and every byte sequence has one."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={text: index for index, text in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (START, END)])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (OPEN_TAG, CLOSE_TAG, *PHRASES)])
    return tokenizer


def write_tokenizer(directory: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json as transformers reads them."""
    make_tokenizer().save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "bos_token": START,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1, sort_keys=True))
