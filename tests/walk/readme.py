"""The commands of README.md, and what the walk does with each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Step:
    """What comes of a command of the README, or why it is left out; what it prints, and the person types then."""

    what: str = ""
    typed: tuple[tuple[str, str], ...] = ()
    left_out: str = ""


TWO = Step(left_out="takes two computers")
WALK = {
    "make run": Step("installs, and learns"),
    "make test": Step(left_out="is about the code, not its use"),
    ".venv/bin/sapo": Step(
        "the app starts a node, which learns a round; the app is left",
        typed=(("cores: automatic, of", "a"), ("no connection is opened", "\r"), ("", "q"), ("Keep learning", "k")),
    ),
    "sapo swarm create --private": TWO,
    "sapo run": TWO,
    "sapo swarm invite": TWO,
    "sapo swarm join 'LINE'": TWO,
    "sapo report": Step("what was learned, beside the node"),
    "sapo chat": Step("one question, beside the node", typed=(("\n> ", "What is 3 + 4?\n"), ("\n> ", "\x04"))),
    "sapo export --to merged my-model": Step("one GGUF file"),
    "ollama create my-model -f my-model/Modelfile && ollama run my-model": Step(left_out="needs another program"),
    "sapo stop --wait": Step("ends the node after its round"),
    "sapo backup FILE.zip": Step("keeps everything"),
    "sapo uninstall": Step("removes settings, adapters, history", typed=(("[y/N]", "y\n"),)),
    "make clean": Step("removes the program"),
}
"""In the order of the README."""


def commands(readme: str) -> list[str]:
    """The commands in the README's blocks, in order, without their comments."""
    lines = (line for block in BLOCK.findall(readme) for line in block.splitlines())
    found = (re.split(r"(?:^|\s)\s*#\s", line)[0].strip() for line in lines)
    return [command for command in found if command]


def check(readme: str) -> None:
    """Refuse a README whose commands are not those of the walk, naming the first that differs."""
    for there, here in zip_longest(commands(readme), WALK, fillvalue="nothing more"):
        if there != here:
            raise SystemExit(f"README.md has {there!r} where the walk has {here!r}: change tests/walk/readme.py")
