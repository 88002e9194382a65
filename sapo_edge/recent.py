"""A dictionary that keeps a limited number of entries: those that were set last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V]):
    """Setting an entry makes it the newest one and drops the oldest ones beyond the limit; reading changes nothing."""

    def __init__(self, limit: int, entries: Mapping[K, V] | None = None) -> None:
        super().__init__()
        self.limit = limit
        self.update(entries or {})

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self.limit:
            self.popitem(last=False)
