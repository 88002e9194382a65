"""Conversions between a node's settings and records and those of one round."""

from __future__ import annotations

from sapo_edge.advantage import external_advantages, group_advantages
from sapo_edge.config.settings import Settings
from sapo_edge.policy import ExternalRule, UpdateSettings
from sapo_edge.rollout import ScoredRollout
from sapo_edge.sapo import RoundResult, RoundSettings
from sapo_edge.selection import STRATEGIES
from sapo_edge.state.journal import JournaledRollout


def round_settings(settings: Settings, max_tokens: int, external: int | None = None) -> RoundSettings:
    """The settings of a round with J external rollouts; own ones replace the others, all in a node that works alone."""
    taken = settings.external if external is None else external
    if settings.network == "solo":
        taken = 0
    return RoundSettings(
        own=settings.own + settings.external - taken,
        external=taken,
        answers=settings.answers,
        strategy=STRATEGIES[settings.strategy],
        update=UpdateSettings(
            learning_rate=settings.learning_rate,
            warmup=settings.warmup,
            decay_after=settings.decay_after,
            temperature=settings.temperature,
            max_tokens=max_tokens,
            external_rule=ExternalRule(negatives=settings.external_negatives),
        ),
        train=settings.role == "trainer",
    )


def journaled_rollouts(result: RoundResult, rule: ExternalRule) -> list[JournaledRollout]:
    """The rollouts of a round as the journal keeps them: own ones first, external ones as the rule trained on them."""
    return [
        *(_journaled(scored, group_advantages(scored.rewards), own=True) for scored in result.own),
        *(_journaled(scored, external_advantages(scored.rewards, rule), own=False) for scored in result.external),
    ]


def _journaled(scored: ScoredRollout, advantages: tuple[float, ...], *, own: bool) -> JournaledRollout:
    return JournaledRollout(scored.rollout.as_text(), scored.rewards, advantages, own)
