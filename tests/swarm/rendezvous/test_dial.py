"""Who listens at an address that comes without a peer id."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
import trio

from sapo_edge.swarm.finding.visiting import visiting_host
from sapo_edge.swarm.host.host import listen_port
from sapo_edge.swarm.rendezvous import dial
from sapo_edge.swarm.rendezvous.dial import named_address, who_listens
from tests.swarm.finding.fakes import OTHER
from tests.swarm.rendezvous.test_named import HOME, OWN, Host


@pytest.mark.parametrize("psk", [None, bytes(range(32))])
def test_whoever_listens_proves_who_it_is(psk: bytes | None) -> None:
    async def main() -> None:
        async with visiting_host(psk, "loopback") as there, visiting_host(psk) as here:
            assert await who_listens(here, "127.0.0.1", listen_port(there)) == str(there.get_id())
            with trio.fail_after(10):
                while here.get_network().connections or there.get_network().connections:
                    await trio.sleep(0.05)

    trio.run(main)


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 5000])
def test_who_is_no_node_is_nobody(answer: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "ANSWER_SECONDS", 1.0)

    async def serve(stream: trio.SocketStream) -> None:
        if answer is None:
            await trio.sleep_forever()
        await stream.send_all(answer or b"")

    async def main() -> None:
        async with visiting_host(None) as here, trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), serve, 0)
            port = listener.socket.getsockname()[1]
            began = time.monotonic()
            assert await who_listens(here, "127.0.0.1", port) is None
            assert time.monotonic() - began < 30
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_who_listens_where_no_stranger_may_name_an_address_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    async def somebody(_host: object, ip: str, port: int) -> str:
        asked.append((ip, port))
        return OWN if port == 4000 else OTHER

    monkeypatch.setattr(dial, "who_listens", somebody)
    host: Any = Host()
    refused = [(ip, 4001) for ip in ("192.168.1.7", "8.8.4.9", "127.0.0.1", "10.1.1.1", "169.254.169.254")]

    async def main() -> None:
        for place in [*refused, ("9.9.9.9", 25), ("9.9.9.9", 4000)]:
            assert await named_address(host, HOME, *place) is None
        assert str(await named_address(host, HOME, "9.9.9.9", 4001)) == f"/ip4/9.9.9.9/tcp/4001/p2p/{OTHER}"

    trio.run(main)
    assert asked == [("9.9.9.9", 4000), ("9.9.9.9", 4001)]


def test_a_member_of_a_private_swarm_is_nobody_to_others() -> None:
    async def main() -> None:
        async with visiting_host(bytes(range(32)), "loopback") as there, visiting_host(None) as here:
            assert await who_listens(here, "127.0.0.1", listen_port(there)) is None
        async with visiting_host(None) as here:
            assert await who_listens(here, "127.0.0.1", 1) is None

    trio.run(main)
