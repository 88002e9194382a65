"""`sapo serve` where it can't: `tests/tui/test_serve.py` has the rest."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.cli.inprocess import Invoke
from tests.cli.process import assert_refused


def test_without_the_extra_the_error_names_it(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("textual_serve", "textual_serve.app_service"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "sapo_edge.cli.web.server", raising=False)
    assert_refused(invoke("serve", "--home", tmp_path), 1, "textual-serve>=1.1.3,<1.2")
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_reported(invoke: Invoke, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert_refused(invoke("serve", "--home", tmp_path, "--port", port), 1, "choose another one with --port")
