"""Codes that people type, and what the other side of a handover sends."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy

from sapo_edge.errors import ConfigError
from sapo_edge.swarm.codes.code import MAX_CHARACTERS, MAX_NUMBER, WORDS, Code, looks_like_code, parse_code, word_list
from sapo_edge.swarm.codes.handover import Inviter, Joiner, Offer, SpentError, WrongCodeError
from tests.fuzzing.target import KIB, Target
from tests.fuzzing.targets.wire import field

LINE = "sapo://join/v=1"
CODE = Code(7, ("guitar", "revolver"))


def check_code(data: bytes) -> None:
    """It is read or is a ConfigError; a code that was read is read again from its own text."""
    text = data.decode("utf-8", "surrogateescape")
    assert isinstance(looks_like_code(text), bool)
    try:
        code = parse_code(text)
    except ConfigError as error:
        assert str(error).isprintable()
        return
    assert 1 <= code.number <= MAX_NUMBER and len(code.words) == WORDS and {*code.words} <= {*word_list()}
    assert parse_code(str(code)) == code and looks_like_code(str(code)) and code.password.decode("ascii") == str(code)


def code_seeds() -> list[bytes]:
    typed = ("7-guitar-revolver", " 999 Aardvark–AARDVARK ", "'7 gui rev'", "٣-guitar-revolver", "7-guitar", "0-a-b")
    return [text.encode() for text in typed]


def scalar(count: int) -> bytes:
    """Chosen instead of random, so that messages of one exchange fit in the next one."""
    return (5).to_bytes(count, "big")


# Each takes milliseconds to make, and is used once.
INVITER, JOINER = Inviter(Offer(CODE, LINE), scalar), Joiner(CODE, scalar)
GUESSED = deepcopy(JOINER)
RIGHT = GUESSED.guess(INVITER.hello)


def check_handover(data: bytes) -> None:
    """Nobody gets an invite without the code, and nothing but a refusal comes out.

    The first byte says which message the rest is: a guess to an inviter, or a first one or a sealed invite to a joiner.
    """
    kind, message = data[:1], data[1:]
    if kind == b"g":
        inviter = deepcopy(INVITER)
        try:
            inviter.answer(message)
        except WrongCodeError:
            assert message != RIGHT
        else:
            assert message == RIGHT
        with suppress(SpentError):
            inviter.answer(RIGHT)
            raise AssertionError("a code was used twice")
    elif kind == b"h":
        with suppress(WrongCodeError):
            assert len(deepcopy(JOINER).guess(message)) == len(RIGHT)
    else:
        with suppress(WrongCodeError):
            assert GUESSED.open(message) == LINE


def handover_seeds() -> list[bytes]:
    sealed = deepcopy(INVITER).answer(RIGHT)
    hello, guess = field("codes.json", "hello")[0], field("codes.json", "guess")[0]
    return [b"g" + RIGHT, b"g" + guess, b"h" + INVITER.hello, b"h" + hello, b"s" + sealed, b"hB" + b"\xff" * 32]


TARGETS = {
    "code": Target(check_code, code_seeds, 2 * MAX_CHARACTERS, 512 * KIB, 64, short=60),
    "handover": Target(check_handover, handover_seeds, 256, 256 * KIB, 64, short=2),
}
