"""The list of peers, sorted by any of its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sapo_edge.plain import duration, printable, size
from sapo_edge.swarm.status import host_port
from sapo_edge.tui.widgets.cursor_list import Cells, Column, CursorList

Peer = Mapping[str, Any]


class PeerList(CursorList[Peer]):
    """One peer a line. The cursor stays on its peer when the order changes."""

    OPENS_ON_CLICK = False
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("name", "peer", 0),
        Column("direction", "way", 4),
        Column("since", "for", 7, right=True, needs=60),
        Column("received", "got", 9, right=True),
        Column("sent", "sent", 9, right=True, needs=50),
        Column("refused", "refused", 8, right=True),
        Column("score", "trust", 7, right=True, needs=60),
        Column("mesh", "now", 5, needs=110),
        Column("address", "address", 28, needs=96),
    )

    sorted_by, descending = "since", True
    _now = 0.0

    def show(self, peers: Sequence[Peer], now: float) -> None:
        """Show the connected peers of a status, which is of `now`, in Unix seconds."""
        chosen = self.chosen
        self._now = now
        ordered = sorted(peers, key=lambda peer: str(peer.get("peer_id")))
        ordered.sort(key=lambda peer: _value(peer, self.sorted_by, now), reverse=self.descending)
        ids = [peer.get("peer_id") for peer in ordered]
        cursor = ids.index(chosen.get("peer_id")) if chosen and chosen.get("peer_id") in ids else self.cursor
        self.take(ordered, cursor=None if cursor == self.cursor else cursor)

    def sort_by(self, key: str) -> None:
        # The largest numbers are of interest, but names from A.
        self.descending = not self.descending if key == self.sorted_by else key not in ("name", "direction", "address")
        self.sorted_by = key
        self.show(self.rows, self._now)
        self.show_cursor()

    def sort_by_next(self) -> None:
        keys = [column.key for column, _ in self.fitting()]
        index = keys.index(self.sorted_by) if self.sorted_by in keys else -1
        self.sort_by(keys[(index + 1) % len(keys)])

    def title(self, column: Column) -> str:
        if column.key != self.sorted_by:
            return column.title
        return f"{column.title}{'▼' if self.descending else '▲'}"

    def cells(self, peer: Peer) -> Cells:
        address = printable(peer.get("address", ""))[:300]
        since, refused, score = (_value(peer, key, self._now) for key in ("since", "refused", "score"))
        return {
            "name": (printable(peer.get("name", ""))[:80], "" if peer.get("subscribed") else "muted"),
            "direction": ({"in": "in", "out": "out"}.get(str(peer.get("direction")), "?"), "muted"),
            # The largest unit is enough here.
            "since": (" ".join(duration(since).split()[:2]), "muted"),
            "received": (size(peer.get("received") or 0), ""),
            "sent": (size(peer.get("sent") or 0), ""),
            "refused": (str(refused), "warn") if refused else ("-", "muted"),
            "score": (f"{score:.1f}", "bad" if score < 0 else "muted"),
            "mesh": ("yes", "good") if peer.get("mesh") else ("no", "muted"),
            "address": (host_port(address) or address, "muted"),
        }


def _value(peer: Peer, key: str, now: float) -> Any:
    match key:
        case "name" | "direction" | "address":
            return str(peer.get(key, "")).casefold()
        case "since":
            return max(0.0, now - float(peer.get("since") or 0))
        case "refused":
            return sum(int(number) for number in (peer.get("rejected") or {}).values())
        case "mesh":
            return bool(peer.get("mesh"))
        case _:
            return float(peer.get(key) or 0)
