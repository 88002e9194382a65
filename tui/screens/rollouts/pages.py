"""The node's rollouts, newest first, loaded page by page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sapo_edge.plain import printable

PAGE = 50
"""Rollouts of one request; the most that a node sends."""
MAX_ROWS = 20_000
"""Most rollouts that are kept in memory; by default the journal has 4000. Filters reach older ones."""

Key = tuple[int, int]
"""Round and position: a place in the journal."""
Ask = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""Sends the node a request: method, parameters."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rollouts are listed.

    Attributes:
        origin: "any", "own" or "external".
        informative: only those that teach.
        author, name: peer id and readable name of the only author; empty for any.
        entry: the only task, by the name of the manifest's entry; empty for any.
        search: text in question or answers; empty for any.
        gave: only what others had right where all own answers failed.
    """

    origin: str = "any"
    informative: bool = False
    author: str = ""
    name: str = ""
    entry: str = ""
    search: str = ""
    gave: bool = False

    def params(self) -> dict[str, Any]:
        """The parameters of the control method `rollouts`."""
        params: dict[str, Any] = {"limit": PAGE}
        if self.origin != "any":
            params["origin"] = self.origin
        if self.informative:
            params["informative"] = True
        if self.gave:
            params["gave"] = True
        for name in ("author", "entry", "search"):
            if value := getattr(self, name):
                params[name] = value
        return params


@dataclass(frozen=True, slots=True)
class Row:
    """One rollout in the list. All texts but `author` and `entry` are printable.

    Attributes:
        key: round and position.
        entry: name of the manifest's entry, not yet printable.
        question: its beginning, on one line.
        answers: how many.
        mean, best: of their rewards.
        author: peer id, not yet printable.
        name: readable name of the author.
        time: Unix seconds by the author's clock.
    """

    key: Key
    entry: str
    question: str
    answers: int
    mean: float
    best: float
    informative: bool
    own: bool
    author: str
    name: str
    time: float

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Row:
        """Read a rollout of the node's reply."""
        return cls(
            (int(fields["round"]), int(fields["position"])),
            str(fields["entry"]),
            printable(" ".join(str(fields["question"]).split()))[:200],
            int(fields["answers"]),
            float(fields["reward_mean"] or 0),
            float(fields["reward_best"] or 0),
            bool(fields["informative"]),
            bool(fields["own"]),
            str(fields["author"]),
            printable(fields["name"])[:60],
            float(fields["time"] or 0),
        )


class RolloutPages:
    """The rollouts that are loaded: the newest ones, without gaps.

    A reply that arrives after `begin` was called again is ignored.

    Attributes:
        rows: newest first.
        complete: whether no older ones are left.
        begun: whether anything was loaded.
        looked: the round down to which the node has looked; 0 before it did.
        unseen: new rollouts that the user has not seen.
        many: whether there are more new ones than a page; then they are not loaded.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._turn = 0
        self.begin(Filter())

    def begin(self, filter: Filter) -> None:
        """Forget all rows; `older` loads the newest ones."""
        self._turn += 1
        self.filter = filter
        self.rows: list[Row] = []
        self.complete = self.begun = self.many = False
        self.looked = self.unseen = 0
        self._next: Key | None = None

    def see(self, first: int) -> None:
        """Count as seen the row with this index and those below it."""
        if not self.many:
            self.unseen = min(self.unseen, first)

    def find(self, key: Key) -> int | None:
        """The index of a rollout; None if it is not loaded."""
        return next((index for index, row in enumerate(self.rows) if row.key == key), None)

    async def older(self) -> None:
        """Load one page at the end.

        Raises:
            SapoError: if the node does not answer.
        """
        turn = self._turn
        rows, after = await self._page(self._next)
        if turn == self._turn:
            self.rows += rows
            self._next, self.begun = after, True
            self.complete = after is None or len(self.rows) >= MAX_ROWS
            self.looked = after[0] if after else 0

    async def fresh(self) -> int | None:
        """Load new rollouts at the start, unless they are more than a page.

        Returns:
            How many were added; None if the journal does not continue these rows, so that all must be loaded again.

        Raises:
            SapoError: if the node does not answer.
        """
        turn = self._turn
        rows, after = await self._page(None)
        if turn != self._turn or not rows:
            return 0
        if not self.rows or rows[0].key < self.rows[0].key:
            # There were none, or the node was started from an earlier round.
            return None
        newest = self.rows[0].key
        new = [row for row in rows if row.key > newest]
        if len(new) == len(rows) and after is not None and after > newest:
            self.many, self.unseen = True, len(new)
        if self.many:
            return 0
        self.unseen += len(new)
        self.rows[:0] = new
        if len(self.rows) > MAX_ROWS:
            # The oldest make room; the journal has dropped most of them.
            del self.rows[MAX_ROWS:]
            self.complete = True
        return len(new)

    async def _page(self, before: Key | None) -> tuple[list[Row], Key | None]:
        params = self.filter.params()
        if before is not None:
            params["before"] = list(before)
        reply = await self._ask("rollouts", params)
        after = reply.get("next")
        rows = [Row.from_dict(fields) for fields in reply["rollouts"]]
        return rows, None if after is None else (int(after[0]), int(after[1]))
