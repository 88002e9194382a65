"""How many of the skill `home`'s test requests hassil recognises with Home Assistant's own English templates.

    .venv/bin/python -c 'import json; from sapo_edge.tasks.manifest import load_manifest as load; from sapo_edge.tasks.source import TaskSource; print(json.dumps([(t.question, json.loads(t.ground_truth)) for t in TaskSource(load("home")).held_out("test", 200)]))' > test.json
    .venv-home/bin/python packaging/home/recognise.py test.json

Kind to hassil: it has the templates that the test is made of, all names of rooms, floors and devices of the test, each
device as every kind, the room of the request, and a request counts if any of its readings is right.
"""  # noqa: E501

from __future__ import annotations

import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

from hassil.expression import TextChunk
from hassil.intents import Intents, TextSlotList, TextSlotValue
from hassil.recognize import recognize_all

KINDS = (
    "binary_sensor", "button", "climate", "cover", "fan", "input_boolean", "lawn_mower", "light", "lock",
    "media_player", "person", "scene", "script", "sensor", "switch", "todo", "vacuum", "valve", "weather",
)  # fmt: skip
HERE = "here"
"""The room of the request."""


def comparable(value: object) -> str:
    """A value as text: 25, 25.0 and "25" are one."""
    try:
        return f"{float(str(value)):g}"
    except ValueError:
        return str(value).lower()


def slots(call: dict[str, Any]) -> dict[str, str]:
    """What both sides say in the same way; that all of a home is meant, hassil says by leaving out the room."""
    found = {name: comparable(value) for name, value in call.items() if name not in ("intent", "ask")}
    return {name: value for name, value in found.items() if value != HERE and (name, value) != ("area", "all")}


def main() -> None:
    """Print how many are recognised, and those that are not."""
    tests = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    data = json.loads(resources.files("home_assistant_intents").joinpath("data", "en.json").read_bytes())
    named = {kind: sorted({call[kind] for _, call in tests if kind in call}) for kind in ("name", "area", "floor")}
    lists = {kind: TextSlotList.from_strings(named[kind], name=kind) for kind in ("area", "floor")}
    devices = [TextSlotValue(TextChunk(name), name, {"domain": kind}) for name in named["name"] for kind in KINDS]
    lists["name"] = TextSlotList("name", devices)
    intents = Intents.from_dict({**data, "settings": {}})
    right = 0
    for request, call in tests:
        readings = recognize_all(
            request.rstrip(".?! "), intents, slot_lists=lists, language="en", intent_context={"area": HERE}
        )
        is_right = any(
            reading.intent.name == f"Hass{call['intent']}"
            and slots({name: entity.value for name, entity in reading.entities.items()}) == slots(call)
            for reading in readings
        )
        right += is_right
        if not is_right:
            print(request)
    print(f"{right} of {len(tests)}")


if __name__ == "__main__":
    main()
