"""How the answer to a person's own question is checked. No check evaluates text, and each ends quickly on any text.

A check has at most one option, by which it is written in `tasks.jsonl` and encoded in a manifest. Both texts that it
compares have at most `MAX_ANSWER_CHARACTERS` characters.
"""

from __future__ import annotations

import decimal
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from sapo_edge.errors import ManifestError
from sapo_edge.tasks.allowed import Flag, Real
from sapo_edge.tasks.objects import context, field_share, is_near, parse_object
from sapo_edge.tasks.texts import check_text, require

if TYPE_CHECKING:
    import re2

MAX_CHOICES = 26
"""Most options of a choice."""
MAX_CHOICE_BYTES = 256
"""Longest one, in bytes of UTF-8."""
MAX_ITEMS = 64
MAX_PATTERN_BYTES = 256
"""Longest regular expression, in bytes of UTF-8."""
PATTERN_MEMORY = 128 * 1024
"""Bytes that RE2 may take for one expression. With them it bounds the time of a match, which is linear in the text."""
MAX_TOLERANCE = 1e12

_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3}){1,9}|\d{1,40})?(?:\.\d{0,40})?(?:[eE][+-]?\d{1,3})?", re.ASCII)
_NUMBER_CHARACTERS = 96
_AND = re.compile(r"\band\b", re.IGNORECASE)
_AROUND_A_CHOICE = " \t\n()[]{}.:;,'\"*`"


@dataclass(frozen=True)
class Check(ABC):
    __slots__ = ()
    option: ClassVar[str] = ""
    """The field that is its option, and its key in a file of questions; "" if it has none."""
    reading: ClassVar[str] = "line"
    """The one of `readings.READINGS` that fits its answers."""

    @classmethod
    def needs_option(cls) -> bool:
        return any(field.default is MISSING for field in fields(cls))

    @property
    def value(self) -> Any:
        """The option as it is encoded in a manifest; None without one."""
        value = asdict(self).get(self.option)
        return list(value) if isinstance(value, tuple) else value

    def check_expected(self, expected: str) -> None:  # noqa: B027 - any will do where a check says nothing else
        """Make sure that answers can be compared with the expected one."""

    @abstractmethod
    def score(self, expected: str, answer: str) -> float:
        """0 to 1, for an answer without surrounding space."""

    def text_of(self, answer: Any) -> Any:
        """An expected answer as text, where a file of questions has a value of JSON; what can't be one stays."""
        if isinstance(answer, dict) and self.reading == "json":
            try:
                return json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
            except TypeError as error:
                raise ManifestError("answer has a value that is no JSON", "write dates between quotes") from error
        # A table's missing value is NaN, which would be learned as a word.
        finite = not isinstance(answer, float) or math.isfinite(answer)
        require(finite, f"answer has the number {answer}", "leave the question out, or write a text between quotes")
        return repr(answer) if isinstance(answer, int | float) and not isinstance(answer, bool) else answer


@dataclass(frozen=True, slots=True)
class Exact(Check):
    """The same text; with `fold`, whatever its case and white space."""

    fold: bool = False
    option: ClassVar[str] = "fold"

    def __post_init__(self) -> None:
        Flag(False).check("fold", self.fold)

    def check_expected(self, expected: str) -> None:
        require(expected.strip() != "", "answer is empty", "write the expected answer")

    def score(self, expected: str, answer: str) -> float:
        same = folded(answer) == folded(expected) if self.fold else answer == expected.strip()
        return float(same)


@dataclass(frozen=True, slots=True)
class Number(Check):
    """A number that differs by at most `tolerance` from the expected one; thousands may be separated by commas."""

    tolerance: float = 0.0
    option: ClassVar[str] = "tolerance"
    reading: ClassVar[str] = "number"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tolerance", Real(0.0, MAX_TOLERANCE, 0.0).check("tolerance", self.tolerance))

    def check_expected(self, expected: str) -> None:
        remedy = "write digits, such as 42, -1.5 or 6e23, or use another check"
        require(_number(expected) is not None, "answer is not a number", remedy)

    def score(self, expected: str, answer: str) -> float:
        given, right = _number(answer), _number(expected)
        return float(given is not None and right is not None and is_near(right, given, self.tolerance))


@dataclass(frozen=True, slots=True)
class Choice(Check):
    """One of `choices`, whatever its case, white space, and the brackets and punctuation around it."""

    choices: tuple[str, ...]
    option: ClassVar[str] = "choices"

    def __post_init__(self) -> None:
        remedy = f"list 2 to {MAX_CHOICES} different texts, in a table's cell with | between them"
        listed = isinstance(self.choices, list | tuple) and 2 <= len(self.choices) <= MAX_CHOICES
        require(listed, f"choices is not a list of 2 to {MAX_CHOICES} texts", remedy)
        choices = tuple(check_text("a choice", choice, MAX_CHOICE_BYTES) for choice in self.choices)
        object.__setattr__(self, "choices", choices)
        different = {_bare(choice) for choice in choices} - {""}
        require(len(different) == len(choices), "two choices are equal, or one is empty", remedy)

    def check_expected(self, expected: str) -> None:
        bare = {_bare(choice) for choice in self.choices}
        require(_bare(expected) in bare, "answer is not one of its choices", "write one of them as answer")

    def score(self, expected: str, answer: str) -> float:
        return float(_bare(answer) == _bare(expected))


@dataclass(frozen=True, slots=True)
class Set(Check):
    """The same items in any order, separated by commas; in an answer also by "and", unless an item has that word.

    The score is the share of items in both (Jaccard's index).
    """

    def check_expected(self, expected: str) -> None:
        count = len(_items(expected))
        require(1 <= count <= MAX_ITEMS, f"answer has {count} items", f"list 1 to {MAX_ITEMS}")

    def score(self, expected: str, answer: str) -> float:
        right = _items(expected)
        given = _items(answer if _AND.search(expected) else _AND.sub(",", answer))
        return len(right & given) / len(right | given) if given else 0.0

    def text_of(self, answer: Any) -> Any:
        if not isinstance(answer, list):
            return Check.text_of(self, answer)
        whole = all(isinstance(item, str | int | float) and "," not in str(item) for item in answer)
        require(whole, "an item of answer is not text, or has a comma", "write texts without commas")
        return ", ".join(str(Check.text_of(self, item)) for item in answer)


@dataclass(frozen=True, slots=True)
class Pattern(Check):
    """A text that a regular expression matches as a whole, in the syntax of RE2, whose time is linear in the text.

    Any expected answer will do: it is what people read, and what a worked example shows.
    """

    pattern: str
    option: ClassVar[str] = "pattern"

    def __post_init__(self) -> None:
        check_text("pattern", self.pattern, MAX_PATTERN_BYTES)

    def score(self, expected: str, answer: str) -> float:
        compiled = compile_pattern(self.pattern)
        return float(compiled is not None and compiled.fullmatch(answer) is not None)


class Json(Number):
    """A JSON object with the same fields in any order; numbers differ by at most `tolerance`.

    The score is the share of right fields; those of nested objects count one by one.
    """

    reading: ClassVar[str] = "json"

    def check_expected(self, expected: str) -> None:
        require(parse_object(expected) is not None, "answer is not a JSON object", 'write it as {"key": "value"}')

    def score(self, expected: str, answer: str) -> float:
        right, given = parse_object(expected), parse_object(answer)
        return 0.0 if right is None or given is None else field_share(right, given, self.tolerance)


@dataclass(frozen=True, slots=True)
class Calls(Check):
    """A call of a tool: `{"name": ..., "arguments": {...}}`, also inside of `{"function": ...}`, as programs write it.

    Another tool scores 0, the same one the share of right arguments.
    """

    reading: ClassVar[str] = "json"

    def check_expected(self, expected: str) -> None:
        require(_call(expected) is not None, "answer is not a call", 'write {"name": "tool", "arguments": {"key": 1}}')

    def score(self, expected: str, answer: str) -> float:
        right, given = _call(expected), _call(answer)
        if right is None or given is None or right[0] != given[0]:
            return 0.0
        return field_share(right[1], given[1])


@dataclass(frozen=True, slots=True)
class Lines(Check):
    """The same lines in the same order, whatever their case and white space. The score is the share in place."""

    def check_expected(self, expected: str) -> None:
        count = len(_text_lines(expected))
        require(0 < count <= MAX_ITEMS, f"answer has {count} lines", f"write 1 to {MAX_ITEMS}")

    def score(self, expected: str, answer: str) -> float:
        right, given = _text_lines(expected), _text_lines(answer)
        placed = sum(first == second for first, second in zip(right, given, strict=False))
        return placed / max(len(right), len(given))

    def text_of(self, answer: Any) -> Any:
        if not isinstance(answer, list):
            return Check.text_of(self, answer)
        whole = all(isinstance(item, str | int | float) for item in answer)
        require(whole, "an item of answer is not text", "write texts")
        return "\n".join(str(Check.text_of(self, item)) for item in answer)


@dataclass(frozen=True, slots=True)
class Matches(Check):
    """A regular expression of RE2 that matches some texts as a whole and not others, which begin with "!" here.

    The score is the share of texts on which it decides right.
    """

    texts: tuple[str, ...]
    option: ClassVar[str] = "texts"

    def __post_init__(self) -> None:
        remedy = f'list 2 to {MAX_ITEMS} texts, those that it must not match with a "!" before them, and one of either'
        listed = isinstance(self.texts, list | tuple) and 2 <= len(self.texts) <= MAX_ITEMS
        require(listed, f"texts is not a list of 2 to {MAX_ITEMS} texts", remedy)
        texts = tuple(check_text("a text", text, MAX_CHOICE_BYTES) for text in self.texts)
        object.__setattr__(self, "texts", texts)
        require(len({text.startswith("!") for text in texts}) == 2, "texts are all of one kind", remedy)

    def check_expected(self, expected: str) -> None:
        remedy = 'write an expression of RE2 that matches the texts without a "!" as a whole, and no other'
        require(self.score(expected, expected.strip()) == 1.0, "answer does not decide right on its texts", remedy)

    def score(self, expected: str, answer: str) -> float:
        compiled = compile_pattern(answer) if len(answer.encode()) <= MAX_PATTERN_BYTES else None
        if compiled is None:
            return 0.0
        right = sum((compiled.fullmatch(text.removeprefix("!")) is None) == text.startswith("!") for text in self.texts)
        return right / len(self.texts)


@dataclass(frozen=True, slots=True)
class Code(Check):
    """A function that this machine's owner brings by its name: `TaskSource` is given it, and calls it.

    A manifest holds the name alone, and a source without the function refuses the manifest. So whoever sends one can't
    choose code, and such questions are only for a node that works alone. By itself, no answer is worth anything.
    """

    code: str
    option: ClassVar[str] = "code"

    def __post_init__(self) -> None:
        named = check_text("code", self.code, MAX_CHOICE_BYTES).strip() != ""
        require(named, "code is empty", "write the name of the function")

    def score(self, expected: str, answer: str) -> float:
        return 0.0


CHECKS: Mapping[str, type[Check]] = {
    "exact": Exact, "number": Number, "choice": Choice, "set": Set, "regex": Pattern,
    "json": Json, "calls": Calls, "lines": Lines, "matches": Matches, "code": Code,
}  # fmt: skip
"""Checks by their name in a file of questions and in a manifest."""


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> re2._Regexp | None:
    """The compiled expression; None if it is not valid, or takes more than `PATTERN_MEMORY`."""
    import re2

    options = re2.Options()
    options.max_mem = PATTERN_MEMORY
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error:
        return None


def folded(text: str) -> str:
    """The text without differences of case and white space."""
    return " ".join(text.casefold().split())


def _bare(text: str) -> str:
    return folded(text).strip(_AROUND_A_CHOICE)


def _items(text: str) -> frozenset[str]:
    return frozenset(folded(item) for item in text.split(",") if item.strip())


def _text_lines(text: str) -> list[str]:
    return [folded(line) for line in text.splitlines() if line.strip()]


def _call(text: str) -> tuple[str, dict[str, Any]] | None:
    """Name and arguments of a call; None if the text is none."""
    call = parse_object(text)
    if call is not None and isinstance(call.get("function"), dict):
        call = call["function"]
    if call is None or not isinstance(name := call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):  # as OpenAI's interface writes them
        arguments = parse_object(arguments)
    return (name, arguments) if isinstance(arguments, dict) else None


def _number(text: str) -> Decimal | None:
    """A number of bounded length and size; None for any other text."""
    text = text.strip()
    if len(text) > _NUMBER_CHARACTERS or not _NUMBER.fullmatch(text):
        return None
    try:
        return context().create_decimal(text.replace(",", ""))
    except decimal.InvalidOperation:
        return None  # a sign or an exponent alone
