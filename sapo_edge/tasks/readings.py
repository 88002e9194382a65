"""How an answer is read out of a completion: in tags, or as the task itself reads it.

A model may be right in its own words: "7 + 9 = 16" answers "What is 7 + 9?" without tags. A *reading* finds the one
answer that a text gives, so that a text which names every number earns nothing. Each takes time linear in the text and
evaluates none of it.

    tags     what stands between the first pair of answer tags, as in the paper
    number   the last number
    line     the last line, or as many lines as the expected answer has; what that line marks as its answer, or says
             beyond the question; or all
    json     the last JSON object, alone, in a text, or in a fence
    fit      for each question the one of these that fits its check

Where a text has a pair of tags, every reading reads what stands between them.
"""

from __future__ import annotations

import re
from collections import deque

from sapo_edge.policy import STOP_TEXT
from sapo_edge.tasks.skills import SKILLS

OPEN_TAG = "<answer>"
CLOSE_TAG = STOP_TEXT
MAX_ANSWER_CHARACTERS = 4096
"""Longest answer that is verified; a longer one is wrong. Bounds the cost of every verifier, and stays below the 4300
digits at which Python refuses to parse an integer."""
TAGS, FIT = "tags", "fit"
READINGS = (TAGS, FIT, "number", "line", "json")
NUMERIC = frozenset(
    {
        "basic_arithmetic", "binary_alternation", "chain_sum", "count_bits", "count_primes", "decimal_arithmetic",
        "decimal_chain_sum", "gcd", "lcm", "leg_counting", "letter_counting", "products",
    }
)  # fmt: skip
"""Generators whose answer is a decimal number; the others' are read by lines, those of skills as objects."""

# A sign counts where it can't be a minus between two numbers.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]])[+-])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,3}(?!\w))?", re.ASCII
)
_MARKED = re.compile(r"\*\*([^*\n]+)\*\*|`([^`\n]+)`|\"([^\"\n]+)\"|\u201c([^\u201c\u201d\n]+)\u201d")
# What leads to an answer, with something behind it: "Paris is the answer" says it before.
_LEAD = re.compile(
    r"(?:=|\b(?:answer|result|solution)(?: to (?:the|this|that|your) \w+)?\**(?: is\b\s*:?|\s*:)|\bis:)\s*(?!\Z)",
    re.IGNORECASE,
)
# "**Answer:** Paris" marks what leads to the answer.
_LABEL = re.compile(r".*(?::|\b(?:answer|result|solution))\s*", re.IGNORECASE)
_IS = re.compile(r"\s(?:is|are|was|were)\s", re.IGNORECASE)
_WORD = re.compile(r"\w+")
# What a sentence may say beside the words of the question.
_POINTERS = frozenset({"answer", "it", "that", "the", "these", "they", "this", "those"})
_AROUND = " \t*`\"'\u201c\u201d"
_ENDS = ".!,;:"


def extract_answer(completion: str) -> str | None:
    """The stripped text between the first opening tag and the first closing tag.

    A policy stops at its first closing tag. What another node writes behind one must not decide about what stands
    before it, and a second opening tag must not hide a wrong answer: a policy that learns `<answer>4<answer>3</answer>`
    closes the tag after the 4. Takes time linear in the completion.

    None without a complete pair, or if the text is longer than `MAX_ANSWER_CHARACTERS`.
    """
    close = completion.find(CLOSE_TAG)
    start = completion.find(OPEN_TAG, 0, max(close, 0))
    if start < 0:
        return None
    answer = completion[start + len(OPEN_TAG) : close].strip()
    return None if len(answer) > MAX_ANSWER_CHARACTERS else _valid(answer)


def fitting(generator: str) -> str:
    if generator in SKILLS:
        return "json"
    return "number" if generator in NUMERIC else "line"


def read(reading: str, completion: str, lines: int = 1, question: str = "") -> tuple[str, ...]:
    """The answer in a completion by one of `READINGS` except `FIT`: candidates, of which the best one counts.

    They are at most four, each of at most `MAX_ANSWER_CHARACTERS` characters; none without an answer.
    """
    tagged = extract_answer(completion)
    if reading == TAGS:
        return () if tagged is None else (tagged,)
    said, closed, _ = completion.partition(CLOSE_TAG)
    if tagged is None and closed and OPEN_TAG in said:
        return ()  # too long for a verifier
    # A policy stops at its first closing tag, so nothing behind one counts.
    text = _tail(said) if tagged is None else tagged
    if reading == "number":
        return _last_number(text)
    if reading == "json":
        return _last_object(text)
    return _last_lines(text, lines, question)


def is_bare(completion: str, candidate: str) -> bool:
    """Whether a completion is an answer and nothing else; a number may be written in another way ("1,000", "7.0")."""
    text = completion.strip()
    if text == candidate or len(text) > MAX_ANSWER_CHARACTERS:
        return text == candidate
    text = text.replace("\N{MINUS SIGN}", "-")
    return _NUMBER.fullmatch(text) is not None and _last_number(text) == (candidate,)


def _tail(completion: str) -> str:
    """The end of a text, which decides."""
    return _valid(completion[-MAX_ANSWER_CHARACTERS:].replace(OPEN_TAG, " "))


def _valid(text: str) -> str:
    """The text as verifiers expect it: NUL and lone surrogates become U+FFFD."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


def _last_number(text: str) -> tuple[str, ...]:
    text = text.replace("\N{MINUS SIGN}", "-")
    last = deque(_NUMBER.finditer(text), maxlen=1)
    # Of a fraction, the denominator is no answer.
    if not last or text[: last[0].start()].rstrip().endswith("/"):
        return ()
    number = last[0].group().replace(",", "").removeprefix("+")
    if "." in number and "e" not in number.lower():
        # Nothing but the sign would stay of ".0" and "-.0".
        number = number.rstrip("0").rstrip(".-") or "0"
    return (number,)


def _last_lines(text: str, lines: int, question: str) -> tuple[str, ...]:
    kept = [line.rstrip() for line in text.splitlines() if not line.strip().startswith("```")]
    places = [place for place, line in enumerate(kept) if line][-lines:]
    if not places:
        return ()
    whole = "\n".join(kept[place].strip() for place in places)
    if lines > 1:
        as_written = "\n".join(kept[places[0] : places[-1] + 1]).strip()
        return tuple(dict.fromkeys((whole, as_written, text.strip())))
    marked = [next(filter(None, groups)) for groups in _MARKED.findall(whole)]
    marked = [text for text in marked if not _LABEL.fullmatch(text)]
    plain = whole.rstrip(f"{_ENDS} \t")
    said = marked[-1] if marked else _LEAD.split(plain)[-1]
    new = _new_part(plain, question)
    # One answer, if at two lengths: of "The law is F = ma" these are "F = ma" and "ma".
    new = new if said == plain or new.endswith(said) else said
    said, new = (part.strip(_AROUND).rstrip(_ENDS).strip(_AROUND) for part in (said, new))
    return tuple(dict.fromkeys(answer for answer in (whole, said, new, text.strip()) if answer))


def _new_part(sentence: str, question: str) -> str:
    """Of "Paris is the capital of France" the side that the question did not say; all if both are new, or neither.

    So a sentence gives one answer, whichever way round: "Paris is Rome" gives none. "B is the answer" gives B, also
    where the question named it.
    """
    sides = _IS.split(sentence, maxsplit=1)
    if len(sides) < 2:
        return sentence
    known = _words(question) | _POINTERS
    new = [side for side in sides if not _words(side) <= _POINTERS]
    new = [side for side in new if not _words(side) <= known] if len(new) > 1 else new
    return new[0] if len(new) == 1 else sentence


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))


def _last_object(text: str) -> tuple[str, ...]:
    """To the last closing brace that ends anything, from the brace that it ends; strings may hold braces."""
    best: tuple[int, int] | None = None
    # One that nothing closes, in a text or in a broken object, hides none behind it.
    starts: list[int] = []
    in_string = escaped = False
    for position, character in enumerate(text):
        if in_string:
            in_string, escaped = escaped or character not in '"\n', character == "\\" and not escaped
        elif starts and character == '"':
            in_string = True
        elif character == "{":
            starts.append(position)
        elif character == "}" and starts:
            # What closes later is behind the one before, or around it.
            best = (starts.pop(), position + 1)
    return () if best is None else (text[best[0] : best[1]],)
