"""The list of rollouts with its filters, loaded from the node as it is scrolled."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from sapo_edge.errors import SapoError
from sapo_edge.plain import printable
from sapo_edge.tui.screens.rollouts.list import ORIGINS, FilterBar, RolloutList
from sapo_edge.tui.screens.rollouts.pages import MARGIN, Ask, Filter, RolloutPages, Row
from sapo_edge.tui.widgets.cursor_list import CursorList

MAX_SEARCH = 200
"""Characters that the node takes for a search."""
NO_MATCH = "No rollout is like that.\n\nx drops the filters, / looks for something else."
NONE_YET = "No rollout yet.\n\nThe questions and answers of a round appear here when it is finished."


class SearchInput(Input):
    """Where a text to look for is typed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave", id="rollouts.leave_search")]

    def action_leave(self) -> None:
        """Search for nothing else than before."""
        self.query_ancestor(RolloutBrowser).end_search()


class RolloutBrowser(Vertical):
    """A window into the node's journal, one request at a time.

    Args:
        ask: the node.

    Attributes:
        pages: what is loaded.
    """

    DEFAULT_CSS = """
    RolloutBrowser { height: 1fr; }
    RolloutBrowser SearchInput { display: none; padding: 0 1; background: $surface; }
    RolloutBrowser.-searching SearchInput { display: block; }
    RolloutBrowser.-searching FilterBar { display: none; }
    """

    def __init__(self, ask: Ask, *, id: str) -> None:
        super().__init__(id=id)
        self.pages = RolloutPages(ask)
        self._why = ""
        self._loading = self._fresh_due = False
        self._failure: SapoError | None = None
        self._kept: Row | None = None

    def compose(self) -> ComposeResult:
        """Filters or search, and the list."""
        yield FilterBar()
        yield SearchInput(
            placeholder="text in question or answers: Enter searches, Esc leaves", max_length=MAX_SEARCH, compact=True
        )
        yield RolloutList(id="list")

    @property
    def list(self) -> RolloutList:
        """The rows."""
        return self.query_one(RolloutList)

    @property
    def chosen(self) -> Row | None:
        """The rollout under the cursor."""
        rows, cursor = self.pages.rows, self.list.cursor
        return rows[cursor] if cursor < len(rows) else None

    @property
    def searching(self) -> bool:
        """Whether a text to look for is being typed."""
        return self.has_class("-searching")

    # What the node does.

    def attached(self) -> None:
        """Load everything anew: it is another node, or the same one from an earlier checkpoint on."""
        self._why = ""
        self._begin(self.pages.filter, keep=True)

    def detached(self, why: str) -> None:
        """No node answers; what is loaded stays."""
        self._why = why
        self.tell()

    def round_finished(self) -> None:
        """There may be new rollouts."""
        self._fresh_due = self.pages.begun
        self._load()

    # What the user wants.

    def filter(self, wanted: Filter) -> None:
        """Show other rollouts, from the newest on."""
        self._begin(wanted)

    def filter_origin(self) -> None:
        """Own and others, own only, others only."""
        wanted, origins = self.pages.filter, list(ORIGINS)
        self.filter(replace(wanted, origin=origins[(origins.index(wanted.origin) + 1) % len(origins)]))

    def filter_informative(self) -> None:
        """Only what teaches, or everything."""
        self.filter(replace(self.pages.filter, informative=not self.pages.filter.informative))

    def filter_entry(self) -> None:
        """Only the task of the chosen line, or any."""
        wanted, row = self.pages.filter, self.chosen
        self.filter(replace(wanted, entry="" if wanted.entry or row is None else row.entry))

    def filter_author(self) -> None:
        """Only the author of the chosen line, or any."""
        wanted, row = self.pages.filter, self.chosen
        author, name = ("", "") if wanted.author or row is None else (row.author, row.name)
        self.filter(replace(wanted, author=author, name=name))

    def newest(self) -> None:
        """Go to the newest rollout, and load what came in meanwhile."""
        if self.pages.at_top and not self._failure:
            self.list.go(0)
        else:
            self._begin(self.pages.filter)

    def move(self, by: int) -> Row | None:
        """Choose a neighbour; None if there is none, or it is still being loaded."""
        before = self.list.cursor
        self.list.go(before + by)
        return self.chosen if self.list.cursor != before else None

    def begin_search(self) -> None:
        """Ask what to look for."""
        field = self.query_one(SearchInput)
        self.add_class("-searching")
        field.value = self.pages.filter.search
        field.focus()

    def end_search(self) -> None:
        """Leave the search field."""
        self.list.focus()
        self.remove_class("-searching")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Look for it; for nothing, show all."""
        event.stop()
        self.end_search()
        wanted = event.value.strip()
        if wanted != self.pages.filter.search:
            self.filter(replace(self.pages.filter, search=wanted))

    # Loading: whatever is missing most, until nothing is.

    def _begin(self, wanted: Filter, *, keep: bool = False) -> None:
        self._kept = self.chosen if keep else None
        self.pages.begin(wanted)
        self._fresh_due, self._failure = False, None
        self.list.show(self.pages.rows, cursor=0)
        self.tell()
        self._load()

    def _load(self) -> None:
        if not self._loading and self._missing():
            self._loading = True
            self.run_worker(self._load_all(), name="rollouts", group="rollouts")

    def _missing(self) -> str:
        if self._why:
            return ""
        pages, shown = self.pages, self.list
        if not pages.begun or (not pages.complete and self._lowest() + MARGIN >= len(pages.rows)):
            return "older"
        if pages.more_above and min(shown.first_in_sight, shown.cursor) < MARGIN:
            return "newer"
        return "fresh" if self._fresh_due else ""

    def _lowest(self) -> int:
        return max(self.list.first_in_sight + self.list.rows_in_sight, self.list.cursor)

    async def _load_all(self) -> None:
        self._failure = None
        try:
            while what := self._missing():
                self.tell()
                await self._load_one(what)
        except SapoError as error:
            self._failure, self._fresh_due = error, False
        finally:
            self._loading = False
        self.tell()

    async def _load_one(self, what: str) -> None:
        pages, first = self.pages, not self.pages.begun
        shift: int | None
        if what == "fresh":
            self._fresh_due = False
            shift = await pages.fresh(self._lowest())
        else:
            shift = await (pages.older() if what == "older" else pages.newer())
        if shift is None:
            self._begin(pages.filter, keep=True)
            return
        cursor = None
        if first and self._kept is not None:
            cursor, self._kept = pages.find(self._kept.key), None
        self.list.show(pages.rows, shift=shift, cursor=cursor)

    def tell(self) -> None:
        """Name the filters; say what is new or going on, and why nothing is there."""
        pages, told = self.pages, ""
        pages.seen(self.list.first_in_sight)
        if pages.unseen:
            told = f"{pages.unseen}{'+' if pages.many else ''} new: press g"
        elif pages.rows and self._failure is not None:
            told = f"{printable(self._failure.message)[:30]}: g tries again"
        elif pages.rows and self._why:
            told = "no node answers"
        elif self._loading and pages.looked:
            told = f"looking, round {pages.looked}"
        self.query_one(FilterBar).show(pages.filter, told, new=bool(pages.unseen))
        self.list.say("" if pages.rows else self._nothing())

    def _nothing(self) -> str:
        pages = self.pages
        if self._why:
            return self._why
        if self._failure is not None:
            return f"{printable(self._failure.message)}\n\n{printable(self._failure.remedy)}; g tries again."
        if not pages.complete:
            return f"Looking, round {pages.looked} ..." if pages.looked else "Looking ..."
        return NONE_YET if pages.filter == Filter() else NO_MATCH

    def on_cursor_list_moved(self, message: CursorList.Moved) -> None:
        """Load what comes into sight."""
        message.stop()
        self.tell()
        self._load()

    def on_resize(self) -> None:
        """Name as many filters as there is room for."""
        self.call_after_refresh(self.tell)
