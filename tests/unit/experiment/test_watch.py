"""An experiment is read while it runs: what is finished, what is in progress, and each arm against its baseline."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sapo_edge.errors import StateError
from sapo_edge.experiment.claim import claim
from sapo_edge.experiment.jobs import Job, jobs_of
from sapo_edge.experiment.measures import TEST, measure
from sapo_edge.experiment.plan import Plan
from sapo_edge.experiment.records import EvaluationRecord, SwarmCosts, SwarmRecord, write_costs, write_record
from sapo_edge.experiment.scales import SCALES
from sapo_edge.experiment.watch import ExperimentWatch


@pytest.fixture
def plan() -> Plan:
    whole = SCALES["tiny"]()
    (setting,) = (item for item in whole.settings if item.name == "hard")
    return replace(whole, settings=(replace(setting, arms=setting.arms[:2]),), seeds=3)


def finish(job: Job, directory: Path, *rights: str) -> SwarmRecord:
    """Write the files of a finished swarm; `rights` are the test answers of each node."""
    evaluations = [EvaluationRecord(50, node, TEST, right) for node, right in enumerate(rights)]
    evaluations.append(EvaluationRecord(50, 0, "validation", "1111"))
    entries = {TEST: ("a",) * len(rights[0]), "validation": ("a",) * 4}
    record = SwarmRecord(job.setting.name, job.arm.name, job.seed, (), tuple(evaluations), entries)
    job.record(directory).parent.mkdir(parents=True, exist_ok=True)
    write_record(job.record(directory), record)
    write_costs(job.costs(directory), SwarmCosts(job.setting.name, job.arm.name, job.seed, ()))
    return record


def test_an_experiment_is_followed(tmp_path: Path, plan: Plan) -> None:
    watch = ExperimentWatch()
    with pytest.raises(StateError, match="no experiment"):
        watch.look(tmp_path)
    claim(tmp_path, plan)
    empty = watch.look(tmp_path)
    assert (empty.finished, empty.planned, empty.share) == (0, 6, 0.0)
    jobs = jobs_of(plan)
    records = [finish(jobs[0], tmp_path, "1000", "1100"), finish(jobs[1], tmp_path, "1110", "1110")]
    finish(jobs[3], tmp_path, "0000", "0000")
    for round in (9, 10):
        (jobs[2].state(tmp_path) / f"round-{round}").mkdir(parents=True)
    # What a kill left behind of a swarm that is finished.
    (jobs[0].state(tmp_path) / "round-5").mkdir(parents=True)
    view = watch.look(tmp_path)
    baseline, arm = view.settings[0].arms
    assert baseline.name == view.settings[0].baseline and (view.finished, view.planned) == (3, 6)
    assert baseline.running == {1: 10} and arm.running == {}
    assert baseline.accuracy == measure(records[0], None).values[TEST] == 0.375
    assert arm.accuracy == 0.375 and arm.difference(baseline) == (0.375, 1) and baseline.difference(arm) == (-0.375, 1)
    assert view.share == pytest.approx((3 * 50 + 10) / 300)


def test_a_finished_swarm_is_read_once_and_a_changed_one_again(tmp_path: Path, plan: Plan) -> None:
    claim(tmp_path, plan)
    job, watch = jobs_of(plan)[0], ExperimentWatch()
    finish(job, tmp_path, "10")
    assert watch.look(tmp_path).settings[0].arms[0].accuracies == {0: 0.5}
    path = job.record(tmp_path)
    stamp = path.stat().st_mtime_ns
    path.write_text("damaged")
    with pytest.raises(StateError, match="damaged"):
        ExperimentWatch().look(tmp_path)
    os.utime(path, ns=(stamp, stamp))
    assert watch.look(tmp_path).finished == 1


def test_a_directory_that_the_system_refuses_has_no_experiment(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no experiment"):
        ExperimentWatch().look(tmp_path / ("x" * 300))


@pytest.mark.parametrize("content", ["", "[]", '{"plan": 5}', '{"plan": {"seeds": 1, "scale": "x", "settings": [7]}}'])
def test_a_damaged_plan_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(StateError, match=r"damaged"):
        ExperimentWatch().look(tmp_path)


def test_an_arm_of_another_definition_is_not_mixed_in(tmp_path: Path, plan: Plan) -> None:
    claim(tmp_path, plan)
    job = jobs_of(plan)[0]
    finish(job, tmp_path, "11")
    other = job.record(tmp_path).parent.with_name("8-0-00000000")
    other.mkdir()
    (other / "1.json").write_text(json.dumps({"evaluations": []}))
    os_time = job.record(tmp_path).parent.stat().st_mtime - 60
    os.utime(other, (os_time, os_time))
    assert ExperimentWatch().look(tmp_path).settings[0].arms[0].accuracies == {0: 1.0}
