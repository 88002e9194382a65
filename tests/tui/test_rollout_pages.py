"""A window into a long journal: nothing is lost or told twice, and memory stays bounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sapo_edge.errors import NoNodeError
from sapo_edge.tui.screens.rollouts.pages import CHUNK, PAGE, WINDOW, Filter, Key, RolloutPages

pytestmark = pytest.mark.asyncio
EIGHT = 8
"""Rollouts of a round."""


class Journal:
    """A node's answer to `rollouts`, over so many rounds.

    Attributes:
        at_once: rollouts that it looks at in one request.
        asked: the parameters of each request.
    """

    def __init__(self, rounds: int, at_once: int = 10_000) -> None:
        self.first, self.last, self.at_once = 1, rounds, at_once
        self.asked: list[dict[str, Any]] = []
        self.gone = False

    def keys(self) -> list[Key]:
        return [
            (round, position) for round in range(self.last, self.first - 1, -1) for position in range(EIGHT - 1, -1, -1)
        ]

    async def ask(self, method: str, params: Mapping[str, Any]) -> Any:
        assert method == "rollouts" and params["limit"] == PAGE
        self.asked.append(dict(params))
        if self.gone:
            raise NoNodeError("no node runs", "start one")
        before = tuple(params["before"]) if "before" in params else (10**9, 0)
        looked = [key for key in self.keys() if key < before][: self.at_once]
        found = [key for key in looked if params.get("origin") != "external" or key[1] == 0][:PAGE]
        last = found[-1] if len(found) == PAGE else looked[-1] if looked else None
        more = last is not None and any(key < last for key in self.keys())
        return {"rollouts": [_found(key) for key in found], "next": list(last) if more and last else None}


def _found(key: Key) -> dict[str, Any]:
    return {
        "round": key[0], "position": key[1], "entry": "sums", "question": "1 + 1 =", "answers": 4, "reward_mean": 0.5,
        "reward_best": 1.0, "informative": True, "own": key[1] > 0, "author": "x", "name": "x", "time": 1.0,
    }  # fmt: skip


def keys(pages: RolloutPages) -> list[Key]:
    return [row.key for row in pages.rows]


async def down(pages: RolloutPages, count: int) -> None:
    for _ in range(count):
        await pages.older()


async def test_going_down_and_up_again_shows_every_rollout_once() -> None:
    journal = Journal(200)
    pages, everything = RolloutPages(journal.ask), journal.keys()
    top = 0
    while not pages.complete:
        top -= await pages.older()
        assert len(pages.rows) <= WINDOW
        assert keys(pages) == everything[top : top + len(pages.rows)]
    assert keys(pages)[-1] == (1, 0) and top == len(everything) - len(pages.rows)
    while pages.more_above:
        top -= await pages.newer()
        assert len(pages.rows) <= WINDOW and keys(pages) == everything[top : top + len(pages.rows)]
    assert top == 0 and pages.at_top
    while not pages.complete:
        top -= await pages.older()
    assert keys(pages)[-1] == (1, 0)


async def test_a_sparse_search_goes_on_where_it_stopped() -> None:
    journal = Journal(100, at_once=30)
    pages = RolloutPages(journal.ask)
    pages.begin(Filter(origin="external"))
    while not pages.complete:
        await pages.older()
        assert pages.looked or pages.complete
    assert keys(pages) == [(round, 0) for round in range(100, 0, -1)]
    assert all(asked["origin"] == "external" for asked in journal.asked)


async def test_new_rounds_come_in_at_the_top_and_are_counted_until_they_are_seen() -> None:
    journal = Journal(20)
    pages = RolloutPages(journal.ask)
    await pages.older()
    journal.last = 21
    assert await pages.fresh(10) == EIGHT
    assert keys(pages)[0] == (21, EIGHT - 1) and pages.unseen == EIGHT and pages.at_top
    assert await pages.fresh(10) == 0 and pages.unseen == EIGHT
    pages.seen(3)
    assert pages.unseen == 3
    pages.seen(5)
    assert pages.unseen == 3


async def test_new_rounds_wait_above_while_the_user_is_far_down() -> None:
    journal = Journal(200)
    pages = RolloutPages(journal.ask)
    await down(pages, 12)
    kept = keys(pages)
    for round in range(201, 221):
        journal.last = round
        assert await pages.fresh(300) == 0
    assert keys(pages) == kept and pages.unseen == 20 * EIGHT and not pages.at_top
    everything = journal.keys()
    while pages.more_above:
        shift = await pages.newer()
        assert 0 < shift <= 2 * CHUNK
        top = everything.index(keys(pages)[0])
        assert keys(pages) == everything[top : top + len(pages.rows)] and len(pages.rows) <= WINDOW
    assert keys(pages)[0] == (220, EIGHT - 1) and pages.at_top


async def test_more_than_a_page_of_new_ones_is_not_filled_in() -> None:
    journal = Journal(20)
    pages = RolloutPages(journal.ask)
    await pages.older()
    kept = keys(pages)
    journal.last = 60
    assert await pages.fresh(10) == 0
    assert pages.many and pages.unseen == PAGE and keys(pages) == kept and not pages.more_above
    journal.last = 61
    assert await pages.fresh(10) == 0 and keys(pages) == kept
    pages.begin(pages.filter)
    await pages.older()
    assert keys(pages)[0] == (61, EIGHT - 1) and not pages.unseen and not pages.many


async def test_a_journal_that_was_rewound_is_loaded_anew() -> None:
    journal = Journal(20)
    pages = RolloutPages(journal.ask)
    await pages.older()
    journal.last = 15
    assert await pages.fresh(0) is None
    pages.begin(pages.filter)
    journal.first = 16
    await pages.older()
    assert pages.rows == [] and pages.complete and await pages.fresh(0) == 0
    journal.last = 17
    assert await pages.fresh(0) is None


async def test_a_reply_to_an_earlier_question_changes_nothing() -> None:
    journal = Journal(20)
    pages = RolloutPages(journal.ask)
    ask = journal.ask

    async def ask_slowly(method: str, params: Mapping[str, Any]) -> Any:
        reply = await ask(method, params)
        if "origin" not in params:
            pages.begin(Filter(origin="external"))
        return reply

    pages._ask = ask_slowly
    assert await pages.older() == 0
    assert pages.rows == [] and not pages.begun
    await pages.older()
    assert {key[1] for key in keys(pages)} == {0}


async def test_a_node_that_is_gone_leaves_what_is_there() -> None:
    journal = Journal(200)
    pages = RolloutPages(journal.ask)
    await down(pages, 10)
    kept, journal.gone = keys(pages), True
    for load in (pages.older(), pages.newer(), pages.fresh(0)):
        with pytest.raises(NoNodeError):
            await load
    assert keys(pages) == kept and pages.more_above
