"""Plain text: numbers with units, escaped text of others, and remedies for mistyped names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge import plain


@pytest.mark.parametrize(("say", "said"), [
    (plain.size, {
        0: "0 B", 999: "999 B", 999.7: "1.0 kB", 1000: "1.0 kB", 1249: "1.2 kB", 999_949: "999.9 kB",
        999_950: "1.0 MB", 3_400_000: "3.4 MB", 2e9: "2.0 GB", 999.96e9: "1 TB", 1e15: "1000 TB", 1e30: "9999 TB",
    }),
    (plain.duration, {
        0: "0 s", 59.4: "59 s", 59.6: "1 min 0 s", 200: "3 min 20 s", 3599.6: "1 h 0 min", 7500: "2 h 5 min",
    }),
    (plain.rough_duration, {
        40: "40 s", 89.7: "90 s", 91: "2 min", 3500: "58 min", 3590: "1 h 0 min", 9000: "2 h 30 min", 260_000: "3 days",
    }),
])  # fmt: skip
def test_numbers_have_units(say: Callable[[float], str], said: dict[float, str]) -> None:
    assert {number: say(number) for number in said} == said


def test_counts_and_times() -> None:
    assert plain.counted(1, "peer") == "1 peer" and plain.counted(0, "peer") == "0 peers"
    assert plain.counted(2, "setting waits", "settings wait") == "2 settings wait"
    assert plain.reasons({"rate": 1, "forged": 2, "age": 1, "size": 0}) == "forged 2, age 1, rate 1"
    assert plain.reasons({"rate": 1, "forged": 2, "age": 1, "size": 0}, limit=1) == "forged 2 and 2 more reasons"
    assert plain.reasons({"forged": 2, "size": 0}, limit=1) == "forged 2" and plain.reasons({}) == ""
    assert {plain.format_time(float(seconds)) for seconds in ("4.6e18", "nan", "inf")} == {"unknown"}
    assert re.fullmatch(r"2027-01-1[456] \d\d:\d\d:00", plain.format_time(1_800_000_000))


@pytest.mark.parametrize(("name", "remedy"), [
    ("ownn", "did you mean own?"), ("Learning-Rate", "did you mean learning_rate?"), ("zebra", "see the list"),
    (3, "see the list"), ("o" * 10**6, "see the list"),
])  # fmt: skip
def test_a_mistyped_name_gets_the_nearest_option(name: object, remedy: str) -> None:
    assert plain.did_you_mean(name, ["own", "learning_rate"], "see the list") == remedy


@given(st.text())
def test_printable_text_has_no_control_characters(text: str) -> None:
    assert all(not unicodedata.category(character).startswith("C") for character in plain.printable(text))
    kept = plain.printable(text, lines=True)
    assert all(c in "\n\t" or not unicodedata.category(c).startswith("C") for c in kept)


def test_what_is_narrated_keeps_its_lines_and_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    plain.narrate("a\x1b]0;b\x07\n\tc\r")
    assert capsys.readouterr().err == "a\\x1b]0;b\\x07\n\tc\\r\n"


def test_escape_sequences_can_be_read_and_what_python_prints_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = ("C", "Zl", "Zp")
    assert not [c for c in map(chr, range(0x110000)) if c.isprintable() and unicodedata.category(c).startswith(hidden)]
    assert plain.printable("a\x1b[2Jb\x9b\u202e") == r"a\x1b[2Jb\x9b\u202e"
    assert plain.printable("a\nb\tc\r", lines=True) == "a\nb\tc\\r"
    monkeypatch.setattr(unicodedata, "category", lambda character: pytest.fail(repr(character)))
    assert plain.printable("quiet-heron-007 → 超级 ½") == "quiet-heron-007 → 超级 ½"


def test_a_line_is_wrapped_without_breaking_a_digest() -> None:
    digest = "0123456789abcdef" * 6
    wrapped = plain.line("digest", f"of the model {digest} and more words").splitlines()
    assert wrapped[0].startswith("digest      of the model") and any(digest in row for row in wrapped)
    assert all(len(row) <= plain.WIDTH for row in wrapped if digest not in row)


@pytest.mark.parametrize(("texts", "shown"), [
    (["these numbers: 10, 14. Give it.", "these numbers: 4, 8. Give it."], ["…10, 14.…", "…4, 8.…"]),
    (["Calculate 29 - 68 =", "Calculate 25 + 68 ="], ["…29 -…", "…25 +…"]),
    (["State it: 56 + 65 =", "State it: 8 - 2 ="], ["…56 + 65…", "…8 - 2…"]),
    (["one text"], ["one text"]),
    (["the same", "the same"], ["the same", "the same"]),
    (["a b", "a b c"], ["…b", "…b c"]),
    (["nothing", "alike"], ["nothing", "alike"]),
])  # fmt: skip
def test_of_similar_texts_the_distinctive_part_is_shown(texts: list[str], shown: list[str]) -> None:
    ends = plain.shared_ends(texts)
    assert [plain.without_ends(text, ends) for text in texts] == shown


WORDS = st.lists(st.sampled_from(["find", "the", "sum", "of", "1", "12", "123", ""]), max_size=6).map(" ".join)


@given(begin=WORDS, end=WORDS, middles=st.lists(WORDS | st.text(max_size=8), min_size=1, max_size=5), other=WORDS)
def test_shared_ends_are_shared_and_keep_texts_apart(begin: str, end: str, middles: list[str], other: str) -> None:
    texts = [f"{begin} {middle} {end}" for middle in middles]
    first, last = plain.shared_ends(texts)
    assert plain.shared_ends(reversed(texts)) == (first, last)
    for text in texts:
        assert text.startswith(first) and text.endswith(last) and len(first) + len(last) <= len(text)
    assert (not first or first[-1].isspace()) and (not last or last[0].isspace())
    shown = [plain.without_ends(text, (first, last)) for text in texts]
    assert len(set(shown)) == len(set(texts)), "different texts stay different"
    assert plain.without_ends(other, ("no such beginning ", last)) == other
