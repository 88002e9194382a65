"""The settings that care for the machine: values, words for what is allowed, and who may change them."""

from __future__ import annotations

import pytest

from sapo_edge.config.layers import resolve
from sapo_edge.config.settings import SETTINGS
from sapo_edge.errors import ConfigError

NAMES = ("on_battery", "max_temperature", "busy", "quiet_hours", "nice")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("on_battery", ["pause", "run"]),
        ("max_temperature", ["0", "40", "90", "120"]),
        ("busy", ["0", "1", "70", "90"]),
        ("quiet_hours", ["22:00-07:00", "9:30 - 17:00", "  "]),
        ("nice", ["0", "10", "19"]),
    ],
)
def test_allowed_values_are_accepted(name: str, values: list[str]) -> None:
    for value in values:
        assert resolve({name: value}, environ={}).sources[name] == "flag"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("on_battery", "stop"), ("max_temperature", "39"), ("max_temperature", "-5"), ("max_temperature", "121"),
        ("max_temperature", "hot"), ("busy", "91"), ("busy", "-1"), ("quiet_hours", "22-7"),
        ("quiet_hours", "22:00-24:00"), ("quiet_hours", "07:00-07:00"), ("nice", "20"), ("nice", "-1"),
    ],
)  # fmt: skip
def test_rejected_values_name_the_allowed_ones(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({}, environ={f"SAPO_EDGE_{name.upper()}": value})
    assert f"{name} = '{value}' (environment SAPO_EDGE_{name.upper()}) is not allowed" == caught.value.message
    assert caught.value.remedy == f"give {SETTINGS[name].allowed}"


def test_allowed_values_are_described_in_words() -> None:
    assert SETTINGS["quiet_hours"].allowed == "hours such as 22:00-07:00, or nothing"
    assert SETTINGS["max_temperature"].allowed == "0, or an integer from 40 to 120"


def test_all_but_the_priority_take_effect_in_a_running_node() -> None:
    assert [SETTINGS[name].live for name in NAMES] == [True, True, True, True, False]
