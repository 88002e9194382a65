"""Handing an invite to whoever knows a code: SPAKE2 of Abdalla and Pointcheval, then one sealed message.

    inviter -> joiner   hello     33 bytes, SPAKE2's first message
    joiner -> inviter   guess     65 bytes: SPAKE2's second message, and a tag that proves the joiner's key
    inviter -> joiner   invite    the line, sealed with the key; an empty one if the tag is wrong
    joiner -> inviter   receipt   32 bytes: a tag that proves that the line arrived

Both sides have the same key if they know the same code, and unrelated keys otherwise. Whoever is between them, or plays
one of them, learns nothing against which it could try codes: each try needs a guess of its own. An inviter looks at one
guess, right or wrong, over all its connections together, and a joiner makes one.

Nothing here knows a network. SPAKE2 (Abdalla and Pointcheval, 2005) over Ed25519's group is python-spake2's, as in
magic-wormhole; RFC 9382 has other constants and another transcript.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from sapo_edge.swarm.codes.code import Code
from sapo_edge.swarm.joining.invite import MAX_LINE

if TYPE_CHECKING:
    from nacl.secret import SecretBox

HELLO_BYTES = 33
"""Length of a message of SPAKE2: the side, and a point of Ed25519's group."""
TAG_BYTES = 32
"""Length of an HMAC-SHA-256."""
GUESS_BYTES = HELLO_BYTES + TAG_BYTES
MAX_SEALED_BYTES = MAX_LINE + 40
"""Longest sealed invite: a nonce of 24 bytes and an authenticator of 16 go with the line."""

Entropy = Callable[[int], bytes]
"""Random bytes, as many as asked; only test vectors use another than the system's."""

_NONCE_BYTES = 24
_INVITER, _JOINER = b"sapo-edge code v1 inviter", b"sapo-edge code v1 joiner"


class WrongCodeError(Exception):
    """The other side does not know the code. Never leaves the swarm."""


class SpentError(Exception):
    """The code was used already. Never leaves the swarm."""


class Offer:
    """An invite, up to `MAX_LINE` characters of ASCII, that one guess may ask for, over whichever connection it comes.

    A guess, right or wrong, leaves it spent: no other one is looked at.
    """

    def __init__(self, code: Code, line: str) -> None:
        self.code = code
        self.line = line.encode("ascii")
        self.spent = False


class Inviter:
    """The inviter's side of one exchange."""

    def __init__(self, offer: Offer, entropy: Entropy = os.urandom) -> None:
        from spake2 import SPAKE2_A

        self._offer, self._entropy = offer, entropy
        self._spake = SPAKE2_A(offer.code.password, idA=_INVITER, idB=_JOINER, entropy_f=entropy)
        self.hello: bytes = self._spake.start()
        self._key: bytes | None = None

    def answer(self, guess: bytes) -> bytes:
        """The sealed invite for a guess; a WrongCodeError if that is wrong or malformed.

        After an earlier guess a SpentError: this one stays unanswered, right or wrong.
        """
        if self._offer.spent:
            raise SpentError
        self._offer.spent = True
        key = _finish(self._spake, guess[:HELLO_BYTES])
        if key is None or not hmac.compare_digest(guess[HELLO_BYTES:], _tag(key, "guess")):
            raise WrongCodeError
        self._key = key
        return bytes(_box(key).encrypt(self._offer.line, self._entropy(_NONCE_BYTES)))

    def is_receipt(self, receipt: bytes) -> bool:
        """Whether the joiner proves that it has the invite."""
        return self._key is not None and hmac.compare_digest(receipt, _tag(self._key, "receipt"))


class Joiner:
    """The joiner's side of one exchange. It makes one guess in its life."""

    def __init__(self, code: Code, entropy: Entropy = os.urandom) -> None:
        from spake2 import SPAKE2_B

        self._spake = SPAKE2_B(code.password, idA=_INVITER, idB=_JOINER, entropy_f=entropy)
        self._message: bytes = self._spake.start()
        self._key: bytes | None = None
        self._guessed = False

    def guess(self, hello: bytes) -> bytes:
        """The guess for an inviter's hello; a WrongCodeError if it is malformed, a SpentError after the first."""
        if self._guessed:
            raise SpentError
        self._guessed = True
        self._key = _finish(self._spake, hello)
        if self._key is None:
            raise WrongCodeError
        return self._message + _tag(self._key, "guess")

    def open(self, sealed: bytes) -> str:
        """The line in a sealed invite; a WrongCodeError if nobody who knows the code has sealed it."""
        from nacl.exceptions import CryptoError

        if self._key is None or len(sealed) > MAX_SEALED_BYTES:
            raise WrongCodeError
        try:
            return bytes(_box(self._key).decrypt(sealed)).decode("ascii")
        except (CryptoError, ValueError) as error:
            raise WrongCodeError from error

    @property
    def receipt(self) -> bytes:
        """The last message, once the invite was opened."""
        assert self._key is not None
        return _tag(self._key, "receipt")


def _finish(spake: Any, message: bytes) -> bytes | None:
    """SPAKE2's key, 32 bytes; None if the message is none of the other side."""
    from spake2 import SPAKEError
    from spake2.ed25519_basic import NotOnCurve

    # The library takes points of any length and ignores what it does not need.
    if len(message) != HELLO_BYTES:
        return None
    try:
        return bytes(spake.finish(message))
    except (SPAKEError, NotOnCurve, ValueError):
        return None


def _tag(key: bytes, purpose: str) -> bytes:
    return hmac.digest(key, f"sapo-edge code v1 {purpose}".encode(), sha256)


def _box(key: bytes) -> SecretBox:
    from nacl.secret import SecretBox

    return SecretBox(_tag(key, "invite"))
