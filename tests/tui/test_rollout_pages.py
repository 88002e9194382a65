"""Rollouts are loaded page by page, each exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from sapo_edge.node.methods import handlers
from sapo_edge.state.paths import Paths
from sapo_edge.tui.screens.rollouts.pages import PAGE, Filter, Key, RolloutPages
from tests.tui.fake_node import KEPT_FROM, ScriptedNode

ROUNDS = 60


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[AsyncMock]:
    """Asks a node that does not run for `rollouts`."""
    node = ScriptedNode(Paths.default(tmp_path), rounds=ROUNDS)
    yield AsyncMock(side_effect=lambda method, params: handlers(node)[method](params))
    node.journal.close()


def keys(pages: RolloutPages) -> list[Key]:
    return [row.key for row in pages.rows]


async def test_no_more_rows_than_the_limit_are_loaded(ask: AsyncMock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapo_edge.tui.screens.rollouts.pages.MAX_ROWS", 3 * PAGE)
    pages = RolloutPages(ask)
    while not pages.complete:
        await pages.load()
    assert len(pages.rows) == 3 * PAGE


async def test_a_sparse_search_continues_where_it_stopped(ask: AsyncMock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapo_edge.control.journal_view.SCAN_SECONDS", 0.0)
    pages = RolloutPages(ask)
    pages.begin(Filter(origin="external"))
    while not pages.complete:
        await pages.load()
        assert pages.looked or pages.complete
    assert keys(pages) == [(round, place) for round in range(ROUNDS, KEPT_FROM - 1, -1) for place in (5, 4)]
    assert ask.await_count > 10
    for _, params in (call.args for call in ask.await_args_list):
        assert (params["origin"], params["limit"]) == ("external", PAGE)


async def test_a_reply_to_an_earlier_request_is_ignored(ask: AsyncMock) -> None:
    async def ask_slowly(method: str, params: Mapping[str, Any]) -> Any:
        reply = await ask(method, params)
        if ask.await_count == 1:
            pages.begin(Filter(origin="external"))
        return reply

    pages = RolloutPages(ask_slowly)
    await pages.load()
    assert pages.rows == [] and not pages.begun
    await pages.load()
    assert {key[1] for key in keys(pages)} == {4, 5}
