"""One round of SAPO with a scripted policy: the steps, what is trained on, and what is not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from sapo_edge.advantage import external_advantages, group_advantages
from sapo_edge.errors import Cancelled
from sapo_edge.policy import CallHandle, ExternalRule, TrainingGroup, UpdateSettings
from sapo_edge.pool.pool import Pool, PoolLimits, PoolOutcome
from sapo_edge.rollout import Rollout, ScoredRollout, Task
from sapo_edge.sapo import RoundContext, RoundResult, RoundSettings, sapo_round
from sapo_edge.selection import STRATEGIES
from tests import fakes
from tests.fakes import RIGHT, WRONG, Clock, FakePolicy, FakeTransport, ask, first_is_right, make_rollout


def score_external(rollout: Rollout, answers: int) -> ScoredRollout:
    kept = replace(rollout, answers=rollout.answers[:answers], digest=rollout.id)
    return ScoredRollout(kept, tuple(float(answer.text == RIGHT) for answer in kept.answers))


class Bench:
    """A round with fakes for its context, and a log of its steps."""

    def __init__(self, own: int = 2, external: int = 0, strategy: str = "informative") -> None:
        self.log: list[str] = []
        self.policy = FakePolicy(first_is_right, log=self.log)
        self.transport = FakeTransport(self.log)
        self.clock = Clock()
        self.pool = Pool("me", PoolLimits(seconds=60, author_share=1.0), self.clock)
        self.settings = RoundSettings(own, external, 4, STRATEGIES[strategy], UpdateSettings(max_tokens=16))
        self.generating, self.updating = CallHandle(), CallHandle()
        self.context = RoundContext(
            self.policy, self.pool, self.transport, self.tasks, self.score, score_external, lambda scored: scored, ask,
            lambda own, rng: [scored.rollout for scored in own], "me",
        )  # fmt: skip

    def tasks(self, cursor: int, count: int) -> tuple[tuple[Task, ...], int]:
        self.log.append("tasks")
        return fakes.numbered_tasks(cursor, count)

    def score(self, task: Task, text: str) -> float:
        if self.log[-1] != "score":
            self.log.append("score")
        return fakes.score_text(task, text)

    def fill(self, *rollouts: Rollout) -> None:
        for rollout in rollouts:
            assert self.pool.add(rollout) is PoolOutcome.ADDED

    def run(self, number: int = 1, cursor: int = 10, seed: int = 5, sequence: int = 100) -> RoundResult:
        return sapo_round(number, cursor, seed, sequence, self.context, self.settings, self.generating, self.updating)

    @property
    def trained(self) -> tuple[TrainingGroup, ...]:
        return self.policy.updates[-1]

    def asked(self, group: TrainingGroup) -> str:
        return group.prompt[0].content


def is_own(group: TrainingGroup) -> bool:
    return all(answer.token_ids is not None for answer in group.answers)


def externals(count: int, author: str = "other", **details: object) -> list[Rollout]:
    return [make_rollout(author, number, **details) for number in range(count)]  # type: ignore[arg-type]


def test_the_steps_come_in_the_papers_order_and_own_rollouts_carry_round_author_and_sequence() -> None:
    bench = Bench(own=2, external=1)
    bench.fill(make_rollout())
    bench.run()
    assert bench.log == ["tasks", "generate", "score", "publish", "update"]
    bench = Bench(own=3)
    result = bench.run(number=7, cursor=40, sequence=100)
    assert [scored.rollout.question for scored in result.own] == ["question 40", "question 41", "question 42"]
    assert [scored.rollout.sequence for scored in result.own] == [100, 101, 102]
    assert {(scored.rollout.author, scored.rollout.round) for scored in result.own} == {("me", 7)}
    assert all(scored.rewards == (1.0, 0.0, 0.0, 0.0) for scored in result.own)
    sampled = bench.trained[0].answers[0]
    assert (sampled.token_ids, sampled.logprobs) == (tuple(RIGHT.encode()), (-1.0,) * len(RIGHT))
    assert bench.transport.receivers == [], "a round subscribes to nothing"
    assert (result.event.round, result.cursor) == (7, 43)
    assert result.event.tokens == 3 * (len(RIGHT) + 3 * len(WRONG))


def test_the_update_takes_i_own_and_j_external_whole_rollouts_with_their_advantages() -> None:
    bench = Bench(own=3, external=2)
    bench.fill(*externals(5, texts=(RIGHT, RIGHT, WRONG)))
    result = bench.run()
    assert result.event.reward_own == 0.25 and result.event.reward_external == pytest.approx(2 / 3)
    own = [group for group in bench.trained if is_own(group)]
    others = [group for group in bench.trained if not is_own(group)]
    assert (len(own), len(others), result.missing) == (3, 2, 0)
    assert all(len(group.answers) == 4 for group in own) and all(len(group.answers) == 3 for group in others)
    assert {bench.asked(group) for group in others} == {scored.rollout.question for scored in result.external}
    for group in bench.trained:
        rewards = [float(answer.text == RIGHT) for answer in group.answers]
        advantages = group_advantages(rewards) if is_own(group) else external_advantages(rewards, ExternalRule())
        assert tuple(answer.advantage for answer in group.answers) == advantages
        assert group.external is not is_own(group)


def test_own_rollouts_are_not_filtered_and_others_are_by_network() -> None:
    bench = Bench(own=3)
    bench.policy.script = lambda prompt, position: WRONG
    result = bench.run()
    advantages = [answer.advantage for group in bench.trained for answer in group.answers]
    assert len(bench.trained) == 3 and not any(advantages)
    assert (result.event.groups, result.event.informative, result.event.reward_own) == (3, 0, 0.0)
    bench = Bench(own=4, external=4)
    for number in range(12):
        bench.pool.add(make_rollout(f"key {number}"), "8.8.8.0/24" if number < 11 else "9.9.9.0/24")
    result = bench.run()
    assert Counter(scored.neighbourhood for scored in result.external) == {"8.8.8.0/24": 2, "9.9.9.0/24": 1}


def test_one_author_alone_supplies_half_of_an_update() -> None:
    bench = Bench(own=2, external=6, strategy="uniform")
    bench.fill(*externals(6))
    result = bench.run()
    assert len(result.external) == 4 and result.missing == 2 and len(bench.trained) == 8


@pytest.mark.parametrize("there", [0, 1, 2])
def test_own_questions_replace_missing_external_rollouts(there: int) -> None:
    bench = Bench(own=2, external=3)
    bench.fill(*externals(there))
    result = bench.run(cursor=10)
    assert (len(result.external), result.missing, len(result.own)) == (there, 3 - there, 5 - there)
    assert len(bench.trained) == 5 and result.cursor == 15 - there
    assert result.event.reward_external == (0.5 if there else None)


def test_only_selected_rollouts_are_shared_and_a_generator_stops_after_that() -> None:
    bench = Bench(own=4)
    bench.context = replace(bench.context, select=lambda own, rng: [own[2].rollout])
    result = bench.run(cursor=10)
    assert [rollout.question for rollout in bench.transport.published] == ["question 12"]
    assert result.event.shared == 1 and len(bench.trained) == 4
    bench = Bench(own=2, external=2)
    bench.fill(*externals(2, texts=(RIGHT, WRONG)))
    bench.settings = replace(bench.settings, train=False)
    result = bench.run()
    assert bench.log == ["tasks", "generate", "score", "publish"]
    assert (len(result.own), result.external, result.missing, len(bench.pool)) == (2, (), 0, 2)


def test_an_external_rollout_is_trained_on_at_most_once() -> None:
    bench = Bench(own=2, external=2)
    rollouts = externals(3)
    bench.fill(*rollouts)
    first, second = bench.run(1), bench.run(2)
    used = [scored.rollout.id for result in (first, second) for scored in result.external]
    assert len(used) == len(set(used)) == 3 and second.missing == 1
    assert [bench.pool.add(rollout) for rollout in rollouts] == [PoolOutcome.DUPLICATE] * 3
    assert bench.run(3).missing == 2


def test_rollouts_that_cannot_be_verified_leave_the_pool_untrained() -> None:
    bench = Bench(own=2, external=2)
    lie, truth = make_rollout("liar"), make_rollout("honest")
    score = bench.context.score_external

    def judge(rollout: Rollout, answers: int) -> ScoredRollout | None:
        return None if rollout.author == "liar" else score(rollout, answers)

    bench.context = replace(bench.context, score_external=judge)
    bench.fill(lie, truth)
    result = bench.run()
    assert [scored.rollout for scored in result.external] == [truth]
    assert len(bench.pool) == 0 and bench.pool.add(lie) is PoolOutcome.DUPLICATE
    bench = Bench(own=1, external=0)
    bench.context = replace(bench.context, score_external=lambda rollout, answers: pytest.fail("scored for nothing"))
    bench.fill(make_rollout())
    assert bench.run().external == () and len(bench.pool) == 1


def test_rollouts_that_arrive_during_generation_are_sampled_and_those_that_expire_are_trained_on() -> None:
    bench = Bench(own=1, external=1, strategy="uniform")
    bench.fill(make_rollout("early"))
    late = externals(30, "late")
    bench.policy.before_generate = lambda policy: bench.fill(*late)
    assert bench.run().external[0].rollout.author == "late"
    bench = Bench(own=2, external=2)
    bench.fill(*externals(2))

    def age(policy: FakePolicy) -> None:
        bench.clock.now += 61

    bench.policy.before_generate = age
    result = bench.run()
    assert (len(result.external), result.missing, len(bench.trained)) == (2, 0, 4)


def test_the_round_is_a_function_of_its_seed() -> None:
    def chosen(seed: int) -> tuple[list[str], list[int]]:
        bench = Bench(own=2, external=3)
        bench.fill(*externals(10))
        bench.run(seed=seed)
        return [bench.asked(group) for group in bench.trained], bench.policy.seeds

    assert chosen(5) == chosen(5)
    assert chosen(5)[0] != chosen(6)[0]


@pytest.mark.parametrize("step", ["generating", "updating"])
def test_cancellation_leaves_policy_and_pool_as_they_were(step: str) -> None:
    bench = Bench(own=2, external=1)
    bench.fill(*externals(3))
    before = bench.policy.state, bench.pool.candidates()
    getattr(bench, step).cancel()
    with pytest.raises(Cancelled):
        bench.run()
    assert (bench.policy.state, bench.pool.candidates()) == before
    assert bool(bench.transport.published) == (step == "updating")


def test_a_known_right_answer_teaches_where_all_own_ones_are_wrong() -> None:
    bench = Bench(own=4)
    right = {"question 11": 1, "question 12": 4}
    bench.policy.script = lambda prompt, position: RIGHT if position < right.get(prompt[0].content, 0) else WRONG
    known = {f"question {number}": "it is right" for number in (10, 11, 12, 13)}
    bench.context = replace(bench.context, right_answer=lambda task: known.get(task.question))
    result = bench.run()
    taught = {bench.asked(group): [answer for answer in group.answers if answer.known] for group in bench.trained}
    assert len(taught) == 4
    for question, answers in taught.items():
        expected = ["it is right"] if question in ("question 10", "question 13") else []
        assert [answer.text for answer in answers] == expected
    numbers = {scored.rollout.sequence for scored in result.own if taught.get(scored.rollout.question)}
    assert result.corrected == numbers
    corrected = next(group for group in bench.trained if group.answers[-1].known)
    assert [answer.advantage for answer in corrected.answers] == [0.0] * 4 + [2.65]
