"""The rollouts screen: questions and answers of all rounds, with their rewards."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import ClassVar

from textual import getters, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import ContentSwitcher, Static

from sapo_edge.errors import SapoError
from sapo_edge.plain import counted, printable
from sapo_edge.tui.node.link import Link
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.rollouts.browser import RolloutBrowser
from sapo_edge.tui.screens.rollouts.detail import RolloutDetail, parse_answers
from sapo_edge.tui.screens.rollouts.list import ORIGINS
from sapo_edge.tui.screens.rollouts.pages import Filter, Row
from sapo_edge.tui.screens.view import Change, View
from sapo_edge.tui.widgets.cursor_list import CursorList
from sapo_edge.tui.widgets.then_and_now import all_examples_text

IN_LIST = frozenset({"open", "search", "newest", "origin", "level", "entry", "author", "then_and_now", "clear"})
IN_DETAIL = frozenset({"neighbour", "copy", "reorder", "whole", "ask"})


class Rollouts(View):
    """The list of rollouts, or one rollout with its answers."""

    MODE = "rollouts"
    DEFAULT_CSS = """
    Rollouts.-tall #asked { max-height: 10; }
    Rollouts.-tiny #asked { max-height: 2; }
    """
    HELP_TEXT = """\
A **rollout** is one question with all its answers. The list has those of the last 500 rounds, newest first: your
**own**, and those of **peers** with the rewards that *your* node computed.

**●** the answers differ in reward, so the model learns from the rollout. **○** all got the same reward: there is
nothing to learn, unless all of your own are wrong and the right one is known (setting *corrections*).

**Filters**: `b` both, own or others, `t` only the task and `a` only the author of the chosen line (press again for
all), `/` text in question or answers, `l` only those that teach, then only what the swarm gave: questions that others
answered right, of a task at which all own answers of that round failed. `d` clears all filters.

`v` shows held-out questions with the answers before training and now, of the task that is filtered. In a rollout, `y`
puts its question into the chat, where both models answer it: the one before training, and the one of now.

In a rollout, the **advantage** says how much better an answer was than the others of its group. `o` changes the order
of the answers; `v` or Enter shows one answer alone. Tab goes to question and answer, to scroll them.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open", id="rollouts.open"),
        Binding("slash", "search", "Search", key_display="/", id="rollouts.search"),
        Binding("g", "newest", "Newest", id="rollouts.newest"),
        Binding("b", "origin", "Both, own, or others", show=False, id="rollouts.origin"),
        Binding("l", "level", "All, what teaches, or what the swarm gave", show=False, id="rollouts.level"),
        Binding("t", "entry", "Only this task", show=False, id="rollouts.task"),
        Binding("a", "author", "Only this author", show=False, id="rollouts.author"),
        Binding("v", "then_and_now", "Then and now", id="rollouts.then", tooltip="The same questions, before and now"),
        Binding("y", "ask", "Ask both now", id="rollouts.ask", tooltip="Both models answer this question in the chat"),
        Binding("d", "clear", "Clear all filters", show=False, id="rollouts.clear"),
        Binding("escape", "back", "Back", id="rollouts.back"),
        Binding("j", "neighbour(1)", "Next", id="rollouts.next"),
        Binding("k", "neighbour(-1)", "Previous rollout", show=False, id="rollouts.previous"),
        Binding("c", "copy", "Copy", id="rollouts.copy"),
        Binding("o", "reorder", "Order of the answers", show=False, id="rollouts.order"),
        Binding("v,enter", "whole", "One answer alone, or the whole rollout", show=False, id="rollouts.whole"),
    ]

    _link: Link | None = None
    _question = ""
    browser = getters.query_one(RolloutBrowser)
    detail = getters.query_one(RolloutDetail)

    def content(self) -> ComposeResult:
        with ContentSwitcher(initial="browser", id="pages"):
            yield RolloutBrowser(self.sapo.request, id="browser")
            yield RolloutDetail(id="detail")
            with VerticalScroll(id="examples", classes="panel"):
                yield Static(id="then", markup=False)

    def on_mount(self) -> None:
        self.browser.list.focus()

    @property
    def page(self) -> str | None:
        return self.query_one("#pages", ContentSwitcher).current

    def node_changed(self, change: Change) -> None:
        if change & Change.STANDING:
            standing, link = self.sapo.state.standing, self.sapo.keeper.link
            if standing is not Standing.ATTACHED or link is None:
                self._link = None
                self.browser.detached(self.sapo.state.no_node_text("Questions and answers appear here"))
                return
            if link is not self._link:
                self._link = link
                self.browser.attached()
                return
        if change & Change.ROUND:
            self.browser.round_finished()

    def show_author(self, author: str, name: str) -> None:
        self._to_list()
        self.browser.filter(Filter(author=author, name=name))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if not self.has_widgets:
            return True
        if action in IN_LIST:
            return self.page == "browser" and not self.browser.has_class("-searching")
        if action in IN_DETAIL:
            return self.page == "detail"
        if action == "back":
            return self.page != "browser"
        return True

    @on(CursorList.Opened)
    def action_open(self) -> None:
        if self.browser.list.chosen is None:
            return
        self.query_one("#pages", ContentSwitcher).current = "detail"
        self.detail.focus()
        self.refresh_bindings()
        self._show()

    def action_back(self) -> None:
        if self.detail.has_class("-alone"):
            self.detail.remove_class("-alone")
        else:
            self._to_list()

    def action_neighbour(self, by: int) -> None:
        rows = self.browser.list
        before = rows.cursor
        rows.go(before + by)
        if rows.cursor != before:
            self._show()
        else:
            self.notify("this is the last one" if by > 0 else "this is the newest one", timeout=2)

    def action_reorder(self) -> None:
        self.detail.next_order()

    def action_whole(self) -> None:
        if self.detail.chosen is not None:
            self.detail.toggle_class("-alone")

    def action_copy(self) -> None:
        selected, reply = self.get_selected_text(), self.detail.chosen
        text = selected or (reply.text if reply is not None else "")
        if text:
            self.app.copy_to_clipboard(text)
            what = "the selection" if selected or reply is None else f"answer {reply.number}"
            self.notify(f"copied {what}, {counted(len(text), 'character')}", timeout=3)

    def action_search(self) -> None:
        self.browser.begin_search()

    def action_newest(self) -> None:
        self.browser.newest()

    def action_origin(self) -> None:
        current, origins = self.browser.pages.filter, list(ORIGINS)
        self.browser.filter(replace(current, origin=origins[(origins.index(current.origin) + 1) % len(origins)]))

    def action_level(self) -> None:
        now = self.browser.pages.filter
        self.browser.filter(replace(now, informative=not (now.informative or now.gave), gave=now.informative))

    def action_then_and_now(self) -> None:
        self.query_one("#pages", ContentSwitcher).current = "examples"
        self.query_one("#examples").focus()
        self.query_one("#then", Static).update("reading ...")
        self.refresh_bindings()
        self._read_examples()

    @work(group="examples", exclusive=True)
    async def _read_examples(self) -> None:
        then = self.query_one("#then", Static)
        outcome = await self.read(self.sapo.launcher.outcome, lambda error: then.update(printable(error)))
        if outcome is not None:
            pairs = () if outcome.report.learned is None else outcome.report.learned.examples
            then.update(all_examples_text(pairs, self.browser.pages.filter.entry))

    async def action_ask(self) -> None:
        if self._question:
            await self.sapo.ask_both(self._question)

    def action_entry(self) -> None:
        current, row = self.browser.pages.filter, self.browser.list.chosen
        self.browser.filter(replace(current, entry="" if current.entry or row is None else row.entry))

    def action_author(self) -> None:
        current, row = self.browser.pages.filter, self.browser.list.chosen
        author, name = ("", "") if current.author or row is None else (row.author, row.name)
        self.browser.filter(replace(current, author=author, name=name))

    def action_clear(self) -> None:
        self.browser.filter(Filter())

    def _to_list(self) -> None:
        self.detail.remove_class("-alone")
        self.query_one("#pages", ContentSwitcher).current = "browser"
        self.browser.list.focus()
        self.browser.list.show_cursor()
        self.browser.load()
        self.refresh_bindings()

    def _show(self) -> None:
        row = self.browser.list.chosen
        assert row is not None
        self._question = ""
        self.detail.expect(row, self.browser.list.distinct(row))
        self._fetch(row)

    @work(group="detail", exclusive=True)
    async def _fetch(self, row: Row) -> None:
        try:
            rollout = await self.sapo.request("rollout", {"round": row.key[0], "position": row.key[1]})
        except SapoError as error:
            self.detail.fail(f"{printable(error.message)}\n\n{printable(error.remedy)}")
            return
        # Escaping thousands of control characters takes a while.
        answers = await asyncio.to_thread(parse_answers, rollout["answers"])
        self._question = str(rollout["question"])
        self.detail.show(rollout["question"], rollout["ground_truth"], answers)
