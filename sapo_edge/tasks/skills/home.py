"""The skill `home`: requests for a smart home in five languages, each with one JSON call as its answer.

The sentences are Home Assistant's (`data/`, made by `packaging/home/make.py`). Each template belongs to one part, and
so does each name of a room or device.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

from sapo_edge.tasks.skills import PARTS, Draw, Part, Skill, dress, made, misspell, read_data

LANGUAGES = ("en", "de", "fr", "es", "pt")

_SLOT = re.compile(r"\{(\w+)=(\w+)/([^}]*)\}")
_ATTEMPTS = 100
_QUESTIONS = frozenset(
    {"ClimateGetTemperature", "GetCurrentDate", "GetCurrentTime", "GetState", "GetWeather", "TimerStatus"}
)


class Home(Skill):
    """Makes the requests of some languages, each drawn as often."""

    files = tuple(f"{code}.json" for code in LANGUAGES)

    def __init__(self, languages: Sequence[str] = ("en",)) -> None:
        self.languages = tuple(languages)

    def generate(self, seed: int, part: Part = "train") -> dict[str, Any]:
        """Intents are drawn by the square root of their templates: timers have a hundred, and would be half of all."""
        draw = Draw(seed)
        code = self.languages[draw.below(len(self.languages))]
        data, share = _load(code), PARTS.index(part)
        ends, templates = data["intents"][share]
        rows = templates[bisect_right(ends, draw.below(ends[-1]))]
        for _ in range(_ATTEMPTS):
            intent, _, fixed, kinds, sentences = draw.of(rows)
            sentence = draw.of(sentences)
            lower = draw.below(4) == 0
            values = _fill(draw, data, share, kinds, sentence, lower)
            if values is not None:
                break
        else:
            raise LookupError(f"no name of part {part} fits {sentence}")
        answer = {"intent": intent, **fixed}
        answer |= {slot: value for slot, (_, value) in sorted(values.items())}
        question = misspell(draw, sentence) if draw.below(32) == 0 else sentence
        question = _SLOT.sub(lambda slot: values[slot[1]][0], question)
        question = dress(draw, data["polite"], question, intent in _QUESTIONS)
        return made(question.lower() if lower else question, answer, language=code, template=sentence)


@cache
def _load(code: str) -> dict[str, Any]:
    """A language's data; `intents` holds for each part the templates by intent, with the running sums of weights."""
    data: dict[str, Any] = json.loads(read_data(f"{code}.json"))
    data["intents"] = []
    for part in range(len(PARTS)):
        rows: dict[str, list[Any]] = {}
        for row in data["templates"]:
            if row[1] == part:
                rows.setdefault(row[0], []).append(row)
        weights = [math.isqrt(100 * len(templates)) for templates in rows.values()]
        data["intents"].append((list(accumulate(weights)), list(rows.values())))
    return data


def _fill(
    draw: Draw, data: Mapping[str, Any], part: int, kinds: Sequence[str], sentence: str, lower: bool
) -> dict[str, tuple[str, Any]] | None:
    """Words and value of each slot; None if nothing fits one. A slot that agrees with another (`@slot`) comes after."""
    filled: dict[str, tuple[str, Any]] = {}
    codes: dict[str, str] = {}
    for slot, name, rule in sorted(_SLOT.findall(sentence), key=lambda found: found[2].startswith("@")):
        fitting = codes[rule[1:]] if rule.startswith("@") else rule
        if name in data["ranges"]:
            filled[slot] = _number(draw, name, data["ranges"][name], data["comma"])
            continue
        if name in data["lists"]:
            listed = [entry for entry in data["lists"][name] if _fits(entry[0], fitting)]
            answers = list(dict.fromkeys(entry[2] for entry in listed))
            answer = draw.of(answers) if answers else None
            candidates = [entry for entry in listed if entry[2] == answer]
        else:
            names = data["names"][draw.of(kinds) if name == "name" else name][part]
            candidates = [[*entry, entry[1]] for entry in names if _fits(entry[0], fitting)]
        if not candidates:
            return None
        codes[slot], words, value = draw.of(candidates)
        filled[slot] = (words, value.lower() if lower and isinstance(value, str) else value)
    longer = [slot for slot in filled if f"start_{slot}" in filled and filled[slot][1] >= filled[f"start_{slot}"][1]]
    return None if longer else filled  # nobody takes 20 minutes off a timer of 10


def _fits(codes: str, fitting: str) -> bool:
    return not codes or not fitting or any(code in fitting for code in codes)


def _number(draw: Draw, name: str, bounds: Sequence[int], comma: str) -> tuple[str, float]:
    """Digits and value of a number; half of them are round, as people's are."""
    low, high, step = bounds
    round_to = max(abs(step), 5 if draw.below(2) else 1)
    number = low + draw.below(high - low + 1)
    number = max(low, number - number % round_to)
    if name == "temperature" and draw.below(6) == 0:
        return f"{number}{comma}5", number + 0.5
    return str(number), -number if step < 0 else number
