"""A terminal without Unicode gets only ASCII, with all columns in place."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

from sapo_edge.tui.look import terminal

BLACK = Color(0, 0, 0)
UTF8 = {"LANG": "en_US.UTF-8", "TERM": "xterm-256color"}


def drawn(text: str) -> str:
    return "".join(segment.text for segment in terminal.AsciiFilter().apply([Segment(text)], BLACK))


def test_what_the_app_draws_stays_readable() -> None:
    assert drawn("╭─ Swarm ─╮") == "+- Swarm -+"
    assert drawn("▲ 0.04 → 0.66 • ● round 41 …") == "^ 0.04 > 0.66 . # round 41 ."
    assert drawn("⣀⣤⣶⣿⠀x") == "**** x" and drawn("“a’s”") == '"a\'s"'
    assert drawn("超級x") == "????x" and drawn("e\u0301x") == "ex"


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_every_text_becomes_ascii(text: str) -> None:
    assert drawn(text).isascii()


@given(st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"])))
def test_columns_stay_in_place(text: str) -> None:
    assert len(drawn(text)) == sum(Segment(character).cell_length for character in text)


def test_styles_stay() -> None:
    style = Style(bold=True)
    plain, fancy = terminal.AsciiFilter().apply([Segment("x", style), Segment("→", style)], BLACK)
    assert (plain.style, fancy.style) == (style, style)


@pytest.mark.parametrize(("encoding", "environ", "needed"), [
    ("utf-8", UTF8, False), ("utf-8", {"LANG": "C", "TERM": "xterm"}, True),
    ("utf-8", {"LANG": "en_US.UTF-8", "LC_ALL": "POSIX"}, True),
    ("utf-8", {"LANG": "en_US.UTF-8", "LC_CTYPE": "C"}, True), ("utf-8", {**UTF8, "TERM": "vt100"}, True),
    ("utf-8", {**UTF8, "TERM": "dumb"}, True), ("utf-8", {"TERM": "xterm-256color"}, False), ("UTF-8", UTF8, False),
    ("ANSI_X3.4-1968", UTF8, True), ("latin-1", UTF8, True),
])  # fmt: skip
def test_the_environment_and_the_encoding_decide(
    encoding: str, environ: dict[str, str], needed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.__stderr__", SimpleNamespace(encoding=encoding))
    assert terminal.lacks_unicode(environ) == needed
