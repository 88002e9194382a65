"""A person's answers wait in a file that several programs change."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sapo_edge.node.person import Outbox, PersonAnswers
from sapo_edge.rollout import TaskRef


def test_answers_that_several_programs_add_and_remove_at_once_all_count(tmp_path: Path) -> None:
    def answers(number: int) -> PersonAnswers:
        return PersonAnswers(TaskRef("sums", "1", 0, number), ("<answer>2</answer>",), "manifest")

    def outbox() -> Outbox:
        return Outbox(tmp_path / "outbox.json", lambda _text: None)

    shared = [answers(number) for number in range(100, 110)]
    for one in shared:
        outbox().add(one)
    with ThreadPoolExecutor(5) as programs:
        removed = programs.map(lambda one: outbox().remove([one]), shared)
        added = programs.map(lambda number: outbox().add(answers(number)), range(40))
        list(removed), list(added)
    assert sorted(one.ref.index for one in outbox().read()) == list(range(40))
