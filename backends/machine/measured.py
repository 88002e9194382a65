"""What was measured on this machine, remembered in a cache directory until what it depends on changes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sapo_edge.backends.machine.disk import replacing
from sapo_edge.backends.machine.host import processor
from sapo_edge.backends.machine.threads import BUSY, cores_in_use

LOOK = 0.3
"""Seconds of a look at the load."""
Figures = TypeVar("Figures")


def is_quiet() -> bool:
    return cores_in_use(LOOK) < BUSY


@dataclass(frozen=True, slots=True)
class Measured:
    """A file of figures; without a path, nothing is remembered.

    Attributes:
        subject: what the figures depend on beside the processor, such as versions; values as JSON has them.
    """

    path: Path | None
    subject: Mapping[str, object]

    def read(self, convert: Callable[[dict[str, Any]], Figures], *, disturbed: bool = False) -> Figures | None:
        """The figures; None if there are none, or they are damaged, or they should be measured again.

        Args:
            convert: from the record; fails with what a record of other types leads to.
            disturbed: take what was measured beside busy programs, too, though the machine is quiet now.
        """
        if self.path is None:
            return None
        try:
            record = json.loads(self.path.read_text())
            is_same = all(record[key] == value for key, value in self._keys().items())
            if not is_same or (not record["quiet"] and not disturbed and is_quiet()):
                return None
            return convert(record)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, figures: Mapping[str, object], *, quiet: bool) -> None:
        """Remember figures, where that can be written: another user's cache, or a full disk, is measured again."""
        if self.path is None:
            return
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with replacing(self.path, f".{os.getpid()}") as part:
                part.write_text(json.dumps({**self._keys(), **figures, "quiet": quiet}))

    def _keys(self) -> dict[str, object]:
        return {"machine": processor(), **self.subject}
