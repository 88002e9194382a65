"""The skill `tools`: four tools and a request, with the one call that answers it.

Tools, requests and values are our own (`data/tools.json`). Each tool belongs to one part, and so does each name that
requests mention.

    parameters   by name, with a `?` where it is optional: string, integer, number, boolean, or the words of an enum
    values       by parameter: what requests say for it, as a kind of `names` or `values`; as texts, or pairs of what is
                 said and what is meant; or as a range of numbers (lowest, highest, step)
    requests     templates: `{parameter}` is filled, one of `(this|that)` is drawn; some come with what they imply
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sapo_edge.tasks.skills import PARTS, Draw, Part, Skill, dress, made, read_data

_FILE = "tools.json"
_SLOT = re.compile(r"\{(\w+)\}")
_EITHER = re.compile(r"\(([^()|]*(?:\|[^()|]*)+)\)")


class Tools(Skill):
    """Makes questions about four tools, each of which is asked for as often."""

    files = (_FILE,)

    def generate(self, seed: int, part: Part = "train") -> dict[str, Any]:
        """Of the three tools that are not asked for, one or two are of the same domain."""
        draw = Draw(seed)
        data, parts = _load()
        tools = parts[PARTS.index(part)]
        tool = draw.of(tools)
        near = [other for other in tools if other["domain"] == tool["domain"] and other is not tool]
        far = [other for other in tools if other["domain"] != tool["domain"]]
        shown = [tool]
        for others in (near, near if draw.below(2) else far, far):
            shown.insert(draw.below(len(shown) + 1), others.pop(draw.below(len(others))))
        template, implied = draw.of(tool["requests"])
        request, arguments = _fill(draw, tool, template, draw.below(6) == 0)
        arguments |= implied
        call = {"name": tool["name"], "arguments": {key: arguments[key] for key in tool["order"] if key in arguments}}
        request = dress(draw, data["polite"], request.rstrip(" ?"), request.endswith("?"))
        question = ask([other["line"] for other in shown], request)
        return made(question, call, tools=[other["name"] for other in shown], template=template)


def describe(name: str, parameters: Mapping[str, str], description: str) -> str:
    """A tool in one line; the names of optional parameters end in `?`."""
    return f"{name}({', '.join(f'{key}: {kind}' for key, kind in parameters.items())}): {description}"


def ask(tools: Iterable[str], request: str) -> str:
    """The question about some tools, each in its line."""
    return "\n".join((*tools, "", request))


@cache
def _load() -> tuple[dict[str, Any], list[list[Any]]]:
    """The data, and the tools of each part, with their values instead of kinds, and all that is drawn from them."""
    data: dict[str, Any] = json.loads(read_data(_FILE))
    parts: list[list[Any]] = [[] for _ in PARTS]
    for tool in data["tools"]:
        part = tool["part"]
        for name, kind in tool["values"].items():
            if isinstance(kind, str):
                tool["values"][name] = data["names"][kind][part] if kind in data["names"] else data["values"][kind]
        tool["line"] = describe(tool["name"], tool["parameters"], tool["description"])
        tool["order"] = [name.rstrip("?") for name in tool["parameters"]]
        tool["requests"] = [(row, {}) if isinstance(row, str) else tuple(row) for row in tool["requests"]]
        parts[part].append(tool)
    return data, parts


def _fill(draw: Draw, tool: Mapping[str, Any], template: str, lower: bool) -> tuple[str, dict[str, Any]]:
    """The request of a template, and the arguments that it names, no two of them alike."""
    arguments: dict[str, Any] = {}
    said: dict[str, str] = {}
    request = " ".join(_EITHER.sub(lambda either: str(draw.of(either[1].split("|"))), template).split())
    for slot in _SLOT.findall(request):
        said[slot], value = _value(draw, tool["values"][slot], said.values())
        arguments[slot] = value.lower() if lower and isinstance(value, str) else value
    request = _SLOT.sub(lambda slot: said[slot[1]], request)
    return request.lower() if lower else request, arguments


def _value(draw: Draw, choices: Sequence[Any], said: Iterable[str]) -> tuple[str, Any]:
    """What is said for a parameter, and what is meant."""
    if isinstance(choices[0], int | float):
        low, high, step = (*choices, 1)[:3]
        number = round(low + step * draw.below(int((high - low) / step) + 1), 4)
        number = int(number) if number == int(number) else number
        return str(number), number
    taken = set(said)
    pairs = [(choice, choice) if isinstance(choice, str) else tuple(choice) for choice in choices]
    words, value = draw.of([pair for pair in pairs if pair[0] not in taken])
    return words, value
