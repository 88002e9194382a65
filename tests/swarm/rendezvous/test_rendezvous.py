"""The rendezvous: its keys, what it believes of its program's lines, and how it and a lookup alone run the program."""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sapo_edge.swarm.addresses import neighbourhood
from sapo_edge.swarm.rendezvous import program, rendezvous
from sapo_edge.swarm.rendezvous.lookup import Entry, look_up, short_topic
from sapo_edge.swarm.rendezvous.program import NO_LIBRARY
from sapo_edge.swarm.rendezvous.rendezvous import MAX_OF_ANSWER, Place, Places, Rendezvous, Topic, keys_at, read_line
from sapo_edge.swarm.status import Search
from sapo_edge.swarm.tally import Tally
from tests.defences.defence import fails_without
from tests.swarm.finding.fakes import nobody
from tests.swarm.host.victims import until
from tests.swarm.loop import in_trio, meanwhile
from tests.swarm.rendezvous.mainline import LOOSE, ON_LOOPBACK, start

SWARM, KEY, OTHER_KEY = bytes(range(32)), bytes(20), bytes([1]) * 20
OWN = ("7.5.5.5", 4000)
NOON = 1_800_014_400.0
DAY = 86_400.0


@fails_without("swarm/rendezvous/rendezvous.py", 'swarm, psk, f"{purpose} {day}"', 'swarm, None, f"{purpose} {day}"')
def test_a_key_is_of_one_day_and_of_one_swarm_or_of_volunteers(monkeypatch: pytest.MonkeyPatch) -> None:
    (today,) = keys_at(SWARM, None, NOON)
    assert len(today) == 20 and keys_at(SWARM, None, NOON + 3 * 3600) == [today]
    assert keys_at(SWARM, None, NOON + DAY) != [today] != keys_at(SWARM, bytes(32), NOON)
    before, after = keys_at(SWARM, None, NOON + DAY / 2)
    assert before == today and [after] == keys_at(SWARM, None, NOON + DAY), "around midnight both days count"
    times = iter((NOON, NOON + DAY))
    monkeypatch.setattr(time, "time", lambda: next(times))
    (volunteers,) = rendezvous.volunteer_keys()
    assert volunteers not in (today, *keys_at(b"", None, NOON), *rendezvous.volunteer_keys())


@fails_without("swarm/rendezvous/rendezvous.py", 'if trouble not in ("", *TROUBLES):')
@pytest.mark.parametrize(
    "line",
    ["", "[]", "{}", "null", '{"key": "zz", "peers": []}', '{"key": "00"}', '{"key": "00", "peers": {}}',
     '{"key": "00", "peers": [["1.2.3.4"]]}', '{"key": "00", "peers": [["1.2.3.4", 0]]}',
     '{"key": "00", "peers": [["1.2.3.4", 65536]]}', '{"key": "00", "peers": [["a.example", 80]]}',
     '{"nodes": [], "trouble": "bad"}', '{"nodes": [], "trouble": ["udp"]}',
     '{"key": "00", "peers": [[7, 80]]}', '{"key": "00", "peers": [["1.2.3.4", true]]}',
     '{"key": "00", "peers": [["fe80::1%eth0", 80]]}', "[" * 8000, b"\xff"],
)  # fmt: skip
def test_a_line_that_is_not_valid_is_refused(line: str | bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        read_line(line if isinstance(line, bytes) else line.encode())


@fails_without("swarm/rendezvous/program.py", " if peer[1]][:MAX_PEERS]", "][:MAX_PEERS]")
def test_a_port_that_nobody_listens_at_makes_no_line_invalid(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Anybody may announce port 0 under a swarm's key, and nodes of the DHT keep and return it."""
    import libtorrent

    reads, writes = os.pipe()
    answer = SimpleNamespace(info_hash=KEY.hex(), peers=lambda: [("7.7.7.7", 0), HONEST])

    def pop_alerts() -> list[Any]:
        os.close(writes)
        return [answer]

    monkeypatch.setattr(program, "TICK", 0.0)
    monkeypatch.setattr(program, "known_nodes", lambda session: [])
    monkeypatch.setattr(libtorrent, "dht_get_peers_reply_alert", SimpleNamespace)
    with open(reads) as requests:
        monkeypatch.setattr(sys, "stdin", requests)
        program.run(SimpleNamespace(pop_alerts=pop_alerts), [], [])
    assert read_line(capfd.readouterr().out.encode()).places == (HONEST,)


HONEST = ("5.5.5.5", 4000)
PLACE = st.tuples(st.ip_addresses().map(str), st.integers(1, 65535))


@fails_without("swarm/rendezvous/rendezvous.py", "networks[network] < MAX_OF_NETWORK and ")
@fails_without("swarm/rendezvous/rendezvous.py", "if len(kept) == self._most:")
@given(st.lists(st.lists(PLACE, max_size=60), max_size=30))
@example([[(f"5.{number}.5.5", 4000) for number in range(100)]])
@settings(max_examples=30)
def test_however_many_addresses_are_named_few_are_kept_and_of_a_network_fewer(answers: list[list[Place]]) -> None:
    every, one = Places(lambda: 0.0), Places(lambda: 0.0)
    for answer in answers:
        every.add(answer)
    assert len(every) <= rendezvous.MAX_ANSWERS * MAX_OF_ANSWER
    one.add([place for answer in answers for place in answer])
    networks = Counter(neighbourhood(ip) for ip, _ in iter(one.take, None))
    assert networks.total() <= MAX_OF_ANSWER and all(count <= rendezvous.MAX_OF_NETWORK for count in networks.values())


@fails_without("swarm/rendezvous/rendezvous.py", "(answers).pop()", "([one for one in answers for _ in one]).pop()")
def test_a_dht_node_that_says_more_or_later_than_others_is_heard_no_more() -> None:
    firsts = []
    for seed in range(100):
        places = Places(rng=random.Random(seed))
        for _ in range(7):
            places.add([HONEST])
        places.add([(f"6.6.{number}.1", 4000) for number in range(100)])
        firsts.append(places.take())
    assert firsts.count(HONEST) > 75, "seven of eight say so"


@fails_without("swarm/rendezvous/rendezvous.py", "                self._tried[place] = self._clock()\n")
def test_a_place_is_tried_again_after_a_while() -> None:
    now = 0.0
    places = Places(lambda: now)
    places.add([HONEST])
    places.add([HONEST])
    assert places.take() == HONEST and places.take() is None, "although two nodes name it"
    places.add([HONEST])
    assert places.take() is None
    now = rendezvous.AGAIN_SECONDS
    places.add([HONEST])
    assert places.take() == HONEST


def run_instead(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Run this as the rendezvous' program."""
    monkeypatch.setattr(rendezvous, "command_with", lambda argument: [sys.executable, "-c", code, argument])
    monkeypatch.setattr(rendezvous, "TRY_SECONDS", 0.05)


Contacts = tuple[Place, ...]


@pytest.fixture(scope="module")
def dht() -> Iterator[Contacts]:
    """A node of a real DHT for each version of IP, on this machine."""
    sessions = {host: start([host] * 6, **LOOSE) for host in ("127.0.0.1", "::1")}
    yield tuple((host, own[0].listen_port()) for host, own in sessions.items())
    for session in itertools.chain(*sessions.values()):
        session.pause()


class Run:
    """A rendezvous with a program that the test scripts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: str, file: Path | None = None) -> None:
        self.notices: list[str] = []
        self.tally = Tally(lambda event: self.notices.append(getattr(event, "text", "")))
        self.tried: list[Place] = []
        self.port, self.alone = 0, True
        run_instead(monkeypatch, code)
        monkeypatch.setattr(rendezvous, "TRY_SECONDS_ALONE", 0.05)
        monkeypatch.setattr(rendezvous, "RESTART_SECONDS", 0.05)
        self.topic = Topic(lambda: [KEY], lambda: self.port, lambda: True, lambda: self.alone, self._try)
        self.rendezvous = Rendezvous((("127.0.0.1", 1),), [self.topic], self.tally, file, own=lambda: {OWN})

    async def _try(self, place: Place) -> bool:
        self.tried.append(place)
        return True

    @in_trio()
    async def until(self, condition: Callable[[], object]) -> None:
        """Run it until a condition is true."""
        async with meanwhile(self.rendezvous.run):
            assert await until(condition, 25)


SAYS = "import json, sys; print({!r}, flush=True); sys.stdin.read()"


@fails_without("swarm/rendezvous/rendezvous.py", "if found.key in topic.keys_now():", "if True:")
def test_what_the_dht_names_under_the_swarms_key_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    other = json.dumps({"key": "11" * 20, "peers": [["7.7.7.7", 7]]})
    run = Run(monkeypatch, SAYS.format(other + "\n" + json.dumps({"key": KEY.hex(), "peers": [["5.5.5.5", 4000]]})))
    run.until(lambda: run.tried and "looking for the swarm ... 1 address found, dialling" in run.notices)
    assert run.tried == [("5.5.5.5", 4000)] and run.tally.counts["rendezvous addresses"] == 1


@fails_without("swarm/rendezvous/rendezvous.py", "(ValueError, RecursionError)", "(ZeroDivisionError, RecursionError)")
@fails_without("swarm/rendezvous/rendezvous.py", "if len(pending) > MAX_LINE:")
@pytest.mark.parametrize(
    "code",
    [
        SAYS.format("no json"), SAYS.format('{"key": "00", "peers": 7}'), "",
        "import sys; print('x' * 1_000_000, end='', flush=True); sys.stdin.read()",
    ],
    ids=["no json", "no list", "nothing", "a line without an end"],
)  # fmt: skip
def test_a_program_that_says_nonsense_or_ends_is_started_again(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    run = Run(monkeypatch, code)
    run.until(lambda: run.tally.counts.get("rendezvous programs that ended", 0) >= 2)
    assert run.tried == [] and ("rendezvous lines that were too long" in run.tally.counts) is ("1_000_000" in code)


def test_the_search_for_a_member_is_told_each_thing_once_and_ends_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, "")
    rendezvous = run.rendezvous
    for seconds in range(120):
        if seconds == 20:
            run.topic.places.add([("5.5.5.5", 4000), ("6.5.5.5", 4000), OWN])
            assert run.topic.places.take() and run.topic.places.take()
        rendezvous.look(NOON + seconds)
    assert rendezvous.search == Search(NOON, found=2)
    assert run.notices == [
        "looking for the swarm ...",
        "looking for the swarm ... 2 addresses found, dialling",
        "nobody else learns this now; this node goes on alone, and joins when somebody comes (2 addresses found, none "
        "of a member)",
    ]
    run.alone = False
    rendezvous.look(NOON + 120)
    assert rendezvous.search is None
    rendezvous.trouble, told = "udp", len(run.notices)
    for seconds in (121, 122):
        rendezvous.look(NOON + seconds)
    assert len(run.notices) == told + 1 and "let UDP out" in run.notices[-1] and rendezvous.search is None
    run.alone = True
    rendezvous.look(NOON + 500)
    assert rendezvous.search is not None and rendezvous.search.since == NOON + 500


@pytest.mark.parametrize(
    ("begin", "trouble", "remedy"),
    [
        ("sys.modules['libtorrent'] = None", "library", "pip install libtorrent"),
        ("contacts = [['127.0.0.1', 9]]", "udp", "let UDP out"),
        ("contacts = [['nobody.invalid', 6881]]", "names", "rendezvous IP:PORT"),
    ],
)
def test_one_line_says_why_the_dht_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch, begin: str, trouble: str, remedy: str
) -> None:
    code = (
        "import json, sys; from sapo_edge.swarm.rendezvous import program\n"
        f"contacts = []; {begin}; program.FIRST_SECONDS = 2\n"
        "sys.argv[1] = json.dumps({'contacts': contacts, 'nodes': []})\n"
        "sys.exit(program.main())"
    )
    run = Run(monkeypatch, code)
    run.alone = trouble != "library"
    run.until(lambda: run.rendezvous.trouble == trouble and any(remedy in text for text in run.notices))
    (line,) = [text for text in run.notices if not text.startswith("looking")]
    assert "invites still work" in line and run.tried == []
    assert run.rendezvous.search and run.rendezvous.search.trouble == trouble, "also if it is alone only later"


def test_a_machine_that_is_online_only_later_finds_nodes_then(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begin = "from sapo_edge.swarm.rendezvous import program; program.FIRST_SECONDS = 1\n"
    run = Run(monkeypatch, begin + ON_LOOPBACK)
    run.rendezvous.contacts, before = (("127.0.0.1", port),), ("5.5.5.5", 6881)
    run.rendezvous.nodes = (before,)
    started: list[Any] = []

    def go_on() -> bool:
        search = run.rendezvous.search
        if search and search.trouble == "udp" and not started:
            assert run.rendezvous.nodes == (before,), "those of before are kept"
            # libtorrent keeps no first contact as a node, so others are needed.
            started.extend([*start(["127.0.0.1"], port, **LOOSE), *start(["127.0.0.1"] * 3, **LOOSE)])
            for each in started[1:]:
                each.add_dht_node(("127.0.0.1", port))
        return bool(started) and search is not None and not search.trouble

    run.until(go_on)
    assert run.rendezvous.nodes != (before,)


def test_nodes_are_remembered_for_the_next_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "dht.json"
    run = Run(monkeypatch, SAYS.format(json.dumps({"nodes": [["5.5.5.5", 6881]]})), file)
    run.until(lambda: run.rendezvous.nodes)
    assert json.loads(file.read_text()) == {"nodes": [["5.5.5.5", 6881]]} and run.rendezvous.is_heard
    echo = (
        "import json, sys; nodes = json.loads(sys.argv[1])['nodes']\n"
        "print(json.dumps({'key': '00' * 20, 'peers': nodes}), flush=True); sys.stdin.read()"
    )
    again = Run(monkeypatch, echo, file)
    again.until(lambda: again.tried)
    assert again.tried == [("5.5.5.5", 6881)]
    file.write_text("damaged")
    run = Run(monkeypatch, SAYS.format(json.dumps({"key": KEY.hex(), "peers": [["5.5.5.6", 6881]]})), file)
    run.until(lambda: run.tried)


@fails_without("swarm/rendezvous/rendezvous.py", ", data, abandon_on_cancel=True)", ", data)")
@in_trio(jumps=0)
async def test_a_disk_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    works, written = threading.Event(), threading.Event()

    def write(*_: object) -> None:
        works.wait(10)
        written.set()

    monkeypatch.setattr(rendezvous, "write_atomically", write)
    saved = Rendezvous((), [Topic(list, int)], Tally(), tmp_path / "nodes.json")
    saved.nodes = (OWN,)
    await saved._save()
    assert not written.is_set()
    works.set()


def test_who_is_reached_announces_its_port_and_a_changed_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log, ports = tmp_path / "log", [0, 4000, 4001]
    log.touch()
    run = Run(monkeypatch, f"import sys\nfor line in sys.stdin: open({str(log)!r}, 'a').write(line)")

    def go_on() -> bool:
        asked = [json.loads(line)["port"] for line in log.read_text().splitlines()]
        assert asked == ports[: len(asked)]
        run.port = ports[min(len(asked), 2)]
        return asked == ports

    run.until(go_on)


@in_trio()
async def test_two_clients_find_each_other_in_a_real_dht_and_are_told_of_nodes_of_both_versions_of_ip(
    dht: Contacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = "from sapo_edge.swarm.rendezvous import program; program.FIRST_SECONDS, program.MAX_NODES = 2, 2\n"
    announcing, looking = (Run(monkeypatch, few + ON_LOOPBACK) for _ in range(2))
    announcing.port = 4321
    # Over IPv6; other tests have one with IPv4.
    announcing.rendezvous.contacts, looking.rendezvous.contacts = dht, dht[1:]
    monkeypatch.setattr(rendezvous, "LOOK_SECONDS", 0.5)
    async with meanwhile(announcing.rendezvous.run, looking.rendezvous.run):
        assert await until(lambda: looking.tried, 60)
        assert await until(lambda: [host for host, _ in announcing.rendezvous.nodes] == [host for host, _ in dht], 25)
    assert looking.tried == [("::1", 4321)]


def test_a_topic_is_looked_up_seldom_and_from_the_beginning_when_the_last_member_is_gone() -> None:
    alone, lacks = True, True
    topic = Topic(lambda: [KEY], lambda: 0, lambda: lacks, lambda: alone, nobody)
    looks = [now for now in range(1, 7200) if topic.due(float(now))[0]]
    assert 10 <= len(looks) <= 18 and looks[1] <= 13 and looks[2] - looks[1] >= 16
    alone = False
    assert not topic.due(7200.0)[0] and topic.due(8300.0)[0], "with too few members it goes on"
    lacks = False
    assert not any(topic.due(float(now))[0] for now in range(8400, 12000))
    alone = lacks = True
    assert topic.due(12000.0)[0] and topic.due(12012.0)[0]


@in_trio()
async def test_each_address_comes_with_the_key_under_which_it_was_announced(
    dht: Contacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_instead(monkeypatch, ON_LOOPBACK)
    entry = Entry(dht[:1])
    found: list[tuple[bytes, Place]] = []
    topic = Topic(lambda: [KEY], lambda: 4321)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def keep(key: bytes, place: Place) -> bool:
                found.append((key, place))
                nursery.cancel_scope.cancel()
                return True

            nursery.start_soon(look_up, entry, [topic])
            topics = [short_topic([key], partial(keep, key)) for key in (OTHER_KEY, KEY)]
            nursery.start_soon(look_up, entry, topics)
    assert found == [(KEY, ("127.0.0.1", 4321))]


@in_trio()
async def test_without_libtorrent_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, f"import sys; sys.exit({NO_LIBRARY})")
    entry = Entry(())
    with trio.fail_after(20):
        await look_up(entry, [short_topic([KEY], nobody)])
    assert entry.trouble == "library"


def test_what_runs_for_minutes_looks_every_ten_seconds() -> None:
    topic = short_topic([KEY], nobody, patience=1000.0)
    assert topic.due(1.0)[0] == [] and not topic.lacks(), "not before its time"
    topic = short_topic([KEY], nobody)
    looks = [now for now in range(1, 601) if topic.due(float(now))[0]]
    assert all(8 <= after - before <= 13 for before, after in pairwise(looks)) and len(looks) > 40
