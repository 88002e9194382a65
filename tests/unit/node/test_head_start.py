"""A head start: what is learned before the first round, when, and that its gradient is that of cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sapo_edge import events
from sapo_edge.backends.common.loss import LossSums, PackLoss, Update
from sapo_edge.backends.common.packing import EncodedAnswer, EncodedGroup, pack
from sapo_edge.config.settings import Settings
from sapo_edge.control.report import read_report
from sapo_edge.node.head_start import FEWEST, TRIES, WAIT, HeadStart, HeadStartState
from sapo_edge.node.rounds import Node
from sapo_edge.policy import CallHandle, ExternalRule, Prompt, TrainingGroup, UpdateSettings, UpdateStatistics
from sapo_edge.rollout import Rollout, ScoredRollout, Task
from sapo_edge.state.paths import Paths
from sapo_edge.state.store import Store
from sapo_edge.tasks.checks import Number, Pattern
from sapo_edge.tasks.manifest import Manifest, TaskEntry
from sapo_edge.tasks.questions import OwnQuestion
from sapo_edge.tasks.source import Judgement, TaskSource
from sapo_edge.transport import Solo
from tests.fakes import FakePolicy, make_rollout

SETTINGS = Settings(
    own=4, external=0, answers=2, rounds=2, held_out=4, evaluate_every=0, seed=5, network="solo", head_start="0"
)
OWN = tuple(OwnQuestion(f"{number} + 1?", str(number + 1), Number()) for number in range(20))


def source(*questions: OwnQuestion, max_tokens: int = 64) -> TaskSource:
    entry = TaskEntry("mine", questions=questions, reading="fit")
    return TaskSource(Manifest("own", (entry,), max_tokens=max_tokens))


def no_sample(*_: object) -> tuple[list[ScoredRollout], list[ScoredRollout], int]:
    raise AssertionError("right answers are known")


def run(home: Path, settings: Settings, tasks: TaskSource, policy: FakePolicy) -> list[events.Event]:
    emitted: list[events.Event] = []
    with Store(Paths.default(home)) as store:
        Node(settings, tasks, store, policy, Solo(), emitted.append).run()
    return emitted


def validations(emitted: list[events.Event]) -> list[tuple[int, int, bool]]:
    """Of the head start: (updates, right answers, whether it is over)."""
    return [(event.updates, event.correct, event.done) for event in emitted if isinstance(event, events.HeadStart)]


def notices(emitted: list[events.Event]) -> list[str]:
    found = [event.text for event in emitted if isinstance(event, events.Notice)]
    return [text for text in found if "head start" in text]


class Rising(FakePolicy):
    """Answers so many of three validation questions right after so many updates."""

    def __init__(self, course: dict[int, int]) -> None:
        super().__init__()
        self.course = course
        self.asked = 0

    def right(self) -> int:
        made = len(self.updates)
        return next(right for updates, right in sorted(self.course.items(), reverse=True) if updates <= made)


class Judged(TaskSource):
    """Counts the first answers of each evaluation as right, as many as a policy's course says."""

    def __init__(self, policy: Rising) -> None:
        entry = TaskEntry("mine", questions=OWN, reading="fit")
        super().__init__(Manifest("own", (entry,), max_tokens=64))
        self.policy = policy

    def judge(self, task: Task, text: str) -> Judgement:
        right = self.policy.asked % 3 < self.policy.right()
        self.policy.asked += 1
        return Judgement(right, right)


def test_right_answers_of_training_questions_are_learned_first(tmp_path: Path) -> None:
    tasks, policy = source(*OWN), FakePolicy()
    emitted = run(tmp_path, replace(SETTINGS, head_start="3"), tasks, policy)
    before = policy.log.index("generate")
    log = [call for call in policy.log[:before] if call not in ("save", "load")]
    assert log == ["evaluate", "update", "update", "update", "evaluate"]
    learned = [group for groups in policy.updates[:3] for group in groups]
    assert len({group.prompt for group in learned}) == 12, "a pass over own questions asks each once"
    for group in learned:
        (answer,) = group.answers
        question = group.prompt[-1].content
        number = int(question.split()[0])
        assert (answer.text, answer.ended, answer.advantage) == (str(number + 1), True, 1.0)
        assert answer.known and not tasks.is_held_out(question)
    ((updates, _, done),) = validations(emitted)
    assert (updates, done) == (3, True)
    progress = [event for event in emitted if isinstance(event, events.Progress) and event.phase == "head_start"]
    assert progress[-1].done == progress[-1].total == 3


def test_where_answers_are_read_in_tags_they_are_learned_in_tags() -> None:
    tasks = TaskSource(Manifest("own", (TaskEntry("mine", questions=OWN),), max_tokens=64))
    policy = FakePolicy()
    head_start = HeadStart(policy, tasks, 1, 1, UpdateSettings(), no_sample)
    head_start.advance(HeadStartState(), 1, CallHandle, lambda _made: True)
    assert policy.updates[0][0].answers[0].text.startswith("<answer>")


def test_without_it_nothing_changes_and_rounds_ask_the_same_questions(tmp_path: Path) -> None:
    plain, ahead = FakePolicy(), FakePolicy()
    emitted = run(tmp_path / "plain", SETTINGS, source(*OWN), plain)
    run(tmp_path / "ahead", replace(SETTINGS, head_start="2"), source(*OWN), ahead)
    assert not validations(emitted) and plain.log[:2] == ["evaluate", "generate"]
    assert (plain.prompts, plain.seeds) == (ahead.prompts, ahead.seeds)


def test_by_default_it_goes_on_while_validation_rises_and_keeps_the_best(tmp_path: Path) -> None:
    policy = Rising({0: 0, 20: 1, 40: 2, 60: 1})
    emitted = run(tmp_path, replace(SETTINGS, head_start="auto", rounds=1), Judged(policy), policy)
    course = validations(emitted)
    assert course[:2] == [(20, 1, False), (40, 2, False)], (
        "the first validation comes soon, the others at growing distances"
    )
    assert course[-1][2] and course[-1][0] - 40 >= WAIT and {right for _, right, _ in course[2:-1]} == {1}
    (last,) = (event for event in emitted if isinstance(event, events.HeadStart) and event.done)
    assert last.best_updates == 40
    assert (last.correct, last.accuracy, last.answers.count("0")) == (2, 2 / 3, 1), "told of the adapter that goes on"
    with Store(Paths.default(tmp_path)) as store:
        best = store.checkpoints.best()
        assert best is not None and best.round == 0, "no run ends below its head start"
        assert best.accuracy == pytest.approx(2 / 3) and best.cursor["head_start"]["updates"] == 40
    loaded, generated = policy.log.index("load"), policy.log.index("generate")
    assert loaded < generated, "the rounds begin with the best"


def test_it_ends_when_nearly_all_is_right_and_is_not_begun_where_it_can_t_help(tmp_path: Path) -> None:
    policy = Rising({0: 0, 20: 3})
    settings = replace(SETTINGS, head_start="auto", rounds=1)
    assert validations(run(tmp_path / "all", settings, Judged(policy), policy)) == [(20, 3, True)]
    knows = Rising({0: 3})
    assert notices(run(tmp_path / "knows", settings, Judged(knows), knows)) == [
        "no head start: the model is nearly always right already"
    ]
    (reason,) = notices(run(tmp_path / "blind", replace(settings, held_out=0), source(*OWN), FakePolicy()))
    assert "nothing tells when to end it" in reason


def test_a_node_that_is_stopped_goes_on_from_the_best_validation(tmp_path: Path) -> None:
    settings = replace(SETTINGS, head_start="auto", rounds=1)
    whole = Rising({0: 0, 20: 1, 40: 3})
    course = validations(run(tmp_path / "whole", settings, Judged(whole), whole))
    stopped, emitted = Rising({0: 0, 20: 1, 40: 3}), list[events.Event]()
    with Store(Paths.default(tmp_path)) as store:
        node = Node(settings, Judged(stopped), store, stopped, Solo(), emitted.append)
        stopped.before_update = lambda policy: node.stop.after_round() if len(policy.updates) == 25 else None
        node.run()
    assert notices(emitted) == ["head start: stopped; the next start continues from its best validation"]
    again = Rising({0: 1, 20: 3})
    assert validations(run(tmp_path, settings, Judged(again), again)) == course[1:]
    assert again.updates[:20] == whole.updates[20:40], "with the same questions"
    done = Rising({0: 3})
    assert not validations(run(tmp_path, replace(settings, rounds=2), Judged(done), done))
    generator = replace(settings, role="generator")
    assert not validations(run(tmp_path / "generator", generator, source(*OWN), FakePolicy()))


class Watched(FakePolicy):
    """Keeps the settings of each update."""

    def __init__(self) -> None:
        super().__init__()
        self.settings: list[UpdateSettings] = []

    def update(
        self, groups: Sequence[TrainingGroup], settings: UpdateSettings, handle: CallHandle | None = None
    ) -> UpdateStatistics:
        self.settings.append(settings)
        return super().update(groups, settings, handle)


def test_a_head_start_that_does_harm_is_not_kept(tmp_path: Path) -> None:
    policy = Rising({0: 2, 20: 1})
    emitted = run(tmp_path, replace(SETTINGS, head_start="auto", rounds=1), Judged(policy), policy)
    (last,) = (event for event in emitted if isinstance(event, events.HeadStart) and event.done)
    assert last.best_updates == 0, "the rounds begin with the untrained policy"
    with Store(Paths.default(tmp_path)) as store:
        best = store.checkpoints.best()
    assert best is not None and best.round == 0 and best.accuracy == pytest.approx(2 / 3)


def test_all_updates_that_the_owner_asked_for_count_where_nothing_can_be_validated(tmp_path: Path) -> None:
    policy = FakePolicy()
    run(tmp_path, replace(SETTINGS, head_start="50", held_out=0, rounds=1), source(*OWN), policy)
    assert policy.log.count("update") == 51 and "load" not in policy.log


def test_a_node_that_is_stopped_again_and_again_gets_to_its_rounds(tmp_path: Path) -> None:
    settings = replace(SETTINGS, head_start="auto", rounds=1)
    for _ in range(6):
        policy, emitted = Rising({0: 0}), list[events.Event]()
        with Store(Paths.default(tmp_path)) as store:
            node = Node(settings, Judged(policy), store, policy, Solo(), emitted.append)
            policy.before_update = lambda policy, node=node: (
                node.stop.after_round() if len(policy.updates) == 30 else None
            )
            node.run()
        if any(isinstance(event, events.RoundFinished) for event in emitted):
            return
    pytest.fail("it began again with the same updates each time")


def test_a_head_start_is_made_before_the_first_round_only(tmp_path: Path) -> None:
    run(tmp_path, replace(SETTINGS, role="generator", rounds=2), source(*OWN), FakePolicy())
    trainer = FakePolicy()
    assert not validations(run(tmp_path, replace(SETTINGS, head_start="30", rounds=3), source(*OWN), trainer))
    run(tmp_path / "begun", SETTINGS, source(*OWN), FakePolicy())
    late = run(tmp_path / "begun", replace(SETTINGS, head_start="5", rounds=3), source(*OWN), FakePolicy())
    assert any("head_start = 5 has no effect" in text for text in notices(late) or [""]) or any(
        isinstance(event, events.Notice) and "head_start = 5 has no effect" in event.text for event in late
    )


def test_rounds_learn_at_the_rate_that_they_have_without_it(tmp_path: Path) -> None:
    policy = Watched()
    run(tmp_path, replace(SETTINGS, head_start="30", rounds=3), source(*OWN), policy)
    rates = [settings.rate(update) for update, settings in enumerate(policy.settings, start=1)]
    assert rates[10] == pytest.approx(5 * SETTINGS.learning_rate)
    assert rates[-3:] == [SETTINGS.learning_rate] * 3


def test_the_owner_s_questions_are_asked_before_and_after_too(tmp_path: Path) -> None:
    run(tmp_path, SETTINGS, source(*OWN), FakePolicy())
    report = read_report(Paths.default(tmp_path).journal, 2)
    assert report is not None
    trained = {question.question for question in source(*OWN).own["mine"].train}
    assert {before.question for before, _ in report.own} == trained and len(trained) == 14


def test_answers_that_are_wrong_or_too_long_are_left_out() -> None:
    wrong = tuple(OwnQuestion(f"Date {number}?", "x", Pattern(r"\d+"), "train") for number in range(4))
    long = tuple(OwnQuestion(f"Long {number}?", "y" * 80, split="train") for number in range(4))
    for questions, learned in (((*wrong, *long, *OWN[:4]), {"0 + 1?", "1 + 1?", "2 + 1?", "3 + 1?"}), (wrong, set())):
        policy = FakePolicy()
        tasks = source(*(replace(question, split="train") for question in questions))
        head_start = HeadStart(policy, tasks, 1, len(questions), UpdateSettings(max_tokens=64), no_sample)
        assert head_start.knows_answers == bool(learned)
        if learned:
            head_start.advance(HeadStartState(), 1, CallHandle, lambda _made: True)
            assert {group.prompt[-1].content for group in policy.updates[0]} == head_start.learned == learned


def test_the_gradient_is_that_of_cross_entropy() -> None:
    policy = Watched()
    head_start = HeadStart(policy, source(*OWN), 1, 1, UpdateSettings(), no_sample)
    head_start.advance(HeadStartState(), 1, CallHandle, lambda _made: True)
    settings, (answer,) = policy.settings[0], policy.updates[0][0].answers
    layout = pack([EncodedGroup((0,), (EncodedAnswer((0,) * 200, answer.advantage, None, known=answer.known),))])
    logprobs = -np.random.default_rng(0).exponential(8.0, 200)
    loss = PackLoss(np, np.float64, layout, Update(settings, 1, LossSums(), lambda: None))
    slopes = loss.add(slice(0, 200), logprobs, logprobs, np.exp(logprobs))
    assert np.array_equal(slopes, np.full(200, -1.0)), "the derivative of minus a log-probability"


class Walking(FakePolicy):
    """One weight, which each update sets to the number of updates made."""

    weight = 0.0

    def weights(self) -> dict[str, npt.NDArray[Any]]:
        return {"w": np.array([float(len(self.updates)) if self.weight == 0.0 else self.weight])}

    def set_weights(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        self.weight = float(weights["w"][0])


def test_it_goes_on_from_the_average_in_which_late_weights_count_most() -> None:
    policy = Walking()
    head_start = HeadStart(policy, source(*OWN), 1, 1, UpdateSettings(), no_sample)
    head_start.advance(HeadStartState(), 40, CallHandle, lambda _made: True)
    # Polynomial decay with eta = 3 weighs update t like t (t + 1) (t + 2).
    weights = [t * (t + 1) * (t + 2) for t in range(1, 41)]
    assert policy.weight == pytest.approx(np.average(range(1, 41), weights=weights))


DATES = tuple(OwnQuestion(f"Date {number}?", "a number", Pattern(r"\d+")) for number in range(60))
"""No right answer is known, only a verifier."""


def even_are_right(prompt: Prompt, position: int) -> str:
    """One right answer of two to every second question."""
    number = prompt[-1].content.split()[1].rstrip("?")
    return f"{number}7" if position == 1 and int(number) % 2 == 0 else "no idea"


def test_where_only_a_verifier_exists_its_first_right_answers_are_learned(tmp_path: Path) -> None:
    tasks, policy = source(*DATES), Watched()
    policy.script = even_are_right
    settings = replace(SETTINGS, head_start="auto", rounds=1, learning_rate=1e-4)
    emitted = run(tmp_path, settings, tasks, policy)
    assert validations(emitted)[-1][2] and not notices(emitted)
    learned = [group for groups in policy.updates[:20] for group in groups]
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
    again = Watched()
    again.script = even_are_right
    assert run(tmp_path / "again", settings, tasks, again) and again.updates == policy.updates


def test_it_gives_up_after_a_bounded_number_of_answers_and_the_rounds_begin(tmp_path: Path) -> None:
    for head_start in ("auto", "5"):
        policy = FakePolicy(lambda _prompt, _position: "no idea")
        settings = replace(SETTINGS, head_start=head_start, rounds=1)
        emitted = run(tmp_path / head_start, settings, source(*DATES), policy)
        (reason,) = notices(emitted)
        assert "found those to 0 questions only" in reason and policy.log.count("generate") == TRIES + 1
        assert any(isinstance(event, events.RoundFinished) for event in emitted)


def test_a_search_that_is_stopped_begins_again_and_so_does_one_after_a_validation(tmp_path: Path) -> None:
    settings = replace(SETTINGS, head_start="40", rounds=1)
    for stopped_in in ("generate", "update"):
        policy, emitted = FakePolicy(even_are_right), list[events.Event]()
        with Store(Paths.default(tmp_path)) as store:
            node = Node(settings, source(*DATES), store, policy, Solo(), emitted.append)

            def stop(policy: FakePolicy, node: Node = node, word: str = stopped_in) -> None:
                if word == "generate" or len(policy.updates) == 25:
                    node.stop.after_round()

            policy.before_generate, policy.before_update = (stop, None) if stopped_in == "generate" else (None, stop)
            node.run()
        assert notices(emitted) == ["head start: stopped; the next start continues from its best validation"]
    last = FakePolicy(even_are_right)
    assert validations(run(tmp_path, settings, source(*DATES), last)) == [(40, 0, True)]
    assert last.log.count("update") == 20 + 1


def test_right_answers_of_others_count_once_their_task_is_verified(tmp_path: Path) -> None:
    tasks, policy, emitted = source(*DATES), FakePolicy(lambda _prompt, _position: "no idea"), list[events.Event]()

    def rollout(index: int, author: str, **changes: Any) -> Rollout:
        (task,), _ = tasks.training_tasks(99, index, 1)
        made = make_rollout(author, index, ("no idea", f"{index}"), "mine", task.question, task.ground_truth)
        return replace(made, ref=task.ref, **changes)

    settings = replace(SETTINGS, head_start="5", rounds=1, network="swarm", external=4)
    with Store(Paths.default(tmp_path)) as store:
        node = Node(settings, tasks, store, policy, Solo(), emitted.append)
        for index in range(24):
            node.pool.add(rollout(index, f"author {index % 3}"))
        held = tasks.held_out("test", 1)[0]
        node.pool.add(replace(make_rollout("liar", 1, ("1", "2"), "mine", held.question, "a number"), ref=held.ref))
        node.pool.add(rollout(30, "forger", ground_truth="another"))
        node.run()
    learned = [group for groups in policy.updates[:5] for group in groups]
    texts = [answer.text for group in learned for answer in group.answers]
    assert len(set(texts)) == len(texts) >= FEWEST and all(text.isdigit() for text in texts), "each once"
    assert max(map(len, policy.updates[:5])) == 4, "half of an update"
    assert held.question not in {group.prompt[-1].content for group in learned} and "30" not in texts
    assert not notices(emitted)
