"""What the command line offers the terminal app; and `sapo` without a command."""

from __future__ import annotations

import gc
import importlib.util
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.cli import output
from sapo_edge.cli.terminal import launcher as launcher_module
from sapo_edge.cli.terminal.launcher import ProgramLauncher
from sapo_edge.config import layers
from sapo_edge.config.layers import read_file
from sapo_edge.config.settings import SETTINGS
from sapo_edge.errors import ConfigError, ExitCode, SapoError, StateError
from sapo_edge.service import systemd
from sapo_edge.service.systemd import Systemd
from sapo_edge.state.consent import agreed_to_share
from sapo_edge.state.journal import Journal
from sapo_edge.state.paths import HOME_VARIABLE, Paths
from sapo_edge.state.runs import begin_run
from sapo_edge.swarm.joining.invite import Swarm
from sapo_edge.swarm.joining.membership import Membership
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tui import app as tui_app
from sapo_edge.tui.node.launcher import Choices, Consent, Launcher
from sapo_edge.tui.node.processes import Job
from tests.cli.inprocess import FakeNode, Invoke, running
from tests.fakes import find_the_disk_full, round_event
from tests.unit.control.evaluations import validate
from tests.unit.service.test_systemd import Commands, plan

STARTER = load_manifest("starter")
PRIVATE = Swarm.of(STARTER, key=bytes(range(32)))


@pytest.fixture
def launcher(tmp_path: Path, plain_environment: None) -> ProgramLauncher:
    return ProgramLauncher(tmp_path / "home")


def test_findings_have_reasons(launcher: ProgramLauncher, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPO_EDGE_MODEL", str(model))
    found = launcher.findings()
    rows = {row.name: row for row in found.rows}
    assert list(rows)[:6] == ["Backend", "Model", "Memory", "Processor", "Swarm", "Disk"]
    assert all(row.good and row.value and row.reason for row in list(rows.values())[:6]), rows
    assert found.blocked == "" and found.cores >= 1 and isinstance(found.battery, bool)
    assert "tiny" in rows["Model"].value and str(model) in rows["Model"].reason
    assert "thread" in rows["Processor"].reason and f"{found.cores} cores" in rows["Processor"].value
    assert rows["Swarm"].value == "starter, open" and "text" in rows["Swarm"].reason
    monkeypatch.setenv("SAPO_EDGE_NETWORK", "solo")
    (swarm,) = [row for row in launcher.findings().rows if row.name == "Swarm"]
    assert swarm.value == "none" and "nothing is sent" in swarm.reason


def test_a_joined_swarm_that_trains_on_something_else_is_told(launcher: ProgramLauncher) -> None:
    digest = load_manifest("arithmetic").digest
    assert launcher.swarm_against("arithmetic") == (digest, ""), "its open swarm is another one"
    Membership(launcher.paths.state).join(PRIVATE)
    assert launcher.swarm_against("arithmetic") == (digest, "starter")
    assert launcher.swarm_against("starter") == (STARTER.digest, "")
    launcher.set("network", "solo")
    assert launcher.swarm_against("arithmetic") == (digest, "")


def test_a_start_at_login_is_offered_until_it_is_there_and_not_for_a_trial(
    launcher: ProgramLauncher, commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launcher.findings().login
    monkeypatch.setenv("SAPO_EDGE_ROUNDS", "3")
    assert not launcher.findings().login
    monkeypatch.delenv("SAPO_EDGE_ROUNDS")
    monkeypatch.setattr(systemd, "BOOTED", tmp_path / "none")
    assert not launcher.findings().login, "no service manager runs this machine"
    monkeypatch.setattr(systemd, "BOOTED", tmp_path)
    Systemd(system=False, run=commands).install(plan(tmp_path), start=False)
    assert launcher.starts_at_login() and not launcher.findings().login


def test_a_problem_has_its_remedy(
    launcher: ProgramLauncher, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPO_EDGE_MODEL", str(tmp_path / "none.gguf"))
    found = launcher.findings()
    (row,) = [row for row in found.rows if row.name == "Model"]
    assert not row.good and "--model" in row.reason and found.blocked == row.value
    monkeypatch.setenv("SAPO_EDGE_MODEL", "")
    monkeypatch.setenv("SAPO_EDGE_OWN", "many")
    found = launcher.findings()
    assert [row.name for row in found.rows] == ["Settings"] and not found.rows[0].good and "own" in found.blocked
    assert launcher.choices() == Choices(), "what is set is unknown"
    monkeypatch.delenv("SAPO_EDGE_OWN")
    known = importlib.util.find_spec
    monkeypatch.setenv("SAPO_EDGE_MODEL", str(model))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "torch" else known(name))
    found = launcher.findings()
    (row,) = [row for row in found.rows if row.name == "Torch"]
    assert not row.good and "pip install 'torch>=" in row.reason and "not installed" in found.blocked


def test_consent_is_written_with_its_settings(launcher: ProgramLauncher) -> None:
    assert not launcher.consented() and not launcher.paths.state.exists(), "asking creates nothing"
    launcher.accept(Consent("solo", threads=3, mains_only=False, yield_to_others=False))
    assert read_file(launcher.paths.config_file) == {"network": "solo", "threads": 3, "on_battery": "run", "busy": 0}
    record = json.loads(launcher.paths.consent.read_text())
    assert record["v"] == 1 and abs(record["time"] - time.time()) < 60 and record["program"]
    assert record["agreed"] == {"network": "solo", "threads": 3, "mains_only": False, "yield_to_others": False}
    assert launcher.consented() and launcher.paths.consent.stat().st_mode & 0o077 == 0
    assert launcher.choices() == Choices("solo", "", 3, False, False)
    launcher.accept(Consent("swarm", threads=0, mains_only=True, yield_to_others=True))
    assert read_file(launcher.paths.config_file) == {"network": "swarm", "on_battery": "pause", "busy": 70}
    assert launcher.choices() == Choices("swarm", "", 0, True, True)
    launcher.accept(Consent("solo"))
    assert launcher.consented() and not agreed_to_share(launcher.paths.consent)
    before = launcher.paths.consent.read_bytes()
    layers.set_values(launcher.paths.config_file, {"network": "swarm"})
    assert not launcher.consented(), "changed outside the app: its first screen asks"
    launcher.set("network", "solo")
    assert launcher.consented() and launcher.paths.consent.read_bytes() == before
    launcher.paths.config_file.write_text("network = 7")
    assert launcher.consented(), "no node starts with damaged settings"
    launcher.paths.config_file.write_text("")
    launcher.set("network", "swarm")
    assert launcher.consented() and agreed_to_share(launcher.paths.consent)
    assert json.loads(launcher.paths.consent.read_text())["how"] == "terminal app"


def test_a_consent_without_changes_writes_no_setting(launcher: ProgramLauncher) -> None:
    launcher.paths.create()
    launcher.paths.config_file.write_text('# mine\nnetwork = "solo"\nthreads = 3\nbusy = 55\non_battery = "run"\n')
    Membership(launcher.paths.state).leave()
    files = (launcher.paths.config_file, launcher.paths.state / "swarms.json")
    before = [file.read_bytes() for file in files]
    assert launcher.choices() == Choices("solo", "", 3, False, True)
    launcher.accept(Consent())
    assert [file.read_bytes() for file in files] == before and launcher.consented()
    agreed = json.loads(launcher.paths.consent.read_text())["agreed"]
    assert agreed == {"network": "solo", "threads": 3, "mains_only": False, "yield_to_others": True}


def test_own_questions_stay_private(launcher: ProgramLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.toml"
    path.write_text('name = "o"\n[[tasks]]\nname = "o"\nquestions = [{ question = "?", answer = "1" }]\n')
    monkeypatch.setenv("SAPO_EDGE_MANIFEST", str(path))
    monkeypatch.setenv("SAPO_EDGE_THREADS", "3")
    assert launcher.choices() == Choices("solo", "", 3, private=True, manifest=str(path))
    launcher.accept(Consent())
    assert read_file(launcher.paths.config_file) == {"network": "solo"}, "who works alone has not agreed to share"
    launcher.paths.config_file.unlink()
    Membership(launcher.paths.state).join(Swarm.of(load_manifest(path), key=bytes(32)))
    assert launcher.choices() == Choices("joined", "o", 3, private=True, manifest=str(path))


def test_a_joined_swarm_stays_until_another_network_is_chosen(launcher: ProgramLauncher) -> None:
    def is_in_the_open_swarm() -> bool:
        current = Membership(launcher.paths.state).current
        return current is not None and current.id == Swarm.of(STARTER).id

    Membership(launcher.paths.state).join(PRIVATE)
    assert launcher.choices() == Choices("joined", "starter")
    launcher.accept(Consent(threads=2))
    assert Membership(launcher.paths.state).current == PRIVATE
    launcher.accept(Consent("solo"))
    assert launcher.choices() == Choices("solo", "starter", 2)
    launcher.accept(Consent("joined"))
    assert launcher.choices() == Choices("joined", "starter", 2)
    launcher.accept(Consent("swarm"))
    assert is_in_the_open_swarm() and launcher.choices() == Choices(threads=2)
    launcher.paths.create()
    Membership(launcher.paths.state).leave()
    launcher.accept(Consent())
    assert Membership(launcher.paths.state).alone and launcher.choices().network == "solo"
    launcher.accept(Consent("swarm"))
    assert is_in_the_open_swarm()


def test_an_overridden_change_is_an_error(launcher: ProgramLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPO_EDGE_NETWORK", "swarm")
    with pytest.raises(ConfigError, match="SAPO_EDGE_NETWORK") as raised:
        launcher.accept(Consent("solo"))
    assert "unset it" in raised.value.remedy and not launcher.paths.state.exists()
    launcher.accept(Consent(threads=1))
    assert launcher.consented()


def test_an_invites_key_is_only_in_the_file_of_swarms(launcher: ProgramLauncher) -> None:
    launcher.accept(Consent("invite", f" {PRIVATE.to_line()}\n"))
    current = Membership(launcher.paths.state).current
    assert current is not None and current.id == PRIVATE.id and launcher.setting("network") == "swarm"
    key = bytes(range(32)).hex()
    for file in (launcher.paths.consent, launcher.paths.config_file):
        assert key not in file.read_text()
    (row,) = [row for row in launcher.findings().rows if row.name == "Swarm"]
    assert row.value == "starter, private"


@pytest.mark.parametrize("step", ["invite", "consent", "settings"])
def test_failed_consent_changes_no_file(launcher: ProgramLauncher, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    paths = launcher.paths
    paths.create()
    paths.config_file.write_text("# mine\nown = 6\n")
    Membership(paths.state).join(Swarm.of(STARTER))
    before = {file: file.read_bytes() for file in (paths.config_file, paths.state / "swarms.json")}
    invite = PRIVATE.to_line()
    if step == "consent":
        monkeypatch.setattr("sapo_edge.state.consent.write_atomically", find_the_disk_full)
    if step == "settings":

        def written(file: Path, values: Mapping[str, object]) -> None:
            layers.set_values(file, values)
            raise ConfigError("the disk is full", "free some space")

        monkeypatch.setattr(launcher_module, "set_values", written)
    with pytest.raises((ConfigError, StateError)):
        launcher.accept(Consent("invite", invite[:-1] if step == "invite" else invite, threads=2))
    assert {file: file.read_bytes() for file in before} == before
    assert not paths.consent.exists() and not launcher.consented()
    assert not [file for file in paths.config.iterdir() if file.name.endswith(".before")]


def test_settings_are_those_of_the_next_node(launcher: ProgramLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher.set("own", "6")
    monkeypatch.setenv("SAPO_EDGE_ANSWERS", "16")
    rows = {row.name: row for row in launcher.settings()}
    assert list(rows) == list(SETTINGS)
    assert rows["own"].value == 6 and rows["own"].source == f"file {launcher.paths.config_file}"
    assert rows["own"].setting is SETTINGS["own"]
    assert rows["answers"].value == 16 and rows["answers"].source == "environment SAPO_EDGE_ANSWERS"
    assert rows["max_tokens"].source == "manifest starter"
    assert launcher.setting("on_quit") == "ask" and launcher.setting("theme") == ""
    with pytest.raises(ConfigError, match="not allowed"):
        launcher.set("own", "many")
    launcher.set("own", None)
    assert launcher.setting("own") == 4
    launcher.paths.config_file.write_text("own = [\n")
    assert launcher.setting("own") == 4
    with pytest.raises(ConfigError, match="not valid TOML"):
        launcher.settings()
    with pytest.raises(ConfigError, match="not valid TOML"):
        launcher.set("own", "5")


def test_a_manifest_that_is_gone_leaves_the_settings_and_another_one_to_choose(launcher: ProgramLauncher) -> None:
    Membership(launcher.paths.state).join(PRIVATE)
    launcher.set("theme", "nord")
    launcher.set("manifest", "/gone/manifest.toml")
    rows = {row.name: row for row in launcher.settings()}
    assert rows["manifest"].value == "/gone/manifest.toml"
    assert rows["theme"].value == launcher.setting("theme") == "nord"
    assert launcher.swarm_against("arithmetic")[1] == "starter"
    listed = launcher.job("tasks", "list").run().record["manifests"]
    assert "arithmetic" in [row["name"] for row in listed] and not any(row["used"] for row in listed)
    assert "/gone/manifest.toml" in launcher.findings().blocked
    launcher.set("manifest", "arithmetic")
    assert launcher.findings().blocked != "" and "gone" not in launcher.findings().blocked


def test_a_running_node_counts_as_consent_and_its_end_is_reported(launcher: ProgramLauncher) -> None:
    with running(launcher.paths.state.parent, FakeNode()):
        assert launcher.consented() and launcher.ended() is None
        launcher.start()
        assert not launcher.paths.background.exists(), "it runs already"
    assert not launcher.consented()
    started = {"v": 1, "pid": 2**22 + 1, "created": 1.0, "log": [0, 0], "lock": 0}
    launcher.paths.background.write_text(json.dumps(started))
    launcher.paths.background_output.write_text("loading\nsapo: the disk is full; free some\n")
    ended = launcher.ended()
    assert ended is not None and not ended.expected and ended.reason == "the disk is full; free some"
    assert tuple(launcher.starting()) == ended.lines == ("loading", "sapo: the disk is full; free some")


def test_a_job_is_a_command_of_this_home_and_a_failed_one_says_what_it_says(launcher: ProgramLauncher) -> None:
    with pytest.raises(SapoError) as raised:
        launcher.job("export", str(launcher.paths.state), "--to", "peft").run()
    assert raised.value.message == "nothing is trained yet" and raised.value.remedy.startswith("train first with")
    shown: list[Any] = []
    result = launcher.job("swarm", "join", text=f"{replace(PRIVATE, bootstrap=()).to_line()}\n").run(shown.append)
    assert result.record["swarm"]["private"] and shown == [result.record] and any("sapo run" in x for x in result.notes)
    assert Membership(launcher.paths.state).current is not None


def test_a_job_can_be_stopped_before_and_while_it_runs(launcher: ProgramLauncher) -> None:
    job = launcher.job("swarm", "show")
    job.close()
    with pytest.raises(SapoError, match="stopped"):
        job.run()
    # Waits for its input until it is stopped.
    command = Job(None, ())
    command._command = [sys.executable, "-c", "print('{}', flush=True); import time; time.sleep(60)"]
    began = time.monotonic()
    with pytest.raises(SapoError, match="stopped"):
        command.run(lambda record: threading.Thread(target=command.close).start())
    assert time.monotonic() - began < 50


def test_a_full_disk_is_an_error_that_the_app_shows(launcher: ProgramLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", find_the_disk_full)
    with pytest.raises(SapoError, match="No space left"):
        launcher.job("tasks", "list").run()
    chat = launcher.chat()
    with pytest.raises(SapoError, match="No space left"):
        chat.open(lambda text: None)
    chat.close()


def test_the_outcome_comes_from_the_journal_and_news_begin_where_somebody_looked(launcher: ProgramLauncher) -> None:
    empty = launcher.outcome()
    assert (empty.report.learned, empty.report.run.rounds, empty.report.adapter, empty.history) == (None, 0, "", {})
    assert launcher.news() == "" and not launcher.paths.state.exists()
    with closing(Journal(launcher.paths.journal)) as journal:
        for round, marks in ((0, "100"), (7, "110")):
            validate(journal, round, marks, ("sums",) * 3)
        journal.record(round_event(7))
        outcome = launcher.outcome()
        learned = outcome.report.learned
        assert learned is not None and (learned.before, learned.now) == (1, 2)
        assert outcome.report.run.rounds == 7 and outcome.history["round"] == [7]
        assert launcher.news().startswith("7 rounds since you last looked")
        journal.record(round_event(9))
        assert launcher.news().startswith("2 rounds") and launcher.news() == ""
        launcher.looked(8)
        # Another command may choose another run, which nobody has seen.
        begin_run(launcher.paths, "other")
        launcher.looked(9)
        assert launcher.news() == "" and launcher.paths.run_of("first").looked.read_text() == "9\n"


@pytest.mark.parametrize(("stdin", "stdout"), [(False, False), (True, False), (False, True)])
def test_without_a_terminal_there_is_help_and_the_code_of_wrong_usage(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stdin: bool, stdout: bool
) -> None:
    monkeypatch.setattr(output, "_is_terminal", lambda stream: stdin if stream is sys.stdin else stdout)
    for arguments in ([], ["--home", str(tmp_path)]):
        told = invoke(*arguments)
        assert told.code == 2 and "Usage: " in told.out and "doctor" in told.out and told.err == ""
    assert list(tmp_path.iterdir()) == []


def test_on_a_terminal_there_is_the_app(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[Launcher] = []
    looked: list[bool] = []

    class App:
        return_code = 0
        result: Any = ExitCode.DONE

        def __init__(self, launcher: Launcher, loaded: Callable[[], None]) -> None:
            made.append(launcher)
            self.loaded = loaded

        def run(self) -> Any:
            looked.append(gc.isenabled())
            self.loaded()
            looked.append(gc.isenabled())
            return self.result

    monkeypatch.setattr(output, "_is_terminal", lambda stream: True)
    monkeypatch.setattr(tui_app, "SapoApp", App)
    assert invoke("--home", tmp_path / "here").code == 0
    assert made[0].paths == Paths.default(tmp_path / "here")
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "there"))
    assert invoke().code == 0 and made[1].paths == Paths.default(tmp_path / "there")
    App.result, App.return_code = None, 1
    assert invoke().code == 1, "the app crashed"
    assert looked == 3 * [False, True], "garbage is looked for once the screens are loaded"


def test_home_works_before_and_after_a_command(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "environment"))
    assert str(tmp_path / "first") in invoke("--home", tmp_path / "first", "paths").out
    both = invoke("--home", tmp_path / "first", "paths", "--home", tmp_path / "second").out
    assert str(tmp_path / "second") in both and str(tmp_path / "first") not in both
