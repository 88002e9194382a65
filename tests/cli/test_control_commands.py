"""`sapo status`, `peers`, `pause`, `resume`, `stop` and `logs`, of a node that runs and of none; and its figures."""

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
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sapo_edge.control.client import TimedOutError
from sapo_edge.errors import StateError
from sapo_edge.events import CheckpointSaved, Event, HeldOut, NodeStarted, NodeStopped, Notice, Progress
from sapo_edge.library.metrics import REQUESTS_BURST, REQUESTS_PER_SECOND, serve_metrics
from sapo_edge.node.background import Background
from sapo_edge.swarm.status import LastSeen, PeerInfo, Search, SwarmStatus
from tests.cli.inprocess import FakeNode, Invoke, running
from tests.cli.process import assert_refused
from tests.fakes import round_event
from tests.ports import free_port
from tests.swarm.joining.test_invite import HERE, PEER
from tests.waiting import wait_until

PEERS = (
    PeerInfo(PEER, "amber-otter-041", HERE, "out", 1.0, True, True, 1_234_567, 999, {"forged": 2, "rate": 1}, 0.5),
    PeerInfo(PEER, "evil\x1b[2J\u202e", "/ip6/2001:db8::1", "in", 1.0, False, True, 0, 0, {}, -9.0),
)
SWARM = SwarmStatus(
    state="connected", peer_id=PEER, name="brave-lynx-007", swarm="ab" * 32, addresses=(HERE,), peers=PEERS,
    rollouts_out=120, rollouts_in=240, bytes_out=800_000, bytes_in=1_200_000, rejections={"forged": 2},
    faults={"host": 1}, restarts=1, paused=("upload",), reachable=False, clock_ahead=90.0,
)  # fmt: skip
STATUS: dict[str, Any] = {
    "v": 1, "pid": 4711, "state": "running", "paused": [], "round": 12, "rounds": 40, "phase": "generate",
    "role": "trainer", "manifest": "starter", "model": "SmolLM2", "backend": "llama.cpp",
    "reward_own": 0.5, "reward_external": 0.25, "held_out": {"round": 10, "accuracy": 0.61},
    "held_out_base": {"round": 0, "accuracy": 0.4}, "own": 4, "external": 3, "informative": 5,
    "pool": {"rollouts": 31, "bytes": 64_000}, "swarm": SWARM.as_dict(), "rejections": {"rate": 11, "forged": 2},
    "limits": {"threads": 1, "others": 20.0},
}  # fmt: skip


@pytest.mark.parametrize("command", ["status", "peers", "pause", "resume", "stop", "logs", "answer"])
def test_without_a_node_these_commands_exit_with_3(invoke: Invoke, tmp_path: Path, command: str) -> None:
    assert_refused(invoke(command, "--home", tmp_path), 3, "no node runs here; start one with `sapo run`")
    assert list(tmp_path.iterdir()) == []


def test_status_fits_into_80_columns(invoke: Invoke, tmp_path: Path) -> None:
    with running(tmp_path, FakeNode(STATUS)):
        told = invoke("status", "--home", tmp_path)
        assert invoke("status", "--home", tmp_path, "--json").record == json.loads(json.dumps(STATUS))
    assert told.out.splitlines() == [
        "node        running, round 12 of 40, answering (process 4711)",
        "model       SmolLM2 (llama.cpp)",
        "manifest    starter, as trainer",
        "rewards     own 0.50, others 0.25",
        "held-out    0.61 after round 10, 0.40 before training",
        "last batch  4 own + 3 of others, 5 of 7 informative",
        "pool        31 rollouts of others, 64.0 kB",
        "swarm       connected as brave-lynx-007",
        "peers       2 connections, 1 in the mesh",
        "rollouts    240 in, 120 out",
        "traffic     1.2 MB in, 800.0 kB out",
        "reachable   only by peers that it dials itself",
        "clock       90 s behind the clocks of peers; set it right",
        "held back   upload, by the cap in the settings",
        "faults      host 1; 1 restart",
        "refused     rate 11, forged 2",
    ]


@pytest.mark.parametrize(("changes", "line"), [
    ({"role": "generator", "own": 4, "external": 0, "informative": 0}, "last batch  4 questions answered"),
    ({"reduced": {"external": 2, "setting": 4}},
     "external    2 of 4 in an update, because the validation accuracy fell"),
    ({"limits": {"threads": 1, "others": 83.4}},
     "processor   other programs use 83 % of it, so rounds take longer"),
    ({"limits": {"threads": 1, "others": None}, "state": "paused", "paused": ["asked to pause", "on battery"]},
     "node        paused, round 12 of 40, asked to pause, on battery (process 4711)"),
    ({**dict.fromkeys(STATUS), "state": "starting", "rejections": {}}, "rewards     none yet"),
    ({"swarm": None}, "swarm       none: this node works alone"),
    ({"swarm": {**SWARM.as_dict(), "search": asdict(Search(4e9, 3))}},
     "search      looking for the swarm ... 3 addresses found, dialling"),
    ({"swarm": {**SWARM.as_dict(), "search": asdict(Search(1.0, last=LastSeen(1, 1_800_014_400)))}},
     "            somebody comes (last found on 2027-01-15: 1 member)"),
])  # fmt: skip
def test_status_says_what_is_not_as_usual(invoke: Invoke, tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    with running(tmp_path, FakeNode({**STATUS, **changes})):
        told = invoke("status", "--home", tmp_path)
    assert told.code == 0 and line in told.out.splitlines() and all(len(each) <= 80 for each in told.out.splitlines())


def test_peers_are_shown_with_their_rejections(invoke: Invoke, tmp_path: Path) -> None:
    node = FakeNode(peer_records=[dict(peer) for peer in SWARM.as_dict()["peers"]])
    with running(tmp_path, node):
        told = invoke("peers", "--home", tmp_path)
        assert len(invoke("peers", "--home", tmp_path, "--json").record["peers"]) == 2
        node.peer_records = []
        assert "no peer is connected" in invoke("peers", "--home", tmp_path).err
    lines = told.out.splitlines()
    assert lines[1].split() == ["amber-otter-041", "192.0.2.1:4001", "out", "yes", "999", "B", "1.2", "MB", "3"]
    assert lines[2].startswith("evil\\x1b[2J\\u202e ") and " unknown " in lines[2]
    assert lines[3] == "refused     amber-otter-041: forged 2, rate 1"
    assert all(len(line) <= 80 and line.isprintable() for line in lines)


@pytest.mark.parametrize(("address", "shown"), [
    ("/ip6/fe80::1/tcp/4001", "[fe80::1]:4001"), ("/ip6/2a00:1450:4001:81b::200e/tcp/4001", "[2a00:1450:4001:81b:…"),
    ("/ip4/192.0.2.1/tcp/4001/p2p/relay/p2p-circuit", "192.0.2.1:4001 by re…"), ("/ip6/\x1b[2J/tcp/1", "[\\x1b[2J]:1"),
])  # fmt: skip
def test_a_peers_address_is_its_host_and_port_and_marked_where_it_is_cut(
    invoke: Invoke, tmp_path: Path, address: str, shown: str
) -> None:
    with running(tmp_path, FakeNode(peer_records=[asdict(replace(PEERS[0], address=address))])):
        told = invoke("peers", "--home", tmp_path)
    assert told.out.splitlines()[1][20:42] == f"{shown:22}"


def test_pause_resume_and_stop_reach_the_node(invoke: Invoke, tmp_path: Path) -> None:
    node = FakeNode()
    with running(tmp_path, node):
        assert invoke("pause", "--home", tmp_path, "--json").record == {"v": 1, "done": "pause"}
        assert "resumed" in invoke("resume", "--home", tmp_path).err
        assert "saving" in invoke("stop", "--home", tmp_path).err
        assert "is lost" in invoke("stop", "--now", "--home", tmp_path).err
    assert node.requests == ["pause", "resume", "after_round", "at_once"]


def test_stop_says_what_the_node_still_does(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapo_edge.cli.control.WATCH_SECONDS", 0.05)
    steps = (("generate", 10), ("generate", 20), ("update", 3))
    progress = iter({"phase": phase, "done": done, "total": 64, "unit": "answers"} for phase, done in steps)

    class Working(FakeNode):
        def status(self) -> dict[str, Any]:
            try:
                return {**STATUS, "progress": next(progress), "limits": {"threads": 1, "others": 83.4}}
            except StopIteration:
                threading.Thread(target=server.stop).start()
                return STATUS

    with running(tmp_path, Working()) as server:
        # The lock, too, is freed by a node that has ended.
        monkeypatch.setattr("sapo_edge.cli.control.wait_until_released", lambda *_: None)
        told = invoke("stop", "--wait", "--home", tmp_path).err.splitlines()
    assert told == [
        "finishing the round and saving it; a head start goes on later from its last check",
        "  other programs use 83 % of the processor, so it takes longer",
        "  answering: 10 of 64 answers", "  learning: 3 of 64 answers", "the node has ended",
    ]  # fmt: skip


def test_stop_signals_no_node_that_is_too_busy_to_answer(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second signal would end its round."""
    monkeypatch.setattr("sapo_edge.cli.control.connect", Mock(side_effect=TimedOutError))
    monkeypatch.setattr(Background, "end_start", lambda background: pytest.fail("it was signalled"))
    assert_refused(invoke("stop", "--home", tmp_path), 3, "the node does not answer")


def test_stop_waits_until_the_state_directory_is_free(invoke: Invoke, tmp_path: Path) -> None:
    """A node closes its control socket first and releases its lock last."""
    node, free = FakeNode(), threading.Event()
    with ExitStack() as stack:
        server = stack.enter_context(running(tmp_path, node))

        def end() -> None:
            # Not before it was asked, however slow the machine is.
            wait_until(lambda: node.requests)
            time.sleep(0.1)
            server.stop()
            time.sleep(0.5)
            free.set()
            stack.close()

        threading.Thread(target=end).start()
        result = invoke("stop", "--now", "--wait", "--json", "--home", tmp_path)
        assert free.is_set() and node.requests == ["at_once"]
    assert result.code == 0 and result.record["ended"] and "the node has ended" in result.err


PAST: list[Event] = [
    NodeStarted(model="SmolLM2", backend="cpu", time=0),
    HeldOut(round=0, accuracy=0.5, correct=5, questions=10, low=0.2, high=0.8, time=1),
    round_event(1, reward_external=0.75, informative=6, time=2), CheckpointSaved(round=1, path="x", best=True, time=3),
    Notice(level="warning", text="odd\x1b[31m", time=4),
]  # fmt: skip


def test_logs_show_the_past_by_level(invoke: Invoke, tmp_path: Path) -> None:
    with running(tmp_path, FakeNode(), lambda count: PAST[-count:]):
        told = invoke("logs", "--home", tmp_path)
        assert [line[21:] for line in told.out.splitlines()] == [
            "started: SmolLM2; a fresh start", "held-out before training: 0.50 (5 of 10, 95 % 0.20 to 0.80)",
            "round 1: reward 0.25, others 0.75, informative 6/8, 4.0 s", "checkpoint of round 1 saved, the best so far",
            "warning: odd\\x1b[31m",
        ]  # fmt: skip
        warnings = invoke("logs", "--level", "warning", "--json", "--home", tmp_path)
        assert [json.loads(line)["text"] for line in warnings.out.splitlines()] == ["odd\x1b[31m"]
        assert len(invoke("logs", "--lines", "2", "--home", tmp_path).out.splitlines()) == 2
        assert invoke("logs", "--lines", "0", "--home", tmp_path).out == ""
        assert_refused(invoke("logs", "--level", "loud", "--home", tmp_path), 2, "debug, info, warning, error")
    notices = [Notice(level="warning", text=text, time=0) for text in ("first", "second", "third")]
    with running(tmp_path, FakeNode(), lambda count: [*notices, *PAST[:-1]][-count:]):
        told = invoke("logs", "--level", "warning", "--lines", "2", "--home", tmp_path)
        assert [line[21:] for line in told.out.splitlines()] == ["warning: second", "warning: third"]
        assert invoke("logs", "--level", "error", "--home", tmp_path).out == ""


def test_logs_follow_until_the_node_ends(invoke: Invoke, tmp_path: Path) -> None:
    with running(tmp_path, FakeNode(), lambda count: PAST[-count:]) as server:

        def go_on() -> None:
            server.publish(Progress(phase="update", done=1, total=2, unit="groups"))
            server.publish(NodeStopped(reason="asked to stop", rounds=1))
            server.stop()

        threading.Timer(0.5, go_on).start()
        told = invoke("logs", "--follow", "--lines", "1", "--home", tmp_path)
    assert told.code == 0 and [line[21:] for line in told.out.splitlines()] == [
        "warning: odd\\x1b[31m", "stopped: asked to stop; 1 round finished",
    ]  # fmt: skip


def test_status_is_renewed_until_it_is_ended(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, waits = FakeNode(dict(STATUS)), list[float]()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        node.record["round"] = 12 + len(waits)
        if len(waits) == 3:
            raise KeyboardInterrupt

    with running(tmp_path, node):
        monkeypatch.setattr("sapo_edge.cli.control.time.sleep", wait)
        told = invoke("status", "--watch", "--json", "--home", tmp_path)
    assert told.code == 130 and waits == [2.0] * 3
    assert [json.loads(line)["round"] for line in told.out.splitlines()] == [12, 13, 14]


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


def test_figures_are_those_of_the_status_and_the_dashboard_shows_all_of_them() -> None:
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
    dashboard = json.loads((ROOT / "packaging" / "grafana-dashboard.json").read_text())
    expressions = [panel["targets"][0]["expr"] for panel in dashboard["panels"]]
    shown = {name for expression in expressions for name in re.findall(r"sapo_edge_\w+", expression)}
    assert shown == {name.split()[0] for name in found} - {"sapo_edge_info"}


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
