"""`sapo status`, `peers`, `pause`, `resume`, `stop`, `logs`: of the node that runs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sapo_edge.cli.output import narrate, print_json
from sapo_edge.control.client import connect
from sapo_edge.errors import ConfigError
from sapo_edge.event_words import PHASES, describe_event
from sapo_edge.events import from_dict
from sapo_edge.plain import counted, line, printable, reasons, size
from sapo_edge.state.logs import LEVELS
from sapo_edge.state.paths import Paths

CLOCK_SECONDS = 60
"""Difference of clocks that is worth a line."""
MAX_LOG_LINES = 1000
"""Most past events of `sapo logs`."""


def run_status(home: Path | None, *, as_json: bool) -> None:
    """Print what the node does and how it goes."""
    with connect(Paths.default(home)) as client:
        status = client.request("status")
    if as_json:
        print_json(status)
        return
    for text in status_lines(status):
        print(text)


def run_peers(home: Path | None, *, as_json: bool) -> None:
    """Print the peers that the node is connected to."""
    with connect(Paths.default(home)) as client:
        found = client.request("peers")
    if as_json:
        print_json(found)
        return
    peers = found["peers"]
    if not peers:
        narrate("no peer is connected; the node trains alone until one is")
        return
    print(f"{'PEER':19} {'ADDRESS':21} {'DIR':3} {'MESH':4} {'IN':>8} {'OUT':>8} {'REFUSED':>7}")
    for peer in peers:
        print(_peer_line(peer))
    for peer in peers:
        if told := reasons(peer.get("rejected") or {}):
            print(line("refused", f"{peer.get('name', '')}: {told}"))


def run_pause(home: Path | None, *, as_json: bool) -> None:
    """Have the node rest."""
    _command(home, "pause", {}, "paused; `sapo resume` goes on", as_json=as_json)


def run_resume(home: Path | None, *, as_json: bool) -> None:
    """Have the node go on."""
    _command(home, "resume", {}, "going on", as_json=as_json)


def run_stop(home: Path | None, *, now: bool, wait: bool, as_json: bool) -> None:
    """Have the node end, after its round or at once."""
    with connect(Paths.default(home)) as client:
        client.request("stop", {"when": "at_once" if now else "after_round"})
        narrate("stopping at once; the round in progress is lost" if now else "finishing the round and saving it")
        if wait:
            client.wait_for_end()
            narrate("the node has ended")
        if as_json:
            print_json({"done": "stop", "ended": wait})


def run_logs(home: Path | None, *, follow: bool, level: str, lines: int, as_json: bool) -> None:
    """Print the node's last events, and those to come."""
    if level not in LEVELS:
        raise ConfigError(f"there is no level {level!r}", f"choose one of {', '.join(LEVELS)}")
    with connect(Paths.default(home)) as client:
        past = client.subscribe(min(lines, MAX_LOG_LINES), progress=level == "debug")
        for number, event in enumerate(client.events() if past or follow else (), start=1):
            if LEVELS.index(_level(event)) >= LEVELS.index(level):
                print(json.dumps(event) if as_json else event_line(event), flush=True)
            if number >= past and not follow:
                break


def status_lines(status: Mapping[str, Any]) -> list[str]:
    """A status for people, in lines of at most 80 columns."""
    state = f"{status.get('state')}, round {status.get('round')}"
    state += f" of {status['rounds']}" if status.get("rounds") else ""
    if status.get("state") == "running" and status.get("phase"):
        state += f", {PHASES.get(status['phase'], status['phase'])}"
    if status.get("state") == "paused" and status.get("paused"):
        state += f", {', '.join(status['paused'])}"
    told = [
        line("node", f"{state} (process {status.get('pid')})"),
        line("model", f"{status.get('model')} ({status.get('backend')})"),
        line("manifest", f"{status.get('manifest')}, as {status.get('role')}"),
        line("rewards", _rewards(status)),
        line("held-out", _held_out(status)),
    ]
    if status.get("own") is not None:
        groups = int(status["own"]) + int(status.get("external") or 0)
        batch = f"{status['own']} own + {status.get('external') or 0} of others"
        told.append(line("last batch", f"{batch}, {status.get('informative') or 0} of {groups} informative"))
    if pool := status.get("pool"):
        told.append(line("pool", f"{counted(pool['rollouts'], 'rollout')} of others, {size(pool['bytes'])}"))
    told += _swarm_lines(status.get("swarm"))
    if refused := reasons(status.get("rejections") or {}):
        told.append(line("refused", refused))
    return told


def event_line(event: Mapping[str, Any]) -> str:
    """An event as one line: time, level if it is none of the usual, what happened."""
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(event.get("time") or 0)))
    level = _level(event)
    mark = f"{level}: " if level in ("warning", "error") else ""
    return f"{moment}  {mark}{printable(_described(event))}"


def _rewards(status: Mapping[str, Any]) -> str:
    parts = [
        f"{name} {status[key]:.2f}"
        for name, key in (("own", "reward_own"), ("others", "reward_external"))
        if status.get(key) is not None
    ]
    return ", ".join(parts) or "none yet"


def _held_out(status: Mapping[str, Any]) -> str:
    base, last = status.get("held_out_base"), status.get("held_out")
    if not last:
        return "not evaluated yet"
    told = f"{_number(last.get('accuracy'))} after round {last.get('round')}"
    return f"{told}, {_number(base.get('accuracy'))} before training" if base and last.get("round") else told


def _swarm_lines(swarm: Mapping[str, Any] | None) -> list[str]:
    if swarm is None:
        return [line("swarm", "none: this node works alone")]
    peers = swarm.get("peers") or ()
    mesh = sum(bool(peer.get("mesh")) for peer in peers)
    told = [
        line("swarm", f"{swarm.get('state')} as {swarm.get('name')}"),
        line("peers", f"{counted(len(peers), 'connection')}, {mesh} in the mesh"),
        line("rollouts", f"{swarm.get('rollouts_in', 0)} in, {swarm.get('rollouts_out', 0)} out"),
        line("traffic", f"{size(swarm.get('bytes_in', 0))} in, {size(swarm.get('bytes_out', 0))} out"),
    ]
    if swarm.get("reachable") is not None:
        told.append(line("reachable", "from other networks" if swarm["reachable"] else "only by those it dials itself"))
    if abs(ahead := float(swarm.get("clock_ahead") or 0)) >= CLOCK_SECONDS:
        how = "behind" if ahead > 0 else "ahead of"
        told.append(line("clock", f"{abs(ahead):.0f} s {how} those of others; set it right"))
    if held := swarm.get("paused"):
        told.append(line("held back", f"{', '.join(held)}, by the cap in the settings"))
    if faults := reasons(swarm.get("faults") or {}):
        told.append(line("faults", f"{faults}; {counted(int(swarm.get('restarts') or 0), 'restart')}"))
    return told


def _peer_line(peer: Mapping[str, Any]) -> str:
    parts = str(peer.get("address", "")).split("/")
    # /ip4/192.0.2.1/tcp/4001/p2p/...
    where = f"{parts[2]}:{parts[4]}" if len(parts) > 4 else "unknown"
    refused = sum(int(number) for number in (peer.get("rejected") or {}).values())
    name, where = printable(peer.get("name", ""))[:19], printable(where)[:21]
    direction = {"in": "in", "out": "out"}.get(str(peer.get("direction")), "?")
    traffic = f"{size(peer.get('received', 0)):>8} {size(peer.get('sent', 0)):>8}"
    return f"{name:19} {where:21} {direction:3} {'yes' if peer.get('mesh') else 'no':4} {traffic} {refused:7}"


def _command(home: Path | None, method: str, params: Mapping[str, Any], told: str, *, as_json: bool) -> None:
    with connect(Paths.default(home)) as client:
        client.request(method, params)
    if as_json:
        print_json({"done": method})
    else:
        narrate(told)


def _level(event: Mapping[str, Any]) -> str:
    if event.get("event") == "progress":
        return "debug"
    level = str(event.get("level", "info"))
    return level if level in LEVELS else "info"


def _described(event: Mapping[str, Any]) -> str:
    try:
        return describe_event(from_dict(event))
    except ValueError:
        # Of a newer node.
        return str(event.get("event"))


def _number(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else "unknown"
