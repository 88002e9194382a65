"""The most memory that this process has had."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def peak_memory() -> int:
    """Resident bytes of this process at their highest; 0 where the system doesn't tell."""
    try:
        # Not `ru_maxrss`: on Linux a process inherits that of the one that started it.
        found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) * 1024
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
