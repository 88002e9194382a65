"""Whatever the other side of a handover sends, it gets no invite without the code, and nothing but a refusal comes out.

The first byte says which message the rest is.
"""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy

from sapo_edge.swarm.codes.code import Code
from sapo_edge.swarm.codes.handover import Inviter, Joiner, Offer, SpentError, WrongCodeError
from tests.fuzzing.target import KIB, Target
from tests.fuzzing.targets.wire import field

LINE = "sapo://join/v=1"
CODE = Code(7, ("guitar", "revolver"))


def scalar(count: int) -> bytes:
    """Chosen instead of random, so that messages of one exchange fit in the next one."""
    return (5).to_bytes(count, "big")


# Each takes milliseconds to make, and is used once.
INVITER, JOINER = Inviter(Offer(CODE, LINE), scalar), Joiner(CODE, scalar)
GUESSED = deepcopy(JOINER)
RIGHT = GUESSED.guess(INVITER.hello)


def check(data: bytes) -> None:
    """A guess to an inviter, and a first message or a sealed invite to a joiner."""
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


def seeds() -> list[bytes]:
    sealed = deepcopy(INVITER).answer(RIGHT)
    hello, guess = field("codes.json", "hello")[0], field("codes.json", "guess")[0]
    return [b"g" + RIGHT, b"g" + guess, b"h" + INVITER.hello, b"h" + hello, b"s" + sealed, b"hB" + b"\xff" * 32]


TARGET = Target(check, seeds, 256, 256 * KIB, 64, short=2)
