"""Figures for Prometheus, asked over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sapo_edge.errors import StateError
from sapo_edge.library.metrics import REQUESTS_BURST, REQUESTS_PER_SECOND, serve_metrics
from tests.cli.test_control_commands import STATUS
from tests.ports import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
FULL = STATUS | {
    "version": "1", "name": "lynx", "tokens_per_second": 90.5, "informative_share": 0.25, "best": {"accuracy": 0.7},
    "memory": {"rss": 5},
}  # fmt: skip


@contextlib.contextmanager
def serving(status: dict[str, Any]) -> Iterator[int]:
    port = free_port()
    stop = serve_metrics(port, lambda: status)
    try:
        yield port
    finally:
        stop()


def ask(port: int, host: str = "127.0.0.1", *, names_port: bool = True) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics", headers={"Host": f"{host}:{port}" if names_port else host})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def samples(text: str) -> dict[str, float]:
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {" ".join([sample.name, *sample.labels.values()]): sample.value for sample in found}


def test_figures_are_those_of_the_status() -> None:
    with serving(FULL) as port:
        found = samples(ask(port)[1])
    expected = {
        "sapo_edge_round": 12, "sapo_edge_paused": 0, "sapo_edge_reward own": 0.5, "sapo_edge_reward external": 0.25,
        "sapo_edge_accuracy base": 0.4, "sapo_edge_accuracy last": 0.61, "sapo_edge_accuracy best": 0.7,
        "sapo_edge_tokens_per_second": 90.5, "sapo_edge_memory_bytes": 5, "sapo_edge_peers": 2,
        "sapo_edge_rollouts_total in": 240, "sapo_edge_traffic_bytes_total out": 800_000,
        "sapo_edge_rejections_total rate": 11,
    }  # fmt: skip
    assert {name: found.get(name) for name in expected} == expected


def test_a_node_that_is_alone_and_new_has_figures() -> None:
    with serving({"state": "starting", "round": 0, "swarm": None}) as port:
        status, text = ask(port)
    assert status == 200 and samples(text)["sapo_edge_round"] == 0 and "sapo_edge_accuracy{" not in text


def test_a_web_page_under_another_name_reads_nothing() -> None:
    with serving(FULL) as port:
        status, text = ask(port, "evil.example")
        assert status == 421 and "sapo_edge" not in text
        assert ask(port, "evil.example", names_port=False)[0] == 421
        assert ask(port, "localhost")[0] == 200
        # As clients write it for port 80, through a tunnel for example.
        assert ask(port, "localhost", names_port=False)[0] == 200


def test_whoever_asks_without_end_is_answered_at_a_rate() -> None:
    with serving(FULL) as port:
        begun, more = time.monotonic(), 5
        assert {ask(port)[0] for _ in range(int(REQUESTS_BURST) + more)} == {200}
        assert time.monotonic() - begun > 0.95 * more / REQUESTS_PER_SECOND


def test_a_connection_that_breaks_is_not_told(capfd: pytest.CaptureFixture[str]) -> None:
    with serving(FULL) as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /met")
            # Closes it by a reset.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert ask(port)[0] == 200
        wait_until(lambda: not any("process_request" in thread.name for thread in threading.enumerate()))
    assert capfd.readouterr().err == ""


def test_a_taken_port_has_a_remedy() -> None:
    with serving(FULL) as port, pytest.raises(StateError, match="metrics_port"):
        serve_metrics(port, lambda: FULL)


def test_the_dashboard_shows_what_exists_and_all_of_it() -> None:
    dashboard = json.loads((ROOT / "packaging" / "grafana-dashboard.json").read_text())
    expressions = [panel["targets"][0]["expr"] for panel in dashboard["panels"]]
    shown = {name for expression in expressions for name in re.findall(r"sapo_edge_\w+", expression)}
    with serving(FULL) as port:
        assert shown == {name.split()[0] for name in samples(ask(port)[1])} - {"sapo_edge_info"}
