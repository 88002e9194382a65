"""What an update frees is kept while it may be, and no longer."""

from __future__ import annotations

import ctypes
import sys

import pytest

from sapo_edge.backends.machine import allocator
from sapo_edge.backends.machine.allocator import KEEPING, M_MMAP_THRESHOLD, THRESHOLD, keeping_freed_memory


class Library:
    """Notes what is set."""

    def __init__(self) -> None:
        self.settings: list[tuple[int, int]] = []

    def mallopt(self, name: int, value: int) -> int:
        self.settings.append((name, value))
        return 1


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setattr(allocator, "_glibc", lambda: library)
    return library


def test_freed_memory_is_kept_meanwhile_even_if_an_update_fails(library: Library) -> None:
    with pytest.raises(ZeroDivisionError), keeping_freed_memory():
        assert (M_MMAP_THRESHOLD, KEEPING) in library.settings
        library.settings.clear()
        raise ZeroDivisionError
    assert [value for _, value in library.settings] == [THRESHOLD, THRESHOLD]


def test_elsewhere_nothing_is_set(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    with keeping_freed_memory(False):
        pass
    assert not library.settings
    monkeypatch.setattr(allocator, "_glibc", lambda: None)
    with keeping_freed_memory():
        pass


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks glibc")
def test_glibc_takes_the_threshold() -> None:
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("another C library")
    with keeping_freed_memory():
        assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, KEEPING) == 1
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, THRESHOLD) == 1
