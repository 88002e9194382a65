"""Plans in TOML: what they leave out, what they may not say, and the digests by which results are found again."""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from sapo_edge.errors import ConfigError
from sapo_edge.experiment.plan import Arm, Learning, Plan, Setting, Training, swarm_digest
from sapo_edge.experiment.scales import SCALES, embedded, read_plan, tiny
from sapo_edge.policy import ExternalRule

ROOT = Path(__file__).parents[3]


def read(directory: Path, text: str) -> Plan:
    path = directory / "plan.toml"
    path.write_text(text)
    return read_plan(path)


def with_setting(**changes: str) -> str:
    lines = {"name": '"mine"', "title": '"Mine"', "baseline": '"8/0"', "arms": '[{ name = "8/0", title = "alone" }]'}
    return "[[settings]]\n" + "\n".join(f"{name} = {value}" for name, value in (lines | changes).items())


SETTING = with_setting() + "\n"


def with_arm(more: str) -> str:
    return with_setting(arms=f'[{{ name = "8/0", title = "alone", {more} }}]')


def test_the_example_of_the_documentation_is_a_plan(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    (example,) = re.findall(r"(?m)^    scale =(?:.*\n)+?    \]$", page)
    plan = read(tmp_path, textwrap.dedent(example))
    (setting,) = plan.settings
    half = Training(own=4, external=4, rule=ExternalRule(negatives=0.5))
    assert (plan.scale, plan.seeds, setting.rounds) == ("embedded", 5, 40)
    assert setting.arms == (Arm("8/0", "alone"), Arm("4/4", "half from peers", half))


@pytest.mark.parametrize(("name", "swarms"), [("known", 21), ("fresh", 280), ("strong", 12)])
def test_the_plans_behind_the_results_can_be_run(name: str, swarms: int) -> None:
    assert len(read_plan(ROOT / "docs" / "examples" / f"{name}.toml").jobs) == swarms


@pytest.mark.parametrize("scale", [*SCALES, ""])
def test_what_a_plan_leaves_out_is_the_scales_or_of_the_embedded_model(tmp_path: Path, scale: str) -> None:
    plan, own = read(tmp_path, f'scale = "{scale}"\n{SETTING}' if scale else SETTING), SCALES[scale or "embedded"]()
    assert replace(plan, settings=own.settings) == own
    assert plan.settings == (Setting("mine", "Mine", (Arm("8/0", "alone"),), "8/0"),)


def test_a_plan_changes_single_numbers_of_learning_and_of_an_arms_training(tmp_path: Path) -> None:
    plan = read(tmp_path, f'scale = "tiny"\nthreads = 2\n{SETTING}\n[learning]\nrank = 4\nalpha = 8\n')
    assert plan.learning == replace(tiny().learning, rank=4, alpha=8.0) != Learning()
    assert plan.threads == 2
    text = with_arm(
        'own = 2, external = 6, strategy = "uniform", rule = { bounded = false, slack = 1 }, keeps = 5,'
        ' origin = "frozen", frozen = 2, rounds = 1'
    )
    (arm,) = read(tmp_path, text).settings[0].arms
    rule = ExternalRule(bounded=False, slack=1.0)
    assert arm.training == Training(2, 6, strategy="uniform", rule=rule, keeps=5, origin="frozen")
    assert (arm.frozen, arm.rounds, type(arm.rounds)) == (2, 1.0, float)


def test_a_plan_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not valid TOML"):
        read(tmp_path, "seeds = " + "[" * 5000)


WRONG = {
    "seeds = [": "not valid TOML",
    "seeds = 5": "has no settings",
    "settings = 3": "settings is not a list",
    'scale = "huge"\n' + SETTING: "there is no scale 'huge'; choose one of tiny, law, embedded, paper",
    'scale = ""\n' + SETTING: "there is no scale ''; choose one of",
    "scale = 3\n" + SETTING: "scale is not text",
    "seed = 3\n" + SETTING: "there is no seed; did you mean seeds?",
    "seeds = 0\n" + SETTING: "seeds is not positive",
    "seeds = 1001\n" + SETTING: "seeds is more than 1000",
    "seed_base = 1000001\n" + SETTING: "seed_base is more than 1000000",
    "seeds = true\n" + SETTING: "seeds is not a whole number",
    "learning = 3\n" + SETTING: "learning is not a table",
    SETTING + "[learning]\nlearning_rate = nan": "learning: learning_rate is negative or not finite",
    SETTING + "[learning]\nrank = 0": "learning: rank is not positive",
    SETTING + "[learning]\nrang = 1": "learning: there is no rang; did you mean rank?",
    SETTING + SETTING: "two settings have one name",
    with_setting(every="0"): "settings 1: every is not positive",
    with_setting(rounds="1000001"): "settings 1: rounds is more than 1000000",
    with_setting(rounds="50000"): "200,000 rounds of members in arm 8/0 of setting mine are more than 150,000",
    with_setting(rounds="2.5"): "settings 1: rounds is not a whole number",
    with_setting(specialised="1"): "settings 1: specialised is not true or false",
    with_setting(models="[]"): "settings 1: setting mine has no models",
    with_setting(models="[3]"): "settings 1, models 1: models is not text",
    with_setting(baseline='"4/4"'): "setting mine has no arm 4/4, its baseline",
    with_setting(arms="[]"): "setting mine has no arm 8/0, its baseline",
    with_setting(arms='[{ title = "alone" }]'): "settings 1, arms 1: name is missing",
    with_setting(arms='[{ name = "8/0", title = "a" }, { name = "8/0", title = "b" }]'): "two arms of one name",
    with_arm("training = 3"): "arms 1: there is no training",
    with_arm('strategy = "best"'): "arms 1: there is no strategy 'best'; choose one of",
    with_arm('attack = "nuke", hostile = 1'): "arms 1: there is no attack 'nuke'",
    with_arm("rule = { negative = 0.0 }"): "arms 1: there is no negative; did you mean negatives?",
    with_arm("rule = { slack = -0.5 }"): "arms 1: slack is negative",
    with_arm(f"rule = {{ slack = 1{'0' * 400} }}"): "arms 1: slack is not a number",
    with_arm("own = 0"): "arms 1: own and external are 0",
    with_arm("answers = 0"): "arms 1: answers is not positive",
    with_arm("answers = 33"): "arms 1: answers is more than 32",
    with_arm("hostile = 1"): "arms 1: arm 8/0 has hostile members without an attack",
    with_arm('attack = "flood", hostile = 4'): "4 members of setting mine leave no honest one in arm 8/0",
    with_arm('external = 4, origin = "frozen"'): "takes the rollouts of frozen members and has none",
    with_arm("slowest = 0"): "arms 1: arm 8/0 needs 1 or more as slowest",
    with_arm("churn = 1.5"): "and a share from 0 to 1 as churn",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_plan_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read(tmp_path, text)
    assert WRONG[text] in str(refusal.value)
    assert refusal.value.message.startswith(str(tmp_path / "plan.toml")) and refusal.value.remedy


def test_digests_of_shipped_swarms_stay_so_that_finished_ones_are_found() -> None:
    """A change here throws away the results of everybody who has some: let a new field have the old meaning."""
    hard = next(setting for setting in tiny().settings if setting.name == "hard")
    setting = embedded().settings[0]
    assert tiny().digest.startswith("16c57d07") and embedded().digest.startswith("e1952fdb")
    assert swarm_digest(setting, setting.arm("8/0")).startswith("446b8129")
    assert swarm_digest(replace(hard, rounds=5), hard.arm("4/4")).startswith("8115d29b")


def test_titles_and_other_arms_do_not_change_a_swarm_and_numbers_do() -> None:
    setting = embedded().settings[0]
    arm = setting.arm("4/4")
    digest = swarm_digest(setting, arm)
    assert swarm_digest(replace(setting, title="x", arms=(arm,), baseline="4/4"), replace(arm, title="y")) == digest
    for other in (replace(setting, rounds=29), replace(setting, nodes=3), replace(setting, every=9)):
        assert swarm_digest(other, arm) != digest
    for change in ({"own": 5}, {"strategy": "uniform"}, {"rule": ExternalRule(slack=0.1)}):
        assert swarm_digest(setting, replace(arm, training=replace(arm.training, **change))) != digest
    # Rules for rollouts of others don't change who takes none.
    alone = setting.arm("8/0")
    ruled = replace(alone, training=Training(strategy="uniform", rule=ExternalRule(slack=1.0), keeps=3))
    assert swarm_digest(setting, ruled) == swarm_digest(setting, alone)
    for training in (Training(answers=4), Training(supervised=2)):
        assert swarm_digest(setting, replace(alone, training=training)) != swarm_digest(setting, alone)
