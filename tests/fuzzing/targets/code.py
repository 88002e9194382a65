"""A typed code is read or is a ConfigError; a code that was read is read again from its own text."""

from __future__ import annotations

from sapo_edge.errors import ConfigError
from sapo_edge.swarm.codes.code import MAX_CHARACTERS, MAX_NUMBER, WORDS, looks_like_code, parse_code, word_list
from tests.fuzzing.target import KIB, Target


def check(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    assert isinstance(looks_like_code(text), bool)
    try:
        code = parse_code(text)
    except ConfigError as error:
        assert str(error).isprintable()
        return
    assert 1 <= code.number <= MAX_NUMBER and len(code.words) == WORDS and {*code.words} <= {*word_list()}
    assert parse_code(str(code)) == code and looks_like_code(str(code)) and code.password.decode("ascii") == str(code)


def seeds() -> list[bytes]:
    typed = ("7-guitar-revolver", " 999 Aardvark–AARDVARK ", "'7 gui rev'", "٣-guitar-revolver", "7-guitar", "0-a-b")
    return [text.encode() for text in typed]


TARGET = Target(check, seeds, 2 * MAX_CHARACTERS, 512 * KIB, 64, short=60)
