"""QR codes of text, two modules in one character."""

from __future__ import annotations

from rich.text import Text

BORDER = 2
"""Light modules around the code; four is the norm, and cameras read a code on a light field with two."""


def qr_text(text: str, columns: int, rows: int) -> tuple[Text | None, str]:
    """A QR code in half blocks, dark on light whatever the theme.

    Args:
        columns, rows: room in characters.

    Returns:
        The code and ""; or None and why there is none.
    """
    # Loaded at the first use only.
    import segno

    try:
        code = segno.make_qr(text, error="l")
    except segno.DataOverflowError:
        return None, "the invite is too long for a QR code: send the line"
    modules = [list(row) for row in code.matrix_iter(scale=1, border=BORDER)]
    width, height = len(modules[0]), -(-len(modules) // 2)
    if width > columns or height > rows:
        return None, f"the QR code needs {width} columns and {height} rows, and there are {columns} and {rows}"
    if len(modules) % 2:
        modules.append([0] * width)
    picture = Text(no_wrap=True)
    for upper, lower in zip(modules[::2], modules[1::2], strict=True):
        for above, below in zip(upper, lower, strict=True):
            picture.append("▀", f"{_color(above)} on {_color(below)}")
        picture.append("\n")
    picture.rstrip()
    return picture, ""


def _color(module: int) -> str:
    return "#000000" if module else "#ffffff"
