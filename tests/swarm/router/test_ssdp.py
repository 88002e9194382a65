"""UPnP's discovery hears the router alone, and fetches nothing from elsewhere, whatever a device names."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.swarm.router import program
from sapo_edge.swarm.router.portmap import Answer, PortmapError
from sapo_edge.swarm.router.program import Task
from tests.defences.defence import fails_without
from tests.swarm.router.answering import GATEWAY, answering

OTHER = "127.0.0.2"
TASK = Task(4001, 4001, bytes(12).hex())
SERVICE = "urn:schemas-upnp-org:service:WANIPConnection:1"


def answer(location: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nST: {program.SSDP_TARGETS[0]}\r\nLocation: {location}\r\n\r\n".encode()


def description(base: str = "", control: str = "/control") -> bytes:
    return (
        f'<?xml version="1.0"?><root xmlns="urn:schemas-upnp-org:device-1-0"><URLBase>{base}</URLBase><device>'
        f"<serviceList><service><serviceType>{SERVICE}</serviceType><controlURL>{control}</controlURL>"
        "</service></serviceList></device></root>"
    ).encode()


class Web(HTTPServer):
    """A device's web server, and what it was asked."""

    def __init__(self, host: str, page: bytes = b"") -> None:
        requests: list[str] = []
        self.requests = requests

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                requests.append(f"GET {self.path}")
                self._send(page)

            def do_POST(self) -> None:
                action = self.headers["SOAPAction"].strip('"').partition("#")[2]
                requests.append(f"POST {self.path} {action}")
                self.rfile.read(int(self.headers["Content-Length"]))
                ip = "<NewExternalIPAddress>5.5.5.5</NewExternalIPAddress>"
                body = f'<u:{action}Response xmlns:u="{SERVICE}">{ip}</u:{action}Response>'
                self._send(f"<s:Envelope><s:Body>{body}</s:Body></s:Envelope>".encode())

            def _send(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        super().__init__((host, 0), Handler)
        # The library makes a name of the address.
        self.server_name = host

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://{self.server_name}:{self.server_port}"
        finally:
            self.shutdown()
            thread.join()
            self.server_close()


@contextlib.contextmanager
def device(host: str, reply: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A router at `GATEWAY` that is searched for; a device at `host` answers."""
    with answering(lambda request: [reply], host) as (port, _):
        monkeypatch.setattr(program, "SSDP_PORT", port)
        monkeypatch.setattr(program, "SSDP_TRIES", (0.2, 0.2))
        yield


def test_a_router_is_asked_at_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    web = Web(GATEWAY, description())
    with web.running() as url, device(GATEWAY, answer(f"{url}/root.xml"), monkeypatch):
        assert program.ask_upnp(TASK, GATEWAY) == Answer(4001, program.LIFETIME, "5.5.5.5")
    assert web.requests == ["GET /root.xml", "POST /control AddPortMapping", "POST /control GetExternalIPAddress"]


@fails_without("swarm/router/program.py", "if sender == gateway:", "if True:")
def test_no_device_answers_in_the_routers_place(monkeypatch: pytest.MonkeyPatch) -> None:
    web = Web(GATEWAY, description())
    with web.running() as url, device(OTHER, answer(f"{url}/root.xml"), monkeypatch), pytest.raises(PortmapError):
        program.ask_upnp(TASK, GATEWAY)
    assert web.requests == []


@fails_without("swarm/router/program.py", "check_url(match", "(lambda url, _: url)(match")
@fails_without("swarm/router/program.py", "check_url(router", "(lambda url, _: url)(router")
def test_no_router_has_anything_fetched_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Web(OTHER, description())
    with other.running() as elsewhere:
        with device(GATEWAY, answer(f"{elsewhere}/root.xml"), monkeypatch), pytest.raises(PortmapError):
            program.ask_upnp(TASK, GATEWAY)
        for page in (description(base=elsewhere), description(control=f"{elsewhere}/control")):
            web = Web(GATEWAY, page)
            with web.running() as url, device(GATEWAY, answer(f"{url}/"), monkeypatch), pytest.raises(PortmapError):
                program.ask_upnp(TASK, GATEWAY)
            assert web.requests == ["GET /"]
    assert other.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "http://192.168.1.10/", "http://192.168.1.1.example.org/", "http://192.168.1.1@10.0.0.1/", "https://192.168.1.1/",
        "http://10.0.0.1/?http://192.168.1.1/", "http://192.168.1.1:80@10.0.0.1/", "http://192.168.1.1", "http://router/",
        "http://192.168.1.1/\r\nHost: a", "http://0300.0250.1.1/", "file:///etc/passwd", "http://[::1]/", "",
    ],
)  # fmt: skip
def test_only_urls_of_the_routers_own_address_count(url: str) -> None:
    assert program.check_url("http://192.168.1.1:5000/rootDesc.xml", "192.168.1.1")
    with pytest.raises(PortmapError):
        program.check_url(url, "192.168.1.1")


@given(st.binary(max_size=600), st.booleans())
def test_any_answer_is_a_url_of_the_router_or_an_error(data: bytes, has_head: bool) -> None:
    with contextlib.suppress(PortmapError):
        url = program.read_location(b"HTTP/1.1 200 OK\r\nLocation:" * has_head + data, "192.168.1.1")
        assert url.startswith(("http://192.168.1.1/", "http://192.168.1.1:"))
