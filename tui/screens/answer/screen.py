"""Be a generator yourself: a question of the node, answers of a person, shared like a model's."""

from __future__ import annotations

from typing import ClassVar, Literal

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from sapo_edge.errors import SapoError
from sapo_edge.person import PersonAnswers, Question, Verdict, tag_answer
from sapo_edge.plain import printable
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.answer.fields import MAX_CHARACTERS, AnswerFields, refused
from sapo_edge.tui.screens.answer.verdict import Tally, verdict_text
from sapo_edge.tui.screens.view import Change, View

PATIENCE = 60.0
"""Seconds that a node may take to make a question or to verify: it computes meanwhile."""
MAX_QUESTION = 16384
"""Characters of a question that are shown."""
SEVERAL = (
    "Enter begins the next answer, up to 8; Enter on an empty line submits. Give a wrong answer beside the right one: "
    "nodes train on the difference, and leave out what was all right or all wrong."
)
SHARED = (
    "Nothing leaves this machine before you submit. Then your answers, with the question and the time, signed by this "
    "node, go to everybody in its swarm, and can't be taken back."
)
ALONE = "This node works alone: it verifies your answers, and sends them to nobody."
RESTS = "That it rests now changes nothing of this."

Stage = Literal["nothing", "drawing", "typing", "verifying", "judged"]


class AnswerView(View):
    """The question above; below, what is typed, and then the verdict."""

    MODE = "answer"
    AUTO_FOCUS = "#question"
    DEFAULT_CSS = """
    AnswerView #body { height: 1fr; overflow: hidden; }
    AnswerView #question { height: auto; min-height: 3; max-height: 40%; scrollbar-size-vertical: 1; }
    AnswerView #asked, AnswerView #outcome { height: auto; }
    AnswerView #typing, AnswerView #verdict { height: auto; max-height: 14; display: none; }
    AnswerView #verdict { scrollbar-size-vertical: 1; }
    AnswerView.-typing #typing, AnswerView.-judged #verdict { display: block; }
    AnswerView #note { height: auto; padding: 0 2; display: none; }
    AnswerView #note.-bad { color: $text-error; }
    AnswerView #note.-told { display: block; }
    AnswerView #hints { height: 1fr; display: none; scrollbar-size-vertical: 1; }
    AnswerView.-typing #hints { display: block; }
    AnswerView .said { width: 1fr; max-width: 100; height: auto; padding: 0 2; color: $text-muted; }
    AnswerView #sharing { margin-bottom: 1; }
    AnswerView.-tall #question, AnswerView.-tall #typing, AnswerView.-tall #note { margin-bottom: 1; }
    AnswerView.-empty #question { height: 1fr; max-height: 100%; border: none; align: center middle; }
    AnswerView.-empty #question:focus { border: none; }
    AnswerView.-empty #asked { width: auto; max-width: 100%; color: $text-muted; }
    AnswerView.-tiny #hints, AnswerView.-tiny #tally { display: none; }
    AnswerView.-tiny #question { min-height: 1; }
    """
    HELP_TEXT = """\
Answer a question that the node would ask its model. The verifier rewards your answers, and the swarm gets them like a
model's: every node verifies them anew, and may learn from them.

What teaches is the **difference** between right and wrong answers to one question: give a right one and some that are
plausible and wrong. Without answer tags, what you type is the answer.

Nothing is sent before you **submit** (Enter on an empty line, or Ctrl+S). **Next** (n) leaves a question out, and costs
nothing. Without a node, `sapo answer` in a shell keeps answers for the next one.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("i", "type", "Answer", id="answer.type"),
        Binding("enter", "enter", "Answer, or next", show=False, id="answer.enter"),
        Binding("ctrl+s", "submit", "Submit", id="answer.submit", tooltip="Have the answers verified and shared"),
        Binding("n", "next", "Next", id="answer.next", tooltip="Another question; this one costs nothing"),
        Binding("c", "copy", "Copy the question", show=False, id="answer.copy"),
        Binding("escape", "back", "Leave what is typed", show=False, id="answer.back"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.tally = Tally()
        self._stage: Stage = "nothing"
        self._question: Question | None = None
        self._note = ""
        self._note_bad = False
        self._attached = False
        self._warned = False

    def content(self) -> ComposeResult:
        """The widgets."""
        with Vertical(id="body"):
            with VerticalScroll(id="question", classes="panel"):
                yield Static(markup=False, id="asked")
            yield AnswerFields(id="typing", classes="panel")
            with VerticalScroll(id="verdict", classes="panel"):
                yield Static(markup=False, id="outcome")
            yield Static(markup=False, id="note")
            with VerticalScroll(id="hints", can_focus=False):
                yield Static(markup=False, classes="said", id="sharing")
                yield Static(SEVERAL, markup=False, classes="said")
        yield Static(markup=False, id="tally", classes="said")

    def on_mount(self) -> None:
        """Name the panels."""
        self.query_one("#typing").border_title = "Your answers"
        self.query_one("#verdict").border_title = "Verdict"
        self.query_one("#verdict").border_subtitle = "Enter or n for the next question"
        self._show()

    def on_screen_suspend(self) -> None:
        """Leave the text, so that the keys of the screens work when this one is shown again."""
        if self.app.current_mode != self.MODE:
            self.action_back()

    def node_changed(self, change: Change) -> None:
        """Ask for a question as soon as there is somebody to ask."""
        if not change & (Change.STANDING | Change.STATUS):
            return
        attached = self.sapo.state.standing is Standing.ATTACHED
        if attached and not self._attached and self._stage == "nothing":
            self._draw_question(typing=False)
        self._attached = attached
        self._show()

    # Talking to the node.

    @work(exclusive=True, group="question")
    async def _draw_question(self, typing: bool) -> None:
        """Have the node make a question, and go to its field if the user wants to type."""
        self._question = None
        self._go("drawing")
        await self.query_one(AnswerFields).clear()
        try:
            self._question = Question.from_dict(await self.sapo.request("question", timeout=PATIENCE))
        except SapoError as error:
            self._go("nothing", f"{error.message}: {error.remedy}")
        else:
            self._go("typing")
            self.query_one("#question", VerticalScroll).scroll_home(animate=False)
            if typing:
                self.query_one(AnswerFields).type()

    @work(exclusive=True, group="share")
    async def _share(self, question: Question, typed: list[str]) -> None:
        """Have the node verify and share."""
        self._go("verifying")
        try:
            given = PersonAnswers(question.ref, tuple(map(tag_answer, typed)), question.manifest)
            found = await self.sapo.request("share_answers", given.as_dict(), timeout=PATIENCE)
            verdict = Verdict.from_dict(found, len(typed))
        except SapoError as error:
            self._go("typing", f"no verdict: {error.message}: {error.remedy}")
            return
        self.tally.add(verdict)
        self.query_one("#outcome", Static).update(verdict_text(typed, verdict))
        self._go("judged")
        if len(typed) < self.query_one(AnswerFields).filled:
            self._tell("what was given twice counts once", bad=False)

    # Keys.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave out what makes no sense now."""
        if action in ("type", "submit"):
            return self._stage == "typing"
        return super().check_action(action, parameters)

    def action_type(self) -> None:
        """Go to where an answer is typed."""
        if self._stage == "typing":
            self.query_one(AnswerFields).type()

    def action_enter(self) -> None:
        """Go on with what comes next, typing."""
        if self._stage in ("judged", "nothing"):
            self._draw_question(typing=True)
        else:
            self.action_type()

    def action_next(self) -> None:
        """Another question; asks once more before typed answers are lost."""
        if self._stage in ("drawing", "verifying"):
            return
        if self._stage == "typing" and self.query_one(AnswerFields).typed and not self._warned:
            self._warned = True
            self._tell("n again leaves this question out, and what you typed with it", bad=False)
            return
        self._draw_question(typing=False)

    @on(AnswerFields.Submitted)
    def action_submit(self) -> None:
        """Have the answers verified and shared, if they can be."""
        if self._stage != "typing" or self._question is None:
            return
        typed = self.query_one(AnswerFields).typed
        if not typed:
            self._tell("type an answer first, or leave the question out with Esc and n")
        elif why := next((why for text in typed if (why := refused(text))), ""):
            self._tell(f"not submitted: {why}")
        elif (length := sum(map(len, typed))) > MAX_CHARACTERS:
            self._tell(f"not submitted: {length} characters are more than {MAX_CHARACTERS}: shorten them")
        else:
            self._share(self._question, typed)

    @on(AnswerFields.Refused)
    def _refused(self, event: AnswerFields.Refused) -> None:
        event.stop()
        self._tell(event.why)

    def action_copy(self) -> None:
        """Copy the question."""
        if self._question is not None:
            self.app.copy_to_clipboard(printable(self._question.text, lines=True))
            self.notify("copied the question", markup=False)

    def action_back(self) -> None:
        """Leave the fields; what is typed stays."""
        self.query_one("#verdict" if self._stage == "judged" else "#question").focus()

    # Drawing.

    def _go(self, stage: Stage, trouble: str = "") -> None:
        self._stage = stage
        self._warned = False
        self._tell(trouble)
        self.refresh_bindings()
        if stage != "typing":
            self.action_back()

    def _tell(self, text: str, *, bad: bool = True) -> None:
        self._note, self._note_bad = text, bad
        self._show()

    def _show(self) -> None:
        typing = self._stage in ("typing", "verifying")
        empty = self._question is None
        self.set_class(typing, "-typing")
        self.set_class(self._stage == "judged", "-judged")
        self.set_class(empty, "-empty")
        asked = self._empty() if self._question is None else printable(self._question.text[:MAX_QUESTION], lines=True)
        self.query_one("#asked", Static).update(Content(asked))
        self.query_one("#question").border_title = "" if empty else "Question"
        fields = self.query_one(AnswerFields)
        fields.disabled = self._stage == "verifying"
        fields.border_subtitle = "verifies ..." if self._stage == "verifying" else ""
        state = self.sapo.state
        told = ALONE if state.status.get("swarm") is None else SHARED
        self.query_one("#sharing", Static).update(f"{told} {RESTS}" if state.paused else told)
        self.query_one("#tally", Static).update(str(self.tally))
        self._show_note()

    def _show_note(self) -> None:
        text, bad = self._note, self._note_bad
        if not text and not self._attached:
            text, bad = "the node has gone: s starts it; what you typed stays", False
        note = self.query_one("#note", Static)
        note.set_class(bool(text) and self._question is not None, "-told")
        note.set_class(bad, "-bad")
        note.update(Content(f"{'✗' if bad else '•'} {printable(text)}"))

    def _empty(self) -> str:
        """Why there is no question, and what to do."""
        if self._stage == "drawing":
            return "The node makes a question ..."
        match self.sapo.state.standing:
            case Standing.ATTACHED:
                return f"No question came.\n{printable(self._note)}\n\nPress n to ask again."
            case Standing.ENDED:
                return "No node runs, and it is the node that asks.\n\nPress s to start one."
            case _:
                return "A question comes as soon as the node answers."
