"""Checks of the texts of a manifest, which may be a stranger's, and of the files that they are read from."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sapo_edge.errors import ManifestError

MAX_TEXT_BYTES = 4 * 1024
"""Longest system text, question, answer and example, in bytes of UTF-8."""
# Unicode's categories Cc and Cs, but newline and tab. To ask for each character's category takes seconds a megabyte.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def require(condition: bool, message: str, remedy: str) -> None:
    if not condition:
        raise ManifestError(message, remedy)


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """Read a file in the block; a ManifestError if it can't be."""
    remedy = "check its name and permissions"
    require("\0" not in str(path), f"{path} can't be read: it is no path", remedy)
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise ManifestError(f"{path} can't be read: {error.strerror}", remedy) from error


def check_text(where: str, text: object, limit: int = MAX_TEXT_BYTES) -> str:
    """The text, if it has at most `limit` bytes and no control characters."""
    require(isinstance(text, str), f"{where} is not text", "write it between quotes")
    assert isinstance(text, str)
    # A peer's text reaches terminals, so escape sequences are rejected. Lone surrogates can't be encoded.
    require(_CONTROL.search(text) is None, f"{where} has control characters or invalid Unicode", "remove them")
    size = len(text.encode("utf-8"))
    require(size <= limit, f"{where} has {size} bytes", f"keep it below {limit}")
    return text


def tidy(text: Any) -> Any:
    """A text without space around it, its lines ended as everywhere here; anything else as it is."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip() if isinstance(text, str) else text
