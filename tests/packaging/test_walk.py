"""The walk knows the README's commands, so that neither changes without the other."""

from __future__ import annotations

import pytest

from tests.walk.readme import BEGIN, END, ROOT, WALK, check, commands, with_table

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
    text = with_table(f"head\n{BEGIN}\nold\n{END}\ntail\n", ["| a |"])
    assert text.startswith(f"head\n{BEGIN}\n| Command |") and text.endswith(f"\n| a |\n{END}\ntail\n")
    assert "old" not in text and with_table(text, ["| a |"]) == text
    with pytest.raises(SystemExit, match="lacks"):
        with_table("no marks", [])
