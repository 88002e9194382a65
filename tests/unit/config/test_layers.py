"""Settings: layers, sources, and rejected values."""

import dataclasses
import os
import reprlib
from pathlib import Path

import pytest

from sapo_edge.config.layers import read_file, resolve, set_values
from sapo_edge.config.settings import SETTINGS, Settings, dht_contacts
from sapo_edge.errors import ConfigError, ExitCode
from sapo_edge.policy import LoraSettings, UpdateSettings
from sapo_edge.selection import STRATEGIES


def write_config(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_without_any_layer_every_value_is_the_default_which_is_allowed_and_the_policys() -> None:
    resolved = resolve(environ={})
    assert resolved.settings == Settings()
    assert set(resolved.sources.values()) == {"default"}
    for item in SETTINGS.values():
        assert item.default is None or item.check(item.default, "default") == item.default
    settings, update, lora = Settings(), UpdateSettings(), LoraSettings()
    for field in dataclasses.fields(update):
        if field.name in SETTINGS:
            assert getattr(settings, field.name) == getattr(update, field.name)
    assert settings.external_negatives == update.external_rule.negatives
    assert (settings.rank, settings.alpha) == (lora.rank, lora.alpha)
    assert set(SETTINGS["strategy"].choices) == set(STRATEGIES)


def test_the_first_layer_wins_and_each_value_has_its_source(tmp_path: Path) -> None:
    file = write_config(tmp_path, "own = 3\nanswers = 4\nrank = 8\nmax_tokens = 100\n")
    environ = {"SAPO_EDGE_OWN": "4", "SAPO_EDGE_ANSWERS": "6", "PATH": "/bin"}
    # Kubernetes, for a service named sapo-edge.
    environ |= {"SAPO_EDGE_PORT": "tcp://10.0.0.1:80", "SAPO_EDGE_PORT_80_TCP_ADDR": "10.0.0.1"}
    environ |= {"SAPO_EDGE_SERVICE_HOST": "10.0.0.1", "SAPO_EDGE_SERVICE_PORT": "80"}
    resolved = resolve({"own": 5, "seed": None}, environ=environ, file=file).with_manifest("starter", 200)
    settings, sources = resolved.settings, resolved.sources
    assert (settings.own, sources["own"]) == (5, "flag")
    assert (settings.answers, sources["answers"]) == (6, "environment SAPO_EDGE_ANSWERS")
    assert (settings.rank, sources["rank"]) == (8, f"file {file}")
    assert (settings.max_tokens, sources["max_tokens"]) == (100, f"file {file}")
    assert (settings.seed, sources["seed"]) == (None, "default")
    assert ("own", 5, "flag", SETTINGS["own"].explanation) in resolved.rows()


@pytest.mark.parametrize(("name", "accepted", "rejected", "words"), [
    ("max_temperature", ["0", "40", "120"], ["39", "-5", "121", "hot"], "0, or an integer from 40 to 120"),
    (
        "quiet_hours", ["22:00-07:00", "9:30 - 17:00", "  "], ["22-7", "22:00-24:00", "07:00-07:00"],
        "hours such as 22:00-07:00, or nothing",
    ),
    ("learning_rate", ["3e-4"], ["0", "inf", "-2e-4", "1"], "a number above 0 and at most 0.01"),
    ("on_battery", ["pause", "run"], ["stop"], ""), ("busy", ["0", "1", "90"], ["91", "-1"], ""),
    ("nice", ["0", "19"], ["20", "-1"], ""), ("own", ["1"], ["0", "257", "8.5", "many"], ""),
    ("answers", [], ["1"], ""), ("temperature", ["1"], ["nan", "0"], ""), ("backend", [], ["cuda"], ""),
    ("model", [], ["a\x00b"], ""), ("seed", ["0"], ["-1", str(2**63)], ""), ("rounds", [], ["9" * 5000], ""),
])  # fmt: skip
def test_rejected_values_are_named_with_what_is_allowed_and_their_source(
    name: str, accepted: list[str], rejected: list[str], words: str
) -> None:
    assert words in ("", SETTINGS[name].allowed)
    assert all(resolve({name: value}, environ={}).sources[name] == "flag" for value in accepted)
    variable = f"SAPO_EDGE_{name.upper()}"
    for value in rejected:
        with pytest.raises(ConfigError) as caught:
            resolve(environ={variable: value})
        assert f"{name} = {reprlib.repr(value)} (environment {variable}) is not allowed" == caught.value.message
        assert caught.value.remedy.startswith(f"give {SETTINGS[name].allowed}") and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "line", ["own = true", "own = 8.0", "own = [8]", "backend = 3", "own = 2024-01-01", "memory = nan"]
)
def test_wrong_types_in_the_file_are_rejected(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match="not allowed"):
        resolve(environ={}, file=write_config(tmp_path, line))


def test_a_quoted_number_is_rejected_in_the_file_and_accepted_from_the_environment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without quotes"):
        resolve(environ={}, file=write_config(tmp_path, 'learning_rate = "2e-4"'))
    resolved = resolve(environ={"SAPO_EDGE_LEARNING_RATE": "3e-4"}, file=write_config(tmp_path, "temperature = 1"))
    assert resolved.settings.learning_rate == 3e-4
    assert isinstance(resolved.settings.temperature, float), "an integer is a number"
    with pytest.raises(ConfigError, match="own"):
        resolve({"own": 5}, environ={}, file=write_config(tmp_path, "own = 0"))
    assert resolve(environ={"SAPO_EDGE_OWN": "", "SAPO_EDGE_HOME": "/x"}).settings.own == 4


def test_errors_suggest_similar_names_or_have_line_and_column(tmp_path: Path) -> None:
    for text, part in (
        ("learning-rat = 1", "did you mean learning_rate"), ("[zzz]\n", "remove it"),
        ("own = 3\nrank = = 4\n", "line 2, column 8"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=part):
            resolve(environ={}, file=write_config(tmp_path, text))
    with pytest.raises(ConfigError, match="did you mean SAPO_EDGE_TEMPERATURE"):
        resolve(environ={"SAPO_EDGE_TEMPRATURE": "1"})
    with pytest.raises(ConfigError, match="did you mean rank"):
        resolve({"rnak": 3}, environ={})


def test_a_file_names_its_version(tmp_path: Path) -> None:
    file = write_config(tmp_path, "version = 1\nown = 6\n")
    assert read_file(file) == {"own": 6} and set_values(file, {"own": "7"}) == {"own": 7}
    assert file.read_text() == "version = 1\nown = 7\n"
    for version, part in (("2", "newer sapo-edge; update"), ('"1"', "no such"), ("true", "no such"), ("0", "no such")):
        with pytest.raises(ConfigError, match=part):
            read_file(write_config(tmp_path, f"version = {version}\nunknown = 6\n"))


def test_unreadable_files_are_rejected_and_one_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"own = 3 # \xff")
    with pytest.raises(ConfigError, match="UTF-8 at byte 10"):
        read_file(tmp_path / "config.toml")
    with pytest.raises(ConfigError, match=r"[Ii]s a directory|[Pp]ermission"):
        read_file(tmp_path)
    (tmp_path / "config.toml").write_bytes(b"\xef\xbb\xbfown = 3\r\n")
    assert read_file(tmp_path / "config.toml") == {"own": 3}


def test_setting_a_value_keeps_comments_order_and_line_endings(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"# mine\r\nown = 4  # few\r\nrank = 8\r\n")
    assert set_values(file, {"own": "6"}) == {"own": 6}
    assert set_values(file, {"learning-rate": "1e-4"}) == {"learning_rate": 1e-4}
    assert file.read_bytes() == b"# mine\r\nown = 6  # few\r\nrank = 8\r\nlearning_rate = 0.0001\r\n"
    assert set_values(file, {"rank": None}) == {"rank": None}
    assert read_file(file) == {"own": 6, "learning_rate": 1e-4}
    before = file.read_bytes()
    for name, value in (("own", "0"), ("onw", "1"), ("quiet_hours", "22-7")):
        with pytest.raises(ConfigError):
            set_values(file, {name: value})
    assert file.read_bytes() == before and os.listdir(tmp_path) == ["config.toml"], "a rejected value changes nothing"


def test_setting_creates_the_file_and_follows_a_link(tmp_path: Path) -> None:
    file = tmp_path / "new" / "config.toml"
    set_values(file, {"manifest": 'quo"te'})
    assert read_file(file) == {"manifest": 'quo"te'}
    link = tmp_path / "link.toml"
    try:
        link.symlink_to(file)
    except OSError:
        pytest.skip("no symbolic links here")
    set_values(link, {"own": "2"})
    assert link.is_symlink() and read_file(file)["own"] == 2
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't") as error:
        set_values(tmp_path / "file" / "config.toml", {"own": "3"})
    assert error.value.exit_code is ExitCode.FAILED


@pytest.mark.parametrize("text", [
    "", "a", "a:", ":1", "a:0", "a:65536", "a:b", "x" * 260 + ":1", "2a00::1:1", "[2a00::1]", "[::1::]:1", "[a]:1",
])  # fmt: skip
def test_a_first_contact_of_the_dht_is_host_and_port(text: str) -> None:
    with pytest.raises(ValueError, match=r"host:port| in '"):
        dht_contacts(text)
    assert dht_contacts("a.example:1, 5.5.5.5:65535") == (("a.example", 1), ("5.5.5.5", 65535))
    assert dht_contacts("[2A00:0::1]:6881,a:1") == (("2a00::1", 6881), ("a", 1))
    assert dht_contacts("on") is None and dht_contacts("off") == ()
