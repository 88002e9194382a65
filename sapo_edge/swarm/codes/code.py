"""Short codes, such as 7-guitar-revolver: said aloud in place of an invite, for one use.

The number tells meeting places who waits for whom, and everybody may know it. The words are the password of the key
exchange in `handover.py`; a meeting place never learns them.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from sapo_edge.errors import ConfigError
from sapo_edge.plain import counted, did_you_mean, printable

MAX_NUMBER = 999
"""Largest number of a code; the smallest is 1."""
WORDS = 2
"""Words of a code: together 1295 ** 2 possibilities, and a wrong guess ends the code."""
ENOUGH_LETTERS = 3
"""Letters that tell a word from every other one; the rest need not be typed."""
MAX_CHARACTERS = 64

# People say and type spaces; programs turn a hyphen into a dash.
_SEPARATORS = re.compile(r"[\s,._‐-―-]+")  # noqa: RUF001 - the dashes that text programs put in
_BEGINNING = re.compile(r"\s*\d{1,4}[\s,._‐-―-]+[^\W\d_]")  # noqa: RUF001
_ASK = f"ask for the code again: a number and {WORDS} words, such as 7-guitar-revolver"


@cache
def word_list() -> tuple[str, ...]:
    """The words of codes in alphabetical order, all of lower-case ASCII letters."""
    text = (files(__package__) / "words.txt").read_text("ascii")
    return tuple(line for line in text.splitlines() if not line.startswith("#"))


@dataclass(frozen=True, slots=True)
class Code:
    """A code. Its text is lower-case, joined by hyphens.

    Attributes:
        number: 1 to `MAX_NUMBER`; public.
        words: `WORDS` words of `word_list`; secret.
    """

    number: int
    words: tuple[str, ...] = field(repr=False)

    def __str__(self) -> str:
        return "-".join([str(self.number), *self.words])

    @property
    def password(self) -> bytes:
        """What the key exchange is about: the whole text, so that the words of one number are wrong at another."""
        return str(self).encode("ascii")


def random_number() -> int:
    return 1 + secrets.randbelow(MAX_NUMBER)


def random_words() -> tuple[str, ...]:
    """Words for a new code, drawn with the system's randomness."""
    return tuple(secrets.choice(word_list()) for _ in range(WORDS))


def looks_like_code(text: str) -> bool:
    """Whether somebody who typed this meant a code: it begins with a number, a separator and a letter."""
    return len(text) <= MAX_CHARACTERS and _BEGINNING.match(text) is not None


def parse_code(text: str) -> Code:
    """Read a code that somebody typed: in any case, with spaces or dashes, and words cut to three letters or more."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"a code has at most {MAX_CHARACTERS} characters", _ASK)
    number, *words = [part for part in _SEPARATORS.split(text.strip("'\"`<> ").lower()) if part] or [""]
    if not re.fullmatch("[0-9]{1,4}", number) or not 1 <= int(number) <= MAX_NUMBER:
        raise ConfigError(f"a code begins with a number from 1 to {MAX_NUMBER}", _ASK)
    if len(words) != WORDS:
        raise ConfigError(f"the code has {counted(len(words), 'word')} instead of {WORDS}", _ASK)
    return Code(int(number), tuple(_whole_word(word) for word in words))


def _whole_word(typed: str) -> str:
    remedy = _ASK
    if len(typed) >= ENOUGH_LETTERS:
        for word in word_list():
            if word.startswith(typed):
                return word
            if word.startswith(typed[:ENOUGH_LETTERS]):
                remedy = f"did you mean {word}?"
    raise ConfigError(f"no code has the word {printable(typed)}", did_you_mean(typed, word_list(), remedy))
