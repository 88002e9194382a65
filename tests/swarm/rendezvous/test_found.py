"""A swarm of people's own manifest is found by `sapo swarm find` in another home, in network namespaces."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.swarm.joining.invite import parse_invite
from sapo_edge.swarm.rendezvous.program import join_port
from tests.swarm.lines import ROOT, LineProcess
from tests.swarm.member.member_processes import MemberProcess
from tests.swarm.namespaces import name
from tests.swarm.rendezvous.mainline import CONTACTS
from tests.swarm.rendezvous.test_strangers import PSK, internet

__all__ = ["internet"]


def find(home: Path) -> None:
    """Find both swarms from the second home, and end the search."""
    command = ("-m", "sapo_edge", "swarm", "find", "--json", "--home", str(home))
    with LineProcess(*command, namespace=name("m2"), fork=True) as search:
        found = search.first(lambda record: len(record["swarms"]) == 2)["swarms"]
        search.process.send_signal(signal.SIGINT)
        assert search.process.wait(20) == 0
    assert {swarm["name"]: swarm["members"] for swarm in found} == {"starter": 1, "ours": 1}
    assert [len(parse_invite(swarm["invite"]).bootstrap) for swarm in found if not swarm["shipped"]] == [1]


@pytest.mark.parametrize("internet", [("router with UPnP", "router without", "router with UPnP")], indirect=True)
def test_a_stranger_finds_the_swarms_that_are_open(
    internet: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.toml"
    own.write_text((ROOT / "sapo_edge/tasks/manifests/starter.toml").read_text().replace("starter", "ours"))
    everywhere: dict[str, Any] = {"listen": "all", "map_port": True, "contacts": CONTACTS}
    with ExitStack() as stack:
        members: tuple[tuple[int, str, dict[str, Any]], ...] = (
            (1, "m1", {"manifest": str(own)}), (2, "m3", {}), (3, "m3", {"manifest": str(own), "psk": PSK})
        )  # fmt: skip
        for number, home, options in members:
            member = MemberProcess(name(home), member=number, **everywhere, **options)
            stack.enter_context(member)
            member.until(lambda status: status["counts"].get("rendezvous announcements"))
        monkeypatch.setenv("SAPO_EDGE_RENDEZVOUS", ",".join(join_port(*contact) for contact in CONTACTS))
        find(tmp_path / "two")
