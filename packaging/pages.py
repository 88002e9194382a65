#!/usr/bin/env python3
"""Builds the documentation as a static site, and fails if a link leads nowhere. Needs the extra `docs`.

    make site        # into build/site; open build/site/index.html

The pages are the repository's own files, copied so that the links between them stay as they are. The menu is
`docs/README.md`: its headings and the links of its tables.
"""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ROOT / "build" / "documents"
ENTRY = re.compile(r"^\| (?:.* \| )?\[([^\]]+)\]\(([^)#]+\.md)\) \|", re.MULTILINE)
"""A row of the index with the link to a page in its first or last cell."""


def main() -> None:
    """Copy the documents and build the site."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    shutil.rmtree(DOCUMENTS, ignore_errors=True)
    shutil.copytree(ROOT / "docs", DOCUMENTS / "docs")
    for path in [*ROOT.glob("*.md"), ROOT / "LICENSE"]:
        shutil.copy(path, DOCUMENTS / path.name)
    config = load_config(str(ROOT / "packaging" / "mkdocs.yml"), nav=menu(), strict=True)
    config.mdx_configs["toc"]["slugify"] = slug
    build(config)
    print(ROOT / "build" / "site" / "index.html")


def menu() -> list[dict[str, object]]:
    """The pages of `docs/README.md` under its headings, and the two first pages before them."""
    sections: list[dict[str, object]] = [{"Overview": "README.md"}, {"Documentation": "docs/README.md"}]
    for section in (ROOT / "docs" / "README.md").read_text("utf-8").split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        pages = {
            (ROOT / "docs" / path).resolve().relative_to(ROOT).as_posix(): title for title, path in ENTRY.findall(text)
        }
        if pages:
            sections.append({heading: [{title: path} for path, title in pages.items()]})
    return sections


def slug(heading: str, separator: str) -> str:
    """A heading's anchor as GitHub makes it, so that one link works in both places."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


if __name__ == "__main__":
    main()
