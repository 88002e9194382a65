"""Rollouts are loaded page by page, each exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sapo_edge.tui.screens.rollouts.pages import PAGE, Filter, Key, RolloutPages

EIGHT = 8
"""Rollouts of a round."""


class Journal:
    """Answers `rollouts` like a node, which examines at most `limit` in one request, and keeps what it was asked."""

    def __init__(self, rounds: int, limit: int = 10_000) -> None:
        self.last, self.limit = rounds, limit
        self.asked: list[dict[str, Any]] = []

    def keys(self) -> list[Key]:
        return [(round, position) for round in range(self.last, 0, -1) for position in range(EIGHT - 1, -1, -1)]

    async def ask(self, method: str, params: Mapping[str, Any]) -> Any:
        assert method == "rollouts" and params["limit"] == PAGE
        self.asked.append(dict(params))
        before = tuple(params["before"]) if "before" in params else (10**9, 0)
        examined = [key for key in self.keys() if key < before][: self.limit]
        page = [key for key in examined if params.get("origin") != "external" or key[1] == 0][:PAGE]
        last = page[-1] if len(page) == PAGE else examined[-1] if examined else None
        more = last is not None and any(key < last for key in self.keys())
        return {"rollouts": [_rollout(key) for key in page], "next": list(last) if more and last else None}


def _rollout(key: Key) -> dict[str, Any]:
    return {
        "round": key[0], "position": key[1], "entry": "sums", "question": "1 + 1 =", "answers": 4, "reward_mean": 0.5,
        "reward_best": 1.0, "informative": True, "own": key[1] > 0, "author": "x", "name": "x", "time": 1.0,
    }  # fmt: skip


def keys(pages: RolloutPages) -> list[Key]:
    return [row.key for row in pages.rows]


async def test_no_more_rows_than_the_limit_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapo_edge.tui.screens.rollouts.pages.MAX_ROWS", 3 * PAGE)
    pages = RolloutPages(Journal(200).ask)
    while not pages.complete:
        await pages.older()
    assert len(pages.rows) == 3 * PAGE


async def test_a_sparse_search_continues_where_it_stopped() -> None:
    journal = Journal(100, limit=30)
    pages = RolloutPages(journal.ask)
    pages.begin(Filter(origin="external"))
    while not pages.complete:
        await pages.older()
        assert pages.looked or pages.complete
    assert keys(pages) == [(round, 0) for round in range(100, 0, -1)]
    assert all(asked["origin"] == "external" for asked in journal.asked)


async def test_a_reply_to_an_earlier_request_is_ignored() -> None:
    journal = Journal(20)
    requests: list[Mapping[str, Any]] = []

    async def ask_slowly(method: str, params: Mapping[str, Any]) -> Any:
        reply = await journal.ask(method, params)
        requests.append(params)
        if len(requests) == 1:
            pages.begin(Filter(origin="external"))
        return reply

    pages = RolloutPages(ask_slowly)
    await pages.older()
    assert pages.rows == [] and not pages.begun
    await pages.older()
    assert {key[1] for key in keys(pages)} == {0}
