"""One swarm of an experiment: the same record always, fair arms, costs of all, and members that do not learn."""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sapo_edge.errors import ConfigError, ModelError
from sapo_edge.experiment import swarm
from sapo_edge.experiment.member import Member, Shelf, Shelves
from sapo_edge.experiment.plan import Arm
from sapo_edge.experiment.results import SwarmRecord
from sapo_edge.experiment.swarm import ADVERTISED
from sapo_edge.node.head_start import FIRST
from sapo_edge.pool.pool import Pool, PoolOutcome
from sapo_edge.rollout import Answer, Rollout, Task
from sapo_edge.swarm.judging import external
from sapo_edge.swarm.judging.external import verified_task
from sapo_edge.tasks.source import TaskSource
from tests.fakes import SavedPolicy
from tests.unit.experiment.small import (
    ALONE,
    ARMS,
    CROWD,
    HALF,
    SETS,
    SETTING,
    SOURCE,
    new_swarm,
    record_of,
    shelves,
    text,
)


@pytest.fixture
def models(tmp_path: Path) -> Shelves:
    return shelves(tmp_path)


def adapter(member: Member) -> bytes:
    return (member.shelf.place(member.place) / "adapter_model.safetensors").read_bytes()


def rounds_of(record: SwarmRecord) -> str:
    return str([replace(row, seconds=0.0) for row in record.rounds])


@pytest.mark.parametrize("name", ARMS)
def test_a_record_depends_on_its_seed_and_no_clock_or_past_swarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    models = shelves(tmp_path / "first")
    first = record_of(ARMS[name], models)
    assert rounds_of(record_of(ARMS[name], models, seed=5)) != rounds_of(first)
    noise = random.Random(3)
    steps = itertools.accumulate(noise.random() for _ in itertools.count())
    monkeypatch.setattr(time, "time", lambda: 1e9 * noise.random())
    for clock in ("process_time", "perf_counter", "monotonic"):
        monkeypatch.setattr(time, clock, lambda: next(steps))
    for again in (record_of(ARMS[name], models), record_of(ARMS[name], shelves(tmp_path / "second"))):
        assert text(again) == text(first)


def test_questions_that_are_too_long_for_a_model_are_passed_over_and_held_out_ones_wrong(models: Shelves) -> None:
    policy = models["base"].policy
    assert isinstance(policy, SavedPolicy)
    longest = SOURCE.manifest.max_tokens
    needed = [policy.context - policy.room(SOURCE.manifest.prompt_for(task.question)) for task in SETS["test@8"].tasks]
    policy.context = sorted(needed)[1] + longest
    record = record_of(HALF, models)
    asked = [prompt for prompts in policy.prompts for prompt in prompts]
    assert asked and all(policy.room(prompt) >= longest for prompt in asked)
    counted = [item.correct for item in record.evaluations if item.questions == "test@8"]
    assert counted and all(item[needed.index(max(needed))] == "0" and len(item) == 3 for item in counted)
    assert len([row for row in record.rounds if row.taken]) > 0
    policy.context = longest
    with pytest.raises(ModelError, match="almost no question of starter fits"):
        record_of(HALF, models)


def test_many_members_are_set_aside_from_garbage_and_let_go_at_the_end(
    models: Shelves, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = text(record_of(CROWD, models))
    monkeypatch.setattr(swarm, "MANY", 2)
    aside = []
    record = new_swarm(CROWD, models).run(lambda _: aside.append(gc.get_freeze_count()))
    assert text(record) == expected and aside[-1] > 1000 and gc.get_freeze_count() == 0


def test_all_arms_draw_the_same_tasks_and_ask_the_same_questions_at_the_same_rounds(tmp_path: Path) -> None:
    expected = [(round, "validation") for round in (0, 2, 4, 6, 8)] + [(8, "test"), (8, "test@8")]
    before, rounds, drawn = set(), set(), {}
    for name, arm in ARMS.items():
        policy = SavedPolicy()
        record = record_of(arm, {"base": Shelf(policy, tmp_path / name.replace("/", "-"))})
        # The first member's first round: nothing has arrived yet, so it fills up with own questions.
        drawn[name] = policy.prompts[0], policy.seeds[0]
        rounds.add(rounds_of(record))
        asked = [(item.round, item.questions) for item in record.evaluations if item.node == 1]
        before.add(next(item.correct for item in record.evaluations))
        assert [item for item in asked if item[1] != ADVERTISED] == expected
        entries = [tuple(task.ref.entry for task in questions.tasks) for questions in SETS.values()]
        assert [record.entries[questions] for questions in SETS] == entries
        assert (ADVERTISED in record.entries) == (name == "flood")
    assert len(before) == 1 and len(rounds) == len(ARMS)
    assert drawn["4/0"] == drawn["2/2"] == drawn["frozen"]


def test_the_seed_of_a_swarm_decides_the_adapters_and_not_the_arm(tmp_path: Path) -> None:
    class WithMatrices(SavedPolicy):
        def save(self, directory: Path) -> None:
            super().save(directory)
            path = directory / "adapter_model.safetensors"
            a, b = np.zeros((2, 4), np.float32), np.zeros((3, 2), np.float32)
            save_file({**load_file(path), "q.lora_A.weight": a, "q.lora_B.weight": b}, path)

    def adapters(arm: Arm, seed: int) -> list[dict[str, np.ndarray]]:
        shelf = Shelf(WithMatrices(), tmp_path / f"{arm.name.replace('/', '-')}-{seed}")
        members = new_swarm(arm, {"base": shelf}, seed).members
        return [load_file(shelf.place(member.place) / "adapter_model.safetensors") for member in members]

    first, same, other = adapters(ALONE, 1), adapters(HALF, 1), adapters(ALONE, 2)
    for number, adapter in enumerate(first):
        matrix = adapter["q.lora_A.weight"]
        assert 0 < np.abs(matrix).max() <= 0.5 and not adapter["q.lora_B.weight"].any()
        assert (matrix == same[number]["q.lora_A.weight"]).all()
        assert (matrix != other[number]["q.lora_A.weight"]).any()
    assert (first[0]["q.lora_A.weight"] != first[1]["q.lora_A.weight"]).any()


def test_costs_are_of_generating_and_updating_of_all_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = 0.0

    def spend(seconds: float) -> None:
        nonlocal spent
        spent += seconds

    class Costly(SavedPolicy):
        def load(self, directory: Path) -> None:
            spend(100.0)
            super().load(directory)

    policy = Costly(before_generate=lambda _: spend(2.0), before_update=lambda _: spend(5.0))
    policy.before_evaluate = lambda _: spend(1000.0)
    monkeypatch.setattr(time, "process_time", lambda: spent)
    arm = replace(ARMS["generators"], hostile=1, attack="flood")
    record = new_swarm(arm, {"base": Shelf(policy, tmp_path)}).run()
    # Two learn, two only generate; the hostile one writes without a model, and examinations are nobody's cost.
    costs = [(round, node, 7.0 if node < 2 else 2.0) for round in range(1, 9) for node in range(4)]
    assert [(row.round, row.node, row.seconds) for row in record.rounds] == costs


def test_an_answer_is_cut_once_for_all_members_of_a_model(tmp_path: Path) -> None:
    class Cutting(SavedPolicy):
        def cut(self, text: str, ended: bool, max_tokens: int) -> Answer:
            self.log.append(f"cut {text} {ended}")
            return super().cut(text, ended, max_tokens)

    policy = Cutting()
    record_of(HALF, {"base": Shelf(policy, tmp_path)})
    cuts = [entry for entry in policy.log if entry.startswith("cut")]
    assert cuts and len(cuts) == len(set(cuts))


@pytest.mark.parametrize("name", ["2/2", "published"])
def test_a_member_scores_an_answer_of_others_once(models: Shelves, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    verified: Counter[str] = Counter()

    def count(source: TaskSource, rollout: Rollout) -> Task:
        verified[rollout.id] += 1
        return verified_task(source, rollout)

    monkeypatch.setattr(external, "verified_task", count)
    swarm = new_swarm(ARMS[name], models)
    swarm.run()
    assert verified and max(verified.values()) < len(swarm.members)


def test_frozen_members_generate_and_never_learn(models: Shelves) -> None:
    swarm = new_swarm(ARMS["frozen"], models)
    fresh = list(map(adapter, swarm.members))
    record = swarm.run()
    stayed = [adapter(member) == before for member, before in zip(swarm.members, fresh, strict=True)]
    assert stayed == [False] * 3 + [True] * 2
    assert {item.node for item in record.evaluations} == {0, 1, 2}
    for row in record.rounds:
        assert row.generated == (8 if row.node > 2 or row.taken == 2 else 16 - 4 * row.taken)
        assert row.node < 3 or (row.taken, row.trained, row.external) == (0, 0, None)
    assert any(row.taken for row in record.rounds)


@pytest.mark.parametrize(("name", "authors"), [
    ("4/0", set()),
    ("2/2", {"node-0", "node-1", "node-2"}),
    ("generators", {"node-0", "node-1", "node-2", "frozen-3", "frozen-4"}),
    ("frozen", {"frozen-3", "frozen-4"}),
    ("flood", {"node-0", "node-1", "hostile-0"}),
])  # fmt: skip
def test_an_arm_offers_its_learners_the_rollouts_it_names(
    models: Shelves, monkeypatch: pytest.MonkeyPatch, name: str, authors: set[str]
) -> None:
    offered = set()
    add = Pool.add

    def watched(pool: Pool, rollout: Rollout, neighbourhood: str = "") -> PoolOutcome:
        assert rollout.author != pool.own_author
        offered.add(rollout.author)
        return add(pool, rollout, neighbourhood)

    monkeypatch.setattr(Pool, "add", watched)
    record = record_of(ARMS[name], models)
    assert offered == authors
    assert any(row.taken for row in record.rounds) == bool(authors)


def test_specialised_members_draw_one_task_each_and_are_asked_all(models: Shelves) -> None:
    record = record_of(HALF, models, setting=replace(SETTING, specialised=True))
    entries = [entry.name for entry in SOURCE.manifest.tasks]
    drawn = {node: {entry for row in record.rounds if row.node == node for entry in row.tasks} for node in range(3)}
    assert drawn == {node: {entries[node % len(entries)]} for node in range(3)}
    assert set(record.entries["test"]) == {task.ref.entry for task in SETS["test"].tasks}


def test_supervised_rounds_teach_known_answers_to_own_questions_and_share_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, asked = SavedPolicy(), set()

    def right_answer(_source: TaskSource, task: Task) -> str | None:
        if len(policy.updates) < 3 * 3 * FIRST:
            asked.add((len(policy.updates) // FIRST % 3, task.ref.entry))
        return task.ground_truth

    monkeypatch.setattr(TaskSource, "right_answer", right_answer)
    setting = replace(SETTING, specialised=True)
    record = new_swarm(ARMS["supervised"], {"base": Shelf(policy, tmp_path)}, setting=setting).run()
    # The members take turns.
    assert asked == {(number, entry.name) for number, entry in enumerate(SOURCE.manifest.tasks[:3])}
    for groups in policy.updates[: 3 * 3 * FIRST]:
        assert 0 < len(groups) <= 4 and not any(group.external for group in groups)
        assert all([(answer.known, answer.advantage) for answer in group.answers] == [(True, 1.0)] for group in groups)
    for row in record.rounds:
        assert bool(row.generated) == (row.round > 3)
    assert not any(row.taken for row in record.rounds if (row.round, row.node) <= (4, 0))
    assert any(row.taken for row in record.rounds)
    monkeypatch.setattr(TaskSource, "right_answer", lambda _source, _task: None)
    with pytest.raises(ConfigError, match="no right answers are known; leave it out"):
        record_of(ARMS["supervised"], shelves(tmp_path))


def test_who_leaves_is_replaced_by_a_fresh_member_with_a_new_name(models: Shelves) -> None:
    swarm = new_swarm(HALF, models)
    fresh = {adapter(member) for member in swarm.members}
    swarm.run()
    kept = [(member.author, len(member.pool), adapter(member)) for member in swarm.members]
    swarm.members[1].begin(round=7)
    assert [(member.author, len(member.pool), adapter(member)) for member in swarm.members[::2]] == kept[::2]
    newcomer = swarm.members[1]
    assert (newcomer.author, len(newcomer.pool)) == ("node-1-7", 0) and adapter(newcomer) in fresh


def test_about_the_share_of_members_leaves_in_a_round(models: Shelves, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    begin = Member.begin

    def counted(member: Member, round: int) -> None:
        left.append(round)
        begin(member, round)

    monkeypatch.setattr(Member, "begin", counted)
    new_swarm(replace(HALF, churn=0.25), models, setting=replace(SETTING, nodes=10, asked=1)).run()
    assert left.count(0) == 10 and 8 <= len(left) - 10 <= 32 and set(left) <= set(range(9))


def test_slow_members_make_few_rounds_and_few_members_are_asked(models: Shelves) -> None:
    record = record_of(replace(HALF, slowest=4.0), models, setting=replace(SETTING, nodes=12, asked=2))
    rounds = Counter(row.node for row in record.rounds)
    # The slowest of all makes a quarter of the 8 rounds.
    assert len(rounds) == 12 and 2 <= min(rounds.values()) <= 3 and 6 <= max(rounds.values()) <= 8
    assert {item.node for item in record.evaluations} == {0, 1}


def test_members_of_a_large_swarm_share_what_there_is_room_for_and_hold_others_to_it(models: Shelves) -> None:
    setting = replace(SETTING, nodes=36, rounds=4, asked=1)
    sharing = replace(HALF, training=replace(HALF.training, own=8, share=8))
    accepted = []
    for arm in (sharing, replace(sharing, attack="adaptive", hostile=18)):
        swarm = new_swarm(arm, models, setting=setting)
        swarm.run()
        accepted.append(swarm.members[0].pool.counts[PoolOutcome.ADDED])
    # Each of 35 others makes 8 a round.
    assert 0 < accepted[0] < 4 * 35 * 8 / 10
    # Liars publish 144 a round, of which four budgets are accepted once each member knows how many others there are.
    assert accepted[1] < 144 + 3 * 1.5 * 4 * 8


def test_members_share_models_in_turn(tmp_path: Path) -> None:
    models = shelves(tmp_path, "large", "small")
    swarm = new_swarm(HALF, models, setting=replace(SETTING, models=("large", "small")))
    assert [member.shelf is models["large"] for member in swarm.members] == [True, False, True]
    assert {row.node for row in swarm.run().rounds} == {0, 1, 2}


def test_a_share_of_the_rounds_is_rounded_and_at_least_one(models: Shelves) -> None:
    for share, rounds in ((0.01, 1), (0.55, 4), (1.5, 12)):
        swarm = new_swarm(replace(ALONE, rounds=share), models)
        assert swarm.job.rounds == max(row.round for row in swarm.run().rounds) == rounds
