"""A head start: what is learned before the first round, when, and that its gradient is that of cross-entropy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest

from sapo_edge import events
from sapo_edge.backends.common.loss import LossSums, PackLoss, Update
from sapo_edge.backends.common.packing import EncodedAnswer, EncodedGroup, pack
from sapo_edge.config.settings import Settings
from sapo_edge.control.report import read_report
from sapo_edge.node.head_start import FEWEST, FIRST, TRIES, WAIT, WAIT_AGAIN, HeadStart, HeadStartState
from sapo_edge.node.rounds import Node
from sapo_edge.policy import CallHandle, ExternalRule, Prompt, TrainingGroup, UpdateSettings
from sapo_edge.rollout import Rollout
from sapo_edge.state.paths import Paths
from sapo_edge.tasks import general
from sapo_edge.tasks.checks import Number, Pattern
from sapo_edge.tasks.manifest import Manifest, TaskEntry, load_manifest
from sapo_edge.tasks.questions import OwnQuestion
from sapo_edge.tasks.source import TaskSource
from tests.defences.defence import fails_without
from tests.fakes import FakePolicy
from tests.unit.node.machine import Machine, at_call, offered

SETTINGS = Settings(
    own=4, external=0, answers=2, rounds=2, held_out=4, evaluate_every=0, seed=5, network="solo", head_start="0"
)
AUTO = replace(SETTINGS, head_start="auto", rounds=1)
REHEARSED = general.rehearsed_prompts()
STOPPED = "head start: stopped; the next start continues from its best validation"
OWN = tuple(OwnQuestion(f"{number} + 1?", str(number + 1), Number()) for number in range(20))


def source(*questions: OwnQuestion, max_tokens: int = 64) -> TaskSource:
    entry = TaskEntry("mine", questions=questions, reading="fit")
    return TaskSource(Manifest("own", (entry,), max_tokens=max_tokens))


def run(
    home: Path, settings: Settings, tasks: TaskSource | None = None, policy: FakePolicy | None = None,
    prepare: Callable[[Node], object] = lambda node: None,
) -> Machine:  # fmt: skip
    machine = Machine(home, tasks or source(*OWN))
    machine.start(settings, policy, prepare)
    return machine


def validations(machine: Machine) -> list[tuple[int, int, bool]]:
    """Of the head start: (updates, right answers, whether it is over)."""
    return [(event.updates, event.correct, event.done) for event in machine.of(events.HeadStart)]


def taught(updates: Sequence[Sequence[TrainingGroup]]) -> list[list[TrainingGroup]]:
    """Updates without what is rehearsed in them."""
    return [[group for group in groups if group.prompt not in REHEARSED] for groups in updates]


def notices(machine: Machine) -> list[str]:
    return [text for text in machine.notices() if "head start" in text or "head_start" in text]


def advanced(
    policy: FakePolicy, tasks: TaskSource, updates: int = 1, batch: int = 1, max_tokens: int = 0, made: int = 0,
    rehearse: Sequence[Prompt] = (),
) -> HeadStart:  # fmt: skip
    """A head start that has made so many updates after those `made` before, if right answers are known."""
    sample = Mock(side_effect=AssertionError("right answers are known"))
    head_start = HeadStart(policy, tasks, 1, batch, UpdateSettings(max_tokens=max_tokens), sample, rehearse=rehearse)
    if head_start.knows_answers:
        head_start.advance(HeadStartState(updates=made), updates, CallHandle, lambda _made: True)
    return head_start


def stops_at(number: int, step: str = "before_update") -> Callable[[Node], None]:
    """Asks a node to stop in this step of this number."""
    return lambda node: setattr(node.policy, step, at_call(number, node.stop.after_round))


def rising(
    home: Path, course: dict[int, int], prepare: Callable[[Node], object] = lambda node: None, settings: Settings = AUTO
) -> Machine:
    """A node whose policy answers so many of three validation questions right after so many updates."""
    tasks, policy = source(*OWN), FakePolicy()
    asked = [task.question for task in tasks.held_out("validation", 3)]

    def answer(prompt: Prompt, _position: int) -> str:
        right = course[max(updates for updates in course if updates <= len(policy.updates))]
        question = prompt[-1].content
        return str(int(question.split()[0]) + 1) if question in asked[:right] else "no idea"

    policy.script = answer
    return run(home, settings, tasks, policy, prepare)


def test_right_answers_of_training_questions_are_learned_first(tmp_path: Path) -> None:
    machine = run(tmp_path, replace(SETTINGS, head_start="3"))
    policy = machine.policy
    before = policy.log.index("generate")
    log = [call for call in policy.log[:before] if call not in ("save", "load")]
    # What the base answers to the questions that are rehearsed is sampled when it is due.
    assert log == ["evaluate", "evaluate", "update", "update", "update", "evaluate"]
    learned = [group for groups in taught(policy.updates[:3]) for group in groups]
    assert len({group.prompt for group in learned}) == 12, "a pass over own questions asks each once"
    for group in learned:
        (answer,) = group.answers
        question = group.prompt[-1].content
        assert (answer.text, answer.ended, answer.advantage) == (str(int(question.split()[0]) + 1), True, 1.0)
        assert answer.known and not machine.source.is_held_out(question)
    ((updates, _, done),) = validations(machine)
    assert (updates, done) == (3, True)
    progress = [event for event in machine.of(events.Progress) if event.phase == "head_start"]
    assert progress[-1].done == progress[-1].total == 3


def test_each_update_rehearses_what_the_base_says_to_a_question_of_another_kind() -> None:
    policy = FakePolicy()
    advanced(policy, source(*OWN), 11, batch=2, max_tokens=24, made=30, rehearse=REHEARSED)
    rehearsed = [[group for group in groups if group.prompt in REHEARSED] for groups in policy.updates]
    assert [group.prompt for (group,) in rehearsed] == [*REHEARSED[30:], *REHEARSED[:9]]
    assert [call.prompts for call in policy.calls] == [REHEARSED[24:], REHEARSED[:8], REHEARSED[8:16]]
    assert all(call.greedy and not call.use_adapter and call.max_tokens == 24 for call in policy.calls)
    assert {answer.advantage for (group,) in rehearsed for answer in group.answers} == {1.0}
    asked = {prompt.lower() for prompt in Path(general.__file__).with_name("rehearsed.txt").read_text().splitlines()}
    assert len(asked) == len(REHEARSED) == 32
    assert not asked & {task.question.lower() for task in general.general_source().own_tasks()}


def test_one_question_of_each_update_is_asked_without_the_training_s_prompt() -> None:
    example = ("1 + 0?", "1")
    entry = TaskEntry("mine", questions=OWN, reading="fit")
    tasks = TaskSource(Manifest("own", (entry,), max_tokens=64, system="Add.", examples=(example,)))
    for rehearse, plain in ((REHEARSED, [1, 1, 1]), ((), [0, 0, 0])):
        policy = FakePolicy()
        advanced(policy, tasks, 3, batch=4, max_tokens=24, rehearse=rehearse)
        own = [[group.prompt for group in groups if group.prompt not in rehearse] for groups in policy.updates]
        assert [sum(len(prompt) == 1 for prompt in prompts) for prompts in own] == plain
        assert all(prompt[-1].role == "user" and len(prompts) == 4 for prompts in own for prompt in prompts)
        assert {len(prompt) for prompts in own for prompt in prompts} <= {1, 4}


def test_where_answers_are_read_in_tags_they_are_learned_in_tags() -> None:
    policy = FakePolicy()
    advanced(policy, TaskSource(Manifest("own", (TaskEntry("mine", questions=OWN),), max_tokens=64)))
    assert policy.updates[0][0].answers[0].text.startswith("<answer>")
    policy = FakePolicy()
    advanced(policy, source(*OWN))
    settings, (answer,) = policy.settings[0], policy.updates[0][0].answers
    layout = pack([EncodedGroup((0,), (EncodedAnswer((0,) * 200, answer.advantage, None, known=answer.known),))])
    logprobs = -np.random.default_rng(0).exponential(8.0, 200)
    loss = PackLoss(np, np.float64, layout, Update(settings, 1, LossSums(), lambda: None))
    slopes = loss.add(slice(0, 200), logprobs, logprobs, np.exp(logprobs))
    assert np.array_equal(slopes, np.full(200, -1.0)), "the derivative of minus a log-probability"


def test_without_it_nothing_changes_and_rounds_ask_the_same_questions_at_the_same_rate(tmp_path: Path) -> None:
    machine = run(tmp_path / "plain", SETTINGS)
    plain, ahead = machine.policy, run(tmp_path / "ahead", replace(SETTINGS, head_start="30")).policy
    assert not validations(machine) and plain.log[:2] == ["evaluate", "generate"]
    assert (plain.prompts, plain.seeds) == (ahead.prompts, ahead.seeds)
    rates = [settings.rate(update) for update, settings in enumerate(ahead.settings, start=1)]
    assert rates[10] == pytest.approx(5 * SETTINGS.learning_rate)
    assert rates[30:] == [SETTINGS.learning_rate] * 2


def test_by_default_it_goes_on_while_validation_rises_and_keeps_the_best(tmp_path: Path) -> None:
    machine = rising(tmp_path, {0: 0, 20: 1, 40: 2, 60: 1})
    course = validations(machine)
    assert course[:2] == [(20, 1, False), (40, 2, False)], "the first comes soon, the others at growing distances"
    assert course[-1][2] and course[-1][0] - 40 >= WAIT_AGAIN and {right for _, right, _ in course[2:-1]} == {1}
    last = machine.of(events.HeadStart)[-1]
    assert last.best_updates == 40
    assert (last.correct, last.accuracy, last.answers.count("0")) == (2, 2 / 3, 1), "told of the adapter that goes on"
    best = machine.best()
    assert best is not None and best.round == 0, "no run ends below its head start"
    assert best.accuracy == pytest.approx(2 / 3) and best.cursor["head_start"]["updates"] == 40
    assert machine.policy.log.index("load") < machine.policy.log.index("generate"), "the rounds begin with the best"


def test_it_ends_when_nearly_all_is_right_and_is_not_begun_where_it_can_t_help(tmp_path: Path) -> None:
    assert validations(rising(tmp_path / "all", {0: 0, 20: 3})) == [(20, 3, True)]
    (reason,) = notices(rising(tmp_path / "knows", {0: 3}))
    assert reason == "no head start: the model is nearly always right already"
    (reason,) = notices(run(tmp_path / "blind", replace(AUTO, held_out=0)))
    assert "nothing tells when to end it" in reason


def test_a_node_that_is_stopped_goes_on_from_the_best_validation(tmp_path: Path) -> None:
    whole = rising(tmp_path / "whole", {0: 0, 20: 1, 40: 3})
    assert notices(rising(tmp_path, {0: 0, 20: 1, 40: 3}, stops_at(25))) == [STOPPED]
    again = rising(tmp_path, {0: 1, 20: 3})
    assert validations(again) == validations(whole)[1:]
    assert taught(again.policy.updates[:20]) == taught(whole.policy.updates[20:40]), "with the same questions"
    assert not validations(rising(tmp_path, {0: 3}, settings=replace(AUTO, rounds=2)))
    assert not validations(run(tmp_path / "generator", replace(AUTO, role="generator")))


def test_one_that_goes_on_with_other_validation_questions_asks_them_first(tmp_path: Path) -> None:
    three, two = replace(AUTO, held_out=3), replace(AUTO, held_out=2)
    assert validations(rising(tmp_path, {0: 0, 20: 2}, stops_at(25), settings=three))[-1] == (20, 2, False)
    last = rising(tmp_path, {0: 0, 20: 1, 40: 2}, settings=two).of(events.HeadStart)[-1]
    assert (last.best_updates, last.correct, last.questions) == (60, 2, 2), "with two questions, one right is a rise"


def test_what_was_learned_since_the_last_validation_is_kept_when_it_is_stopped(tmp_path: Path) -> None:
    machine = rising(tmp_path, {0: 0, 20: 1, 85: 2}, stops_at(85))
    assert notices(machine) == [STOPPED] and validations(machine)[-1][0] == 85
    best = machine.best()
    assert best is not None and best.cursor["head_start"]["updates"] == 85


def test_it_waits_longer_where_new_questions_come() -> None:
    stalled = replace(HeadStartState(), updates=41 + WAIT_AGAIN, best=2, best_updates=40)
    assert stalled.judged("100", None, WAIT_AGAIN).over and not stalled.judged("100", None).over
    assert replace(stalled, updates=40 + WAIT).judged("100", None).over
    few, many = (advanced(FakePolicy(), tasks, 50) for tasks in (source(*OWN), TaskSource(load_manifest("starter"))))
    assert (few.wait, many.wait) == (WAIT_AGAIN, WAIT)


def test_a_head_start_that_does_harm_is_not_kept(tmp_path: Path) -> None:
    machine = rising(tmp_path, {0: 2, 20: 1})
    last, best = machine.of(events.HeadStart)[-1], machine.best()
    assert last.done and last.best_updates == 0, "the rounds begin with the untrained policy"
    assert best is not None and best.round == 0 and best.accuracy == pytest.approx(2 / 3)


def test_all_updates_that_the_owner_asked_for_count_where_nothing_can_be_validated(tmp_path: Path) -> None:
    log = run(tmp_path, replace(SETTINGS, head_start="50", held_out=0, rounds=1)).policy.log
    assert log.count("update") == 51 and "load" not in log


def test_a_node_that_is_stopped_again_and_again_gets_to_its_rounds(tmp_path: Path) -> None:
    starts = (rising(tmp_path, {0: 0}, stops_at(30)) for _ in range(WAIT_AGAIN // FIRST + 2))
    assert any(machine.rounds for machine in starts), "it began again with the same updates each time"


def test_a_head_start_is_made_before_the_first_round_only(tmp_path: Path) -> None:
    run(tmp_path, replace(SETTINGS, role="generator", rounds=2))
    after = run(tmp_path, replace(SETTINGS, head_start="30", rounds=3))
    assert not validations(after) and any("head_start = 30 has no effect" in text for text in notices(after))
    run(tmp_path / "begun", SETTINGS)
    late = run(tmp_path / "begun", replace(SETTINGS, head_start="5", rounds=3))
    assert any("head_start = 5 has no effect" in text for text in notices(late))


def test_the_owner_s_questions_are_asked_before_and_after_too(tmp_path: Path) -> None:
    run(tmp_path, SETTINGS)
    report = read_report(Paths.default(tmp_path).journal, 2)
    assert report is not None
    trained = {question.question for question in source(*OWN).own["mine"].train}
    assert {before.question for before, _ in report.own} == trained and len(trained) == 14


def test_answers_that_are_wrong_too_long_or_without_room_in_the_model_s_context_are_left_out() -> None:
    wrong = [OwnQuestion(f"Date {number}?", "x", Pattern(r"\d+")) for number in range(4)]
    long = [OwnQuestion(f"Long {number}?", "y" * 80) for number in range(4)]
    crowded = [OwnQuestion(f"{number} + 1? {'Think. ' * 40}", str(number + 1), Number()) for number in range(4)]
    known = {question.question for question in OWN[:4]}
    for questions, learned in (([*wrong, *long, *crowded, *OWN[:4]], known), (wrong, set())):
        tasks = source(*(replace(question, split="train") for question in questions))
        policy = FakePolicy(context=64 + sum(len(turn.content) for turn in tasks.manifest.prompt_for("Long 0?")))
        head_start = advanced(policy, tasks, batch=len(questions), max_tokens=64)
        assert head_start.knows_answers == bool(learned)
        asked = {group.prompt[-1].content for groups in policy.updates for group in groups}
        assert asked == head_start.learned == learned


class Walking(FakePolicy):
    """One weight, which each update sets to the number of updates made."""

    weight = 0.0

    def weights(self) -> dict[str, npt.NDArray[Any]]:
        return {"w": np.array([float(len(self.updates)) if self.weight == 0.0 else self.weight])}

    def set_weights(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        self.weight = float(weights["w"][0])


def test_it_goes_on_from_the_average_in_which_late_weights_count_most() -> None:
    policy = Walking()
    advanced(policy, source(*OWN), 40)
    # Polynomial decay with eta = 3 weighs update t like t (t + 1) (t + 2).
    weights = [t * (t + 1) * (t + 2) for t in range(1, 41)]
    assert policy.weight == pytest.approx(np.average(range(1, 41), weights=weights))


DATES = tuple(OwnQuestion(f"Date {number}?", "a number", Pattern(r"\d+")) for number in range(60))
"""No right answer is known, only a verifier."""


def even_are_right(prompt: Prompt, position: int) -> str:
    """One right answer of two to every second question."""
    number = prompt[-1].content.split()[1].rstrip("?")
    return f"{number}7" if position == 1 and int(number) % 2 == 0 else "no idea"


@fails_without("node/head_start.py", "(rollout.question), (right,), external=True)", "(rollout.question), (right,))")
def test_where_only_a_verifier_exists_its_first_right_answers_are_learned(tmp_path: Path) -> None:
    tasks, policy = source(*DATES), FakePolicy()
    policy.script = even_are_right
    settings = replace(AUTO, learning_rate=1e-4)
    machine = run(tmp_path, settings, tasks, policy)
    assert validations(machine)[-1][2] and not notices(machine)
    learned = [group for groups in taught(policy.updates[:20]) for group in groups]
    assert len({group.prompt for group in learned}) >= FEWEST
    for group in learned:
        (answer,), question = group.answers, group.prompt[-1].content
        assert answer.text == even_are_right(group.prompt, 1) != "no idea" and answer.token_ids is not None
        assert group.external and not answer.known
        assert not tasks.is_held_out(question)
    asked = [prompt[-1].content for prompts in policy.prompts for prompt in prompts]
    assert not any(map(tasks.is_held_out, asked)), "nor are answers to held-out questions sampled"
    used = policy.settings[0]
    assert used.external_rule == ExternalRule() and used.rate(10) == pytest.approx(5e-4)
    again = FakePolicy()
    again.script = even_are_right
    assert run(tmp_path / "again", settings, tasks, again) and again.updates == policy.updates


def test_it_gives_up_after_a_bounded_number_of_answers_and_the_rounds_begin(tmp_path: Path) -> None:
    too_long = [OwnQuestion(question.question, "y" * 80) for question in OWN]
    for home, (head_start, questions) in enumerate((("auto", DATES), ("5", DATES), ("auto", too_long))):
        policy = FakePolicy(lambda _prompt, _position: "no idea")
        machine = run(tmp_path / str(home), replace(AUTO, head_start=head_start), source(*questions), policy)
        (reason,) = notices(machine)
        assert "not known, or too long for max_tokens, and the model found those to 0 questions only" in reason
        assert policy.log.count("generate") == TRIES + 1 and machine.rounds == [1]


def test_a_search_that_is_stopped_begins_again_and_so_does_one_after_a_validation(tmp_path: Path) -> None:
    settings = replace(AUTO, head_start="40")
    for stops in (stops_at(1, "before_generate"), stops_at(25)):
        assert notices(run(tmp_path, settings, source(*DATES), FakePolicy(even_are_right), stops)) == [STOPPED]
    last = FakePolicy(even_are_right)
    machine = run(tmp_path, settings, source(*DATES), last)
    assert validations(machine) == [(40, 0, True)] and "the head start goes on after 20 updates" in notices(machine)
    assert last.log.count("update") == 20 + 1


@fails_without("node/rounds.py", "        self.pool.take([scored.rollout for scored in external])\n")
@fails_without("node/head_start.py", "half = min(len(self.others), self._batch // 2)", "half = len(self.others)")
def test_right_answers_of_others_count_once_their_task_is_verified(tmp_path: Path) -> None:
    tasks, policy = source(*DATES), FakePolicy(lambda _prompt, _position: "no idea")

    def rollout(index: int, author: str, **changes: Any) -> Rollout:
        (task,), _ = tasks.training_tasks(99, index, 1)
        return replace(offered(task, author, index, ("no idea", f"{index}")), **changes)

    held = tasks.held_out("test", 1)[0]

    def fill(node: Node) -> None:
        for index in range(24):
            node.pool.add(rollout(index, f"author {index % 3}"))
        node.pool.add(offered(held, "liar", 1, ("1", "2")))
        node.pool.add(rollout(30, "forger", ground_truth="another"))

    machine = run(tmp_path, replace(AUTO, head_start="5", network="swarm", external=4), tasks, policy, fill)
    learned = [group for groups in taught(policy.updates[:5]) for group in groups]
    texts = [answer.text for group in learned for answer in group.answers]
    assert len(set(texts)) == len(texts) >= FEWEST and all(text.isdigit() for text in texts), "each once"
    assert max(map(len, taught(policy.updates[:5]))) == 4, "half of an update"
    assert held.question not in {group.prompt[-1].content for group in learned} and "30" not in texts
    assert not notices(machine)


def test_a_validation_takes_a_fifth_of_the_time_at_most_and_comes_soon_where_an_update_s_time_is_not_known() -> None:
    state = HeadStartState(updates=400)
    assert [state.next_updates(None, 10.0, validation) for validation in (0.0, 30.0, 200.0)] == [24, 24, 80]
    goes_on = HeadStartState(updates=2000, best=1, best_updates=2000)
    assert (goes_on.next_updates(None, 0.0, 0.0), goes_on.next_updates(2010, 0.0, 0.0)) == (FIRST, 10)
