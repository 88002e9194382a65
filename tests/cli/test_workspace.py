"""What a command works on: the same manifest, limit and swarm for all commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sapo_edge.cli.workspace import open_workspace
from sapo_edge.doctor import machine
from sapo_edge.doctor.check import Check, Status
from sapo_edge.errors import ConfigError, ManifestError, NoNodeError
from sapo_edge.library import workspace as workspace_module
from sapo_edge.library.workspace import Workspace
from sapo_edge.state.paths import Paths
from sapo_edge.swarm.joining.invite import Swarm
from sapo_edge.swarm.joining.membership import Membership
from sapo_edge.swarm.rendezvous.rendezvous import CONTACTS
from sapo_edge.tasks.manifest import Manifest, TaskEntry, load_manifest
from sapo_edge.tasks.question_data import QuestionData, write_questions
from sapo_edge.tasks.questions import OwnQuestion
from sapo_edge.tasks.source import TaskSource
from tests.cli.conftest import Command
from tests.cli.inprocess import Invoke
from tests.cli.process import Result, assert_refused

pytestmark = pytest.mark.usefixtures("plain_environment")
STARTER = load_manifest("starter")
NINE = load_manifest("reasoning-gym-nine")
INVITED = Manifest("own-sums", (TaskEntry("sums", "chain_sum"),), max_tokens=40)
NAMESAKE = Manifest("own-sums", (TaskEntry("products", "products"),))


@pytest.fixture
def in_nine(tmp_path: Path, invoke: Invoke) -> Path:
    """A home that is in the swarm of `reasoning-gym-nine`."""
    assert invoke("swarm", "create", "reasoning-gym-nine", "--home", tmp_path).code == 0
    return tmp_path


@pytest.fixture
def invited(tmp_path: Path) -> Path:
    """A home that joined by an invite; no member has sent the manifest yet."""
    Membership(Paths.default(tmp_path).state).join(Swarm.of(INVITED))
    return tmp_path


def keep(home: Path, *manifests: Manifest) -> None:
    """Keep manifests as a node does that fetched them."""
    for manifest in manifests:
        Membership(Paths.default(home).state).keep_manifest(manifest.to_bytes(), bytes.fromhex(manifest.digest))


def limit(home: Path, **flags: object) -> tuple[int, str]:
    """The longest answer, and what decides it."""
    workspace = open_workspace(home, flags)
    return workspace.settings.max_tokens, workspace.resolved.sources["max_tokens"]


def test_the_joined_swarms_manifest_limits_answers(in_nine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert limit(in_nine) == (256, "manifest reasoning-gym-nine")
    assert limit(in_nine, manifest="starter") == (24, "manifest starter")
    config = Paths.default(in_nine).config_file
    config.write_text("max_tokens = 100\n")
    assert limit(in_nine) == (100, f"file {config}")
    monkeypatch.setenv("SAPO_EDGE_MAX_TOKENS", "90")
    assert limit(in_nine) == (90, "environment SAPO_EDGE_MAX_TOKENS")
    assert limit(in_nine, max_tokens=80) == (80, "flag")
    assert limit(in_nine, max_tokens=0) == (256, "manifest reasoning-gym-nine"), "0 is the manifest's own limit"
    monkeypatch.delenv("SAPO_EDGE_MAX_TOKENS")
    assert open_workspace(in_nine).own_max_tokens == 100
    config.unlink()
    assert open_workspace(in_nine).own_max_tokens == 0


def test_eval_asks_the_joined_manifest(sapo: Command, model: Path, in_nine: Path, trained: tuple[Path, Result]) -> None:
    adapter = trained[0] / "state" / "runs" / "first" / "checkpoints" / "round-000004"
    arguments = ("--adapter", adapter, "--questions", "2", "--set", "max_tokens=8", "--threads", "1", "--json")
    record = sapo("eval", "--home", in_nine, "--model", model, *arguments).ok().record
    assert record["manifest"] == "reasoning-gym-nine"
    assert set(record["base"]["entries"]) <= {entry.name for entry in NINE.tasks}


@pytest.fixture
def doctor(invoke: Invoke, unprobed: None) -> Any:
    """The doctor's checks by name."""

    def checks(home: Path, *arguments: str | Path) -> dict[str, Any]:
        result = invoke("doctor", "--home", home, "--json", *arguments)
        return {check["name"]: check for check in result.record["checks"]}

    return checks


def test_the_doctor_looks_at_the_joined_manifest(doctor: Any, in_nine: Path, model: Path) -> None:
    in_nine.joinpath("config").mkdir(exist_ok=True)
    Paths.default(in_nine).config_file.write_text('listen = "loopback"\nmdns = "off"\n')
    checks = doctor(in_nine, "--model", model)
    assert checks["manifest"]["detail"].startswith("reasoning-gym-nine: ")
    assert checks["swarm"]["detail"] == "reasoning-gym-nine, open"
    conflict = doctor(in_nine, "--model", model, "--manifest", "starter")["swarm"]
    assert conflict["status"] == "fail" and "not on starter" in conflict["detail"]

    def workspace(**flags: object) -> Workspace:
        return open_workspace(in_nine, flags)

    workspace().check_swarm()
    workspace(manifest="reasoning-gym-nine").check_swarm()
    with pytest.raises(ConfigError, match="trains on reasoning-gym-nine, not on starter"):
        workspace(manifest="starter").check_swarm()
    alone = workspace(manifest="starter", network="solo")
    alone.check_swarm()
    assert alone.manifest == STARTER and alone.node_settings.network == "solo"


def test_without_a_manifest_it_says_how_to_get_it(doctor: Any, invoke: Invoke, invited: Path, model: Path) -> None:
    workspace = open_workspace(invited)
    assert workspace.manifest is None and workspace.swarm is not None and workspace.round_shape() is None
    with pytest.raises(NoNodeError, match="own-sums is not here yet; start `sapo run`"):
        workspace.require_manifest()
    for command in ("eval", "chat"):
        assert_refused(invoke(command, "--home", invited, "--model", model), 3, "own-sums is not here yet", "sapo run")
    Paths.default(invited).config.mkdir(exist_ok=True)
    Paths.default(invited).config_file.write_text('network = "solo"\n')
    checks = doctor(invited, "--model", model)
    for name in ("manifest", "memory"):
        assert checks[name]["status"] == "warn" and "sapo run" in checks[name]["remedy"]
    assert_refused(invoke("doctor", "--home", invited, "--manifest", "own-sums"), 2, "own-sums is not here yet")


def test_a_run_takes_a_fetched_manifests_limit(invited: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> None:
    interrupted = Mock(side_effect=BaseExceptionGroup("a nursery's", [KeyboardInterrupt()]))
    monkeypatch.setattr("sapo_edge.swarm.visits.fetch.fetch_manifest", interrupted)
    run = invoke("run", "--agree", "--set", "nice=0", "--home", invited)
    assert run.code == 130, "ctrl-c while members are looked for"
    monkeypatch.setattr("sapo_edge.swarm.visits.fetch.fetch_manifest", lambda *_: INVITED)
    workspace = open_workspace(invited).fetch_manifest()
    assert workspace.require_manifest() == INVITED and workspace.settings.max_tokens == 40
    assert limit(invited) == (40, "manifest own-sums"), "it is kept"


def test_a_run_in_its_swarm_fetches_its_manifests_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = [OwnQuestion(f"{number}?", "1") for number in range(9)]
    manifest = Manifest("big", (TaskEntry("mine", questions=write_questions(own, tmp_path / "member")),))
    Membership(Paths.default(tmp_path).state).join(Swarm.of(manifest))
    asked: list[QuestionData] = []

    def fetch_questions(data: QuestionData, store: Path, *_: object) -> None:
        asked.append(data)
        write_questions(own, store)

    monkeypatch.setattr("sapo_edge.swarm.visits.fetch.fetch_manifest", lambda *_: manifest)
    monkeypatch.setattr("sapo_edge.swarm.visits.fetch.fetch_questions", fetch_questions)
    open_workspace(tmp_path, {"network": "solo"}).fetch_manifest()
    assert not asked, "not by a node that works alone"
    for _ in range(2):
        fetched = open_workspace(tmp_path).fetch_manifest().require_manifest()
        assert len(TaskSource(fetched).own["mine"].train) == 6 and asked == list(manifest.data), "once"


@pytest.mark.parametrize(("flags", "contacts"), [
    ({"rendezvous": "off"}, ()), ({"rendezvous": "on", "listen": "loopback"}, ()), ({"rendezvous": "on"}, CONTACTS),
    ({"rendezvous": "5.5.5.5:1"}, (("5.5.5.5", 1),)),
])  # fmt: skip
def test_commands_look_elsewhere_as_the_settings_say(
    flags: dict[str, str], contacts: tuple[tuple[str, int], ...], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(workspace_module, "find_spec", lambda name: name)
    workspace = open_workspace(tmp_path, flags)
    entry = workspace.entry()
    assert (entry.contacts if entry else ()) == contacts
    monkeypatch.setattr(workspace_module, "find_spec", lambda name: None)
    assert workspace.entry() is None
    assert ("pip install libtorrent" in capsys.readouterr().err) == bool(contacts)


def test_a_manifest_of_a_swarm_can_be_named(invited: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(invited, INVITED)
    Membership(Paths.default(invited).state).join(Swarm.of(NINE))

    def manifest_named(name: str) -> Manifest | None:
        return open_workspace(invited, {"manifest": name}).manifest

    assert manifest_named("own-sums") == manifest_named(INVITED.digest) == manifest_named(INVITED.digest[:8]) == INVITED
    monkeypatch.setenv("SAPO_EDGE_MANIFEST", "own-sums")
    assert open_workspace(invited).manifest == INVITED
    for unknown in ("own-sum", INVITED.digest[:7]):
        with pytest.raises(ManifestError, match=rf"there is no manifest {unknown}; .*own-sums \({INVITED.digest[:12]}"):
            manifest_named(unknown)
    keep(invited, NAMESAKE)
    with pytest.raises(ManifestError, match="2 manifests match own-sums") as error:
        manifest_named("own-sums")
    assert all(manifest.digest[:12] in error.value.remedy for manifest in (INVITED, NAMESAKE))
    assert manifest_named(NAMESAKE.digest[:8].upper()) == NAMESAKE
    for file in (Paths.default(invited).state / "manifests").iterdir():
        file.write_bytes(b"damaged")
    with pytest.raises(ManifestError, match="the manifest of own-sums is not here yet"):
        manifest_named("own-sums")


def test_a_name_and_a_file_win_over_a_swarms(invited: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(invited, INVITED, Manifest("starter", INVITED.tasks))
    assert open_workspace(invited, {"manifest": "starter"}).manifest == STARTER
    monkeypatch.chdir(tmp_path)
    Path("own-sums").write_text('name = "mine"\n[[tasks]]\nname = "sums"\ngenerator = "chain_sum"\n')
    named = open_workspace(invited, {"manifest": "own-sums"}).manifest
    assert named is not None and named.name == "mine"


def test_an_estimate_counts_the_groups_of_a_round(tmp_path: Path) -> None:
    def groups(**flags: object) -> int:
        shape = open_workspace(tmp_path, flags).round_shape()
        assert shape is not None and shape.max_tokens == STARTER.max_tokens
        assert shape.precision == flags.get("precision", "auto")
        assert shape.trainable == (flags.get("role") != "generator")
        return shape.groups

    assert groups() == groups(network="solo") == 8, "4 own and 4 external"
    assert groups(own=2, external=3) == groups(own=2, external=3, network="solo") == 5
    assert groups(precision="float32") == 8 and groups(role="generator") == 4
    Membership(Paths.default(tmp_path).state).leave()
    assert open_workspace(tmp_path).is_alone and groups() == 8 and groups(role="generator") == 8


def test_doctor_estimates_a_round(doctor: Any, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_check", check := Mock(return_value=Check("memory", Status.PASS, "enough")))
    monkeypatch.setenv("SAPO_EDGE_NETWORK", "solo")
    doctor(tmp_path, "--model", model)
    assert check.call_args.args[1].groups == 8
