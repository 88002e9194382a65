"""Where on the disk something is to be written that may not exist yet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def nearest_existing(path: Path) -> Path:
    """`path`, or the nearest directory above it that exists and may be seen."""
    return next(parent for parent in (path, *path.parents) if os.path.exists(parent))


@contextmanager
def replacing(file: Path, writer: str = "") -> Iterator[Path]:
    """Where to write what takes a file's place when the block ends; gone if the block fails.

    Where several processes may write the file at once, `writer` tells them apart.
    """
    part = file.with_name(f".{file.name}{writer}.part")
    try:
        yield part
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
