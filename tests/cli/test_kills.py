"""A node killed at a few random instants; `python -m tests.cli.kills` does it 50 times."""

from __future__ import annotations

from pathlib import Path

from tests.cli.kills import run


def test_a_node_that_is_killed_loses_at_most_its_round_and_trains_on_nothing_twice(tmp_path: Path) -> None:
    assert run(tmp_path, 3, seed=1) > 2
