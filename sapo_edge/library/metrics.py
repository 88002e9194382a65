"""Figures of a running node for Prometheus, over HTTP on this machine only."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sapo_edge.errors import StateError
from sapo_edge.installing import how_to_install_extra
from sapo_edge.swarm.bucket import TokenBucket

if TYPE_CHECKING:
    from prometheus_client import Metric

ADDRESS = "127.0.0.1"
"""Where it listens; Prometheus on another machine comes through a tunnel."""
REQUESTS_PER_SECOND, REQUESTS_BURST = 5.0, 10.0
"""Connections that are taken: any web page in the owner's browser can have it ask as fast as it is answered."""

Status = Callable[[], Mapping[str, Any]]
_GAUGES = {
    "round": "Last finished round.",
    "tokens_per_second": "Generated tokens per second in the last round.",
    "informative_share": "Share of the last rounds' groups that had a gradient.",
}
"""Fields of the status that are figures, with their explanation."""


def serve_metrics(port: int, status: Status) -> Callable[[], None]:
    """Serve the figures of the control method `status`; returns what ends that, or a StateError tells why it can't."""
    import socketserver
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app
        from prometheus_client.registry import Collector
    except ModuleNotFoundError as error:
        raise StateError(f"the package {error.name} is not installed", how_to_install_extra("metrics")) from error

    class Silent(WSGIRequestHandler):
        timeout = 10

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing: Prometheus asks every few seconds."""

    rate = TokenBucket(REQUESTS_PER_SECOND, REQUESTS_BURST)

    class Server(socketserver.ThreadingMixIn, WSGIServer):
        daemon_threads = True

        def get_request(self) -> tuple[socket.socket, Any]:
            """Take a connection when it is time to; the others wait, and browsers open few at a time."""
            time.sleep(rate.wait(1.0))
            rate.charge(1.0)
            return super().get_request()

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Print what went wrong, but not that a client left or sent nothing: browsers open connections to spare."""
            if not isinstance(sys.exception(), OSError):
                super().handle_error(request, client_address)

        def server_bind(self) -> None:
            """Bind without a look-up of the host's name, which can take seconds."""
            socketserver.TCPServer.server_bind(self)
            self.server_name, self.server_port = ADDRESS, self.server_address[1]
            self.setup_environ()

    class Figures(Collector):
        def collect(self) -> Iterator[Metric]:
            """All metrics. Figures that the node does not have yet are left out."""
            record = status()
            yield from _figures(record)
            yield from _swarm(record.get("swarm") or {}, record.get("rejections") or {})

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures())
    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        # A web page whose name is made to lead to this machine must not read them.
        if environ.get("HTTP_HOST", "").partition(":")[0] not in (ADDRESS, "localhost"):
            start_response("421 Misdirected Request", [("Content-Type", "text/plain")])
            return [b"ask 127.0.0.1\n"]
        found: Iterable[bytes] = metrics(environ, start_response)
        return found

    try:
        server = make_server(ADDRESS, port, answer, Server, Silent)
    except OSError as error:
        raise StateError(f"port {port} can't be used: {error.strerror}", "set metrics_port to another one") from error
    threading.Thread(target=server.serve_forever, name="sapo-metrics", daemon=True).start()

    def stop() -> None:
        server.shutdown()
        server.server_close()

    return stop


def _figures(status: Mapping[str, Any]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

    names = ("version", "model", "backend", "manifest", "role", "name")
    yield InfoMetricFamily("sapo_edge", "What runs.", {name: str(status.get(name) or "") for name in names})
    for field, text in _GAUGES.items():
        if status.get(field) is not None:
            yield GaugeMetricFamily(f"sapo_edge_{field}", text, float(status[field]))
    yield GaugeMetricFamily("sapo_edge_paused", "1 while the node pauses.", float(status.get("state") == "paused"))
    rewards = GaugeMetricFamily("sapo_edge_reward", "Mean reward of the last round's answers.", labels=["origin"])
    for origin in ("own", "external"):
        if status.get(f"reward_{origin}") is not None:
            rewards.add_metric([origin], float(status[f"reward_{origin}"]))
    yield rewards
    accuracies = GaugeMetricFamily("sapo_edge_accuracy", "Accuracy on the validation questions.", labels=["of"])
    for label, field in (("base", "held_out_base"), ("last", "held_out"), ("best", "best")):
        accuracy = (status.get(field) or {}).get("accuracy")
        if accuracy is not None:
            accuracies.add_metric([label], float(accuracy))
    yield accuracies
    pool, memory = status.get("pool") or {}, status.get("memory") or {}
    yield GaugeMetricFamily("sapo_edge_pool_rollouts", "Rollouts of others that wait.", float(pool.get("rollouts", 0)))
    yield GaugeMetricFamily("sapo_edge_memory_bytes", "Memory of the node's process.", float(memory.get("rss") or 0))


def _swarm(swarm: Mapping[str, Any], rejections: Mapping[str, Any]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    yield GaugeMetricFamily("sapo_edge_peers", "Connected peers.", float(len(swarm.get("peers") or ())))
    rollouts = CounterMetricFamily("sapo_edge_rollouts", "Rollouts shared (out) and received (in).", labels=["way"])
    traffic = CounterMetricFamily("sapo_edge_traffic_bytes", "Bytes sent and received.", labels=["way"])
    for way in ("in", "out"):
        rollouts.add_metric([way], float(swarm.get(f"rollouts_{way}", 0)))
        traffic.add_metric([way], float(swarm.get(f"bytes_{way}", 0)))
    yield rollouts
    yield traffic
    refused = CounterMetricFamily("sapo_edge_rejections", "Rejected rollouts.", labels=["reason"])
    for reason, count in rejections.items():
        refused.add_metric([str(reason)], float(count))
    yield refused
