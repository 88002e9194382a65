"""`sapo experiment --network`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.inprocess import Invoke

PLAN = """
    {network}
    [[settings]]
    name = "mine"
    title = "Mine"
    baseline = "8/0"
    arms = [
        {{ name = "8/0", title = "alone" }},
        {{ name = "claiming", title = "with claims", external = 4, claims = true }},
    ]
"""


def write(path: Path, network: str = "") -> Path:
    path.write_text(PLAN.format(network=network))
    return path


def test_arms_that_need_more_than_the_wire_carries_are_left_out(invoke: Invoke, tmp_path: Path) -> None:
    plan, over_libp2p = write(tmp_path / "a.toml"), write(tmp_path / "b.toml", 'network = "loopback"')
    assert "claiming" in invoke("experiment", "--plan", plan, "--list").out
    for arguments in (("--plan", plan, "--network", "loopback"), ("--plan", over_libp2p)):
        shown = invoke("experiment", *arguments, "--list")
        assert "8/0" in shown.out and "claiming" not in shown.out
        assert "left out, because the wire carries no log-probabilities: claiming" in shown.err
    assert "claiming" in invoke("experiment", "--plan", over_libp2p, "--network", "memory", "--list").out


def test_an_unknown_network_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    refused = invoke("experiment", "--network", "lopback", "--list")
    assert refused.code == 2 and "did you mean loopback" in refused.err
    refused = invoke("experiment", "--plan", write(tmp_path / "c.toml", 'network = "internet"'), "--list")
    assert refused.code == 2 and "choose one of memory, loopback" in refused.err


def test_a_baseline_that_needs_more_than_the_wire_carries_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    plan = write(tmp_path / "d.toml")
    plan.write_text(plan.read_text().replace('baseline = "8/0"', 'baseline = "claiming"'))
    assert "use --network memory" in invoke("experiment", "--plan", plan, "--network", "loopback", "--list").err
