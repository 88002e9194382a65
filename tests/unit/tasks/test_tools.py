"""The skill `tools`: held-out tools and names, and one call that the request spells out."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from itertools import product
from typing import Any

from sapo_edge.tasks.skills import PARTS
from sapo_edge.tasks.skills.tools import Tools
from tests.benchmarks.bfcl import is_possible

DATA: dict[str, Any] = json.loads((resources.files("sapo_edge.tasks.skills") / "data/tools.json").read_text("utf-8"))
TYPES: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool}


def requests(tool: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each request that a tool's templates can give, before the slots are filled, with what it implies."""
    for row in tool["requests"]:
        template, implied = (row, {}) if isinstance(row, str) else row
        for drawn in product(*[piece.split("|") for piece in re.split(r"[()]", template)]):
            yield "".join(drawn), implied


def test_parts_share_no_tool_no_request_and_no_name() -> None:
    tools: list[set[str]] = [set(), set(), set()]
    frames: list[set[str]] = [set(), set(), set()]
    for tool in DATA["tools"]:
        tools[tool["part"]].add(tool["name"])
        frames[tool["part"]] |= {re.sub(r"\{\w+\}", "{}", text).lower() for text, _ in requests(tool)}
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not tools[one] & tools[other] and not frames[one] & frames[other]
        for kind in DATA["names"].values():
            assert not set(kind[one]) & set(kind[other])
    used = {
        kind: {tool["part"] for tool in DATA["tools"] if kind in tool["values"].values()} for kind in DATA["values"]
    }
    # Numbers, days and times are free; any other list serves the tools of one part.
    assert {kind for kind, parts in used.items() if len(parts) > 1} <= {"few", "date", "time"}


def test_there_are_enough_tools_and_three_of_a_domain_to_choose_from() -> None:
    domains = Counter((tool["part"], tool["domain"]) for tool in DATA["tools"])
    assert len(DATA["tools"]) >= 80 and len({domain for _, domain in domains}) >= 12
    assert min(domains.values()) >= 3 and min(len(tool["requests"]) for tool in DATA["tools"]) >= 8
    for tool in DATA["tools"]:
        parameters = {name.rstrip("?") for name in tool["parameters"]}
        required = {name for name in tool["parameters"] if not name.endswith("?")}
        assert 1 <= len(parameters) <= 4
        asked: set[str] = set()
        for text, implied in requests(tool):
            named = {*re.findall(r"\{(\w+)\}", text), *implied}
            assert required <= named <= parameters, text
            asked |= named
        assert asked == parameters, tool["name"]


def test_a_call_has_the_types_of_its_tool_and_says_what_the_request_says() -> None:
    tools = {tool["name"]: tool for tool in DATA["tools"]}
    for seed in range(3000):
        task = Tools().generate(seed, PARTS[seed % 3])
        call, (*lines, empty, request) = json.loads(task["answer"]), task["question"].split("\n")
        assert empty == "" and len({line.split("(")[0] for line in lines}) == 4
        assert sum(line.startswith(f"{call['name']}(") for line in lines) == 1
        tool = tools[call["name"]]
        parameters = {name.rstrip("?"): kind for name, kind in tool["parameters"].items()}
        for name, value in call["arguments"].items():
            kind = parameters[name]
            if "|" in kind:
                assert value in kind.split("|")
            else:
                assert isinstance(value, TYPES[kind]) and isinstance(value, bool) == (kind == "boolean")
            if kind == "string":
                assert value.lower() in request.lower()


def test_a_case_of_others_has_several_possible_calls() -> None:
    possible: dict[str, Any] = {"area": {"base": [10], "height": [5, 5.5], "unit": ["cm", ""]}}
    for arguments in ('{"base": 10, "height": 5}', '{"height": 5.5, "base": 10, "unit": "CM"}'):
        assert is_possible(possible, f'{{"name": "area", "arguments": {arguments}}}')
    for arguments in ('{"base": 10}', '{"base": 10, "height": 6}', '{"base": 10, "height": 5, "unit": "m"}'):
        assert not is_possible(possible, f'{{"name": "area", "arguments": {arguments}}}')
    assert not is_possible(possible, '{"name": "volume", "arguments": {"base": 10, "height": 5}}')
