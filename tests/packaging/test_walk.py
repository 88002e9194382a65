"""The walk knows the README's commands, so that neither changes without the other."""

from __future__ import annotations

import pytest

from tests.pages import DOCS, with_part
from tests.walk.readme import ROOT, WALK, check, commands

README = (ROOT / "README.md").read_text("utf-8")


def test_the_walk_goes_through_every_command_of_the_readme_in_its_order() -> None:
    check(README)
    assert all(bool(step.what) != bool(step.left_out) for step in WALK.values())
    # `python -m tests.walk` uses what the text says of this one.
    assert "make run ROUNDS=" in README and "COMPILE=yes" in README


@pytest.mark.parametrize(("old", "new"), [
    ("sapo report ", "sapo reports "), ("make clean ", ""), ("sapo stop --wait ", "sapo stop --wait\nsapo stop "),
    ("sapo chat ", "# sapo chat "),
])  # fmt: skip
def test_a_readme_with_other_commands_stops_the_walk(old: str, new: str) -> None:
    assert old in README
    with pytest.raises(SystemExit, match=r"change tests/walk/readme\.py"):
        check(README.replace(old, new))


def test_comments_are_no_commands() -> None:
    assert commands("```sh\nmake run     # trains\n# alone\n\nsapo x '#1' # it\n```\n") == ["make run", "sapo x '#1'"]


def test_the_table_replaces_the_one_before() -> None:
    page = (DOCS / "start.md").read_text("utf-8")
    text = with_part(page, "walk", "| a |")
    assert "| a |" in text and "| Command |" not in text and text.startswith(page.partition("<!-- walk")[0])
    with pytest.raises(ValueError, match="lacks"):
        with_part("no marks", "walk", "")
