"""The experiments that ship, by scale: tiny, law, embedded and paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from sapo_edge.experiment.hostile import ATTACKS, KNOWN
from sapo_edge.experiment.plan import Arm, Learning, Plan, Setting, Training
from sapo_edge.policy import PUBLISHED, ExternalRule

LAW = "law"
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
"""Members of the swarms of `law`, ..."""
ASKED = 16
"""... of which so many are examined."""
MIXES = ((6, 2), (4, 4), (2, 6))
"""I and J of the paper's sharing arms."""
ALONE = Arm("8/0", "alone")
AS_PUBLISHED = Training(strategy="published", rule=PUBLISHED, cut=False, distinct=False)
"""External answers are trained on as in the paper: as if the policy had written them."""
SINGLE_DEFENCES: Mapping[str, tuple[str, str, Training]] = {
    "inversion uncut": ("inversion", "scored by the last pair, not cut", Training(cut=False)),
    "long unbounded": ("long", "groups of any size and length", Training(cut=False, rule=ExternalRule(bounded=False))),
    "wrong_end negatives": (
        "wrong_end",
        "negatives kept",
        Training(rule=ExternalRule(negatives=1.0, negative_floor=0.0)),
    ),
    "unlikely floorless": ("unlikely", "unlikely tokens count fully", Training(rule=ExternalRule(patience=0.0))),
    "repetition allowed": ("repetition", "copies allowed", Training(distinct=False)),
}
"""The default rule without one defence, under the attack that it is against."""


def mixed(own: int, external: int, training: Training | None = None) -> Training:
    """A training with I own and J external rollouts."""
    return replace(training or Training(), own=own, external=external)


def default_arms() -> tuple[Arm, ...]:
    """The paper's mixes under the default rule."""
    return tuple(Arm(f"{i}/{j}", f"{i} own, {j} external", mixed(i, j)) for i, j in MIXES)


def published_arms() -> tuple[Arm, ...]:
    """The paper's mixes as published."""
    return tuple(
        Arm(f"{i}/{j} published", f"{i} own, {j} external, as published", mixed(i, j, AS_PUBLISHED)) for i, j in MIXES
    )


def hostile_arms() -> tuple[Arm, ...]:
    """Each attack by a quarter of the members; the known ones by half of them, too, and under the rule as published."""
    arms = [ALONE, Arm("4/4", "no hostile member", mixed(4, 4)), published_arms()[1]]
    for attack, member in ATTACKS.items():
        arms.append(Arm(f"{attack} 25 %", member.description, mixed(4, 4), attack, 1))
        if attack in KNOWN:
            arms.append(Arm(f"{attack} 50 %", member.description, mixed(4, 4), attack, 2))
            arms.append(Arm(f"{attack} published", "25 %, rule as published", mixed(4, 4, AS_PUBLISHED), attack, 1))
    for name, (attack, title, training) in SINGLE_DEFENCES.items():
        arms.append(Arm(name, f"{attack}, 25 % hostile, {title}", mixed(4, 4, training), attack, 1))
    return tuple(arms)


def tiny() -> Plan:
    """Models that come with the program; ten swarms an arm take about 75 minutes of two cores."""
    few = (ALONE, *default_arms()[1:], *published_arms()[1:])
    ten = (*(Arm(f"{a} 10 %", f"{a}, 10 % hostile", mixed(4, 4), a, 1) for a in ("adaptive", "wrong_end", "flood")),)
    settings = (
        Setting(
            "mixed",
            "All members draw all tasks",
            (
                ALONE,
                *default_arms(),
                *published_arms(),
                # What could explain a gain besides others' rollouts; 4/4 took 1.1 times the processor seconds.
                Arm("8/0 same time", "alone, processor time of 4/4", rounds=1.1),
                Arm("4/4 frozen", "4 own, 4 of the base model", mixed(4, 4, Training(origin="frozen")), frozen=2),
            ),
            "8/0",
            rounds=50,
        ),
        Setting("hard", "A fresh member earns next to nothing", few, "8/0", rounds=50, models=("hard",)),
        Setting("specialised", "Each member draws one task and is asked all", few, "8/0", rounds=50, specialised=True),
        Setting(
            "one trained",
            "One trained member among beginners",
            few,
            "8/0",
            rounds=50,
            models=("trained", *("hard",) * 3),
        ),
        Setting("two sizes", "Two sizes of model", few, "8/0", rounds=50, models=("small", "base")),
        Setting(
            "generators",
            "Two of six members only generate",
            (ALONE, *(replace(arm, frozen=2) for arm in few[1:])),
            "8/0",
            rounds=50,
        ),
        Setting("hostile", "Hostile members", hostile_arms(), "4/4", rounds=40),
        Setting(
            "hostile ten",
            "One hostile member of ten",
            (Arm("4/4", "no hostile member", mixed(4, 4)), *ten),
            "4/4",
            nodes=10,
            rounds=40,
        ),
    )
    return Plan("tiny", settings, 10, Learning(1.5e-3, 5, 0, 8, 16.0), backend="torch")


def law() -> Plan:
    """Swarms of 1 to 1,000 of the tiny models, whose members share as much as nodes of such a swarm do.

    A fifth of the members leave in each run and are replaced; the slowest make a tenth of the rounds of the fastest.
    """
    rounds = 60
    training = replace(mixed(4, 4), share=64)
    settings = []
    for nodes in SIZES:
        arms = [Arm("honest", "honest members", training)]
        if nodes >= 4:
            arms += [
                Arm("liars 25 %", "a quarter adaptive attackers", training, "adaptive", nodes // 4),
                Arm("churn", "a fifth are replaced", training, churn=0.2 / rounds),
                Arm("speeds", "tenfold differences in speed", training, slowest=10.0),
            ]
        if nodes == ASKED:
            arms.append(Arm("speeds, alone", "the same without others' answers", slowest=10.0))
        settings.append(
            Setting(
                str(nodes), f"{nodes} members", tuple(arms), "honest", nodes, rounds, sampled=0, asked=ASKED, every=10,
            )
        )  # fmt: skip
    return Plan(LAW, tuple(settings), 1, tiny().learning, backend="torch")


def embedded() -> Plan:
    """The embedded model, four members; a swarm takes about ten minutes of one core."""
    arms = (ALONE, *default_arms()[1:], *published_arms()[1:])
    settings = (Setting("starter", "All members draw all tasks", arms, "8/0", rounds=30, validation=100, sampled=32),)
    return Plan("embedded", settings, 5, Learning(), manifest="starter-2", backend="llama_cpp")


def paper() -> Plan:
    """The published experiment: eight members, the nine tasks, 2,000 rounds."""
    arms = (ALONE, *published_arms(), *default_arms())
    settings = (Setting("nine", "The nine tasks of the paper", arms, "8/0", nodes=8, rounds=2000, every=100),)
    model = "hf:Qwen/Qwen2.5-0.5B-Instruct"
    return Plan("paper", settings, 3, Learning(), manifest="reasoning-gym-nine", model=model, backend="auto", threads=0)


SCALES: Mapping[str, Callable[[], Plan]] = {"tiny": tiny, LAW: law, "embedded": embedded, "paper": paper}
"""The plans by the name of their scale."""
