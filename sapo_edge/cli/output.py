"""What happens to a command's output when nobody takes it any more."""

from __future__ import annotations

import os
import sys


def discard_output() -> None:
    """Send what is still to come on stdout nowhere, so that the interpreter doesn't complain on its way out."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
