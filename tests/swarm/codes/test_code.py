"""Short codes as people type them, and the exchange that hands an invite to whoever knows one."""

from __future__ import annotations

import hmac
import string
from hashlib import sha256

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nacl import bindings

from sapo_edge.errors import ConfigError
from sapo_edge.swarm.codes import code as module
from sapo_edge.swarm.codes import handover
from sapo_edge.swarm.codes.code import ENOUGH_LETTERS, MAX_NUMBER, Code, looks_like_code, parse_code, word_list
from sapo_edge.swarm.codes.handover import Inviter, Joiner, Offer, SpentError, WrongCodeError
from sapo_edge.swarm.joining.invite import MAX_LINE
from tests.defences.defence import fails_without
from tests.swarm.wire.make_vectors import ORDER, vectors

add = bindings.crypto_core_ed25519_add
M = bytes.fromhex("15cfd18e385952982b6a8f8c7854963b58e34388c8e6dae891db756481a02312")
N = bytes.fromhex("f04f2e7eb734b2a8f8b472eaf9c3c632576ac64aea650b496a8a20ff00e583c3")
TAGS = ("guess", "invite", "receipt")
LINE = "sapo://join/v=1+swarm=aa+name=starter+check=0"
ORDER_8 = "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"
CODE = Code(7, ("guitar", "revolver"))
WORDS = st.sampled_from(word_list())
CODES = st.builds(Code, st.integers(1, MAX_NUMBER), st.tuples(WORDS, WORDS))


def test_the_words_can_be_told_apart() -> None:
    words = word_list()
    assert len(words) == len(set(words)) == 1295
    assert all(word.isascii() and word.isalpha() and word.islower() and len(word) <= 10 for word in words)
    assert len({word[:ENOUGH_LETTERS] for word in words}) == len(words)


@fails_without("swarm/codes/code.py", "secrets.choice(word_list())", "word_list()[0]")
def test_new_codes_differ() -> None:
    assert len({module.random_words() for _ in range(64)}) > 60
    assert {module.random_number() for _ in range(4096)} <= set(range(1, MAX_NUMBER + 1))


@given(CODES, st.data())
@settings(max_examples=30)
def test_a_code_is_read_however_it_is_typed(code: Code, data: st.DataObject) -> None:
    typed = [word[: data.draw(st.integers(ENOUGH_LETTERS, len(word)))] for word in code.words]
    cased = [data.draw(st.sampled_from([str.upper, str.lower, str.title]))(word) for word in typed]
    separator = data.draw(st.sampled_from(["-", " ", " - ", "–", ", ", "\N{NON-BREAKING HYPHEN}"]))
    text = separator.join([str(code.number), *cased])
    assert looks_like_code(text) and parse_code(text) == code == parse_code(f"`{code}` ")


@given(WORDS, st.data())
@settings(max_examples=50)
def test_a_mistyped_letter_never_makes_another_word(word: str, data: st.DataObject) -> None:
    """And the program asks whether the right one is meant."""
    place = data.draw(st.integers(ENOUGH_LETTERS, max(ENOUGH_LETTERS, len(word) - 1)))
    letter = data.draw(st.sampled_from(string.ascii_lowercase))
    typed = {
        "change": word[:place] + letter + word[place + 1 :],
        "insert": word[:place] + letter + word[place:],
        "swap": word[:place] + word[place : place + 2][::-1] + word[place + 2 :],
    }[data.draw(st.sampled_from(["change", "insert", "swap"]))]
    try:
        assert parse_code(f"7-{typed}-revolver").words[0] == word
    except ConfigError as error:
        assert typed in error.message and "did you mean" in error.remedy


@fails_without("swarm/codes/code.py", "if len(text) > MAX_CHARACTERS:")
@fails_without(
    "swarm/codes/code.py",
    'if not re.fullmatch("[0-9]{1,4}", number) or not 1 <= int(number) <= MAX_NUMBER:',
    "if not number.isdecimal():",
)
@fails_without("swarm/codes/code.py", "if len(words) != WORDS:")
@fails_without("swarm/codes/code.py", "if len(typed) >= ENOUGH_LETTERS:", "if True:")
@fails_without("swarm/codes/code.py", "{printable(typed)}", "{typed}")
@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("7-gutar-revolver", "no code has the word gutar; did you mean guitar?"),
        ("7-alfbalfa-revolver", "no code has the word alfbalfa; did you mean alfalfa?"),
        ("7-gu-revolver", "no code has the word gu; "),
        ("7-guitar", "has 1 word instead of 2"),
        ("7-guitar-revolver-guitar", "has 3 words instead of 2"),
        *((f"{number}guitar-revolver", "begins with a number from 1 to 999") for number in ("", "0-", "1000-", "٧-")),
        ("", "begins with a number from 1 to 999"),
        ("7-" + "x" * 70, "at most 64 characters"),
        ("7-\x1b[31m-revolver", r"\x1b[31m"),
    ],
)
def test_what_is_wrong_with_a_code_is_named(text: str, part: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_code(text)
    assert part in str(raised.value) and "\x1b" not in str(raised.value)


@fails_without("swarm/codes/code.py", "len(text) <= MAX_CHARACTERS and ")
@pytest.mark.parametrize(
    "text", ["starter", "sapo://join/v=1", "0123abcd99", "7", "7-8", "77-", "", "7-" * 40, str(CODE) + "x" * 64]
)
def test_other_texts_are_no_codes(text: str) -> None:
    assert not looks_like_code(text)


def exchange(offer: Offer, joiner: Joiner) -> str:
    inviter = Inviter(offer)
    return joiner.open(inviter.answer(joiner.guess(inviter.hello)))


@fails_without("swarm/codes/handover.py", "        self._offer.spent = True\n")
@fails_without("swarm/codes/code.py", "words: tuple[str, ...] = field(repr=False)", "words: tuple[str, ...]")
@fails_without("swarm/codes/handover.py", ' and hmac.compare_digest(receipt, _tag(self._key, "receipt"))')
@fails_without("swarm/codes/handover.py", 'f"sapo-edge code v1 {purpose}".encode()', 'b"sapo-edge code v1"')
def test_the_right_code_brings_the_invite_once() -> None:
    offer, joiner = Offer(CODE, LINE), Joiner(CODE)
    inviter, early = Inviter(offer), Inviter(offer)
    guess = joiner.guess(inviter.hello)
    sealed = inviter.answer(guess)
    assert joiner.open(sealed) == LINE
    assert LINE.encode() not in sealed and len(sealed) == len(LINE) + 40
    for word in CODE.words:
        assert word.encode() not in inviter.hello + guess + sealed
    assert str(CODE.words[0]) not in repr(offer.code)
    assert inviter.is_receipt(joiner.receipt) and not Inviter(offer).is_receipt(b"")
    for wrong in (b"", guess[handover.HELLO_BYTES :]):
        assert not inviter.is_receipt(wrong), "who recorded the guess can give none"
    for later in (early, Inviter(offer)):
        with pytest.raises(SpentError):
            later.answer(Joiner(CODE).guess(later.hello))


@fails_without("swarm/codes/handover.py", ' or not hmac.compare_digest(guess[HELLO_BYTES:], _tag(key, "guess"))')
@fails_without("swarm/codes/code.py", 'return str(self).encode("ascii")', 'return "-".join(self.words).encode("ascii")')
@given(CODES, CODES)
@example(Code(7, ("guitar", "guitar")), CODE)
@settings(max_examples=4)
def test_only_the_same_code_opens(theirs: Code, ours: Code) -> None:
    """Also at another number, with the same words."""
    for wrong in (theirs, Code(ours.number % MAX_NUMBER + 1, ours.words)):
        if wrong == ours:
            continue
        inviter = Inviter(offer := Offer(ours, LINE))
        guess = Joiner(wrong).guess(inviter.hello)
        with pytest.raises(WrongCodeError):
            inviter.answer(guess)
        with pytest.raises(SpentError):
            exchange(offer, Joiner(ours))


@fails_without("swarm/codes/handover.py", ' or not hmac.compare_digest(guess[HELLO_BYTES:], _tag(key, "guess"))')
@fails_without("swarm/codes/handover.py", "        self._guessed = True\n")
def test_a_recorded_exchange_opens_nothing() -> None:
    old, joiner = Offer(CODE, LINE), Joiner(CODE)
    inviter = Inviter(old)
    guess = joiner.guess(inviter.hello)
    sealed = inviter.answer(guess)
    with pytest.raises(WrongCodeError):  # the guess again, at a new exchange of the same code
        Inviter(Offer(CODE, LINE)).answer(guess)
    later = Joiner(CODE)
    later.guess(Inviter(Offer(CODE, LINE)).hello)
    with pytest.raises(SpentError):  # a meeting place that shows it one hello after the other gets one tag
        later.guess(Inviter(Offer(CODE, LINE)).hello)
    with pytest.raises(WrongCodeError):  # the sealed invite again, to another joiner
        later.open(sealed)
    with pytest.raises(WrongCodeError):
        Joiner(CODE).open(sealed)
    echoing = Inviter(Offer(CODE, LINE))
    with pytest.raises(WrongCodeError):  # an inviter's own message
        echoing.answer(echoing.hello + bytes(handover.TAG_BYTES))


HELLO = Inviter(Offer(CODE, LINE)).hello
SMALL = [b"A" + bytes.fromhex(point) for point in ("01" + "00" * 31, "ec" + "ff" * 30 + "7f", "00" * 32, ORDER_8)]
"""With points of small order, somebody could choose the key without knowing the code."""


@fails_without("swarm/codes/handover.py", "if len(message) != HELLO_BYTES:")
@fails_without("swarm/codes/handover.py", "except (SPAKEError, NotOnCurve, ValueError):", "except ZeroDivisionError:")
@pytest.mark.parametrize(
    "hello", [HELLO[:-1], HELLO + b"x", Joiner(CODE).guess(HELLO)[: handover.HELLO_BYTES], *SMALL], ids=range(7)
)
def test_what_is_no_first_message_of_an_inviter_is_a_wrong_code(hello: bytes) -> None:
    with pytest.raises(WrongCodeError):
        Joiner(CODE).guess(hello)


@fails_without("swarm/codes/handover.py", " or len(sealed) > MAX_SEALED_BYTES:", ":")
def test_a_sealed_invite_that_is_too_long_is_not_opened() -> None:
    """Although somebody who knows the code sealed it."""
    assert len(exchange(Offer(CODE, "x" * MAX_LINE), Joiner(CODE))) == MAX_LINE
    with pytest.raises(WrongCodeError):
        exchange(Offer(CODE, "x" * (MAX_LINE + 1)), Joiner(CODE))


@pytest.mark.parametrize("vector", vectors("codes.json"), ids=lambda vector: vector["code"])
def test_the_vectors_follow_from_the_document(vector: dict[str, str]) -> None:
    """With libsodium in place of the library, from the formulas of docs/network.md alone."""
    password, line = vector["code"].encode(), vector["invite"]
    x, y = int(vector["inviter_scalar"]), int(vector["joiner_scalar"])
    # HKDF (RFC 5869) of 48 bytes: two blocks.
    secret = hmac.digest(bytes(32), password, "sha256")
    first = hmac.digest(secret, b"SPAKE2 pw\x01", "sha256")
    second = hmac.digest(secret, first + b"SPAKE2 pw\x02", "sha256")
    w = int.from_bytes((first + second)[:48], "big")
    public_x = add(bindings.crypto_scalarmult_ed25519_base_noclamp(scalar(x)), times(w, M))
    public_y = add(bindings.crypto_scalarmult_ed25519_base_noclamp(scalar(y)), times(w, N))
    shared = times(x, add(public_y, times(-w, N)))
    assert shared == times(y, add(public_x, times(-w, M)))
    parts = [sha256(part).digest() for part in (password, b"sapo-edge code v1 inviter", b"sapo-edge code v1 joiner")]
    key = sha256(b"".join([*parts, public_x, public_y, shared])).digest()
    tags = {name: hmac.digest(key, f"sapo-edge code v1 {name}".encode(), "sha256") for name in TAGS}
    assert vector["hello"] == "41" + public_x.hex()
    assert vector["guess"] == "42" + public_y.hex() + tags["guess"].hex()
    assert vector["receipt"] == tags["receipt"].hex()
    sealed = bytes.fromhex(vector["sealed"])
    assert bindings.crypto_secretbox_open(sealed[24:], sealed[:24], tags["invite"]).decode() == line


def scalar(number: int) -> bytes:
    return (number % ORDER).to_bytes(32, "little")


def times(number: int, point: bytes) -> bytes:
    return bindings.crypto_scalarmult_ed25519_noclamp(scalar(number), point)
