"""For all tests."""

from __future__ import annotations

import os

from tests.undisturbed import UNDISTURBED

# Before anything starts a process, which takes them from here.
os.environ.update(UNDISTURBED)
