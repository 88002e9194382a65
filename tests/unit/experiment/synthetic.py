"""Records of swarms that never ran, for tests of statistics and reports."""

from __future__ import annotations

import random

from sapo_edge.experiment.results import EvaluationRecord, RoundRecord, SwarmRecord

TASKS = ("sums", "words")
QUESTIONS = {"validation": 24, "test": 40, "harder": 20, "test@8": 20}


def swarm(
    arm: str, seed: int, *, skill: float = 0.5, setting: str = "plain", nodes: int = 2, rounds: int = 20, own: int = 8,
    seconds: float = 0.5,
) -> SwarmRecord:  # fmt: skip
    """A swarm whose accuracy rises to about `skill`; the seed moves all arms alike. `seconds`: a round and member."""
    random_numbers = random.Random(f"{arm} {seed}")
    level = skill + random.Random(seed).gauss(0, 0.05)

    def chance(round: int) -> float:
        return min(1.0, max(0.0, 0.05 + (level - 0.05) * round / rounds))

    def correct(questions: str, round: int) -> str:
        samples = 8 if questions.endswith("@8") else 1
        drawn = ([random_numbers.random() < chance(round) for _ in range(samples)] for _ in range(QUESTIONS[questions]))
        return "".join(str(sum(rights)) for rights in drawn)

    rows = []
    for round in range(1, rounds + 1):
        for node in range(nodes):
            rewards = {task: float(sum(random_numbers.random() < chance(round) for _ in range(own))) for task in TASKS}
            rows.append(RoundRecord(
                round=round, node=node, own=sum(rewards.values()) / (own * len(TASKS)),
                external=None if arm == "8/0" else random_numbers.random(), generated=own * len(TASKS),
                tokens=own * 20, trained=own * 15, informative_own=1, informative_external=0, taken=0,
                tasks={task: (rewards[task], own) for task in TASKS}, seconds=seconds,
            ))  # fmt: skip
    asked = [(round, "validation") for round in range(0, rounds + 1, max(1, rounds // 5))]
    asked += [(rounds, questions) for questions in ("test", "harder", "test@8")]
    evaluations = [
        EvaluationRecord(round, node, questions, correct(questions, round))
        for round, questions in asked
        for node in range(nodes)
    ]
    entries = {name: tuple(TASKS[index % 2] for index in range(size)) for name, size in QUESTIONS.items()}
    return SwarmRecord(setting, arm, "", seed, tuple(rows), tuple(evaluations), entries)
