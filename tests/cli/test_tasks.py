"""A node on people's own questions."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command, quick

MANIFEST = 'name = "own"\nmax_tokens = 8\n[[tasks]]\nname = "mine"\nquestions = "tasks.jsonl"\n'


def write_own(directory: Path, count: int = 20) -> Path:
    """A manifest with so many questions."""
    records = ({"question": f"{number} + 1?", "answer": number + 1, "check": "number"} for number in range(count))
    lines = [json.dumps(record) for record in records]
    (directory / "tasks.jsonl").write_text("\n".join(lines), "utf-8")
    path = directory / "manifest.toml"
    path.write_text(MANIFEST)
    return path


def test_a_node_trains_on_own_questions_alone_and_says_so(sapo: Command, model: Path, tmp_path: Path) -> None:
    manifest = write_own(tmp_path)
    arguments = quick(model, tmp_path / "home", "--rounds", "2", "--manifest", manifest, "--json")
    result = sapo(*arguments, "--set", "network=swarm")
    assert result.code == 0, result.err
    (started,) = result.named("node_started")
    assert started["settings"]["network"] == "solo" and any("nothing is sent" in text for text in started["reasons"])
    assert "nothing is shared of your 20 questions" in result.err
    assert {event["questions"] for event in result.named("held_out")} == {3}
    (comparison,) = result.named("comparison")
    assert comparison["questions"] == 3
