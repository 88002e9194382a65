"""A terminal without Unicode gets ASCII alone, column by column."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

from sapo_edge.tui.look import ascii

BLACK = Color(0, 0, 0)
UTF8 = {"LANG": "en_US.UTF-8", "TERM": "xterm-256color"}


def drawn(text: str) -> str:
    """A text as the filter draws it."""
    return "".join(segment.text for segment in ascii.AsciiFilter().apply([Segment(text)], BLACK))


def test_what_the_app_draws_stays_readable() -> None:
    assert drawn("╭─ Swarm ─╮") == "+- Swarm -+"
    assert drawn("▲ 0.04 → 0.66 • ● round 41 …") == "^ 0.04 > 0.66 . # round 41 ."
    assert drawn("⣀⣤⣶⣿⠀x") == "**** x"
    assert drawn("“a’s”") == '"a\'s"'


def test_a_wide_character_keeps_its_columns_and_a_combining_one_has_none() -> None:
    assert drawn("超級x") == "????x"
    assert drawn("e\u0301x") == "ex"


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_every_text_becomes_ascii(text: str) -> None:
    assert drawn(text).isascii()


@given(st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"])))
def test_columns_stay_where_they_are(text: str) -> None:
    widths = sum(Segment(character).cell_length for character in text)
    assert len(drawn(text)) == widths


def test_style_and_control_stay() -> None:
    style = Style(bold=True)
    plain, fancy = ascii.AsciiFilter().apply([Segment("x", style), Segment("→", style)], BLACK)
    assert (plain.style, fancy.style) == (style, style)


@pytest.mark.parametrize(
    ("environ", "needed"),
    [
        (UTF8, False),
        ({"LANG": "C", "TERM": "xterm"}, True),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "POSIX"}, True),
        ({"LANG": "en_US.UTF-8", "LC_CTYPE": "C"}, True),
        ({**UTF8, "TERM": "vt100"}, True),
        ({**UTF8, "TERM": "dumb"}, True),
        ({"TERM": "xterm-256color"}, False),
    ],
)
def test_where_it_is_needed(environ: dict[str, str], needed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Utf8:
        encoding = "utf-8"

    monkeypatch.setattr("sys.__stderr__", Utf8())
    assert ascii.needed(environ) == needed


@pytest.mark.parametrize(("encoding", "needed"), [("UTF-8", False), ("ANSI_X3.4-1968", True), ("latin-1", True)])
def test_the_encoding_of_the_terminal_counts(encoding: str, needed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        pass

    terminal = Terminal()
    terminal.encoding = encoding  # type: ignore[attr-defined]
    monkeypatch.setattr("sys.__stderr__", terminal)
    assert ascii.needed(UTF8) == needed
