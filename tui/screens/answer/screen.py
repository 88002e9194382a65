"""The answer screen: a person answers a question of the node, and the answers are shared like a model's."""

from __future__ import annotations

from typing import ClassVar, Literal

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from sapo_edge.errors import SapoError
from sapo_edge.node.person import PersonAnswers, Question, Verdict, tag_answer
from sapo_edge.plain import printable
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.answer.fields import MAX_CHARACTERS, AnswerFields, answer_problem
from sapo_edge.tui.screens.answer.verdict import Tally, verdict_text
from sapo_edge.tui.screens.view import Change, View

PATIENCE = 60.0
"""Seconds to wait for a question or a verdict: the node is busy with its round."""
MAX_QUESTION = 16384
"""Most characters of a question that are shown."""
SEVERAL = (
    "Enter starts the next answer, up to 8; Enter on an empty line submits. Nodes learn the right answers; those that "
    "often get such questions right skip a set without a wrong one, and all skip one without a right one."
)
SHARED = (
    "Nothing leaves this machine before you submit. Then your answers go to everybody in the swarm, with the question "
    "and the time, signed by this node. They can't be taken back."
)
ALONE = "This node works alone: it verifies your answers and sends them to nobody."
PAUSED = "This works although the node is paused."

Stage = Literal["nothing", "drawing", "typing", "verifying", "judged"]


class AnswerView(View):
    """The question, below it the typed answers, and then the verdict."""

    MODE = "answer"
    AUTO_FOCUS = "#question"
    DEFAULT_CSS = """
    AnswerView #question { height: auto; min-height: 3; max-height: 40%; }
    AnswerView #typing { display: none; border-subtitle-color: $text-muted; }
    AnswerView #verdict { height: auto; max-height: 14; display: none; }
    AnswerView.-typing #typing, AnswerView.-judged #verdict { display: block; }
    AnswerView #note { padding: 0 2; display: none; }
    AnswerView #note.-bad { color: $text-error; }
    AnswerView #note.-shown { display: block; }
    AnswerView #hints { display: none; }
    AnswerView.-typing #hints { display: block; }
    AnswerView .hint { width: 1fr; max-width: 100; height: auto; padding: 0 2; color: $text-muted; }
    AnswerView #sharing { margin-bottom: 1; }
    AnswerView.-tall #question, AnswerView.-tall #typing, AnswerView.-tall #note { margin-bottom: 1; }
    AnswerView.-empty #question { height: 1fr; max-height: 100%; align: center middle; }
    AnswerView.-empty #asked { width: auto; max-width: 100%; color: $text-muted; }
    AnswerView.-tiny #hints, AnswerView.-tiny #tally { display: none; }
    AnswerView.-tiny #question { min-height: 1; }
    """
    HELP_TEXT = """\
Answer a question like those that the node asks its model. A verifier rewards your answers, and they are shared with the
swarm like a model's: every node verifies them itself, and may learn from them.

Nodes learn the **right** answers. Where they often get such questions right by themselves, they skip a set that is all
right: add an answer that is plausible but wrong. Type only the answer, without tags.

Nothing is sent before you **submit** (Enter on an empty line, or Ctrl+S). **Next** (j) skips the question.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "type", "Answer", id="answer.type"),
        Binding("enter", "enter", "Answer, or next", show=False, id="answer.enter"),
        Binding("ctrl+s", "submit", "Submit", id="answer.submit", tooltip="Have the answers verified and shared"),
        Binding("j", "next", "Next", id="answer.next", tooltip="Skip this question"),
        Binding("c", "copy", "Copy the question", show=False, id="answer.copy"),
        Binding("escape", "back", "Leave the text field", show=False, id="answer.back"),
    ]

    _stage: Stage = "nothing"
    _question: Question | None = None
    _note = ""
    _note_bad = _attached = _warned = False

    def __init__(self) -> None:
        super().__init__()
        self.tally = Tally()

    def content(self) -> ComposeResult:
        with Vertical(id="body"):
            with VerticalScroll(id="question", classes="panel"):
                yield Static(markup=False, id="asked")
            yield AnswerFields(id="typing", classes="panel")
            with VerticalScroll(id="verdict", classes="panel"):
                yield Static(markup=False, id="outcome")
            yield Static(markup=False, id="note")
            with VerticalScroll(id="hints", can_focus=False):
                yield Static(markup=False, classes="hint", id="sharing")
                yield Static(SEVERAL, markup=False, classes="hint")
        yield Static(markup=False, id="tally", classes="hint")

    def on_mount(self) -> None:
        self.query_one("#typing").border_title = "Your answers"
        self.query_one("#verdict").border_title = "Verdict"
        self.query_one("#verdict").border_subtitle = "Enter or j for the next question"
        self._show()

    def on_screen_suspend(self) -> None:
        """Leave the text field, so that the keys of the app work when this screen is shown again."""
        if self.app.current_mode != self.MODE:
            self.action_back()

    def node_changed(self, change: Change) -> None:
        if not change & (Change.STANDING | Change.STATUS):
            return
        attached = self.sapo.state.standing is Standing.ATTACHED
        if attached and not self._attached and self._stage == "nothing":
            self._draw_question(typing=False)
        self._attached = attached
        self._show()

    # Requests to the node.

    @work(exclusive=True, group="question")
    async def _draw_question(self, typing: bool) -> None:
        self._question = None
        self._enter_stage("drawing")
        self.query_one(AnswerFields).text = ""
        try:
            self._question = Question.from_dict(await self.sapo.request("question", timeout=PATIENCE))
        except SapoError as error:
            self._enter_stage("nothing", str(error))
        else:
            self._enter_stage("typing")
            self.query_one("#question", VerticalScroll).scroll_home(animate=False)
            if typing:
                self.query_one(AnswerFields).type()

    @work(exclusive=True, group="share")
    async def _share(self, question: Question, typed: list[str]) -> None:
        self._enter_stage("verifying")
        try:
            answers = PersonAnswers(question.ref, tuple(map(tag_answer, typed)), question.manifest)
            reply = await self.sapo.request("share_answers", answers.as_dict(), timeout=PATIENCE)
            verdict = Verdict.from_dict(reply, len(typed))
        except SapoError as error:
            self._enter_stage("typing", f"no verdict: {error}")
            return
        self.tally.add(verdict)
        self.query_one("#outcome", Static).update(verdict_text(typed, verdict))
        self._enter_stage("judged")
        if len(typed) < len(self.query_one(AnswerFields).filled):
            self._set_note("equal answers count once", bad=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("type", "submit"):
            return self._stage == "typing"
        if action == "back":
            return self.is_mounted and self.focused is not self._rest
        return super().check_action(action, parameters)

    def action_type(self) -> None:
        if self._stage == "typing":
            self.query_one(AnswerFields).type()

    def action_enter(self) -> None:
        if self._stage in ("judged", "nothing"):
            self._draw_question(typing=True)
        else:
            self.action_type()

    def action_next(self) -> None:
        if self._stage in ("drawing", "verifying"):
            return
        if self._stage == "typing" and self.query_one(AnswerFields).typed and not self._warned:
            self._warned = True
            self._set_note("press j again to skip this question and lose what you typed", bad=False)
            return
        self._draw_question(typing=False)

    def action_submit(self) -> None:
        if self._stage != "typing" or self._question is None:
            return
        typed = self.query_one(AnswerFields).typed
        if not typed:
            self._set_note("type an answer first, or skip the question with Esc and j")
        elif problem := next(filter(None, map(answer_problem, typed)), ""):
            self._set_note(f"not submitted: {problem}")
        elif (length := sum(map(len, typed))) > MAX_CHARACTERS:
            too_long = f"your answers have {length} characters, at most {MAX_CHARACTERS} are allowed"
            self._set_note(f"not submitted: {too_long}")
        else:
            self._share(self._question, typed)

    @on(AnswerFields.PasteRejected)
    def _reject_paste(self, event: AnswerFields.PasteRejected) -> None:
        event.stop()
        self._set_note(event.reason)

    def action_copy(self) -> None:
        if self._question is not None:
            self.app.copy_to_clipboard(printable(self._question.text, lines=True))
            self.notify("copied the question", markup=False)

    def action_back(self) -> None:
        self._rest.focus()

    @property
    def _rest(self) -> Widget:
        return self.query_one("#verdict" if self._stage == "judged" else "#question")

    # Drawing.

    def _enter_stage(self, stage: Stage, problem: str = "") -> None:
        self._stage = stage
        self._warned = False
        self._set_note(problem)
        self.refresh_bindings()
        if stage != "typing":
            self.action_back()

    def _set_note(self, text: str, *, bad: bool = True) -> None:
        self._note, self._note_bad = text, bad
        self._show()

    def _show(self) -> None:
        stage, question = self._stage, self._question
        typing, judged, empty = stage in ("typing", "verifying"), stage == "judged", question is None
        self.update_classes({"-typing": typing, "-judged": judged, "-empty": empty}, animate=False)
        asked = self._why_empty() if question is None else printable(question.text[:MAX_QUESTION], lines=True)
        self.query_one("#asked", Static).update(Content(asked))
        self.query_one("#question").border_title = "" if empty else "Question"
        fields = self.query_one(AnswerFields)
        fields.disabled = stage == "verifying"
        fields.border_subtitle = "verifying ..." if stage == "verifying" else "Enter on an empty line submits"
        state = self.sapo.state
        sharing = ALONE if state.status.get("swarm") is None else SHARED
        self.query_one("#sharing", Static).update(f"{sharing} {PAUSED}" if state.paused else sharing)
        self.query_one("#tally", Static).update(str(self.tally))
        text, bad = self._note, self._note_bad
        if not text and not self._attached:
            text, bad = "the node has ended: s starts it again; your text is kept", False
        note = self.query_one("#note", Static)
        note.update_classes({"-shown": bool(text) and not empty, "-bad": bad})
        note.update(Content(f"{'✗' if bad else '•'} {printable(text)}"))

    def _why_empty(self) -> str:
        if self._stage == "drawing":
            return "Getting a question from the node ..."
        if self.sapo.state.standing is Standing.ATTACHED:
            return f"No question.\n{printable(self._note)}\n\nPress j to try again."
        return self.sapo.state.no_node_text("A question appears here")
