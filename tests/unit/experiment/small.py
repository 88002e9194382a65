"""Small swarms of a fake policy: a swarm takes milliseconds, and each number in it depends on all before it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from sapo_edge.experiment.member import Shelf, Shelves
from sapo_edge.experiment.plan import Arm, Job, Learning, Setting, Training
from sapo_edge.experiment.results import SwarmRecord
from sapo_edge.experiment.swarm import QuestionSet, Swarm
from sapo_edge.policy import PUBLISHED
from sapo_edge.tasks.manifest import load_manifest
from tests.fakes import LengthScored, SavedPolicy

SOURCE = LengthScored(load_manifest("starter"))
SETS: Mapping[str, QuestionSet] = {
    "validation": QuestionSet(SOURCE, SOURCE.held_out("validation", 6)),
    "test": QuestionSet(SOURCE, SOURCE.held_out("test", 6)),
    "test@8": QuestionSet(SOURCE, SOURCE.held_out("test", 3), samples=8),
}
ALONE = Arm("4/0", "alone", Training(own=4, answers=4))
HALF = Arm("2/2", "half from peers", Training(own=2, external=2, answers=4))
AS_PUBLISHED = replace(HALF.training, strategy="published", rule=PUBLISHED, cut=False, distinct=False)
RESUMABLE = (
    ALONE,
    HALF,
    Arm("published", "as published", AS_PUBLISHED),
    Arm("short", "pools that forget", replace(HALF.training, keeps=2)),
    Arm("generators", "with two that never learn", HALF.training, frozen=2),
    Arm("frozen", "only theirs", replace(HALF.training, origin="frozen"), frozen=2),
    Arm("supervised", "first from known answers", replace(HALF.training, supervised=3, corrected=True)),
)
LOST = Arm("flood", "with a hostile member", HALF.training, "flood", 1)
"""An arm whose swarms can't be resumed."""
CROWD = Arm("crowd", "of many", replace(HALF.training, share=8), churn=0.2, slowest=4.0)
"""Another one, whose members come, go, differ in speed, and share what there is room for."""
ARMS = {arm.name: arm for arm in (*RESUMABLE, LOST, CROWD)}
SETTING = Setting("small", "Small", (*RESUMABLE, LOST), "4/0", nodes=3, rounds=8, every=2)


def shelves(directory: Path, *names: str) -> Shelves:
    return {name: Shelf(SavedPolicy(), directory / name) for name in names or ("base",)}


def new_swarm(arm: Arm, models: Shelves, seed: int = 1, setting: Setting = SETTING) -> Swarm:
    return Swarm(Job(setting, arm, seed), Learning(), SOURCE, models, SETS)


def record_of(arm: Arm, models: Shelves, seed: int = 1, setting: Setting = SETTING) -> SwarmRecord:
    """The record of an undisturbed swarm."""
    return new_swarm(arm, models, seed, setting).run()


def text(record: SwarmRecord) -> str:
    """All of it but what a clock measured."""
    return json.dumps(asdict(replace(record, rounds=tuple(replace(row, seconds=0.0) for row in record.rounds))))
