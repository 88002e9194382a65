"""The list of rollouts with its filters, loaded from the node as it is scrolled."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual import getters
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from sapo_edge.errors import SapoError
from sapo_edge.plain import printable
from sapo_edge.tui.screens.rollouts.list import FilterBar, RolloutList
from sapo_edge.tui.screens.rollouts.pages import Ask, Filter, RolloutPages, Row
from sapo_edge.tui.widgets.cursor_list import CursorList

MAX_SEARCH = 200
"""Most characters of a search that the node accepts."""
MARGIN = 40
"""Rows below the visible ones that are loaded ahead."""
NO_MATCH = "No rollout matches.\n\nd clears all filters, / searches for another text."
NOTHING_GIVEN = (
    "The swarm gave nothing here: in no stored round others had a right answer to a task at which all own answers "
    "failed.\n\nl shows all rollouts again."
)
NONE_YET = "No rollout yet.\n\nThe questions and answers of a round appear here when it is finished."


class SearchInput(Input):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave", id="rollouts.leave_search")]

    def action_leave(self) -> None:
        self.query_ancestor(RolloutBrowser).end_search()


class RolloutBrowser(Vertical):
    """A list that loads rollouts as it is scrolled, one request at a time."""

    DEFAULT_CSS = """
    RolloutBrowser SearchInput { display: none; padding: 0 1; background: $surface; }
    RolloutBrowser.-searching SearchInput { display: block; }
    RolloutBrowser.-searching FilterBar { display: none; }
    """
    list = getters.query_one(RolloutList)

    def __init__(self, ask: Ask, *, id: str) -> None:
        super().__init__(id=id)
        self.pages = RolloutPages(ask)
        self._no_node = ""
        self._loading = self._has_newer = False
        self._failure: SapoError | None = None
        self._kept: Row | None = None

    def compose(self) -> ComposeResult:
        yield FilterBar()
        yield SearchInput(
            placeholder="text in question or answers: Enter searches, Esc leaves", max_length=MAX_SEARCH, compact=True
        )
        yield RolloutList(id="list")

    # The node.

    def attached(self) -> None:
        """Load everything again: it is another node, or one that was started from an earlier checkpoint."""
        self._no_node = ""
        self.filter(self.pages.filter, keep=True)

    def detached(self, reason: str) -> None:
        """Show why no node answers; the rows stay."""
        self._no_node = reason
        self.update_bar()

    def round_finished(self) -> None:
        """Load the newest rollouts, as soon as the list is at its top: rows that somebody reads stay where they are."""
        self._has_newer = self.pages.begun
        self.load()
        self.update_bar()

    # The user.

    def newest(self) -> None:
        if self._has_newer or self._failure:
            self.filter(self.pages.filter)
        else:
            self.list.go(0)

    def begin_search(self) -> None:
        field = self.query_one(SearchInput)
        self.add_class("-searching")
        field.value = self.pages.filter.search
        field.focus()

    def end_search(self) -> None:
        self.list.focus()
        self.remove_class("-searching")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.end_search()
        text = event.value.strip()
        if text != self.pages.filter.search:
            self.filter(replace(self.pages.filter, search=text))

    # Loading.

    def filter(self, filter: Filter, *, keep: bool = False) -> None:
        """Show other rollouts, starting with the newest; or keep the cursor on its rollout."""
        self._kept = self.list.chosen if keep else None
        self.pages.begin(filter)
        self._has_newer, self._failure = False, None
        self.list.show(self.pages.rows, cursor=0)
        self.update_bar()
        self.load()

    def load(self) -> None:
        if not self._loading and self._missing():
            self._loading = True
            self.run_worker(self._load_missing(), name="rollouts", group="rollouts")

    def _missing(self) -> str:
        if self._no_node:
            return ""
        pages = self.pages
        lowest = max(self.list.first_in_sight + self.list.rows_in_sight, self.list.cursor)
        if not pages.begun or (not pages.complete and lowest + MARGIN >= len(pages.rows)):
            return "older"
        is_at_top = self.display and self.list.cursor == self.list.first_in_sight == 0
        return "newest" if self._has_newer and is_at_top else ""

    async def _load_missing(self) -> None:
        self._failure = None
        try:
            while part := self._missing():
                self.update_bar()
                await (self._load_older() if part == "older" else self._load_newest())
        except SapoError as error:
            self._failure, self._has_newer = error, False
        finally:
            self._loading = False
        self.update_bar()

    async def _load_older(self) -> None:
        await self.pages.load()
        cursor = None
        if self._kept is not None:
            cursor, self._kept = self.pages.find(self._kept.key), None
        self.list.show(self.pages.rows, cursor=cursor)

    async def _load_newest(self) -> None:
        self._has_newer = False
        await self.pages.load(newest=True)
        self.list.show(self.pages.rows, cursor=0)

    def update_bar(self) -> None:
        pages, text = self.pages, ""
        if self._has_newer:
            text = "new ones: press g"
        elif pages.rows and self._failure is not None:
            text = f"{printable(self._failure.message)[:30]}: g tries again"
        elif pages.rows and self._no_node:
            text = "no node answers"
        elif self._loading and pages.looked:
            text = f"searching, round {pages.looked}"
        self.query_one(FilterBar).show(pages.filter, text, new=self._has_newer)
        self.list.say("" if pages.rows else self._why_empty())

    def _why_empty(self) -> str:
        pages = self.pages
        if self._no_node:
            return self._no_node
        if self._failure is not None:
            return f"{printable(self._failure.message)}\n\n{printable(self._failure.remedy)}; g tries again."
        if not pages.complete:
            return f"Searching, round {pages.looked} ..." if pages.looked else "Loading ..."
        if pages.filter == Filter(gave=True):
            return NOTHING_GIVEN
        return NONE_YET if pages.filter == Filter() else NO_MATCH

    def on_cursor_list_moved(self, message: CursorList.Moved) -> None:
        message.stop()
        self.update_bar()
        self.load()

    def on_resize(self) -> None:
        self.call_after_refresh(self.update_bar)
