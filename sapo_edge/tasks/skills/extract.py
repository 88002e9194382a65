"""The skill `extract`: letters, mails and short messages, each with what it says as one JSON object.

`data/extract.toml` has the templates and what fills them. Each template, thing, company and name belongs to one part.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from sapo_edge.tasks.skills import PARTS, Draw, Part, Skill, made, misspell, read_data

KINDS = ("appointment", "complaint", "invitation", "invoice", "notice", "order", "request")
FIELDS = ("who", "what", "date", "sum", "currency", "deadline", "wish")

_FILE = "extract.toml"
_SLOT = re.compile(r"\{(\w+)\}")
_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_ARTICLE = re.compile(r"\b([Aa]) (?=(?:[aeio]|ul)\w)")
_MEANINGS = {"part": "sum", "prior": "deadline", "due": "deadline"}
"""Slots that give a field of another name."""
_DISTRACTING = {"date": {"earlier", "between", "later", "expiry"}, "sum": {"less", "more", "vat", "fee"}}
"""By field the slots of its kind that are no answer."""
_DEADLINES = {"prior": (-9, -2), "due": (10, 30)}
"""Fewest and most days after the date of deadlines that differ from those of their set."""
_FIRST_DAY, _DAYS = datetime.date(2024, 1, 1).toordinal(), 5 * 365
_CENTS = (0, 0, 0, 0, 50, 90, 95, 99)

_Values: TypeAlias = dict[str, tuple[str, Any]]
"""By slot: the words, and the value of the field that it gives."""
_Split: TypeAlias = tuple[Sequence[Any], ...]
"""What belongs to each part, in the order of `PARTS`."""


@dataclass(frozen=True, slots=True)
class _Trade:
    """Who sells or does what: the second words of companies, and things as (name, lowest price, highest price)."""

    suffixes: Sequence[str]
    things: _Split


@dataclass(frozen=True, slots=True)
class _Template:
    """A template with what its set says: `form` is "mail" or "note", `days` those from the date to the deadline."""

    wish: str
    text: str
    form: str
    voice: str
    trades: Sequence[_Trade]
    days: tuple[int, int]
    extras: _Split


@dataclass(frozen=True, slots=True)
class _Data:
    """The file, and what of it is split."""

    raw: Mapping[str, Any]
    names: Mapping[str, _Split]
    templates: Mapping[str, _Split]


class Extract(Skill):
    """Makes messages of some kinds, each drawn as often."""

    files = (_FILE,)

    def __init__(self, kinds: Sequence[str] = KINDS) -> None:
        self.kinds = tuple(kinds)

    def generate(self, seed: int, part: Part = "train") -> dict[str, Any]:
        draw, data, share = Draw(seed), _load(), PARTS.index(part)
        kind = draw.of(self.kinds)
        template: _Template = draw.of(data.templates[kind][share])
        trade: _Trade = draw.of(template.trades)
        thing, low, high = draw.of(trade.things[share])
        text = _compose(draw, data, template, share)
        slots = _SLOT.findall(text)
        values = _people(draw, data.names, template.voice, trade, share)
        values |= {"what": (thing, thing)} | _dates(draw, data.raw, slots, template.days)
        values |= _sums(draw, data.raw["currencies"], low, high)
        fields = {_MEANINGS.get(slot, slot): values[slot][1] for slot in slots}
        fields |= {"currency": values["currency"][1]} if "sum" in fields else {}
        fields |= {"wish": template.wish} if template.wish != "-" else {}
        question = _ARTICLE.sub(r"\1n ", _SLOT.sub(lambda slot: values[slot[1]][0], text)).strip()
        if template.form == "note" and draw.below(5) == 0:
            question = question.lower()
            fields |= {name: fields[name].lower() for name in ("who", "what") if name in fields}
        elif draw.below(2):
            question = question[0].upper() + question[1:]
        answer = {name: fields[name] for name in FIELDS if name in fields}
        return made(question, answer, kind=kind, template=template.text)


@cache
def _load() -> _Data:
    raw = tomllib.loads(read_data(_FILE).decode("utf-8"))
    trades = {}
    for name, line in raw["trades"].items():
        suffixes, things = line.split("|")
        trades[name] = _Trade(suffixes.strip().split("; "), tuple(map(_priced, _split(things.strip().split("; ")))))
    by_kind: dict[str, list[_Template]] = {}
    for table in raw["sets"]:
        shared = (
            table["voice"],
            [trades[name] for name in table["trades"].split()],
            tuple(table["deadline"]),
            _split(table["extra"]),
        )
        for form in ("mail", "note"):
            for line in table[form].strip().splitlines():
                wish, text = line.split(": ", 1)
                by_kind.setdefault(table["kind"], []).append(_Template(wish, text, form, *shared))
    return _Data(
        raw,
        {name: _split(line.split("; ")) for name, line in raw["names"].items()},
        {kind: _split(templates, lambda template: template.text) for kind, templates in by_kind.items()},
    )


def _split(items: Sequence[Any], text: Callable[[Any], str] = str) -> _Split:
    """The items of each part, in the order of their digests: one in 7 tests, one in 7 validates."""
    ordered = sorted(items, key=lambda item: hashlib.sha256(text(item).encode()).hexdigest())
    held = max(1, len(items) // 7)
    return ordered[2 * held :], ordered[held : 2 * held], ordered[:held]


def _priced(things: Iterable[str]) -> list[tuple[str, int, int]]:
    """Name and bounds of the price, of lines as "dining table 180-900"."""
    parted = [thing.rsplit(" ", 1) for thing in things]
    return [(name, *map(int, prices.split("-"))) for name, prices in parted]  # type: ignore[misc]


def _compose(draw: Draw, data: _Data, template: _Template, share: int) -> str:
    """The whole text with its slots: opening, template, at most two sentences that distract, closing."""
    text = _CHOICE.sub(lambda choice: str(draw.of(choice[1].split("|"))), template.text)
    if draw.below(16) == 0:
        text = misspell(draw, text)
    mail = template.form == "mail"
    for _ in range(draw.of((0, 0, 1, 1, 2) if mail else (0, 0, 0, 1))):
        taken = {_MEANINGS.get(slot, slot) for slot in _SLOT.findall(text)}
        # What distracts is taken for the date, or for the sum, where there is no other.
        taken |= set().union(*(others for field, others in _DISTRACTING.items() if field not in taken))
        extras = [extra for extra in template.extras[share] if taken.isdisjoint(_SLOT.findall(extra))]
        extras = [extra for extra in extras if extra not in text]
        if extras:
            extra, space = draw.of(extras), draw.of(" \n") if mail else " "
            text = extra + space + text if mail and " it " not in extra and draw.below(4) == 0 else text + space + extra
    opening: str = draw.of(data.raw["open"][template.voice][template.form])
    closing: str = draw.of(data.raw["close"][template.voice][template.form])
    return opening + text + ("" if "{who}" in opening else closing)


def _people(draw: Draw, names: Mapping[str, _Split], voice: str, trade: _Trade, share: int) -> _Values:
    """Who writes to whom, who else is named, and numbers and times that no field asks for."""
    firsts, lasts = list(names["first"][share]), list(names["last"][share])
    reader, sender, person, clerk = (
        (firsts.pop(draw.below(len(firsts))), lasts.pop(draw.below(len(lasts)))) for _ in range(4)
    )
    company = f"{draw.of(names['company'][share])} {draw.of(trade.suffixes)}"
    signed = sender[0] if voice == "friend" and draw.below(2) else " ".join(sender)
    who = company if voice == "business" else signed
    hour, minute = 9 + draw.below(9), 15 * draw.below(4)
    clock = f"{hour}:{minute:02}" if minute or draw.below(2) else f"{(hour - 1) % 12 + 1} {'ap'[hour > 11]}m"
    return {
        "who": (who, who),
        "first": (reader[0], None),
        "last": (reader[1], None),
        "title": (draw.of(("Mr", "Ms")), None),
        "person": (" ".join(person), None),
        "clerk": (" ".join(clerk), None),
        "shop": (company, None),
        "ref": (str(10_000 + draw.below(990_000)), None),
        "phone": (f"0{100 + draw.below(900)} {100_000 + draw.below(900_000)}", None),
        "time": (clock, None),
    }


def _dates(draw: Draw, words: Mapping[str, Any], slots: Sequence[str], days: tuple[int, int]) -> _Values:
    """Days in their order in time, all written in one way; most messages give the year of all of them, or of none."""
    day = _FIRST_DAY + draw.below(_DAYS)
    least, most = next((_DEADLINES[slot] for slot in slots if slot in _DEADLINES), days)
    deadline = day + least + draw.below(most - least + 1)
    has_deadline = not {"deadline", *_DEADLINES}.isdisjoint(slots)
    first, last = sorted((day, deadline if has_deadline else day + 9))
    with_year, without = draw.of(words["dates"])
    weekday, years = draw.below(6) == 0, draw.below(10)
    ordinals = {
        "date": day,
        **dict.fromkeys(("deadline", *_DEADLINES), deadline),
        "earlier": first - 2 - draw.below(24),
        "between": first + 1 + draw.below(last - first - 1),
        "later": last + 5 + draw.below(30),
        "expiry": day + 730,
    }
    values: _Values = {}
    for slot, ordinal in ordinals.items():
        when = datetime.date.fromordinal(ordinal)
        month, ending = words["months"][when.month - 1], {1: "st", 2: "nd", 3: "rd"}.get(when.day % 10, "th")
        dated = years < 6 or slot == "expiry" or (years == 9 and draw.below(2) == 0)
        text = (with_year if dated else without).format(
            d=when.day, m=when.month, y=when.year, month=month, mon=month[:3], th="th" if 10 < when.day < 14 else ending
        )
        text = f"{words['weekdays'][when.weekday()]}, {text}" if weekday and not text[:4].isdigit() else text
        values[slot] = (text, when.isoformat() if dated else when.isoformat()[5:])
    return values


def _sums(draw: Draw, currencies: Mapping[str, Sequence[str]], low: int, high: int) -> _Values:
    """Sums in one currency that fit a price: its parts and the prices around it."""
    price = 100 * (low + draw.below(high - low + 1)) + draw.of(_CENTS)
    part = max(200, price // 100 * (15 + draw.below(25)) // 100 * 100)
    currency = draw.of(tuple(currencies))
    form, comma, zeros = draw.of(currencies[currency]), draw.of((",", "")), draw.below(4) == 0
    cents = {"sum": price, "part": part, "whole": price, "less": price - part, "more": price + part}
    cents |= {"vat": (price + 3) // 6, "fee": 500 + 100 * draw.below(21)}
    values: _Values = {"currency": ("", currency)}
    for slot, amount in cents.items():
        digits = f"{amount / 100:,.2f}" if zeros or amount % 100 else f"{amount // 100:,}"
        value = amount / 100 if amount % 100 else amount // 100
        values[slot] = (form.format(digits.replace(",", comma)), value)
    return values
