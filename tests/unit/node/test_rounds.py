"""The node with a scripted policy: checkpoints, recovery, ways to stop, events and journal."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from sapo_edge import events
from sapo_edge.care.stop import Stop
from sapo_edge.config.settings import Settings
from sapo_edge.control.report import read_report
from sapo_edge.errors import CheckpointError, ConfigError, ModelError
from sapo_edge.node.controlled import NodeControl
from sapo_edge.node.rounds import PROGRESS_INTERVAL, Node
from sapo_edge.policy import ExternalRule, Prompt, UpdateSettings, UpdateStatistics
from sapo_edge.pool.pool import PoolOutcome
from sapo_edge.rollout import Rollout
from sapo_edge.room import Room
from sapo_edge.state.store import Store
from sapo_edge.swarm.memory import MemorySwarm
from sapo_edge.tasks.manifest import load_manifest
from tests.defences.defence import fails_without
from tests.fakes import FakePolicy, LengthScored, make_rollout
from tests.unit.node.machine import SETTINGS, Machine, at_call, offered

GENERATOR = replace(SETTINGS, role="generator")


def evaluated(machine: Machine) -> list[int]:
    return [event.round for event in machine.of(events.HeldOut)]


def test_every_round_ends_with_a_checkpoint_which_a_start_hashes_once_and_returns_memory(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[list[int]] = []
    monkeypatch.setattr("sapo_edge.node.rounds.return_freed_memory", lambda: freed.append(machine.rounds))
    aside: list[int] = []
    stopped = machine.start(prepare=lambda node: setattr(node, "after_first_round", lambda: aside.append(node.round)))
    assert freed == [[1], [1, 2], [1, 2, 3]] and aside == [1]
    assert stopped.reason == "all 3 rounds are done" and stopped.rounds == 3 and stopped.done
    with Store(machine.paths) as store:
        assert store.checkpoints.rounds() == [1, 2, 3]
        newest = store.checkpoints.latest()
    assert newest is not None and newest.round == 3 and newest.seed == 5
    assert newest.cursor["tasks"] == machine.node.cursor and newest.settings["own"] == 2
    assert (newest.directory / "adapter_model.safetensors").read_text() == machine.policy.state
    # The base model is asked in two ways.
    end = ["evaluate", "load", "evaluate", "evaluate", "evaluate"]
    assert machine.policy.log == ["evaluate", *["generate", "update", "save"] * 3, *end]
    with patch.object(hashlib, "file_digest", wraps=hashlib.file_digest) as digest:
        machine.start()
    assert machine.policy.log == ["load"]
    hashed = [Path(call.args[0].name).relative_to(machine.paths.checkpoints).as_posix() for call in digest.mock_calls]
    files = ("adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors")
    assert sorted(hashed) == [f"round-000003/{name}" for name in files]


def test_questions_too_long_for_the_model_are_left_out_or_count_as_wrong_and_are_told(
    machine: Machine, tmp_path: Path
) -> None:
    source = machine.source

    def length(prompt: Prompt) -> int:
        return sum(len(turn.content) for turn in prompt)

    def lengths(machine: Machine) -> list[int]:
        return [length(prompt) for prompts in machine.policy.prompts for prompt in prompts]

    machine.start()
    validation = [length(source.manifest.prompt_for(task.question)) for task in source.held_out("validation", 4)]
    most = min(max(lengths(machine)), max(validation)) - 1
    small = Machine(tmp_path / "small", source)
    assert small.start(replace(SETTINGS, evaluate_every=1), context=most + source.manifest.max_tokens).done
    assert len(lengths(small)) == len(lengths(machine)) and max(lengths(small)) <= most
    assert any("questions left out, too long for the model with an answer: " in text for text in small.notices())
    too_long = [number for number, length in enumerate(validation) if length > most]
    told = f"held-out validation: {len(too_long)} of 4 questions"
    assert sum(text.startswith(told) for text in small.notices()) == 1, "once"
    answers = [event.answers for event in small.of(events.HeldOut)]
    assert len(answers) > 1 and {marks[number] for marks in answers for number in too_long} == {"0"}
    with pytest.raises(ModelError, match="almost no question of starter fits into the model's context"):
        Machine(tmp_path / "none", source).start(context=1)


def test_events_come_in_order_describe_the_round_and_are_journaled_with_its_rollouts(machine: Machine) -> None:
    machine.start(replace(SETTINGS, external=1))
    names = [event.event for event in machine.events if not isinstance(event, events.Progress | events.Notice)]
    end = ["held_out", "comparison", "node_stopped"]
    assert names == ["node_started", "held_out", *["round", "checkpoint"] * 3, *end]
    (started,) = machine.of(events.NodeStarted)
    assert (started.reasons, started.settings, started.round) == (("r",), machine.node.settings.as_dict(), 0)
    event = machine.of(events.RoundFinished)[0]
    assert (event.groups, event.own, event.external, event.reward_external) == (3, 3, 0, None)
    assert event.statistics["groups"] == 3 and 0.0 <= event.reward_own <= 1.0
    assert machine.notices() == machine.notices("info") == ["round 1: own rollouts replace missing external ones"]
    with Store(machine.paths) as store:
        assert store.journal.rounds() == machine.of(events.RoundFinished)
        assert store.journal.held_out() == machine.of(events.HeldOut)
        kept = [event.event for event in store.journal.events()]
        rollouts = [scored for number in (1, 2, 3) for scored in store.journal.rollouts(number)]
    assert kept == ["node_started", "notice", *["checkpoint"] * 3, "comparison", "node_stopped"]
    assert [scored.rollout.sequence for scored in rollouts] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert {scored.rollout.author for scored in rollouts} == {machine.node.author}
    for scored in rollouts:
        assert scored.rewards == tuple(float(len(answer.text) % 2 == 0) for answer in scored.rollout.answers)
        assert all(answer.token_ids is None for answer in scored.rollout.answers)


def test_checkpoints_are_chosen_on_one_set_and_compared_on_another(machine: Machine) -> None:
    machine.start()
    assert evaluated(machine) == [0, 3]
    asked = [tuple(prompt[-1].content for prompt in call.prompts) for call in machine.policy.calls if call.greedy]
    validation, test = (
        tuple(task.question for task in machine.source.held_out(split, 4)) for split in ("validation", "test")
    )
    assert asked == [validation, validation, test, test, test]
    for event in machine.of(events.HeldOut):
        assert (event.split, event.questions, event.accuracy) == ("validation", 4, event.correct / 4)
        assert event.low <= event.accuracy <= event.high
    with Store(machine.paths) as store:
        newest = store.checkpoints.latest()
    assert newest is not None and newest.accuracy == event.accuracy, "the last one is of the last checkpoint"
    (comparison,) = machine.of(events.Comparison)
    assert comparison.low <= comparison.gain == (comparison.adapter - comparison.base) / 4 <= comparison.high
    report = read_report(machine.paths.journal, comparison.round)
    assert report is not None and report.split == "test"
    assert (report.before, report.now) == (comparison.base, comparison.adapter)
    assert [before.question for before, _ in report.examples] and sum(task.questions for task in report.tasks) == 4
    assert {now.question for _, now in report.examples} == set(test)


def test_a_second_start_continues_like_an_unbroken_run(machine: Machine, tmp_path: Path) -> None:
    unbroken = Machine(tmp_path / "unbroken", machine.source)
    unbroken.start(replace(SETTINGS, rounds=4))
    machine.start(replace(SETTINGS, rounds=2))
    asked, seeds = machine.asked, machine.policy.seeds
    stopped = machine.start(replace(SETTINGS, rounds=4))
    assert machine.rounds == [3, 4] and stopped.rounds == 2
    assert asked + machine.asked == unbroken.asked
    assert seeds + machine.policy.seeds == unbroken.policy.seeds
    assert machine.policy.state == unbroken.policy.state != "fresh"
    # The base model is not evaluated again.
    assert machine.policy.log[:3] == ["load", "generate", "update"] and evaluated(machine) == [4]
    stopped = machine.start(replace(SETTINGS, rounds=4))
    assert machine.policy.log == ["load"] and machine.rounds == [], "nothing is left to do"
    assert stopped.rounds == 0 and stopped.adapter is not None
    assert machine.start(replace(SETTINGS, rounds=2)).rounds == 0


def test_another_seed_model_or_manifest_on_the_same_state_is_rejected(machine: Machine) -> None:
    machine.start(replace(SETTINGS, rounds=1))
    with pytest.raises(ConfigError, match="made with seed 5, not 6; give --seed 5"):
        machine.start(replace(SETTINGS, seed=6))
    with pytest.raises(CheckpointError, match="another model; continue with"):
        machine.start(model_digest="another")
    shipped, machine.source = machine.source, LengthScored(load_manifest("reasoning-gym-nine"))
    with pytest.raises(CheckpointError, match="another manifest, starter; continue with --manifest starter"):
        machine.start()
    machine.source = shipped
    assert machine.start().rounds == 2


@pytest.mark.parametrize("step", ["before_generate", "before_update"])
def test_the_first_stop_finishes_the_round_and_the_second_one_loses_that_and_no_other(
    machine: Machine, tmp_path: Path, step: str
) -> None:
    def stop(act: Callable[[Stop], None]) -> events.NodeStopped:
        """Act in this step of the second round."""
        hooks: dict[str, Any] = {step: at_call(2, lambda: act(machine.node.stop))}
        return machine.start(replace(SETTINGS, rounds=0), **hooks)

    machine.start(prepare=lambda node: node.stop.immediately())
    assert machine.rounds == [] and "generate" not in machine.policy.log, "a stop before the start"
    stopped = stop(Stop.after_round)
    assert machine.rounds == [1, 2] and stopped.reason == "asked to stop" and stopped.rounds == 2
    assert machine.policy.log[-1] == "save"
    stopped = stop(Stop.immediately)
    assert machine.rounds == [3] and stopped.rounds == 1 and "immediately" in stopped.reason
    assert machine.policy.log[-1] == step.removeprefix("before_"), "the step itself is not finished either"
    machine.start(replace(SETTINGS, rounds=5))
    assert machine.rounds == [4, 5]
    unbroken = Machine(tmp_path / "unbroken", machine.source)
    unbroken.start(replace(SETTINGS, rounds=5))
    assert machine.policy.state == unbroken.policy.state


@pytest.mark.parametrize("step", ["before_generate", "before_update"])
def test_an_immediate_stop_saves_all_finished_rounds(machine: Machine, tmp_path: Path, step: str) -> None:
    rare = replace(SETTINGS, save_every=60, rounds=5)
    hooks: dict[str, Any] = {step: at_call(4, lambda: machine.node.stop.immediately())}
    stopped = machine.start(rare, **hooks)
    assert stopped.reason == "stopped immediately; the round in progress is lost" and machine.node.interrupted
    assert [event.round for event in machine.of(events.CheckpointSaved)] == [1, 3]
    machine.start(rare)
    assert machine.rounds == [4, 5] and not any("repeated" in text for text in machine.notices())
    unbroken = Machine(tmp_path / "unbroken", machine.source)
    unbroken.start(rare)
    assert machine.policy.state == unbroken.policy.state and machine.node.cursor == unbroken.node.cursor


def stopped_in_evaluation(machine: Machine, number: int, settings: Settings = SETTINGS) -> events.NodeStopped:
    """Ask for an immediate stop in the evaluation of this number."""
    return machine.start(settings, before_evaluate=at_call(number, lambda: machine.node.stop.immediately()))


def test_a_stop_during_an_evaluation_loses_no_round_and_the_next_start_evaluates(machine: Machine) -> None:
    settings = replace(SETTINGS, evaluate_every=2)
    stopped = stopped_in_evaluation(machine, 2, settings)
    assert stopped.rounds == 2 and stopped.reason == "stopped immediately; no round is lost"
    assert not machine.node.interrupted and len(machine.of(events.CheckpointSaved)) == 2
    assert machine.start(settings).rounds == 1 and machine.rounds == [3]
    assert machine.policy.log[:3] == ["load", "evaluate", "generate"]
    with Store(machine.paths) as store:
        assert [event.round for event in store.journal.held_out()] == [0, 2, 3]
        accuracies = [store.checkpoints.read(round).accuracy for round in (1, 2, 3)]
    assert accuracies[0] is None and None not in accuracies[1:]


def test_a_stop_during_the_last_evaluations_is_made_up_for_at_the_next_start(machine: Machine) -> None:
    for number, done in ((2, ["held_out"]), (2, ["held_out"]), (1, ["comparison"])):
        stopped = stopped_in_evaluation(machine, number)
        assert stopped.reason == "stopped immediately; no round is lost" and not machine.node.interrupted
        names = [event.event for event in machine.events if event.event in ("held_out", "comparison")]
        assert names == done[: len(names)]
    assert machine.start().reason == "all 3 rounds are done"
    with Store(machine.paths) as store:
        comparison = store.journal.last_comparison()
        assert [event.round for event in store.journal.held_out()] == [0, 3]
    assert comparison is not None and comparison.round == 3 and comparison.questions == 4
    machine.start()
    assert machine.policy.log == ["load"]


def test_an_orderly_stop_makes_no_further_evaluation(machine: Machine) -> None:
    machine.start(prepare=lambda node: node.stop.after_round())
    assert machine.policy.log == []
    stopped = machine.start(before_evaluate=at_call(2, lambda: machine.node.stop.after_round()))
    assert stopped.reason == "asked to stop" and not stopped.done and evaluated(machine) == [0, 3]
    assert machine.start().done and [event.round for event in machine.of(events.Comparison)] == [3]


def test_rounds_that_are_asked_for_in_the_comparison_go_on_from_the_last_one(machine: Machine, tmp_path: Path) -> None:
    def more() -> None:
        # The comparison has another checkpoint loaded by now.
        machine.policy.state = "the best one"
        NodeControl(machine.node, None).change_settings({"rounds": 5})

    stopped = machine.start(before_evaluate=at_call(3, more))
    assert machine.rounds == [1, 2, 3, 4, 5] and evaluated(machine) == [0, 3, 5]
    assert stopped.reason == "all 5 rounds are done" and stopped.rounds == 5 and stopped.done
    unbroken = Machine(tmp_path / "unbroken", machine.source)
    unbroken.start(replace(SETTINGS, rounds=5))
    with Store(machine.paths) as store, Store(unbroken.paths) as expected:
        for each in (store, expected):
            assert each.latest is not None and each.latest.round == 5
        adapters = [each.latest.directory / "adapter_model.safetensors" for each in (store, expected) if each.latest]
    assert len({file.read_text() for file in adapters}) == 1


def test_a_return_that_is_asked_for_in_the_comparison_makes_the_later_rounds_again(machine: Machine) -> None:
    replies: list[object] = []
    ask = at_call(3, lambda: replies.append(NodeControl(machine.node, None).roll_back(2)))
    stopped = machine.start(before_evaluate=ask)
    assert replies == [{"from": 3, "to": 2}] and machine.rounds == [1, 2, 3, 3]
    assert stopped.reason == "all 3 rounds are done" and machine.node.round == 3
    with Store(machine.paths) as store:
        assert store.checkpoints.rounds() == [1, 2, 3] and store.journal.last_round() == 3


def test_an_evaluation_that_only_the_journal_has_is_recorded_in_the_checkpoint(machine: Machine) -> None:
    settings = replace(SETTINGS, rounds=2, evaluate_every=2)
    machine.start(settings, prepare=lambda node: setattr(node.store, "record_accuracy", lambda *_: None))
    (_, journaled) = machine.of(events.HeldOut)
    machine.start(settings)
    with Store(machine.paths) as store:
        checkpoint = store.checkpoints.read(2)
    assert (checkpoint.accuracy, checkpoint.questions) == (journaled.accuracy, 4)


def test_accuracies_with_another_library_are_not_compared(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.start(replace(SETTINGS, evaluate_every=1))
    monkeypatch.setattr(machine.source, "question_set", lambda split, count: f"0.1.26-{split}")
    machine.start(replace(SETTINGS, evaluate_every=1, rounds=5))
    with Store(machine.paths) as store:
        first, last = store.journal.held_out_course() or (None, None)
        marks = {event.round: event.question_set for event in store.journal.held_out()}
        checkpoint, best = store.checkpoints.read(3), store.checkpoints.best()
        report = read_report(store.journal.path, 0)
    assert first is not None and last is not None and (first.round, last.round) == (3, 5), "asked again after round 3"
    assert set(map(marks.get, (3, 4, 5))) == {"0.1.26-validation"} and marks[2] == marks[0] != marks[3]
    assert checkpoint.question_set == "0.1.26-validation" and best is not None and best.round >= 3
    assert report is None, "the model before training was asked other questions"


def test_accuracies_with_other_limits_are_not_compared(machine: Machine) -> None:
    machine.start(replace(SETTINGS, rounds=1))
    machine.start(replace(SETTINGS, rounds=2, max_tokens=machine.source.manifest.max_tokens))
    machine.start(replace(SETTINGS, max_tokens=7))
    machine.start(replace(SETTINGS, rounds=4, max_tokens=7, thinking="on"))
    with Store(machine.paths) as store:
        marks = [event.question_set for event in store.journal.held_out()]
    usual = machine.source.question_set("validation", 4)
    assert marks == [usual, usual, usual, f"{usual}-7", f"{usual}-7-thinking"]


def test_checkpoints_are_as_rare_as_the_owner_wants_and_a_crash_repeats_the_rounds_since(machine: Machine) -> None:
    rare = replace(SETTINGS, save_every=60, rounds=5, evaluate_every=3)
    assert machine.start(rare).done
    saved = [event.round for event in machine.of(events.CheckpointSaved)]
    assert saved == [1, 3, 5], "the first one, at the evaluation, at the end"

    def act_after(number: int, act: Callable[[Stop], object]) -> Callable[[Node], None]:
        return lambda node: setattr(node.stop, "alive", lambda: node.round == number and act(node.stop))

    stopped = machine.start(replace(rare, rounds=9, evaluate_every=0), prepare=act_after(7, Stop.after_round))
    assert (stopped.rounds, machine.rounds) == (2, [6, 7])
    with Store(machine.paths) as store:
        assert store.latest is not None and store.latest.round == 7, "an orderly stop saves"
    machine.start(replace(rare, rounds=7))
    assert machine.rounds == [], "nothing is repeated"

    last = replace(rare, rounds=11, evaluate_every=0)
    with pytest.raises(RuntimeError):
        machine.start(last, prepare=act_after(9, Mock(side_effect=RuntimeError("power"))))
    machine.start(last)
    assert machine.rounds == [8, 9, 10, 11]
    assert machine.notices("warning") == ["2 rounds after the checkpoint of round 7 will be repeated"]


def test_changes_of_the_role_keep_the_history_the_numbers_of_rounds_and_ask_no_question_twice(machine: Machine) -> None:
    swarm = MemorySwarm()
    arrived: list[Rollout] = []
    swarm.join().subscribe(lambda rollout, _: arrived.append(rollout))
    for settings, rounds in (
        (replace(GENERATOR, rounds=2), [1, 2]),
        (replace(SETTINGS, rounds=4), [3, 4]),
        (replace(GENERATOR, rounds=6), [5, 6]),
        (replace(GENERATOR, rounds=7), [7]),
        (replace(SETTINGS, rounds=8), [8]),
    ):
        machine.start(settings, transport=swarm.join())
        assert machine.rounds == rounds and not any("repeated" in text for text in machine.notices())
        if settings.role == "generator":
            assert {"update", "evaluate", "save"}.isdisjoint(machine.policy.log)
    assert [rollout.round for rollout in arrived] == [number for number in range(1, 9) for _ in range(2)]
    assert len({rollout.question for rollout in arrived}) == len(arrived)
    with Store(machine.paths) as store:
        assert [event.round for event in store.journal.rounds()] == list(range(1, 9))
        assert store.checkpoints.rounds() == [3, 4, 8]
        # As if killed between journal and checkpoint.
        store.journal.record(replace(store.journal.rounds()[-1], round=9))
    machine.start(replace(GENERATOR, rounds=10))
    assert machine.rounds == [9, 10]
    assert "1 round after the checkpoint of round 8 will be repeated" in machine.notices("warning")


@pytest.mark.parametrize(("every", "held_out", "expected"), [
    (0, 4, [0, 5]), (2, 4, [0, 2, 4, 5]), (5, 4, [0, 5]), (100, 4, [0, 5]), (1, 0, []),
])  # fmt: skip
def test_it_evaluates_at_start_at_the_end_and_at_the_interval_if_questions_are_held_out(
    machine: Machine, every: int, held_out: int, expected: list[int]
) -> None:
    machine.start(replace(SETTINGS, rounds=5, evaluate_every=every, held_out=held_out))
    assert evaluated(machine) == expected and ("evaluate" in machine.policy.log) == bool(expected)


def test_the_best_checkpoint_is_the_one_with_the_best_evaluation(machine: Machine) -> None:
    # Right answers to the four questions after each round; an even length is right.
    right = {0: 1, 1: 2, 2: 4, 3: 3, 4: 0}
    left = iter("")

    def before(policy: FakePolicy) -> None:
        nonlocal left
        left = iter("1" * right[len(policy.updates)])

    def answer(prompt: Prompt, position: int) -> str:
        return "xx" if machine.policy.calls[-1].greedy and next(left, "") else "x" * (1 + position % 2)

    settings = replace(SETTINGS, rounds=4, evaluate_every=1, keep_checkpoints=1)
    stopped = machine.start(settings, before_evaluate=before, script=answer)
    with Store(machine.paths, keep_checkpoints=1) as store:
        assert store.checkpoints.rounds() == [2, 4]
        best, comparison = store.checkpoints.best(), store.journal.last_comparison()
    assert best is not None and best.round == 2 and (best.accuracy, best.questions) == (1.0, 4)
    assert comparison is not None and comparison.round == 2, "the best checkpoint is compared, not the last one"
    assert stopped.adapter == str(best.directory)
    assert [event.round for event in machine.of(events.CheckpointSaved) if event.best] == [1, 2]


def test_a_gradient_that_is_not_finite_is_reported_and_the_run_continues(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.start(replace(SETTINGS, corrections="off"), steps=0, script=lambda prompt, position: "x")
    assert machine.notices() == [], "groups that are equally rewarded have none"
    nothing = UpdateStatistics(loss=math.nan, gradient_norm=math.inf, groups=2, informative=2)
    monkeypatch.setattr(FakePolicy, "update", lambda *_: nothing)
    assert machine.start(replace(SETTINGS, rounds=6)).rounds == 3
    assert len(machine.notices("warning")) == len(machine.notices()) == 3
    assert "round 4: the gradient was not finite" in machine.notices()[0]


def test_tasks_follow_the_seed_and_without_one_the_identity(tmp_path: Path, source: LengthScored) -> None:
    first, second = Machine(tmp_path / "a", source), Machine(tmp_path / "b", source)
    for machine in (first, second):
        machine.start(replace(SETTINGS, rounds=1))
    assert first.asked == second.asked and first.policy.state == second.policy.state
    assert first.node.author != second.node.author
    unseeded = replace(SETTINGS, seed=None, own=8, rounds=1)
    first, second = Machine(tmp_path / "c", source), Machine(tmp_path / "d", source)
    for machine in (first, second):
        machine.start(unseeded)
    assert len({*first.asked[0]} & {*second.asked[0]}) < 4 and first.policy.seeds != second.policy.seeds
    assert first.start(replace(unseeded, rounds=2)).rounds == 1, "it is the same after a restart"


@fails_without("node/rounds.py", "        self.room.update(self.selector.budget, self.pool.authors())\n")
def test_each_round_sets_what_the_swarm_accepts_of_others(machine: Machine) -> None:
    room = Room()
    machine.start(room=room, prepare=lambda node: setattr(node.pool, "authors", lambda: 100.0))
    assert 0 < room.author < room.newcomers < math.inf


@fails_without("swarm/judging/external.py", "if not self._fits(task.question):")
def test_others_questions_that_are_none_or_too_long_for_the_model_are_not_learned_but_counted(machine: Machine) -> None:
    manifest, drawn = machine.source.manifest, machine.source.training_tasks(9, 0, 40)[0]
    short, *_, long = sorted(drawn, key=lambda task: len(task.question))

    def fill(node: Node) -> None:
        for number, task in enumerate((short, long)):
            node.pool.add(offered(task, f"author {number}", number))
        for sequence in range(3):
            node.pool.add(make_rollout("liar", sequence, entry="none"))

    length = sum(len(turn.content) for turn in manifest.prompt_for(long.question))
    machine.start(replace(SETTINGS, external=2), prepare=fill, context=length - 1 + manifest.max_tokens)
    with Store(machine.paths) as store:
        kept = [scored for number in machine.rounds for scored in store.journal.rollouts(number) if not scored.own]
    assert [scored.rollout.question for scored in kept] == [short.question]
    told = [text.partition("rejected: ")[2] for text in machine.notices("warning")]
    assert "the question is too long for the model with an answer: 1" in told and len(machine.node.pool) == 0
    assert any("no such task" in text and text.endswith(": 3") for text in told)


def test_progress_is_reported_at_most_ten_times_a_second_and_at_the_end_of_a_step(machine: Machine) -> None:
    machine.start(replace(SETTINGS, own=16, rounds=1))
    reports = machine.of(events.Progress)
    ends = [(event.phase, event.unit, event.total) for event in reports if event.done == event.total]
    evaluated = ("evaluate", "answers", 4)
    assert ends == [evaluated, ("generate", "answers", 48), ("update", "groups", 16), *[evaluated] * 4]
    assert len(reports) <= 7 + 7 * 2 and PROGRESS_INTERVAL == 0.1


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_settings_reach_the_policy_and_negative_advantages_of_others_count_as_they_say(
    machine: Machine, weight: float
) -> None:
    changed: dict[str, Any] = {"learning_rate": 1e-3, "warmup": 7, "decay_after": 9, "temperature": 0.75}

    def prepare(node: Node) -> None:
        (task,), _ = machine.source.training_tasks(99, 0, 1)
        assert node.pool.add(offered(task, "peer", 0)) is PoolOutcome.ADDED
        NodeControl(node, None).change_settings({"external_negatives": weight})

    machine.start(replace(SETTINGS, own=2, external=1, rounds=1, **changed), prepare=prepare)
    (settings,) = machine.policy.settings
    assert {name: getattr(settings, name) for name in changed} == changed
    assert settings.external_rule == ExternalRule(negatives=weight), "nothing else of the rule is a setting"
    (groups,) = machine.policy.updates
    (external,) = [group for group in groups if group.external]
    negative, positive = sorted(answer.advantage for answer in external.answers)
    assert positive == ExternalRule().pull and negative == pytest.approx(-weight, abs=0.01)
    own = [answer.advantage for group in groups if not group.external for answer in group.answers]
    assert min(own) < -0.1, "own answers are unlearned whatever the setting says"
    with Store(machine.paths) as store:
        (journaled,) = [scored.advantages for scored in store.journal.rollouts(1) if not scored.own]
    assert sorted(journaled) == pytest.approx([negative, positive])


def test_the_rate_rises_holds_and_falls_or_is_constant() -> None:
    settings = UpdateSettings(learning_rate=1.0, warmup=4, decay_after=16)
    assert [settings.rate(update) for update in (1, 2, 4, 10, 16)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    assert settings.rate(64) == pytest.approx(0.5)
    assert settings.rate(1600) == pytest.approx(0.1)
    constant = UpdateSettings(learning_rate=3e-4, warmup=0, decay_after=0)
    assert {constant.rate(update) for update in (1, 10, 10_000)} == {3e-4}
