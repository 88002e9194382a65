"""The chat screen: the base model and the adapter answer side by side."""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Resize, ScreenResume
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from sapo_edge.errors import ConfigError, SapoError
from sapo_edge.plain import counted, printable
from sapo_edge.tui.screens.chat.question import MAX_QUESTION, TEMPERATURES, AskBox, AskOptions
from sapo_edge.tui.screens.chat.session import ChatSession
from sapo_edge.tui.screens.chat.transcript import Transcript, Turn
from sapo_edge.tui.screens.view import View

DRAW_SECONDS = 0.1
"""Seconds between two drawings of a growing answer."""
STACKED_BELOW = 70
"""Columns below which the answers are one above the other."""
EXAMPLES = ("What is 17 + 25?", "Write one sentence about the sea.", "Which is larger, 9.9 or 9.11?")
"""Offered beside a question of the node."""
INTRO = (
    "Ask the base model and the adapter the same question, and see what training has changed. Type one below, or press "
    "Esc and choose one of these:"
)


class ChatView(View):
    """Questions and answers, and below them the box for the next question."""

    MODE = "chat"
    AUTO_FOCUS = "#ask"
    DEFAULT_CSS = """
    ChatView #standing { height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    ChatView #standing.-loaded { color: $text-success; }
    ChatView #standing.-failed { color: $text-error; }
    ChatView #start { align: center middle; }
    ChatView #start > * { width: 60; max-width: 100%; height: auto; padding: 0 1; }
    ChatView #intro { margin-bottom: 1; }
    ChatView #examples { max-height: 6; border: none; background: $background; }
    ChatView #examples:focus { background-tint: transparent; }
    ChatView.-tall #standing { height: 2; }
    ChatView #transcript, ChatView.-talking #start { display: none; }
    ChatView.-talking #transcript { display: block; }
    ChatView.-short AskBox { max-height: 6; }
    ChatView.-stacked #why { display: none; }
    ChatView.-stacked Turn .answers { grid-size: 1; }
    ChatView.-tiny #standing, ChatView.-tiny #intro { display: none; }
    ChatView.-tiny AskBox { border: none; min-height: 1; max-height: 3; padding: 0 1; background: $surface; }
    ChatView.-tiny Turn, ChatView.-tiny Turn AnswerBox { margin: 0; padding: 0; }
    ChatView.-tiny Turn AnswerBox { border: none; border-top: solid $border; min-height: 2; }
    ChatView.-tiny Turn AnswerBox:focus { border-top: solid $primary; }
    """
    HELP_TEXT = """\
Ask the base model and the adapter the same question, and see what training has changed. Nothing is shared, and no
model learns from it.

**As a task** (t) asks with the prompt that the adapter was trained with: this shows best what it has learned. Each such
question stands alone. **Plain chat** asks without that prompt, and each model remembers the conversation with its own
answers, until `n` begins a new one. A stopped answer is not remembered; `r` asks the last question again and forgets
its answers. *Greedy* (h) always takes the likeliest word; with a temperature, answers vary.

The models run in a process of their own. Your first question starts it; it ends with the app, after ten minutes
without a question, or with `m`. The conversation is forgotten then. The next question first loads a better adapter that
was saved meanwhile, unless a conversation goes on; after a change of the run, always.

While you type, letters and digits are text. **Esc** leaves the text field: then the keys of this screen and of the app
work, such as `y` for a question like those in training; `e` or Enter returns to it.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "type", "Ask", id="chat.ask"),
        Binding("enter", "type", "Ask", show=False, id="chat.ask_too"),
        Binding("y", "example", "Example", id="chat.example", tooltip="A question like those in training"),
        Binding("t", "task", "Task/plain", id="chat.task", tooltip="With the prompt of the training, or without it"),
        Binding("h", "temperature", "Heat: greedy, 0.7 or 1.0", show=False, id="chat.temperature"),
        Binding("n", "new", "Forget the plain chat and begin a new one", show=False, id="chat.new"),
        Binding("c", "copy", "Copy the answer in focus, or the newest", show=False, id="chat.copy"),
        Binding("r", "again", "Ask the last question again", show=False, id="chat.again"),
        Binding("m", "load", "Load or unload the models", show=False, id="chat.load"),
        Binding("escape", "back", "Stop the answer, or leave", show=False, id="chat.back"),
    ]

    idle_seconds = 600.0
    """Time without a question after which the process ends: the models take memory that the node could use."""
    _answering: Turn | None = None
    _idle: Timer | None = None
    _failed = ""

    def content(self) -> ComposeResult:
        self._session = ChatSession(self.sapo.launcher)
        yield Static(markup=False, id="standing")
        with Vertical(id="start"):
            yield Static(INTRO, markup=False, id="intro")
            own = Option(Content("A question like those in training (y)"), id="own")
            yield OptionList(own, *(Option(Content(text)) for text in EXAMPLES), id="examples")
        yield Transcript(id="transcript")
        yield AskBox(id="ask")
        yield AskOptions()

    def on_mount(self) -> None:
        self._drawing = self.set_interval(DRAW_SECONDS, self._draw, pause=True)
        self.query_one(AskBox).border_title = "Your question"
        self._show_models()

    async def on_unmount(self) -> None:
        await self._session.close()

    def on_screen_suspend(self) -> None:
        """Enter the text field, so that typing begins a question when this screen is shown again."""
        if self.app.current_mode != self.MODE:
            self.action_type()

    def on_screen_resume(self, event: ScreenResume) -> None:
        self._draw()

    def on_resize(self, event: Resize) -> None:
        self.set_class(event.size.width < STACKED_BELOW, "-stacked")

    def action_submit(self) -> None:
        box, options = self.query_one(AskBox), self.query_one(AskOptions)
        text = box.text.strip()
        if not text:
            return
        if self._answering is not None:
            self.notify("one question at a time: wait for the answer, or stop it with Esc", markup=False)
            return
        if len(text) > MAX_QUESTION:
            problem = f"the question has {len(text)} characters"
            self.sapo.show_error(ConfigError(problem, f"shorten it to {MAX_QUESTION}"))
            return
        box.remember(text)
        self._start(text, as_task=options.as_task, temperature=options.temperature)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option.id == "own":
            self.action_example()
        else:
            self._put(EXAMPLES[event.option_index - 1])

    def _start(self, text: str, *, as_task: bool, temperature: float, again: bool = False) -> None:
        self.add_class("-talking")
        self._answering = self.query_one(Transcript).add(text, as_task=as_task, temperature=temperature)
        self._ask(self._answering, again)

    @work(group="ask")
    async def _ask(self, turn: Turn, again: bool) -> None:
        self._begin_work()
        failure: SapoError | None = None
        try:
            complete = await self._session.ask(
                turn.question, as_task=turn.as_task, temperature=turn.temperature, show=turn.take, again=again
            )
        except SapoError as error:
            complete, failure = False, error
        if not self.has_widgets:
            return
        if failure is None:
            turn.end("no adapter: nothing is trained yet" if complete else "stopped")
        else:
            turn.fail(failure)
        if not turn.as_task and (forgotten := self._session.memory.forgotten):
            oldest = f"the oldest {counted(forgotten, 'question')}"
            self.notify(f"forgotten, because the model has no room for them: {oldest}", markup=False)
        self._draw()
        self._answering = None
        self._end_work()

    def _draw(self) -> None:
        if not self.is_current:
            return
        self._show_models()
        if self._answering is not None:
            self.query_one(Transcript).draw(self._answering, f"{self._session.doing or 'reading the question'} ...")

    def _begin_work(self) -> None:
        self._failed = ""
        self._drawing.resume()
        if self._idle is not None:
            self._idle.stop()

    def _end_work(self) -> None:
        """Stop drawing, and end the process after some time."""
        if not self.has_widgets:
            return
        self._show_models()
        if self._answering is None:
            self._drawing.pause()
            self._idle = self.set_timer(self.idle_seconds, self._unload)

    @work(group="close")
    async def _stop(self) -> None:
        await self._session.stop()

    @work(group="close")
    async def _unload(self) -> None:
        await self._session.close()
        if self.has_widgets:
            self._show_models()

    def action_type(self) -> None:
        self.query_one(AskBox).focus()

    @work(exclusive=True, group="example")
    async def action_example(self) -> None:
        try:
            reply = await self.sapo.request("question", timeout=60)
            question = printable(str(reply["question"]), lines=True)
            if len(question) > MAX_QUESTION:
                raise ConfigError("the node's question is too long for the chat", "press y for another one")
        except SapoError as error:
            self.sapo.show_error(error)
        else:
            self._put(question)

    def propose(self, question: str) -> None:
        """Put a question of the training into the question box, to be asked as a task."""
        question = printable(question, lines=True)
        if len(question) > MAX_QUESTION:
            self.sapo.show_error(ConfigError("the question is too long for the chat", "ask it with `sapo chat`"))
            return
        if not self.query_one(AskOptions).as_task:
            self.action_task()
        self._put(question)

    def action_task(self) -> None:
        options = self.query_one(AskOptions)
        options.as_task = not options.as_task
        self._show_models()

    def action_temperature(self) -> None:
        options = self.query_one(AskOptions)
        options.temperature = TEMPERATURES[(TEMPERATURES.index(options.temperature) + 1) % len(TEMPERATURES)]
        self._show_models()

    def action_copy(self) -> None:
        box = self.query_one(Transcript).to_copy(self.focused)
        if box is None:
            self.notify("there is no answer to copy", severity="warning", markup=False)
        else:
            self.app.copy_to_clipboard(box.answer)
            self.notify(f"copied the answer of the {box.border_title}", markup=False)

    def action_again(self) -> None:
        last = self.query_one(Transcript).last
        if last is not None and self._answering is None:
            self._start(last.question, as_task=last.as_task, temperature=last.temperature, again=True)

    def action_new(self) -> None:
        if self._answering is None and self._session.memory.questions:
            self._session.forget()
            self._show_models()
            self.notify("the conversation is forgotten", markup=False)

    async def action_load(self) -> None:
        if self._session.loaded or self._session.doing:
            self._unload()
        else:
            self._load()

    @work(group="ask")
    async def _load(self) -> None:
        self._begin_work()
        try:
            await self._session.load()
        except SapoError as error:
            self._failed = str(error)
        self._end_work()

    def action_back(self) -> None:
        if self._answering is not None:
            self._stop()
        else:
            self._rest.focus()

    @property
    def _rest(self) -> Widget:
        return self.query_one("#transcript" if self.has_class("-talking") else "#examples")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "back":
            return self.is_mounted and (self._answering is not None or self.focused is not self._rest)
        return super().check_action(action, parameters)

    def _put(self, text: str) -> None:
        box = self.query_one(AskBox)
        box.put(text)
        box.focus()

    def _show_models(self) -> None:
        kind, words = self._session.describe(self._failed)
        line = self.query_one("#standing", Static)
        line.set_classes(kind)
        line.update(Content(words))
        self.query_one(AskOptions).show(self._session.memory.questions)
        self.query_one(AskBox).border_subtitle = "Esc stops" if self._answering else "Enter asks · Esc: other keys"
