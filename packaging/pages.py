#!/usr/bin/env python3
"""Builds the documentation as a static site, and fails if a link leads nowhere. Needs the extra `docs`.

    make site        # into build/site; open build/site/index.html

The pages are the repository's own files, copied so that the links between them stay as they are. The menu is
`docs/README.md`: its headings and the links of its tables.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
ENTRY = re.compile(r"^\| (?:.* \| )?\[([^\]]+)\]\(([^)#]+\.md)\) \|", re.MULTILINE)
"""A row of the index with the link to a page in its first or last cell."""


def main() -> None:
    documents = BUILD / "documents"
    for directory in (documents, BUILD / "site"):
        shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(ROOT / "docs", documents / "docs")
    for path in [*ROOT.glob("*.md"), ROOT / "LICENSE"]:
        shutil.copy(path, documents / path.name)
    settings = (ROOT / "packaging/site.toml").read_text("utf-8")
    (BUILD / "site.toml").write_text(settings.replace("[project]\n", f"[project]\nnav = {toml(menu())}\n", 1), "utf-8")
    zensical = Path(sys.executable).with_name("zensical")
    done = subprocess.run([zensical, "build", "--clean", "--strict", "--config-file", BUILD / "site.toml"], check=False)
    if done.returncode:
        sys.exit(done.returncode)
    print(BUILD / "site/index.html")


def menu() -> list[object]:
    """The pages of `docs/README.md` under its headings, and the two first pages before them."""
    sections: list[object] = [{"Overview": "README.md"}, {"Documentation": "docs/README.md"}]
    for section in (ROOT / "docs/README.md").read_text("utf-8").split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        pages = {
            (ROOT / "docs" / path).resolve().relative_to(ROOT).as_posix(): title for title, path in ENTRY.findall(text)
        }
        if pages:
            sections.append({heading: [{title: path} for path, title in pages.items()]})
    return sections


def toml(value: object) -> str:
    """Lists, tables and texts in TOML's words; a text in JSON is one there, too."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{json.dumps(name)} = {toml(content)}' for name, content in value.items())} }}"
    return json.dumps(value)


if __name__ == "__main__":
    main()
