#!/usr/bin/env python3
"""Renews THIRD_PARTY.md: the licences of what an install brings, from the metadata of the environment that runs this.

    .venv/bin/python packaging/third_party.py

Distributions that only tests need are left out. What `packaging/wheels.py` leaves out of an install is still listed.
"""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("swarm", "tui", "train", "llama", "starter", "web", "metrics")
INNER = ("models", "tasks")
"""Extras that only others name."""
HEAD = """# Third-party software

What the extras {extras} bring on Linux, with the licence that
each distribution's metadata names. Nothing of it is part of this repository. Made by `packaging/third_party.py`.

Part of this repository: the files by language in `sapo_edge/tasks/skills/data/` come from the sentences of
home-assistant-intents 2026.10.27, Apache-2.0, with its licence and a notice beside them
([docs/skills.md](docs/skills.md)).

| Distribution | Version | Licence |
|---|---|---|
"""


def main() -> None:
    lines = [f"| {name} | {version} | {licence} |" for name, version, licence in rows()]
    text = HEAD.format(extras=", ".join(f"`{extra}`" for extra in EXTRAS)) + "\n".join(lines) + "\n"
    (ROOT / "THIRD_PARTY.md").write_text(text, "utf-8")
    print(f"{len(lines)} distributions")


def rows() -> list[tuple[str, str, str]]:
    """Name, version and licence of each distribution that the extras bring, by name."""
    found: dict[str, tuple[str, str, str]] = {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    waiting = [requirement for line in lines if (requirement := Requirement(line)).name != "sapo-edge"]
    waiting += [Requirement(line) for extra in INNER for line in project["optional-dependencies"][extra]]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        try:
            metadata = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            # Of another system or Python.
            continue
        version = metadata["Version"].partition("+")[0]
        found[name] = metadata["Name"], version, licence_of(metadata)
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                lines = (Requirement(line) for line in metadata.get_all("Requires-Dist") or ())
                waiting += [line for line in lines if line.marker is None or line.marker.evaluate({"extra": extra})]
    return [found[name] for name in sorted(found)]


def licence_of(metadata: importlib.metadata.PackageMetadata) -> str:
    """What the metadata says: an SPDX expression, else the classifiers, else the first line of the text."""
    if expression := metadata["License-Expression"]:
        return str(expression)
    classifiers = [line for line in metadata.get_all("Classifier") or () if line.startswith("License ::")]
    names = [line.rpartition(" :: ")[2] for line in classifiers if not line.endswith("OSI Approved")]
    text = (metadata["License"] or "").strip().splitlines()
    chosen = ", ".join(names) or (text[0][:60] if text else "see its files")
    return re.sub(r"\s*\|\s*", " or ", chosen)


if __name__ == "__main__":
    main()
