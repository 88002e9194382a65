"""Ports that a router forwards: PCP, NAT-PMP and UPnP; what a hostile router can't do."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.swarm.router import mapping as mapping_module
from sapo_edge.swarm.router import portmap, program
from sapo_edge.swarm.router.mapping import MAX_OUTPUT, SHORTEST, Mapping, read_answer
from sapo_edge.swarm.router.portmap import Answer, OlderRouterError, PortmapError
from sapo_edge.swarm.router.ports import Ports
from sapo_edge.swarm.router.program import LIFETIME, Task
from sapo_edge.swarm.tally import Tally
from tests.defences.defence import fails_without
from tests.swarm.host.victims import until
from tests.swarm.loop import in_trio, meanwhile
from tests.swarm.router.answering import answering

NONCE = bytes(range(12))
TASK = Task(4001, 4001, NONCE.hex())


def pcp_answer(
    port: int = 4001, lifetime: int = 3600, result: int = 0, ip: str = "5.5.5.5", nonce: bytes = NONCE
) -> bytes:
    header = struct.pack("!BBBBII12x", 2, 0x81, 0, result, lifetime, 7)
    return header + struct.pack("!12sB3xHH", nonce, 6, 4001, port) + b"\0" * 10 + b"\xff\xff" + socket.inet_aton(ip)


def nat_pmp_answer(port: int = 4001, lifetime: int = 3600, result: int = 0) -> bytes:
    return struct.pack("!BBHIHHI", 0, 130, result, 7, 4001, port, lifetime)


def test_requests_are_those_of_the_specifications() -> None:
    request = portmap.pcp_request("192.168.1.5", NONCE, 4001, 4002, 3600)
    assert len(request) == 60 and request[:8] == bytes.fromhex("0201000000000e10")
    assert request[8:24].hex() == "00000000000000000000ffffc0a80105" and request[24:36] == NONCE
    assert request[36:44] == bytes((6, 0, 0, 0)) + struct.pack("!HH", 4001, 4002)
    assert request[44:].hex() == "00000000000000000000ffff00000000"
    assert portmap.nat_pmp_request(4001, 4002, 3600).hex() == "000200000fa10fa200000e10"
    assert portmap.nat_pmp_request(4001, 4002, 0).hex() == "000200000fa1000000000000", "as a removal must be"
    assert portmap.ADDRESS_REQUEST == b"\0\0"


def test_answers_to_another_question_and_refusals_are_rejected() -> None:
    assert portmap.read_pcp(pcp_answer(), NONCE, 4001) == Answer(4001, 3600, "5.5.5.5")
    assert portmap.read_nat_pmp(nat_pmp_answer(), 4001) == Answer(4001, 3600)
    assert portmap.read_address(bytes.fromhex("0080000000000007") + socket.inet_aton("5.5.5.5")) == "5.5.5.5"
    bad = [
        pcp_answer(nonce=bytes(12)), pcp_answer(result=2), pcp_answer(port=0), pcp_answer() + b"\0" * 1100, b"",
        pcp_answer()[:-1], b"\x02\x01" + pcp_answer()[2:],
    ]  # fmt: skip
    for data in bad:
        with pytest.raises(PortmapError):
            portmap.read_pcp(data, NONCE, 4001)
    with pytest.raises(PortmapError):
        portmap.read_pcp(pcp_answer(), NONCE, 4002)
    with pytest.raises(OlderRouterError):
        portmap.read_pcp(bytes.fromhex("0081000100000007"), NONCE, 4001)
    for data in (nat_pmp_answer(result=2), nat_pmp_answer(port=0), nat_pmp_answer() + b"\0", b"", b"\1" * 16):
        with pytest.raises(PortmapError):
            portmap.read_nat_pmp(data, 4001)


@given(st.binary(max_size=1200))
def test_any_datagram_is_an_answer_or_an_error(data: bytes) -> None:
    for read in (
        lambda: portmap.read_pcp(data, NONCE, 4001), lambda: portmap.read_nat_pmp(data, 4001),
        lambda: portmap.read_address(data),
    ):  # fmt: skip
        with contextlib.suppress(PortmapError):
            read()
    with contextlib.suppress(ValueError):
        read_answer(data)


@contextlib.contextmanager
def gateway(answer: Callable[[bytes], list[bytes]], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    with answering(answer) as (port, requests):
        monkeypatch.setattr(portmap, "PORT", port)
        monkeypatch.setattr(program, "TRIES", (0.2, 0.2))
        yield requests


def test_a_router_is_asked_by_pcp_then_by_nat_pmp(monkeypatch: pytest.MonkeyPatch) -> None:
    with gateway(lambda data: [b"noise", pcp_answer(nonce=bytes(12)), pcp_answer(port=4009)], monkeypatch):
        assert program.ask_gateway(TASK, "127.0.0.1") == Answer(4009, 3600, "5.5.5.5", "pcp")

    def older(data: bytes) -> list[bytes]:
        if data[0] == 2:
            return [bytes.fromhex("0081000100000007")]
        return [nat_pmp_answer() if data[1] else bytes.fromhex("0080000000000007") + socket.inet_aton("5.5.5.5")]

    with gateway(older, monkeypatch):
        assert program.ask_gateway(TASK, "127.0.0.1") == Answer(4001, 3600, "5.5.5.5", "nat-pmp")
    with gateway(lambda data: [], monkeypatch) as requests, pytest.raises(PortmapError):
        program.ask_gateway(TASK, "127.0.0.1")
    assert len(requests) == 2, "one a try"
    with gateway(lambda data: [pcp_answer(result=2)] * 3, monkeypatch), pytest.raises(PortmapError):
        program.ask_gateway(TASK, "127.0.0.1")


def test_upnp_takes_another_port_if_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Mock()
    router = library.UPnP.return_value = Mock(lanaddr="192.168.1.5")
    router.selectigd.side_effect, router.externalipaddress.return_value = str, None
    monkeypatch.setitem(sys.modules, "miniupnpc", library)
    monkeypatch.setattr(program, "find_gateway", lambda: "127.0.0.1")
    monkeypatch.setattr(portmap, "PORT", 1)
    monkeypatch.setattr(program, "find_description", lambda gateway: f"http://{gateway}/root.xml")

    def ask(*answers: object) -> tuple[Answer | None, list[tuple[Any, ...]]]:
        """What is made of a router's answers to the ports that are asked for, and how they are asked for."""
        router.addportmapping = Mock(side_effect=answers)
        return program.ask(TASK), [call.args for call in router.addportmapping.call_args_list]

    is_taken, is_permanent = Exception("ConflictInMappingEntry"), Exception("OnlyPermanentLeasesSupported")
    asked = (4001, "TCP", "192.168.1.5", 4001, program.NAME, "", LIFETIME)
    assert ask(True) == (Answer(4001, LIFETIME, "", "upnp"), [asked])
    made, calls = ask(is_taken, is_taken, is_permanent, True)
    assert made is not None and made.port == calls[-1][0] != 4001
    assert [call[-1] for call in calls] == [LIFETIME, LIFETIME, LIFETIME, 0]
    made, calls = ask(*[is_taken] * 99)
    assert made is None and len(calls) == 1 + program.OTHER_PORTS
    assert program.ask(Task(4001, 4009, NONCE.hex(), "upnp", True)) is not None
    router.deleteportmapping.assert_called_once_with(4009, "TCP")
    assert router.addportmapping.call_count == len(calls)


def line(**changes: Any) -> bytes:
    return json.dumps({"by": "pcp", "port": 4001, "lifetime": 3600, "ip": "5.5.5.5", **changes}).encode()


@fails_without("swarm/router/mapping.py", "if len(data) > MAX_OUTPUT:")
def test_a_hostile_routers_answer_is_bounded() -> None:
    assert read_answer(line()) == Answer(4001, 3600, "5.5.5.5", "pcp")
    assert read_answer(line(port=443)).port == 443, "a port that peers dial"
    assert read_answer(line(lifetime=0)).lifetime == SHORTEST and read_answer(line(lifetime=2**32)).lifetime == LIFETIME
    for ip in ("192.168.1.1", "100.64.0.1", "127.0.0.1", "224.0.0.1", ""):
        assert read_answer(line(ip=ip)).ip == "", "no address on the internet"
    bad: list[dict[str, Any]] = [
        {"port": 22}, {"port": 0}, {"port": 65536}, {"port": "4001"}, {"by": "x"}, {"ip": "::1"}, {"ip": 5},
        {"ip": "x" * MAX_OUTPUT}, {"lifetime": None},
    ]  # fmt: skip
    for changes in bad:
        with pytest.raises(ValueError, match=r"."):
            read_answer(line(**changes))
    assert read_answer(line().ljust(512)) and MAX_OUTPUT == 512
    with pytest.raises(ValueError, match="too long"):
        read_answer(line().ljust(513))


@in_trio()
async def test_a_mapping_is_renewed_removed_and_asked_for_again_with_the_same_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tasks: list[Task] = []
    claims: list[str] = []
    file = tmp_path / "ports.json"

    def command(task: Task) -> list[str]:
        tasks.append(task)
        return [sys.executable, "-c", f"print({line(port=4009).decode()!r})"]

    async def run(port: int, renewals: int = 0) -> None:
        """A node that stops once the router forwards its port, and was asked again."""
        ports = Ports(file)
        ports.mark_listening(port)
        mapping = Mapping(port, claims.append, Tally(), ports)
        assert mapping.port == port
        asked = len(tasks) + 1
        async with meanwhile(mapping.run):
            assert await until(lambda: mapping.current and Ports(file).external == 4009, 20)
            assert mapping.port == 4009
            if renewals:
                mapping.renew_soon()
            assert await until(lambda: len(tasks) >= asked + renewals, 20)

    monkeypatch.setattr(mapping_module, "_command", command)
    for port, renewals in ((4001, 1), (4001, 0), (4002, 0), (443, 0), (443, 0)):
        await run(port, renewals)
    asked = [(task.port, task.external) for task in tasks if not task.remove]
    assert asked == [(4001, 4001), (4001, 4009), (4001, 4009), (4002, 4002), (443, 443), (443, 4009)]
    assert claims[0] == "5.5.5.5"
    removed = [(task.port, task.external, task.by) for task in tasks if task.remove]
    assert removed == [(port, 4009, "pcp") for port in (4001, 4001, 4002, 443, 443)]
    assert len({task.nonce for task in tasks}) == 1 and tasks[0].nonce != Ports().nonce


@in_trio()
async def test_a_router_that_does_not_answer_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = "import time; time.sleep(99)", "import sys; sys.exit(1)", "print('x' * 99999)", "print('{}')"
    monkeypatch.setattr(mapping_module, "_command", lambda task: [sys.executable, "-c", programs[task.port - 4001]])
    tally = Tally()
    mappings = [Mapping(4001 + number, list[str]().append, tally, Ports()) for number in range(4)]
    async with meanwhile(*(mapping.run for mapping in mappings)):
        assert await until(lambda: tally.counts == {"routers that forward no port": 3}, 20)
    assert all(mapping.current is None for mapping in mappings)
    assert [mapping.port for mapping in mappings] == [4001, 4002, 4003, 4004]


OVERDOING = """
import signal, resource
from sapo_edge.swarm.router import program
def ask(task):
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0.0)
    print(0 < left <= 20, resource.getrlimit(resource.RLIMIT_AS)[0] >> 20, flush=True)
    try:
        bytearray(512 << 20)
    except MemoryError:
        print("no room", flush=True)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    while True:
        pass
program.ask = ask
program.main()
"""


@fails_without("swarm/router/program.py", "signal.alarm(SECONDS)", "pass")
@fails_without("swarm/router/program.py", "limit_memory(MEMORY)", "pass")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds address space")
def test_whatever_a_router_has_the_library_do_takes_20_seconds_and_512_mib_at_most() -> None:
    command = [sys.executable, "-c", OVERDOING, json.dumps({"port": 1, "external": 1, "nonce": ""})]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (ended.stdout.split("\n"), ended.returncode) == (["True 512", "no room", ""], -signal.SIGALRM), ended.stderr
