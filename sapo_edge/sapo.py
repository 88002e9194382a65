"""One round of SAPO: Algorithm 1 of arXiv 2509.08721, in the paper's steps, order and names.

    1  SampleBatch                     draw a batch B of questions
    2  Generate                        sample L answers to each question q: the rollout R(q)
    3  SelectSubset, Communicate       share some of the rollouts as text
    4  SampleSelf(I), SampleExternal(J)   assemble the training set from whole rollouts
    5  Reward                          score it with the local verifiers: advantages within each group
    6  PolicyGradient                  update the policy

Departures from the paper; `docs/algorithm.md` gives the reasons.

Before a round:

- Each node has a task sequence of its own. The task of each question is drawn independently, by weight; a trainer
  passes over some of those whose groups seldom teach.
- Held-out questions are never trained on, whoever asks them.
- J is smaller while the accuracy on the validation set has fallen (`node/balance.py`), and I larger by as much.

In a round, by step:

1. If the pool holds fewer than J usable rollouts, own ones take their place: a round never waits for the swarm.
2. An answer ends at `</answer>`. Own answers keep their sampled token ids and log-probabilities. External ones are cut
   where the own sampler would have stopped, before they are scored; at most L of a group count.
3. SelectSubset keeps traffic within a budget and prefers informative rollouts. A generator stops after this step.
4. SampleExternal discards rollouts without an advantage by default, as the paper's experiments do and its public code
   does not, but for those that are all right where own groups seldom teach. It takes the others in turn: no author and
   no network fills the update. A rollout of another node is trained on at most once, and dropped an hour after it
   arrived.
5. Own answers are scored in step 2, because SelectSubset needs their rewards; external ones when they are sampled,
   because the filter does. An external task is regenerated from the manifest and compared: the sender's ground truth
   and verifier are never used. Partial credit counts only where the manifest says so.
6. An own group whose answers are all wrong learns the right answer, where it is known and the node wants that.
   The update (`policy.UpdateSettings`) trains a LoRA adapter with a smaller, decaying step, bounds the advantages of
   nearly flat groups, and corrects the difference between sampler and learner by a capped importance weight. An
   external group counts as a mean own one in the mean, and pulls at most as strongly as the strongest own one. Negative
   advantages of external answers are dropped, right ones share a fixed sum, and external tokens count less where the
   policy could not have written the text (`policy.ExternalRule`).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sapo_edge.advantage import external_advantages, group_advantages, informative
from sapo_edge.events import RoundFinished
from sapo_edge.policy import (
    CallHandle,
    ExternalRule,
    Policy,
    Prompt,
    TrainingAnswer,
    TrainingGroup,
    UpdateSettings,
    UpdateStatistics,
)
from sapo_edge.pool.pool import Pool
from sapo_edge.rollout import Answer, Rollout, ScoredRollout, Task
from sapo_edge.selection import Strategy, SuccessRates, within_update
from sapo_edge.transport import Transport


def sapo_round(
    number: int, cursor: int, seed: int, first_sequence: int, context: RoundContext, settings: RoundSettings,
    generating: CallHandle, updating: CallHandle,
) -> RoundResult:  # fmt: skip
    """Run one round.

    Args:
        number: from 1.
        cursor: position in the node's task sequence.
        seed: of everything random in this round.
        first_sequence: number of its first rollout.
        generating, updating: progress and cancellation of steps 2 and 6.

    Raises:
        Cancelled: in any step; the policy is then as it was before the round. Rollouts that were shared stay shared.
    """
    rng = random.Random(seed)
    external_count = settings.external if settings.train else 0
    first_sample = sample_external(external_count, context, settings, rng)
    missing = external_count - len(first_sample)

    # 1  SampleBatch: the questions B
    own_count = settings.own + missing
    tasks, next_cursor = context.training_tasks(cursor, own_count)

    # 2  Generate: L answers to each question q, the rollout R(q)
    start = time.perf_counter()
    own = generate(number, tasks, seed, first_sequence, context, settings, generating)
    seconds_generate = time.perf_counter() - start - generating.paused_seconds
    context.rates.observe(own)

    # 3  SelectSubset, Communicate. Sharing uses random numbers of its own and so never changes the training set.
    shared = context.select(own, random.Random(f"{seed} shared"))
    context.transport.publish(shared)

    external: list[ScoredRollout] = []
    statistics, corrected = UpdateStatistics(), frozenset[int]()
    seconds_update = 0.0
    if settings.train:
        # 4  SampleSelf(I), SampleExternal(J). Fresher external rollouts may have arrived; if some expired instead, the
        #    earlier sample still serves.
        count = external_count if first_sample else 0
        second_sample = sample_external(count, context, settings, rng)[: len(first_sample)]
        external = second_sample if len(second_sample) == len(first_sample) else first_sample
        sampled = rng.sample(list(zip(tasks, own, strict=True)), own_count)

        # 5  Reward. Every answer has its local reward by now; a group's advantages compare them.
        own_groups = [own_group(task, scored, context) for task, scored in sampled]
        corrected = frozenset(
            scored.rollout.sequence
            for (_, scored), group in zip(sampled, own_groups, strict=True)
            if group.answers[-1].known
        )
        rule = settings.update.external_rule
        groups = own_groups + [training_group(scored, context.prompt_for, rule) for scored in external]

        # 6  PolicyGradient
        start = time.perf_counter()
        statistics = context.policy.update(groups, settings.update, updating)
        seconds_update = time.perf_counter() - start - updating.paused_seconds
        context.pool.take([scored.rollout for scored in external])

    event = RoundFinished(
        round=number,
        reward_own=mean_reward(own) or 0.0,
        reward_external=mean_reward(external),
        groups=statistics.groups,
        informative=statistics.informative,
        own=len(own),
        external=len(external),
        tokens=sum(len(answer.token_ids or ()) for scored in own for answer in scored.rollout.answers),
        seconds_generate=seconds_generate,
        seconds_update=seconds_update,
        statistics=statistics.as_dict(),
        shared=len(shared),
        corrected=len(corrected),
        answers=sum(len(scored.rewards) for scored in own),
    )
    return RoundResult(event, next_cursor, tuple(own), tuple(external), missing, statistics, corrected)


def generate(
    number: int, tasks: Sequence[Task], seed: int, first_sequence: int, context: RoundContext, settings: RoundSettings,
    handle: CallHandle,
) -> list[ScoredRollout]:  # fmt: skip
    """Sample L answers to each task and score them: the round's own rollouts."""
    prompts = [context.prompt_for(task.question) for task in tasks]
    update = settings.update
    samples = context.policy.generate(prompts, settings.answers, update.max_tokens, update.temperature, seed, handle)
    now = time.time()
    own = []
    for sequence, (task, group) in enumerate(zip(tasks, samples, strict=True), start=first_sequence):
        answers = tuple(Answer(sample.text, sample.ended, sample.token_ids, sample.logprobs) for sample in group)
        rollout = Rollout(task.ref, task.question, task.ground_truth, answers, context.author, number, sequence, now)
        own.append(ScoredRollout(rollout, tuple(context.score(task, answer.text) for answer in answers)))
    return own


def sample_external(
    count: int, context: RoundContext, settings: RoundSettings, rng: random.Random
) -> list[ScoredRollout]:
    """Score the pool's rollouts and choose at most `count` by the strategy; those that can't be verified go."""
    if not count:
        return []
    verified, rejected = [], []
    for rollout in context.pool.candidates():
        scored = context.score_external(rollout, settings.answers)
        if scored is None:
            rejected.append(rollout)
        else:
            verified.append(ScoredRollout(scored.rollout, scored.rewards, context.pool.neighbourhood(rollout)))
    context.pool.reject(rejected)
    chosen = settings.strategy(verified, count, rng, context.rates)
    return [context.cut_external(scored) for scored in within_update(chosen, settings.own + settings.external)]


def training_group(
    scored: ScoredRollout, prompt_for: Callable[[str], Prompt], rule: ExternalRule | None = None
) -> TrainingGroup:
    """A rollout with its advantages, as a policy trains on it; by a rule if it is another node's.

    Only own answers have token ids and log-probabilities.
    """
    advantages = group_advantages(scored.rewards) if rule is None else external_advantages(scored.rewards, rule)
    answers = tuple(
        TrainingAnswer(answer.text, answer.ended, advantage, answer.token_ids, answer.logprobs)
        for answer, advantage in zip(scored.rollout.answers, advantages, strict=True)
    )
    return TrainingGroup(prompt_for(scored.rollout.question), answers, rule is not None)


def own_group(task: Task, scored: ScoredRollout, context: RoundContext) -> TrainingGroup:
    """An own rollout with its advantages. Where all answers are wrong, a known right one teaches in their place.

    It pulls as the one right answer of a group of eight does.
    """
    group = training_group(scored, context.prompt_for)
    if informative(scored.rewards) or scored.rewards[0] == 1.0 or (right := context.right_answer(task)) is None:
        return group
    return replace(group, answers=(*group.answers, TrainingAnswer(right, True, ExternalRule().pull, known=True)))


def mean_reward(rollouts: Sequence[ScoredRollout]) -> float | None:
    """Mean reward of all answers; None without any."""
    rewards = [reward for scored in rollouts for reward in scored.rewards]
    return math.fsum(rewards) / len(rewards) if rewards else None


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """The numbers of a round.

    Attributes:
        own: I, own rollouts in the update; more where external ones are missing.
        external: J, external rollouts in the update.
        answers: L, answers to each question.
        update: also the temperature of sampling, and the most tokens of an answer.
        train: False for a generator, which stops after sharing.
    """

    own: int
    external: int
    answers: int
    strategy: Strategy
    update: UpdateSettings
    train: bool = True


@dataclass(frozen=True, slots=True)
class RoundContext:
    """The parts of a node that a round works with.

    Attributes:
        training_tasks: (cursor, count) -> tasks of the node's own sequence, and the next cursor.
        score: (task, text) -> reward in [0, 1].
        score_external: (another node's rollout, L) -> the rollout with the local rewards of its first L answers, cut;
            None if its task, regenerated, differs or must not be trained on.
        cut_external: a rollout of `score_external` -> the same with its answers as they were scored.
        select: SelectSubset: (own rollouts, random generator) -> the rollouts to share.
        right_answer: the right answer to a task, if it is known and is to be learned where all own ones are wrong.
    """

    policy: Policy
    pool: Pool
    transport: Transport
    training_tasks: Callable[[int, int], tuple[tuple[Task, ...], int]]
    score: Callable[[Task, str], float]
    score_external: Callable[[Rollout, int], ScoredRollout | None]
    cut_external: Callable[[ScoredRollout], ScoredRollout]
    prompt_for: Callable[[str], Prompt]
    select: Callable[[Sequence[ScoredRollout], random.Random], list[Rollout]]
    author: str
    rates: SuccessRates = field(default_factory=SuccessRates)
    right_answer: Callable[[Task], str | None] = lambda task: None


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The outcome of a round.

    Attributes:
        event: its figures, but for what the node received meanwhile; times are without pauses.
        cursor: position of the next round's first task.
        own: all own rollouts of the round, before any filter.
        external: the external rollouts in the update.
        missing: external rollouts that own ones replaced.
        corrected: sequence numbers of own rollouts in the update that taught a known right answer.
    """

    event: RoundFinished
    cursor: int
    own: tuple[ScoredRollout, ...]
    external: tuple[ScoredRollout, ...]
    missing: int
    statistics: UpdateStatistics
    corrected: frozenset[int]
