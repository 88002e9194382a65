"""Text of a peer is shown without any character that a terminal obeys or that nobody sees."""

from __future__ import annotations

import unicodedata

from sapo_edge.plain import did_you_mean, line, printable, reasons
from tests.fuzzing.target import KIB, Target

OPTIONS = ("after_round", "at_once", "status")


def check(data: bytes) -> None:
    """Escaped in one line, in several, wrapped, as a name of a count, and as a mistyped name."""
    text = data.decode("utf-8", "surrogateescape")
    shown = (printable(text), printable(text, lines=True).translate({10: None, 9: None}), reasons({text: 1}))
    for one in (*shown, *line("name", text).split("\n")):
        assert not any(unicodedata.category(character)[0] == "C" for character in one)
        assert "\u2028" not in one and "\u2029" not in one
        one.encode("utf-8")
    if text.isprintable() and text.isascii():
        assert printable(text) == text
    did_you_mean(text, OPTIONS, "").encode("utf-8")


def seeds() -> list[bytes]:
    """Escape sequences, text that runs to the left, and characters without width."""
    texts = (
        "usual text", "\x1b[2J\x1b]0;x\x07", "\u202eabc", "a\u200bb\ufeff", "漢字 é e\u0301", "\u2028\n\t\r",
        "\ue000\U000e0041",
    )  # fmt: skip
    return [*(text.encode("utf-8") for text in texts), b"lone surrogates: \xff\xfe"]


TARGET = Target(check, seeds, 4 * KIB, 256 * KIB, 256)
