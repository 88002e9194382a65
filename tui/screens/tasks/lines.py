"""Questions as lines that people write: "question | answer"; what has more to it stays a line of JSON."""

from __future__ import annotations

import json
import re
from typing import Any

MARK = " | "
"""What stands between question and answer."""
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d{1,15})?", re.ASCII)


def to_text(questions: str) -> str:
    """The lines of a file of questions, as people write them where that says the same."""
    return "\n".join(_plain(line) for line in questions.removesuffix("\n").split("\n"))


def to_questions(text: str) -> str:
    """The content of a file of questions: one JSON object a line."""
    return "".join(f"{_parsed(line)}\n" for line in text.splitlines())


def _plain(line: str) -> str:
    try:
        record = json.loads(line)
        # An editor would break a line at any of Unicode's line ends.
        line = line if len(line.splitlines()) == 1 else json.dumps(record)
        plain = MARK.join(str(record[name]) for name in ("question", "answer") if name in record)
        plain.encode()
        # Types matter, too: true equals 1.
        same = json.dumps(json.loads(_parsed(plain)), sort_keys=True) == json.dumps(record, sort_keys=True)
    except (ValueError, KeyError, TypeError, RecursionError):
        return line
    return plain if same and len(plain.splitlines()) == 1 else line


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
