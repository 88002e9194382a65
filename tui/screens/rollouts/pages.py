"""Rollouts of a node as a window into its journal: loaded page by page in both directions, never all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sapo_edge.plain import printable

PAGE = 50
"""Rollouts of one request; the most that a node gives."""
WINDOW = 400
"""Most rollouts that are kept in memory."""
CHUNK = 100
"""Rollouts that are let go of at once, when there are more."""
MARGIN = 40
"""Rollouts beyond what is in sight that are loaded ahead."""

Key = tuple[int, int]
"""Round and position: a place in the journal."""
Ask = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""Asks the node: method, parameters."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rollouts are wanted.

    Attributes:
        origin: "any", "own" or "external".
        informative: only those whose answers differ in reward.
        author, name: peer id and readable name of the only author; empty for any.
        entry: the only task, by the name of the manifest's entry; empty for any.
        search: text in question or answers; empty for any.
    """

    origin: str = "any"
    informative: bool = False
    author: str = ""
    name: str = ""
    entry: str = ""
    search: str = ""

    def params(self) -> dict[str, Any]:
        """As the node wants them; what is not filtered is left out."""
        found: dict[str, Any] = {"limit": PAGE}
        if self.origin != "any":
            found["origin"] = self.origin
        if self.informative:
            found["informative"] = True
        for name in ("author", "entry", "search"):
            if value := getattr(self, name):
                found[name] = value
        return found


@dataclass(frozen=True, slots=True)
class Row:
    """One rollout in the list. All texts but `author` and `entry` are printable already.

    Attributes:
        key: round and position.
        entry: name of the manifest's entry, as it is.
        question: its beginning, on one line.
        answers: how many.
        mean, best: of their rewards.
        informative: whether the answers differ in reward.
        own: whether this node made it.
        author: peer id, as it is.
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
    def of(cls, found: Mapping[str, Any]) -> Row:
        """From a node's reply."""
        return cls(
            (int(found["round"]), int(found["position"])),
            str(found["entry"]),
            printable(" ".join(str(found["question"]).split()))[:200],
            int(found["answers"]),
            float(found["reward_mean"] or 0),
            float(found["reward_best"] or 0),
            bool(found["informative"]),
            bool(found["own"]),
            str(found["author"]),
            printable(found["name"])[:60],
            float(found["time"] or 0),
        )


@dataclass(slots=True)
class _Gap:
    """Rows above the window that are not in memory.

    Attributes:
        bound: read from this place on, which itself is not one of them.
        rows: about how many.
    """

    bound: Key
    rows: int


class RolloutPages:
    """The window. Its methods return by how much the indices of the rows have grown.

    A reply that comes after `begin` was called again is of no use to anybody, and changes nothing.

    Args:
        ask: the node.

    Attributes:
        rows: newest first.
        filter: which rollouts they are.
        complete: whether nothing older is left.
        begun: whether anything was loaded.
        looked: the round down to which the node has looked; 0 before it did.
        unseen: rows that came in at the top since the user was there.
        many: whether there are more of those than were counted.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._turn = 0
        self.begin(Filter())

    def begin(self, wanted: Filter) -> None:
        """Forget everything; begin at the newest with `older`."""
        self._turn += 1
        self.filter = wanted
        self.rows: list[Row] = []
        self.complete = self.begun = self.many = False
        self.looked = self.unseen = 0
        self._above: list[_Gap] = []
        self._older: Key | None = None
        self._newest: Key | None = None

    @property
    def at_top(self) -> bool:
        """Whether nothing newer is known than the first row."""
        return not self._above and not self.many

    @property
    def more_above(self) -> bool:
        """Whether `newer` has something to load."""
        return bool(self._above)

    def seen(self, first: int) -> None:
        """The user looks at the row of this index, and has seen those below it."""
        if self.at_top:
            self.unseen = min(self.unseen, first)

    def find(self, key: Key) -> int | None:
        """Index of a rollout."""
        return next((index for index, row in enumerate(self.rows) if row.key == key), None)

    async def older(self) -> int:
        """Load a page at the bottom; drop rows at the top if there are too many.

        Raises:
            SapoError: if the node can't be asked.
        """
        turn = self._turn
        rows, after = await self._page(self._older)
        if turn != self._turn:
            return 0
        if self._newest is None and rows:
            self._newest = rows[0].key
        self.begun = True
        self.rows += rows
        self._older, self.complete = after, after is None
        self.looked = after[0] if after else 0
        if len(self.rows) <= WINDOW:
            return 0
        first = self.rows[0].key
        self._above.append(_Gap((first[0], first[1] + 1), CHUNK))
        del self.rows[:CHUNK]
        return -CHUNK

    async def newer(self) -> int:
        """Load again what was dropped at the top; drop rows at the bottom instead.

        Raises:
            SapoError: if the node can't be asked.
        """
        if not self._above:
            return 0
        turn, gap, below = self._turn, self._above[-1], self.rows[0].key
        found: list[Row] = []
        after: Key | None = gap.bound
        while after is not None and after > below:
            rows, after = await self._page(after)
            if turn != self._turn:
                return 0
            found += [row for row in rows if row.key > below]
            if rows and rows[-1].key <= below:
                break
        self._above.remove(gap)
        self._prepend(found)
        return len(found)

    async def fresh(self, looked_at: int) -> int | None:
        """Look for new rollouts at the top.

        Args:
            looked_at: index of the lowest row that the user sees or has chosen.

        Returns:
            None if the journal does not continue what was loaded, so that all has to be loaded anew.

        Raises:
            SapoError: if the node can't be asked.
        """
        turn, newest = self._turn, self._newest
        rows, after = await self._page(None)
        if turn != self._turn:
            return 0
        if newest is None or (rows and rows[0].key < newest):
            # Nothing was there, or a node that was started again went on from an earlier round.
            return None if rows else 0
        new = [row for row in rows if row.key > newest]
        if not new:
            return 0
        self._newest = new[0].key
        reached = after is None or after <= newest or len(new) < len(rows)
        self.unseen += len(new)
        if not reached or self.many:
            self.many = True
            return 0
        if self._above or looked_at > WINDOW // 2:
            self._leave_out(new)
            return 0
        self._prepend(new)
        return len(new)

    def _leave_out(self, new: list[Row]) -> None:
        bound = (new[0].key[0], new[0].key[1] + 1)
        # The first gap is the newest. Small ones become one, so that a night of rounds is not a gap each.
        if self._above and self._above[0].rows + len(new) <= CHUNK:
            self._above[0] = _Gap(bound, self._above[0].rows + len(new))
        else:
            self._above.insert(0, _Gap(bound, len(new)))

    def _prepend(self, rows: list[Row]) -> None:
        self.rows[:0] = rows
        if len(self.rows) > WINDOW:
            del self.rows[WINDOW:]
            self._older, self.complete = self.rows[-1].key, False

    async def _page(self, before: Key | None) -> tuple[list[Row], Key | None]:
        params = self.filter.params()
        if before is not None:
            params["before"] = list(before)
        reply = await self._ask("rollouts", params)
        after = reply.get("next")
        return [Row.of(found) for found in reply["rollouts"]], None if after is None else (int(after[0]), int(after[1]))
