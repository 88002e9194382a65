"""Where on the disk something is to be written that may not exist yet."""

from __future__ import annotations

import os
from pathlib import Path


def nearest_existing(path: Path) -> Path:
    """`path`, or the nearest directory above it that exists and may be seen."""
    return next(parent for parent in (path, *path.parents) if os.path.exists(parent))
