"""Asks where own questions are, or are to be; and an editor of them for those who have set no other."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static, TextArea
from textual.widgets.text_area import Document

from sapo_edge.plain import printable
from sapo_edge.state.durable import write_atomically
from sapo_edge.tui.node.processes import JobResult
from sapo_edge.tui.widgets.dialog import Dialog, WorkDialog, typed_path
from sapo_edge.tui.widgets.job_line import JobLine

FOLDER = "my-questions"
"""Name of the proposed folder in the user's home directory."""
SUFFIXES = (".toml", ".jsonl", ".csv", ".parquet")
"""Of files that are taken; any other path becomes a folder."""
NEW = (
    "A folder is created with a manifest and a few questions, which you replace with your own. Or the path of a file "
    "that you have: a manifest (.toml), or questions (.jsonl, .csv, .parquet)."
)


class NewQuestions(WorkDialog):
    """Takes a file, or writes a folder of questions to begin with. Dismissed with whether it has one of both.

    `file` is the manifest, or the questions alone; `written` says that both were written now.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Cancel", id="path.cancel")]
    BUTTONS: ClassVar = {"take": ("OK", "take"), "close": ("Cancel", "leave")}
    AUTO_FOCUS = "#path"
    heading = "Your own questions"

    file = questions = ""
    written = False

    def body(self) -> ComposeResult:
        yield Static(NEW, id="about", markup=False)
        yield Input(str(Path.home() / FOLDER), id="path", compact=True)
        yield JobLine(id="writing")

    @on(Input.Submitted)
    def action_take(self) -> None:
        line, typed = self.query_one(JobLine), self.query_one(Input).value.strip()
        if line.busy or not typed:
            return
        path = typed_path(typed)
        is_file, is_taken = os.path.isfile(path), Path(path).suffix.lower() in SUFFIXES
        if is_taken and is_file:
            self.file = self.questions = path
            self.finish()
        elif is_taken:
            line.say(f"there is no file {printable(path)}", "bad")
        elif is_file:
            line.say(f"{printable(path)} is neither a manifest nor questions: .toml, .jsonl, .csv or .parquet", "bad")
        else:
            line.begin(self._launcher.job("tasks", "new", path), "writing", self._written)

    def _written(self, result: JobResult) -> None:
        self.file, self.questions = (str(result.record[name]) for name in ("manifest", "questions"))
        self.written = True
        self.finish()


ABOUT = "One line a question: What is 2 + 3? | 5\nA line of JSON can do more: docs/tasks.md explains it."
AS_IT_IS = "The file as it is: docs/tasks.md explains it."
JSON_LINES = ".jsonl"
"""End of the names of files whose lines are shown as people write them; any other file is shown as it is."""
MAX_BYTES = 500_000
"""Largest file that is edited here."""
MARK = " | "
"""What stands between question and answer."""
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d{1,15})?", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")


class EditQuestions(Dialog[bool]):
    """Edits a file; ValueError for one of over `MAX_BYTES`, other than UTF-8, or with line ends that would change.

    Dismissed with whether it was written.
    """

    HELP_TEXT = """\
One question a line, then `|` and the answer; a number counts as equal however it is written, and a text whether its
letters are large or small. A manifest or a table is shown as it is. `Ctrl+S` saves, `Esc` leaves.
"""
    DEFAULT_CSS = """
    EditQuestions #about { color: $text-muted; }
    EditQuestions TextArea, EditQuestions TextArea:focus { height: 1fr; border: none; padding: 0; }
    EditQuestions #wrong { display: none; }
    EditQuestions.-wrong #wrong { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "save", "Save", priority=True, id="edit.save"),
        Binding("escape", "leave", "Leave", priority=True, id="edit.leave"),
    ]
    AUTO_FOCUS = "TextArea"
    subtitle = "F7 selects all  ·  Ctrl+S saves  ·  Esc leaves"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.heading = printable(path)
        self._path = path
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES // 1000} kB")
        data = path.read_bytes()
        self._has_lines = path.suffix.lower() == JSON_LINES
        # Windows' editors begin a file with a mark of UTF-8, which would make a text of its first line.
        self._text = to_text(data.decode("utf-8-sig")) if self._has_lines else data.decode()
        if not self._has_lines and Document(self._text).text != self._text:
            raise ValueError("it has several kinds of line ends, which only another editor keeps")
        self._warned = False

    def body(self) -> ComposeResult:
        yield Static(ABOUT if self._has_lines else AS_IT_IS, id="about", markup=False)
        yield TextArea(self._text, show_line_numbers=True, tab_behavior="focus")
        yield Static(id="wrong", markup=False)

    def action_save(self) -> None:
        text = self.query_one(TextArea).text
        try:
            write_atomically(self._path, (to_questions(text) if self._has_lines else text).encode(), 0o644)
        except (OSError, UnicodeEncodeError) as error:
            self._say(f"not saved: {printable(error)}")
        else:
            self.dismiss(True)

    def action_leave(self) -> None:
        if self.query_one(TextArea).text == self._text or self._warned:
            self.dismiss(False)
        else:
            self._warned = True
            self._say("not saved yet: Ctrl+S saves, Esc again discards the changes")

    def on_text_area_changed(self) -> None:
        self._warned = False
        self.remove_class("-wrong")

    def _say(self, text: str) -> None:
        self.query_one("#wrong", Static).update(text)
        self.add_class("-wrong")


def to_text(questions: str) -> str:
    """The lines of a file of questions, as people write them where that says the same."""
    return "\n".join(_plain(line.removesuffix("\r")) for line in questions.removesuffix("\n").split("\n"))


def to_questions(text: str) -> str:
    """The content of a file of questions: one JSON object a line."""
    return "".join(f"{_parsed(line)}\n" for line in text.splitlines())


def _plain(line: str) -> str:
    try:
        record = json.loads(line)
        # An editor would break a line at any of Unicode's line ends, and show no control character.
        line = line if _is_shown_whole(line) else json.dumps(record)
        plain = MARK.join(str(record[name]) for name in ("question", "answer") if name in record)
        plain.encode()
        # Types matter, too: true equals 1.
        same = json.dumps(json.loads(_parsed(plain)), sort_keys=True) == json.dumps(record, sort_keys=True)
    except (ValueError, KeyError, TypeError, RecursionError):
        return line
    return plain if same and _is_shown_whole(plain) else line


def _is_shown_whole(line: str) -> bool:
    return len(line.splitlines()) == 1 and not _CONTROL.search(line)


def _parsed(line: str) -> str:
    line = line.strip()
    if not line or line.startswith("{"):
        return line
    question, mark, answer = line.rpartition(MARK)
    record: dict[str, Any] = {"question": question.strip() if mark else line}
    if mark:
        answer = answer.strip()
        if _NUMBER.fullmatch(answer):
            record |= {"answer": json.loads(answer), "check": "number"}
        else:
            record |= {"answer": answer, "fold": True}
    return json.dumps(record, ensure_ascii=False)
