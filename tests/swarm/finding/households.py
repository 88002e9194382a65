"""Two homes meet as people do it, with the whole program: `python -m tests.swarm.finding.households`.

In one home somebody creates a swarm, runs a node and invites; the other side pastes the line, or types the code, and
runs another node. Each must train on a rollout of the other. The model is tiny and random, and answers are rewarded by
their length, because such a model is never right. Needs root, iproute2, nftables and miniupnpd; a minute a story.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sapo_edge.state.paths import Paths
from sapo_edge.swarm.rendezvous.program import join_port
from tests.forked import Forked
from tests.models import SHAPES, write_model
from tests.swarm.finding.homes import HOMES, forwarded, homes
from tests.swarm.finding.processes import Relay
from tests.swarm.lines import ROOT, LineProcess
from tests.swarm.namespaces import Namespaces, name, run_in
from tests.swarm.rendezvous.mainline import CONTACTS, public_dht
from tests.waiting import wait_until

PROGRAM = "from sapo_edge.cli.main import main; main()"
REWARDED = (
    "from tests.cli.process import rest_between_answers, reward_by_length; reward_by_length(); "
    f"rest_between_answers(0.5); {PROGRAM}"
)
SETTINGS = {
    "own": 2, "external": 2, "answers": 4, "max_tokens": 8, "held_out": 0, "rank": 2,
    "learning_rate": 0.01, "warmup": 0, "threads": 1, "nice": 0, "on_battery": "run",
}  # fmt: skip
SECONDS = 240.0
"""Time in which a node starts, or two train on each other's rollouts, on a machine that is busy with much else."""


class Household(contextlib.ExitStack):
    """A machine in a home, on which somebody types commands; its clock is ahead by so many `days`."""

    def __init__(self, part: str, directory: Path, model: Path) -> None:
        super().__init__()
        self.part, self.days = part, 0
        self.home = directory / part
        self._model = model
        config = self.home / "config"
        config.mkdir(parents=True)
        contacts = ",".join(join_port(*contact) for contact in CONTACTS)
        values = {**SETTINGS, "model": str(model), "rendezvous": contacts}
        (config / "config.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))

    def sapo(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """What a command says on stdout and on stderr when it ends with this code."""
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=SECONDS)
        assert process.wait() == code, err
        return out, err

    def show(self, *arguments: str) -> Any:
        return json.loads(self.sapo(*arguments, "--json")[0])

    def start(self, *arguments: str) -> Forked:
        return Forked(
            "-c", self._code(PROGRAM), *arguments, "--home", str(self.home), directory=ROOT,
            environment={**os.environ, "PYTHONPATH": str(ROOT)}, namespace=name(self.part),
        )  # fmt: skip

    def _code(self, program: str) -> str:
        # The variables of tests, which win over the home's settings, keep nodes from the router and the DHT.
        asks = "import os; [os.environ.pop(f'SAPO_EDGE_{name}', 0) for name in ('RENDEZVOUS', 'PORT_MAPPING')]; "
        ahead = f"import time; now = time.time; time.time = lambda: now() + {self.days * 86400}; " if self.days else ""
        return asks + ahead + program

    def run(self) -> None:
        """`sapo run --agree`; ends with `close`."""
        arguments = ("run", "--agree", "--json", "--home", str(self.home))
        node = LineProcess("-c", self._code(REWARDED), *arguments, namespace=name(self.part))
        self.enter_context(node).first(lambda event: event["event"] == "round", SECONDS)

    def invite(self) -> str:
        return self.sapo("swarm", "invite")[0].strip()

    @property
    def peer_id(self) -> str:
        return str(self.show("identity", "show")["peer_id"])

    def authors(self) -> set[str]:
        """Who wrote the rollouts that its node has trained on."""
        with contextlib.closing(sqlite3.connect(Paths.default(self.home).journal, timeout=10)) as journal:
            return {author for (author,) in journal.execute("SELECT DISTINCT author FROM rollouts WHERE own = 0")}


@dataclass
class Street:
    """Homes, a relay in the open once it is needed, and a manifest that no home has yet."""

    directory: Path
    model: Path
    manifest: Path
    stack: contextlib.ExitStack
    households: list[Household] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def inhabited(self, story: str, homes: int) -> Iterator[None]:
        """People who have nothing yet live there in this context."""
        parts = [f"m{number}" for number in range(1, homes + 1)]
        self.households = [Household(part, self.directory / story, self.model) for part in parts]
        with contextlib.ExitStack() as stack:
            for household in self.households:
                stack.enter_context(household)
            yield

    def relay(self, **options: Any) -> Relay:
        return self.stack.enter_context(Relay(self.directory / "relay", name("relay"), **options)).started()


@contextlib.contextmanager
def street(outside: str, *kinds: str) -> Iterator[Street]:
    """Homes of these kinds; outside is "", "dht", or "volunteer", which is a DHT with a relay that volunteers."""
    with tempfile.TemporaryDirectory() as text, contextlib.ExitStack() as stack:
        directory = Path(text)
        stack.enter_context(homes(directory, *(HOMES[kind] for kind in kinds)))
        model = write_model(directory / "tiny.gguf", SHAPES["llama-gqa"])
        manifest = directory / "own.toml"
        manifest.write_text((ROOT / "sapo_edge/tasks/manifests/starter.toml").read_text().replace("starter", "ours"))
        made = Street(directory, model, manifest, stack)
        if outside:
            stack.enter_context(public_dht())
        if outside == "volunteer":
            made.relay(contacts=CONTACTS)
        yield made


def train(street: Street, one: Household, two: Household) -> None:
    """Wait until each has trained on a rollout of the other."""
    started = time.monotonic()
    pairs = [(one, two.peer_id), (two, one.peer_id)]
    while time.monotonic() < started + SECONDS:
        if all(peer_id in household.authors() for household, peer_id in pairs):
            street.notes.append(f"trained on each other's rollouts after {time.monotonic() - started:.0f} s")
            return
        time.sleep(0.5)
    raise AssertionError([household.show("status") for household in (one, two)])


def by_line(street: Street, *create: str) -> None:
    """One line from the first home, pasted in the second."""
    one, two = street.households[:2]
    one.sapo("swarm", "create", str(street.manifest), *create)
    one.run()
    two.sapo("swarm", "join", one.invite())
    two.run()
    train(street, one, two)


def by_nothing(street: Street) -> None:
    """Strangers who share no line, no code and no address: all only run, and look their swarm up."""
    # Whoever can be reached is there already.
    for household in reversed(street.households):
        household.run()
    train(street, *street.households[:2])


@contextlib.contextmanager
def offered(household: Household, *arguments: str) -> Iterator[tuple[Forked, str, list[str]]]:
    """A running `sapo swarm invite --code`, its code, and the commands that it shows."""
    with household.start("swarm", "invite", "--code", "--json", *arguments) as process:
        try:
            offer = json.loads(process.stdout.readline())
            yield process, offer["code"], [way["command"] for way in offer["commands"]]
        finally:
            process.kill()


def by_code_at_a_member(street: Street) -> None:
    """A code with the inviter's own node as the meeting place, because its router forwards a port."""
    one, two = street.households[:2]
    one.sapo("swarm", "create", str(street.manifest))
    one.run()
    with offered(one) as (inviting, code, commands):
        command = next(text for text in commands if "--at 5.5." in text)
        street.notes.append(command.replace(code, "CODE"))
        two.sapo("swarm", "join", code, "--at", command.split(" --at ")[1])
        assert inviting.wait(SECONDS) == 0
    two.run()
    train(street, one, two)


def by_old_line(street: Street, *create: str) -> None:
    """A line that was made a week ago: the inviter has another public address and another port since."""
    one, two = street.households[:2]
    one.sapo("swarm", "create", str(street.manifest), *create)
    one.run()
    line = one.invite()
    assert "/5.5.1.1/" in line
    one.close()
    run_in("r1", "ip", "address", "delete", "5.5.1.1/16", "dev", "wan")
    Namespaces.address("r1", "wan", "5.5.1.99/16")
    one.sapo("config", "set", "port", "45678")
    one.days = two.days = 7
    one.run()
    started = time.monotonic()
    two.sapo("swarm", "join", line)
    two.run()
    street.notes.append(f"joined and trained a round after {time.monotonic() - started:.0f} s")
    train(street, one, two)


def by_code_alone(street: Street) -> None:
    """Codes between homes that share nothing: the inviter's router forwards a port, then the joiner's."""
    say(street)
    say(street, back=True)
    wait_until(lambda: not forwarded("r1"), 20)


def say(street: Street, back: bool = False) -> None:
    """A code alone brings the second home into the private swarm of the first one, or back."""
    one, two = street.households[:2]
    if not back:
        one.sapo("swarm", "create", str(street.manifest), "--private")
    inviting, joining = (two, one) if back else (one, two)
    with offered(inviting) as (process, code, _):
        started = time.monotonic()
        joining.sapo("swarm", "join", code)
        street.notes.append(f"joined after {time.monotonic() - started:.0f} s")
        out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 0 and json.loads(out) == {"v": 1, "given": True}, err
    ids = [household.show("swarm", "show")["swarm"]["id"] for household in (inviting, joining)]
    assert ids[0] == ids[1]


Story = tuple[str, Sequence[str], Callable[[Street], None]]
FORWARDED, UNREACHED = ("router with UPnP", "router without"), ("router without", "router without")
STORIES: dict[str, Story] = {
    "line, a router that forwards a port": ("", FORWARDED, lambda s: by_line(s, "--private")),
    "line, IPv6 only": ("", ("IPv6 only", "IPv6 only, firewall"), by_line),
    "line, a relay": ("", UNREACHED, lambda s: by_line(s, "--bootstrap", s.relay().addresses[0])),
    "strangers, a router that forwards a port": ("dht", FORWARDED, by_nothing),
    "strangers, a member": ("dht", (*UNREACHED, "router with UPnP"), by_nothing),
    "strangers, a volunteer": ("volunteer", UNREACHED, by_nothing),
    "line, a week old": ("dht", FORWARDED, lambda s: by_old_line(s, "--private")),
    "line, a volunteer": ("volunteer", UNREACHED, by_line),
    "code, nobody else": ("dht", FORWARDED, by_code_alone),
    "code, a volunteer": ("volunteer", UNREACHED, say),
    "code, a member": ("", FORWARDED, by_code_at_a_member),
}
"""What is outside, the kinds of the homes, and what people do."""


def tell(*stories: str) -> list[str]:
    """Play some of `STORIES` in the street of the first, and return what was seen."""
    outside, kinds, _ = STORIES[stories[0]]
    with street(outside, *kinds) as there:
        for story in stories:
            _, kinds, play = STORIES[story]
            with there.inhabited(story, len(kinds)):
                play(there)
        return there.notes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.swarm.finding.households", description=__doc__)
    parser.add_argument("story", nargs="*", choices=[*STORIES, []], help="which; default: all")
    for story in parser.parse_args().story or STORIES:
        started = time.monotonic()
        notes = tell(story)
        print(f"{story}: {time.monotonic() - started:.0f} s", *notes, sep="\n  ", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
