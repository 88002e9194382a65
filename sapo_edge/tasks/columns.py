"""What the columns of a data set mean: which is the question, which the answer, and how the answer is checked.

Understood are `question` and `answer`, TRL's `prompt` with `completion` or `answer`, and conversations in `messages`,
`prompt` or `completion`: lists of turns, each with `role` and `content`. Of a conversation the last turn of the user is
the question, and the last one of the assistant behind it the answer. Rows are others' data: each text is checked when
it becomes an `OwnQuestion`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sapo_edge.tasks.checks import CHECKS, Number
from sapo_edge.tasks.texts import require

OPTIONS = tuple(dict.fromkeys(kind.option for kind in CHECKS.values() if kind.option))
"""Names of the options of checks."""
KEYS = ("question", "answer", "check", "split", *OPTIONS)
"""What a question of a file may say."""
MESSAGES = "messages"
_TURN = "write each turn as an object with role and content, both texts"


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of question and answer; one name for both is a conversation."""

    question: str
    answer: str

    def __str__(self) -> str:
        if self.question == self.answer:
            return f"{self.question} (last turn of the user, last turn of the assistant)"
        return f"question from {self.question}, answer from {self.answer}"


@dataclass(frozen=True, slots=True)
class Row:
    """What a row says.

    Attributes:
        answer: a text, or another value of JSON.
        system: text of its system turn; "" without one.
        earlier: turns before the question, beside the system's.
        check: the check that the form of its answer names; "" for none.
    """

    question: Any
    answer: Any
    system: str = ""
    earlier: int = 0
    check: str = ""


FORMS = (
    Columns("question", "answer"),
    Columns("prompt", "completion"),
    Columns("prompt", "answer"),
    Columns(MESSAGES, MESSAGES),
)
NAMES = tuple(dict.fromkeys(name for form in FORMS for name in (form.question, form.answer)))


def guess_columns(names: Collection[str]) -> Columns | None:
    """The first of `FORMS` whose columns are there."""
    return next((form for form in FORMS if form.question in names and form.answer in names), None)


def read_row(record: Mapping[str, Any], columns: Columns) -> Row:
    """A ManifestError if the row has no question or no answer."""
    for name in (columns.question, columns.answer):
        require(record.get(name) is not None, f"it has no {name}", "each needs a question and its answer")
    question, answer = record[columns.question], record[columns.answer]
    system, earlier = "", 0
    if columns.question == columns.answer or _are_turns(question):
        turns = _turns(question)
        places = [place for place, (role, _) in enumerate(turns) if role == "user"]
        require(bool(places), "no turn is the user's", "each needs a question and its answer")
        system = "\n".join(text for role, text in turns if role == "system")
        earlier = sum(role != "system" for role, _ in turns[: places[-1]])
        question, rest = turns[places[-1]][1], turns[places[-1] + 1 :]
        answer = _last_answer(rest) if columns.question == columns.answer else answer
    if _are_turns(answer):
        answer = _last_answer(_turns(answer))
    if isinstance(answer, bool):
        answer = str(answer).lower()
    check = ""
    if isinstance(answer, str) and (result := _result(answer)) is not None:
        answer, check = result, "number"
    return Row(question, answer, system, earlier, check)


def own_keys(record: Mapping[str, Any], row: Row, check: str | None = None) -> dict[str, Any]:
    """A row in the keys of a question.

    `check` is of all rows; None: the one that the record names, that the form of its answer names, or that fits it.
    """
    kept = {key: record[key] for key in KEYS[2:] if key in record}
    if check is not None or kept.get("check") not in (*CHECKS,):
        named = check or row.check
        kept = {key: kept[key] for key in ("split",) if key in kept}
        kept |= {"check": named} if named else _fitting_check(row.answer)
    return {"question": row.question, "answer": row.answer, **kept}


def _fitting_check(answer: Any) -> dict[str, Any]:
    if isinstance(answer, dict | list):
        return {"check": "json" if isinstance(answer, dict) else "set"}
    return {"check": "number"} if is_number(answer) else {"check": "exact", "fold": True}


def as_question(record: object) -> object:
    """A line of a file as a question's own keys say it, where it has the columns of another form; else as it is.

    A system turn is an error: it belongs to the manifest, and a file of questions has none.
    """
    if not isinstance(record, dict) or (columns := guess_columns(record)) is None:
        return record
    if columns == FORMS[0]:
        row = read_row(record, columns) if isinstance(record["answer"], str) and "check" not in record else None
        return {**record, "answer": row.answer, "check": row.check} if row is not None and row.check else record
    row = read_row(record, columns)
    remedy = "`sapo tasks import FILE DIRECTORY` puts it into a manifest"
    require(not row.system, "it has a system turn, which belongs to the manifest", remedy)
    return own_keys(record, row)


def is_number(answer: object) -> bool:
    if isinstance(answer, bool):
        return False
    return isinstance(answer, int | float) or (isinstance(answer, str) and Number().score(answer, answer) == 1.0)


def _result(answer: str) -> str | None:
    """The number in a last line of its own behind a solution in words, as GSM8K has it; None without one."""
    # By hand: an expression takes time cubic in the spaces of a line.
    last = answer.rstrip().rpartition("\n")[2]
    result = last.removeprefix("####").lstrip(" \t").removeprefix("$")
    return result if last.startswith("####") and is_number(result) else None


def _are_turns(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _turns(value: object) -> list[tuple[str, str]]:
    require(isinstance(value, list) and bool(value), "its conversation is not a list of turns", _TURN)
    assert isinstance(value, list)
    turns = []
    for turn in value:
        pair = (turn.get("role"), turn.get("content")) if isinstance(turn, dict) else (None, None)
        require(all(isinstance(text, str) for text in pair), "a turn has no role or no text", _TURN)
        turns.append((str(pair[0]), str(pair[1])))
    return turns


def _last_answer(turns: list[tuple[str, str]]) -> str | None:
    answers = [text for role, text in turns if role == "assistant"]
    require(bool(answers), "no turn behind the question is the assistant's", "each needs a question and its answer")
    return answers[-1]
