"""A node keeps its ports when it restarts, so that invites and what the router forwards stay valid."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sapo_edge.events import Event, Notice
from sapo_edge.swarm.router.ports import MAX_FILE_BYTES, Ports
from tests.swarm.member.members import make_member


def test_a_node_listens_again_at_the_port_that_it_had(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    assert make_member(ports=file).choose_port() == 0, "any, the first time"
    make_member(ports=file).ports.mark_listening(port)
    assert make_member(ports=file).choose_port() == port
    assert make_member(ports=file, port=4001).choose_port() == 4001, "the setting wins"
    assert make_member().choose_port() == 0


def test_a_node_takes_another_port_and_says_so_if_a_program_has_its_own(tmp_path: Path) -> None:
    file, told = tmp_path / "ports.json", list[Event]()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        Ports(file).mark_listening(port)
        member = make_member(emit=told.append, ports=file, listen="loopback")
        assert member.choose_port() == 0
    (notice,) = told
    assert isinstance(notice, Notice) and notice.level == "warning" and f"TCP port {port}" in notice.text
    assert "new invites" in notice.text


@given(
    st.binary(max_size=40)
    | st.fixed_dictionaries(
        {"port": st.integers(), "external": st.integers(), "nonce": st.sampled_from(["00" * 12, "00", "x" * 24])}
    ).map(lambda fields: json.dumps(fields).encode())
    | st.just(b" " * (MAX_FILE_BYTES + 1))
)
@example(json.dumps({"port": 4001, "external": 0, "nonce": "00"}).encode())
def test_a_damaged_file_counts_as_none(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "damaged.json"
    file.write_bytes(data)
    ports = Ports(file)
    assert ports.port in (0, 443) or 1024 <= ports.port < 65536
    assert 0 <= ports.external < 65536 and len(bytes.fromhex(ports.nonce)) == 12


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    ports = Ports(tmp_path / "missing" / "ports.json")
    ports.mark_listening(4001)
    ports.mark_forwarded(4002)
    assert (ports.port, ports.external) == (4001, 4002)
