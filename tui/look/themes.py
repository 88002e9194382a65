"""The app's own two themes. Textual has more, with `ansi-dark` and `ansi-light` for consoles of 16 colours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from textual.theme import Theme

DARK = Theme(
    name="sapo-dark",
    primary="#5fd38d",
    secondary="#6cb6ff",
    accent="#f2b36f",
    warning="#f2b36f",
    error="#ff7b72",
    success="#5fd38d",
    foreground="#d7dde3",
    background="#0f1418",
    surface="#141a1f",
    panel="#1c242b",
    dark=True,
    variables={"footer-key-foreground": "#5fd38d", "border": "#33414c", "border-blurred": "#27323a"},
)
LIGHT = Theme(
    name="sapo-light",
    primary="#1a7f4b",
    secondary="#0b63b5",
    accent="#a4560a",
    warning="#a4560a",
    error="#b3261e",
    success="#1a7f4b",
    foreground="#1d252b",
    background="#f6f8f9",
    surface="#ffffff",
    panel="#e8edf0",
    dark=False,
    variables={"footer-key-foreground": "#1a7f4b", "border": "#b8c4cc", "border-blurred": "#d3dbe0"},
)


@dataclass(frozen=True, slots=True)
class CurveColors:
    """Colours of the curves, and of what belongs to them. A mark or a word says the same without colours."""

    own: str
    external: str
    held_out: str


_ON_DARK = CurveColors("#5fd38d", "#6cb6ff", "#f2b36f")
_ON_LIGHT = CurveColors("#17713f", "#0b63b5", "#a4560a")


def curve_colors(theme: Theme) -> CurveColors:
    return _ON_DARK if theme.dark else _ON_LIGHT


def default_theme(environ: Mapping[str, str]) -> str:
    """The theme for this terminal if the settings name none."""
    # These show 8 or 16 colours.
    few_colors = environ.get("TERM") in ("linux", "xterm", "vt100", "vt220", "ansi", "screen")
    return "ansi-dark" if few_colors and not environ.get("COLORTERM") else DARK.name
