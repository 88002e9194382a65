"""An experiment is read while it runs: what is finished, what is in progress, and each arm against its baseline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sapo_edge.errors import StateError
from sapo_edge.experiment.measures import TEST, measure
from sapo_edge.experiment.plan import Job, Plan
from sapo_edge.experiment.results import EvaluationRecord, Results, SwarmRecord
from sapo_edge.experiment.scales import SCALES
from sapo_edge.experiment.watch import ExperimentWatch


@pytest.fixture
def plan() -> Plan:
    whole = SCALES["tiny"]()
    (setting,) = (item for item in whole.settings if item.name == "hard")
    return replace(whole, settings=(replace(setting, arms=setting.arms[:2]),), seeds=3, seed_base=5)


def finish(job: Job, results: Results[None], *rights: str) -> SwarmRecord:
    """Add a finished swarm; `rights` are the test answers of each node."""
    evaluations = [EvaluationRecord(50, node, TEST, right) for node, right in enumerate(rights)]
    evaluations.append(EvaluationRecord(50, 0, "validation", "1111"))
    entries = {TEST: ("a",) * len(rights[0]), "validation": ("a",) * 4}
    record = SwarmRecord(job.setting.name, job.arm.name, *job.key, (), tuple(evaluations), entries)
    results.add(record)
    return record


@pytest.fixture
def results(tmp_path: Path, plan: Plan) -> Results[None]:
    """Results of a plan without a swarm."""
    results = Results(tmp_path, lambda record: None)
    results.claim(plan)
    return results


def test_an_experiment_is_followed(tmp_path: Path, plan: Plan, results: Results[None]) -> None:
    watch = ExperimentWatch()
    with pytest.raises(StateError, match="no experiment"):
        watch.look(tmp_path / "elsewhere")
    with pytest.raises(StateError, match=r"can.t read .*File name too long"):
        watch.look(tmp_path / ("x" * 300))
    empty = watch.look(tmp_path)
    assert (empty.finished, empty.planned, empty.share) == (0, 6, 0.0)
    jobs = plan.jobs
    records = [finish(jobs[0], results, "1000", "1100"), finish(jobs[1], results, "1110", "1110")]
    finish(jobs[3], results, "0000", "0000")
    for round in (9, 10):
        (jobs[2].state(tmp_path) / f"round-{round}").mkdir(parents=True)
    # What a kill left behind of a swarm that is finished.
    (jobs[0].state(tmp_path) / "round-5").mkdir(parents=True)
    view = watch.look(tmp_path)
    baseline, arm = view.settings[0].arms
    assert baseline.name == view.settings[0].baseline and (view.finished, view.planned) == (3, 6)
    assert baseline.running == {6: 10} and arm.running == {}
    assert baseline.accuracy == measure(records[0]).values[TEST] == 0.375
    assert arm.accuracy == 0.375 and arm.difference(baseline) == (0.375, 1) and baseline.difference(arm) == (-0.375, 1)
    assert view.share == pytest.approx((3 * 50 + 10) / 300)


def test_an_arm_of_another_definition_is_not_mixed_in(tmp_path: Path, plan: Plan, results: Results[None]) -> None:
    job = plan.jobs[0]
    finish(job, results, "11")
    finish(replace(job, arm=replace(job.arm, rounds=0.5), seed=6), results, "00")
    assert ExperimentWatch().look(tmp_path).settings[0].arms[0].accuracies == {5: 1.0}
