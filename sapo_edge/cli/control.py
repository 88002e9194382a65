"""`sapo status`, `peers`, `pause`, `resume`, `stop`: ask and steer the running node."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sapo_edge.cli.options import Home, Json
from sapo_edge.cli.output import print_json, report
from sapo_edge.control.client import START_SECONDS, ControlClient, NotListeningError, TimedOutError, connect
from sapo_edge.control.event_words import PHASES, describe_moment, format_share
from sapo_edge.errors import NoNodeError
from sapo_edge.node.background import Background
from sapo_edge.plain import counted, line, narrate, printable, reasons, size
from sapo_edge.state.lock import wait_until_released
from sapo_edge.state.paths import Paths
from sapo_edge.swarm.status import describe_search, host_port

CLOCK_SECONDS = 60
"""Smallest difference between clocks that `sapo status` shows."""
WATCH_SECONDS = 2.0
"""Seconds between two answers of `sapo status --watch`, and two looks of `sapo stop --wait`."""
TELL_SECONDS = 15.0
"""Seconds after which `sapo stop --wait` says again how far a step is."""
CROWDED = 50
"""Percent of the processor that other programs use, from which on it is shown."""


def status(
    watch: Annotated[bool, typer.Option("--watch", help="Renew it every 2 seconds, until the node ends.")] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Show what the running node does: rounds, rewards, swarm, traffic."""
    with connect(Paths.default(home)) as client:
        while True:
            record = client.request("status")
            if json:
                print_json(record)
            else:
                # On a terminal, in the place of the last one.
                clear = "\x1b[H\x1b[J" if watch and sys.stdout.isatty() else ""
                print(clear + "\n".join(status_lines(record)), flush=True)
            if not watch:
                return
            time.sleep(WATCH_SECONDS)


def peers(home: Home = None, json: Json = False) -> None:
    """Show the peers of the running node."""
    with connect(Paths.default(home)) as client:
        record = client.request("peers")
    if json:
        print_json(record)
        return
    if not record["peers"]:
        narrate("no peer is connected; the node trains alone until one is")
        return
    print(f"{'PEER':19} {'ADDRESS':21} {'DIR':3} {'MESH':4} {'IN':>8} {'OUT':>8} {'REFUSED':>7}")
    for peer in record["peers"]:
        print(_peer_line(peer))
    for peer in record["peers"]:
        if rejections := reasons(peer.get("rejected") or {}):
            print(line("refused", f"{peer.get('name', '')}: {rejections}"))


def pause(home: Home = None, json: Json = False) -> None:
    """Pause the running node; it still receives rollouts."""
    _steer(home, "pause", "paused; `sapo resume` continues", as_json=json)


def resume(home: Home = None, json: Json = False) -> None:
    """Resume the running node."""
    _steer(home, "resume", "resumed", as_json=json)


def stop(
    now: Annotated[bool, typer.Option("--now", help="Immediately; the round in progress is lost.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the state directory is free again.")] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Stop the running node after it has finished its round and saved; one that still starts ends at once."""
    paths = Paths.default(home)
    try:
        client = connect(paths)
    except NotListeningError:
        # Not one that is too busy to answer in time: told a second time, it would lose its round.
        background = Background(paths, home)
        if background.end_start():
            narrate("the node was starting or stopping, and ends")
            while wait and background.running():
                time.sleep(WATCH_SECONDS / 10)
            if json:
                print_json({"done": "stop", "ended": wait})
            return
        client = connect(paths, patience=START_SECONDS)
    with client:
        client.request("stop", {"when": "at_once" if now else "after_round"})
        saving = "finishing the round and saving it; a head start goes on later from its last check"
        narrate("stopping; the round in progress is lost" if now else saving)
        if wait:
            _wait_for_end(client)
            # The node closes its control socket first, and its state directory last.
            wait_until_released(paths.lock, client.hello["pid"])
            narrate("the node has ended")
        if json:
            print_json({"done": "stop", "ended": wait})


def _wait_for_end(client: ControlClient) -> None:
    """Wait until the node ends, and say what it still does."""
    phase, told, is_crowded = "", 0.0, False
    while not client.wait_for_end(WATCH_SECONDS):
        try:
            status = client.request("status")
        except TimedOutError:
            continue
        except NoNodeError:
            return
        if not is_crowded and (others := _others(status)):
            is_crowded = True
            narrate(f"  other programs use {others} of the processor, so it takes longer")
        step = status.get("progress")
        if step and (step["phase"] != phase or time.monotonic() - told >= TELL_SECONDS):
            phase, told = step["phase"], time.monotonic()
            narrate(f"  {PHASES.get(phase, phase)}: {step['done']} of {step['total']} {step['unit']}")


def _others(status: Mapping[str, Any]) -> str:
    """The share of the processor that other programs use, if it is large; "" otherwise."""
    percent = (status.get("limits") or {}).get("others") or 0.0
    return f"{percent:.0f} %" if percent >= CROWDED else ""


def status_lines(status: Mapping[str, Any]) -> list[str]:
    """A status in words, in lines of at most 80 columns."""
    state = f"{status.get('state')}, round {status.get('round')}"
    state += f" of {status['rounds']}" if status.get("rounds") else ""
    if status.get("state") == "running" and status.get("phase"):
        state += f", {PHASES.get(status['phase'], status['phase'])}"
    if status.get("state") == "paused" and status.get("paused"):
        state += f", {', '.join(status['paused'])}"
    lines = [
        line("node", f"{state} (process {status.get('pid')})"),
        line("model", f"{status.get('model')} ({status.get('backend')})"),
        line("manifest", f"{status.get('manifest')}, as {status.get('role')}"),
        line("rewards", _rewards(status)),
        line("held-out", _held_out(status)),
    ]
    if status.get("own") is not None and status.get("role") == "generator":
        lines.append(line("last batch", f"{counted(int(status['own']), 'question')} answered"))
    elif status.get("own") is not None:
        groups = int(status["own"]) + int(status.get("external") or 0)
        batch = f"{status['own']} own + {status.get('external') or 0} of others"
        lines.append(line("last batch", f"{batch}, {status.get('informative') or 0} of {groups} informative"))
    if reduced := status.get("reduced"):
        share = f"{reduced['external']} of {reduced['setting']} in an update"
        lines.append(line("external", f"{share}, because the validation accuracy fell"))
    if pool := status.get("pool"):
        lines.append(line("pool", f"{counted(pool['rollouts'], 'rollout')} of others, {size(pool['bytes'])}"))
    if others := _others(status):
        lines.append(line("processor", f"other programs use {others} of it, so rounds take longer"))
    lines += _swarm_lines(status.get("swarm"))
    if rejections := reasons(status.get("rejections") or {}):
        lines.append(line("refused", rejections))
    return lines


def _rewards(status: Mapping[str, Any]) -> str:
    rewards = {"own": status.get("reward_own"), "others": status.get("reward_external")}
    return ", ".join(f"{name} {reward:.2f}" for name, reward in rewards.items() if reward is not None) or "none yet"


def _held_out(status: Mapping[str, Any]) -> str:
    base, last = status.get("held_out_base"), status.get("held_out")
    if not last:
        return "not evaluated yet"
    moments = [last, base] if base and base.get("round") != last.get("round") else [last]
    words = (f"{_share(event.get('accuracy'))} {describe_moment(int(event.get('round') or 0))}" for event in moments)
    return ", ".join(words)


def _swarm_lines(swarm: Mapping[str, Any] | None) -> list[str]:
    if swarm is None:
        return [line("swarm", "none: this node works alone")]
    peers = swarm.get("peers") or ()
    mesh = sum(bool(peer.get("mesh")) for peer in peers)
    lines = [
        line("swarm", f"{swarm.get('state')} as {swarm.get('name')}"),
        line("peers", f"{counted(len(peers), 'connection')}, {mesh} in the mesh"),
        *([line("search", describe_search(search, time.time()))] if (search := swarm.get("search")) else []),
        line("rollouts", f"{swarm.get('rollouts_in', 0)} in, {swarm.get('rollouts_out', 0)} out"),
        line("traffic", f"{size(swarm.get('bytes_in', 0))} in, {size(swarm.get('bytes_out', 0))} out"),
    ]
    if swarm.get("reachable") is not None:
        reach = "from other networks" if swarm["reachable"] else "only by peers that it dials itself"
        lines.append(line("reachable", reach))
    if abs(ahead := float(swarm.get("clock_ahead") or 0)) >= CLOCK_SECONDS:
        how = "behind" if ahead > 0 else "ahead of"
        lines.append(line("clock", f"{abs(ahead):.0f} s {how} the clocks of peers; set it right"))
    if capped := swarm.get("paused"):
        lines.append(line("held back", f"{', '.join(capped)}, by the cap in the settings"))
    if faults := reasons(swarm.get("faults") or {}):
        lines.append(line("faults", f"{faults}; {counted(int(swarm.get('restarts') or 0), 'restart')}"))
    return lines


def _peer_line(peer: Mapping[str, Any]) -> str:
    name, address = printable(peer.get("name", ""))[:19], host_port(printable(peer.get("address", ""))) or "unknown"
    address = address if len(address) <= 21 else f"{address[:20]}…"
    rejected = sum(int(number) for number in (peer.get("rejected") or {}).values())
    direction = {"in": "in", "out": "out"}.get(str(peer.get("direction")), "?")
    traffic = f"{size(peer.get('received', 0)):>8} {size(peer.get('sent', 0)):>8}"
    return f"{name:19} {address:21} {direction:3} {'yes' if peer.get('mesh') else 'no':4} {traffic} {rejected:7}"


def _steer(home: Path | None, method: str, message: str, *, as_json: bool) -> None:
    with connect(Paths.default(home)) as client:
        client.request(method)
    report({"done": method}, message, as_json)


def _share(value: object) -> str:
    return format_share(value) if isinstance(value, int | float) else "unknown"
