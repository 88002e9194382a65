"""One round of SAPO: Algorithm 1 of arXiv 2509.08721, its steps in the paper's order and under the paper's names.

    1  SampleBatch        draw a batch of questions                               -> B
    2  Generate           L answers to each; together they are one rollout        -> R(q)
    3  SelectSubset, Communicate   share some rollouts as text
    4  SampleSelf(I), SampleExternal(J)   assemble the training set, in whole rollouts
    5  Reward             score all of it with the local verifiers
    6  PolicyGradient     update the policy

Departures from the paper, each argued in `docs/algorithm.md`:

- An external task is made anew from the manifest; the sender's ground truth and verifier are never used.
- External rollouts with zero advantage are discarded by default: so do the paper's experiments, not its public code.
- A rollout of others is trained on at most once.
- If fewer than J usable external rollouts are there, as many more own questions are drawn: a round never waits.
- Questions of the held-out set are never trained on, wherever they come from.
- Own answers keep their sampled token ids; the sampler/learner difference is corrected by a truncated weight.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sapo_edge.advantage import group_advantages
from sapo_edge.policy import CallHandle, Policy, Prompt, TrainingAnswer, TrainingGroup, UpdateSettings, UpdateStatistics
from sapo_edge.pool import Pool, ScoredRollout, Strategy
from sapo_edge.rollout import Answer, Rollout, Task
from sapo_edge.transport import Transport


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """The numbers of a round.

    Attributes:
        own: I, own rollouts in the update.
        external: J, rollouts of others in the update.
        questions: questions drawn and shared each round, at least `own`.
        answers: L.
        max_tokens, temperature: of sampling.
        strategy: SampleExternal.
        update: how the update is made.
        train: whether there is an update; a generator stops after sharing.
    """

    own: int
    external: int
    questions: int
    answers: int
    max_tokens: int
    temperature: float
    strategy: Strategy
    update: UpdateSettings
    train: bool = True


@dataclass(frozen=True, slots=True)
class RoundContext:
    """Where a round gets what it needs.

    Attributes:
        policy, pool, transport: the node's.
        training_tasks: (cursor, count) -> tasks and the next cursor; the node's own sequence.
        score: (task, text) -> reward in [0, 1].
        score_external: a rollout of another node -> local rewards of its answers, after its task was made anew and
            compared; None if it must not be trained on.
        prompt_for: question -> prompt.
        select: SelectSubset: (the round's own rollouts with rewards, generator of random numbers) -> what is shared.
        author: the node's id.
    """

    policy: Policy
    pool: Pool
    transport: Transport
    training_tasks: Callable[[int, int], tuple[tuple[Task, ...], int]]
    score: Callable[[Task, str], float]
    score_external: Callable[[Rollout], tuple[float, ...] | None]
    prompt_for: Callable[[str], Prompt]
    select: Callable[[Sequence[ScoredRollout], random.Random], list[Rollout]]
    author: str


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round did.

    Attributes:
        number: of the round.
        cursor: where the next round's tasks begin.
        own: all own rollouts of the round with their rewards, before any filter.
        external: the external ones in the update, with local rewards.
        shared: own rollouts that were published.
        missing: external rollouts that were not there and were made up for by own ones.
        reward_own, reward_external: mean rewards; None without any.
        tokens: generated.
        seconds_generate, seconds_update: wall-clock, without rests.
        statistics: of the update.
    """

    number: int
    cursor: int
    own: tuple[ScoredRollout, ...]
    external: tuple[ScoredRollout, ...]
    shared: int
    missing: int
    reward_own: float
    reward_external: float | None
    tokens: int
    seconds_generate: float
    seconds_update: float
    statistics: UpdateStatistics


def sapo_round(
    number: int,
    cursor: int,
    seed: int,
    first_sequence: int,
    context: RoundContext,
    settings: RoundSettings,
    generating: CallHandle,
    updating: CallHandle,
) -> RoundResult:
    """Run one round.

    Args:
        number: of the round, from 1.
        cursor: where its tasks begin in the node's sequence.
        seed: of everything random in this round.
        first_sequence: sequence number of its first rollout.
        context, settings: see there.
        generating, updating: progress and cancellation of the two long steps.

    Raises:
        Cancelled: at any step; the policy is then as it was before the round.
    """
    rng = random.Random(seed)
    wanted = settings.external if settings.train else 0
    usable = scored_external(context) if wanted else []
    chosen = settings.strategy(usable, wanted, rng)
    missing = wanted - len(chosen)

    # 1 SampleBatch
    own_count = settings.own + missing
    tasks, next_cursor = context.training_tasks(cursor, max(own_count, settings.questions))

    # 2 Generate
    begin = time.perf_counter()
    own = generate(number, tasks, seed, first_sequence, context, settings, generating)
    seconds_generate = time.perf_counter() - begin - generating.paused_seconds

    # 3 SelectSubset, Communicate
    # A generator of its own: what is shared must not change what is trained on.
    shared = context.select(own, random.Random(f"{seed} shared"))
    context.transport.publish(shared)

    external: list[ScoredRollout] = []
    statistics = UpdateStatistics()
    seconds_update = 0.0
    if settings.train:
        # 4 SampleSelf(I), SampleExternal(J)
        # Drawn anew, because fresher ones may have come; those that left the pool are still as good as before.
        fresh = settings.strategy(scored_external(context), len(chosen), rng) if chosen else []
        external = fresh if len(fresh) == len(chosen) else chosen
        batch = [*rng.sample(own, own_count), *external]

        # 5 Reward: all carry local rewards already; what is left is to compare them within each group.
        groups = [training_group(scored, context.prompt_for) for scored in batch]

        # 6 PolicyGradient
        begin = time.perf_counter()
        statistics = context.policy.update(groups, settings.update, updating)
        seconds_update = time.perf_counter() - begin - updating.paused_seconds
        context.pool.take([scored.rollout for scored in external])

    return RoundResult(
        number,
        next_cursor,
        tuple(own),
        tuple(external),
        len(shared),
        missing,
        mean_reward(own) or 0.0,
        mean_reward(external),
        sum(len(answer.token_ids or ()) for scored in own for answer in scored.rollout.answers),
        seconds_generate,
        seconds_update,
        statistics,
    )


def generate(
    number: int,
    tasks: Sequence[Task],
    seed: int,
    first_sequence: int,
    context: RoundContext,
    settings: RoundSettings,
    handle: CallHandle,
) -> list[ScoredRollout]:
    """L answers to each task, as own rollouts with their rewards."""
    prompts = [context.prompt_for(task.question) for task in tasks]
    samples = context.policy.generate(
        prompts, settings.answers, settings.max_tokens, settings.temperature, seed, handle
    )
    now = time.time()
    scored = []
    for offset, (task, group) in enumerate(zip(tasks, samples, strict=True)):
        answers = tuple(Answer(sample.text, sample.ended, sample.token_ids, sample.logprobs) for sample in group)
        rollout = Rollout(
            task.ref, task.question, task.ground_truth, answers, context.author, number, first_sequence + offset, now
        )
        scored.append(ScoredRollout(rollout, tuple(context.score(task, answer.text) for answer in answers)))
    return scored


def scored_external(context: RoundContext) -> list[ScoredRollout]:
    """The pool's rollouts with local rewards; those that can't be verified are dropped from it."""
    usable, refused = [], []
    for rollout in context.pool.candidates():
        rewards = context.score_external(rollout)
        if rewards is None:
            refused.append(rollout)
        else:
            usable.append(ScoredRollout(rollout, rewards))
    context.pool.take(refused)
    return usable


def training_group(scored: ScoredRollout, prompt_for: Callable[[str], Prompt]) -> TrainingGroup:
    """A rollout as the policy trains on it: own answers with what was sampled, external ones as text."""
    advantages = group_advantages(scored.rewards)
    answers = tuple(
        TrainingAnswer(answer.text, answer.ended, advantage, answer.token_ids, answer.logprobs)
        for answer, advantage in zip(scored.rollout.answers, advantages, strict=True)
    )
    return TrainingGroup(prompt_for(scored.rollout.question), answers)


def mean_reward(batch: Sequence[ScoredRollout]) -> float | None:
    """Mean over all answers; None without any."""
    rewards = [reward for scored in batch for reward in scored.rewards]
    return math.fsum(rewards) / len(rewards) if rewards else None
