"""The skill `extract`: held-out words and names, and values that stand in their message."""

from __future__ import annotations

import calendar
import json
import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import pytest

from sapo_edge.errors import ManifestError
from sapo_edge.tasks.manifest import TaskEntry, load_manifest
from sapo_edge.tasks.skills import PARTS
from sapo_edge.tasks.skills.extract import FIELDS, KINDS, Extract, _load
from sapo_edge.tasks.source import TaskSource

SOURCE = TaskSource(load_manifest("extract"))
MADE = [Extract().generate(seed, PARTS[seed % 3]) for seed in range(3000)]
WISHES = {
    "pay", "reply", "send", "call", "bring", "come", "sign", "check", "buy", "lend", "collect", "return", "refund",
    "replace", "repair", "cancel", "move", "-",
}  # fmt: skip


def test_parts_share_no_template_thing_or_name() -> None:
    data = _load()
    templates = [template for split in data.templates.values() for part in split for template in part]
    trades = {id(trade): trade for template in templates for trade in template.trades}.values()
    shared: list[Sequence[Sequence[str]]]
    shared = [[[template.text for template in part] for part in split] for split in data.templates.values()]
    assert all(sum(map(len, split)) >= 60 for split in shared)
    shared += [*data.names.values(), *(template.extras for template in templates)]
    shared += [[[thing for trade in trades for thing, _, _ in trade.things[part]] for part in range(3)]]
    for split in shared:
        assert all(split) and not any(set(one) & set(other) for one, other in combinations(split, 2))
    for part in range(3):
        asked = {template.wish for split in data.templates.values() for template in split[part]}
        assert asked <= WISHES and (part or asked == WISHES), "held-out wishes are trained on"


def test_each_template_has_one_thing_and_at_most_one_value_of_a_field() -> None:
    for split in _load().templates.values():
        for template in (template for part in split for template in part):
            slots = Counter(re.findall(r"\{(\w+)\}", template.text))
            deadlines = slots["deadline"] + slots["prior"] + slots["due"]
            assert slots["what"] == 1 and slots["date"] <= 1 and slots["sum"] + slots["part"] <= 1
            assert deadlines <= (template.wish != "-"), "a deadline is the last day for a wish"
            # A second date, or sum, distracts only where there is a first.
            assert slots["date"] or not slots.keys() & {"earlier", "between", "later", "expiry"}
            assert slots["sum"] + slots["part"] or not slots.keys() & {"less", "more", "whole", "vat", "fee"}


def test_every_value_stands_in_its_message() -> None:
    for task in MADE:
        question, answer = task["question"], json.loads(task["answer"])
        assert list(answer) == [name for name in FIELDS if name in answer]
        assert ("sum" in answer) == ("currency" in answer)
        assert "{" not in question and answer["what"].lower() in question.lower() and answer.get("who", "") in question
        for name in {"date", "deadline"} & answer.keys():
            year, month, day = answer[name].rsplit("-", 2) if len(answer[name]) > 5 else ("", *answer[name].split("-"))
            assert re.search(rf"(?<!\d)0?{int(day)}(?!\d)", question) and year in question
            assert re.search(rf"\b({calendar.month_abbr[int(month)]}|{month}\b)", question, re.IGNORECASE)
        if "sum" in answer:
            assert any(form in question.replace(",", "") for form in (f"{answer['sum']:.2f}", f"{answer['sum']:.0f}"))
        if len(answer.get("date", "")) == len(answer.get("deadline", "")) == 10:
            template, later = task["metadata"]["template"], answer["deadline"] > answer["date"]
            after = task["metadata"]["kind"] in ("complaint", "invoice", "order") and "{prior}" not in template
            assert later == (after or "{due}" in template)


def test_messages_differ_none_is_long_and_kinds_are_chosen() -> None:
    questions = {task["question"].lower() for task in MADE}
    assert max(map(len, questions)) < 600 and len(questions) > 0.99 * len(MADE)
    made = Extract(("order", "notice"))
    assert {made.generate(seed)["metadata"]["kind"] for seed in range(50)} == {"order", "notice"}
    assert TaskEntry("extract", "extract", {"kinds": KINDS}).config == {"kinds": KINDS}
    with pytest.raises(ManifestError):
        TaskEntry("extract", "extract", {"kinds": ("poem",)})
