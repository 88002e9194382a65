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
        params: dict[str, Any] = {"limit": PAGE}
        if self.origin != "any":
            params["origin"] = self.origin
        for name in ("informative", "gave", "author", "entry", "search"):
            if value := getattr(self, name):
                params[name] = value
        return params


@dataclass(frozen=True, slots=True)
class Row:
    """One rollout in the list. All texts but `author` and `entry` are printable.

    Attributes:
        question: its beginning, on one line.
        mean, best: of the answers' rewards.
        author: peer id; `name` is readable.
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
    """The rollouts that are loaded: the newest ones first, without gaps, to the oldest if `complete`.

    A reply that arrives after `begin` was called again is ignored. `looked` is the round down to which the node has
    looked; 0 before it did.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._turn = 0
        self.begin(Filter())

    def begin(self, filter: Filter) -> None:
        """Forget all rows; `load` begins with the newest ones."""
        self._turn += 1
        self.filter = filter
        self.rows: list[Row] = []
        self.complete = self.begun = False
        self.looked = 0
        self._next: Key | None = None

    def find(self, key: Key) -> int | None:
        return next((index for index, row in enumerate(self.rows) if row.key == key), None)

    async def load(self, *, newest: bool = False) -> None:
        """Load older rows, or the newest ones in place of all."""
        before, above = (None, []) if newest else (self._next, self.rows)
        params = self.filter.params() | ({} if before is None else {"before": list(before)})
        turn = self._turn
        reply = await self._ask("rollouts", params)
        if turn == self._turn:
            after = reply.get("next")
            self.rows = [*above, *map(Row.from_dict, reply["rollouts"])]
            self._next, self.begun = None if after is None else (int(after[0]), int(after[1])), True
            self.complete = after is None or len(self.rows) >= MAX_ROWS
            self.looked = int(after[0]) if after else 0
