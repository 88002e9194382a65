"""What an update frees is kept while it may be, and no longer."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from sapo_edge.backends.machine import allocator
from sapo_edge.backends.machine.allocator import KEEPING, M_MMAP_THRESHOLD, THRESHOLD, keeping_freed_memory


@pytest.fixture
def mallopt(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Notes what is set."""
    mallopt = Mock(return_value=1)
    monkeypatch.setattr(allocator, "_glibc", lambda: SimpleNamespace(mallopt=mallopt))
    return mallopt


def test_freed_memory_is_kept_meanwhile_even_if_an_update_fails(mallopt: Mock) -> None:
    with pytest.raises(ZeroDivisionError), keeping_freed_memory():
        mallopt.assert_any_call(M_MMAP_THRESHOLD, KEEPING)
        mallopt.reset_mock()
        raise ZeroDivisionError
    assert [call.args[1] for call in mallopt.call_args_list] == [THRESHOLD, THRESHOLD]


def test_elsewhere_nothing_is_set(mallopt: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    with keeping_freed_memory(False):
        pass
    mallopt.assert_not_called()
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
