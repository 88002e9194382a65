"""The three experiments that ship: tiny, embedded and paper."""

from __future__ import annotations

from dataclasses import replace

from sapo_edge.experiment.plan import Arm, Learning, Plan, Setting, Training
from sapo_edge.policy import PUBLISHED

AS_PUBLISHED = Training(rule=PUBLISHED, equal_groups=False, cut=False)
"""External answers are trained on as the paper does: as if the policy had written them."""


def mix(own: int, external: int, training: Training | None = None) -> Training:
    """A training with I own and J external rollouts."""
    return replace(training or Training(), own=own, external=external)


def embedded() -> Plan:
    """SmolLM2-135M, four members."""
    arms = (
        Arm("8/0", "alone", mix(8, 0)),
        Arm("2/6", "2 own, 6 external", mix(2, 6)),
        Arm("4/4", "4 own, 4 external", mix(4, 4)),
        Arm("2/6 published", "2 own, 6 external, as published", mix(2, 6, AS_PUBLISHED)),
    )
    setting = Setting("starter", "The starter tasks", arms, "8/0", rounds=30, validation=100, sampled=32)
    return Plan("embedded", (setting,), 5, Learning(), manifest="starter", backend="llama_cpp")
