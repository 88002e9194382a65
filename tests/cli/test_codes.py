"""Ways into a swarm: `sapo swarm invite --code` with `join CODE` as two programs, and `sapo swarm find`."""

from __future__ import annotations

import errno
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import trio

from sapo_edge.cli import ending, finding
from sapo_edge.cli.codes import _where_alone
from sapo_edge.state.paths import Paths
from sapo_edge.swarm.addresses import parse_address
from sapo_edge.swarm.codes.code import Code, parse_code, word_list
from sapo_edge.swarm.joining.invite import Swarm, parse_invite
from sapo_edge.swarm.joining.membership import Membership
from sapo_edge.swarm.status import Trouble
from sapo_edge.swarm.visits import find
from sapo_edge.swarm.visits.find import FoundSwarm, SwarmFinder
from sapo_edge.tasks.about import describe_demands, describe_kinds
from sapo_edge.tasks.manifest import Manifest, TaskEntry, load_manifest
from sapo_edge.tasks.question_data import QuestionData
from sapo_edge.tasks.questions import OwnQuestion
from tests.cli.inprocess import Invoke
from tests.cli.process import TIMEOUT, Result, assert_refused, fork
from tests.forked import Forked
from tests.swarm.finding.processes import Relay
from tests.swarm.joining.test_invite import HERE, PEER

STARTER = load_manifest("starter")
PRIVATE = Swarm.of(STARTER, (HERE,), b"k" * 32)


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Homes of an inviter in a private swarm and of a joiner; nothing leaves this machine."""
    monkeypatch.setenv("SAPO_EDGE_LISTEN", "loopback")
    one, two = tmp_path / "one", tmp_path / "two"
    two.mkdir()
    Membership(Paths.default(one).state).join(PRIVATE)
    return one, two


@contextmanager
def offering(home: Path, *arguments: str) -> Iterator[tuple[Forked, Code, list[str]]]:
    """A running `sapo swarm invite --code`, its code, and the commands for the other side."""
    process = fork("swarm", "invite", "--code", "--json", "--home", home, *arguments, directory=home)
    try:
        offer = json.loads(process.stdout.readline())
        yield process, parse_code(offer["code"]), [way["command"] for way in offer["commands"]]
    finally:
        process.kill()
        process.communicate()


def ended(process: Forked) -> Result:
    told = process.communicate(timeout=TIMEOUT)
    return Result(process.wait(), *told)


def run(home: Path, *arguments: str) -> Result:
    return ended(fork(*arguments, "--home", home, directory=home))


def test_a_code_brings_somebody_nearby_into_a_private_swarm(homes: tuple[Path, Path]) -> None:
    one, two = homes
    with offering(one) as (process, code, commands):
        assert commands[0] == f"sapo swarm join {code}" and " --at 127.0.0.1:" in commands[1]
        # Found by multicast on the loopback interface; said aloud and typed with spaces.
        joined = run(two, "swarm", "join", str(code.number), *(word.upper() for word in code.words))
        assert joined.code == 0 and "starter, private" in joined.out, joined.err
        given = ended(process)
    assert given.code == 0 and given.events == [{"v": 1, "given": True}]
    assert [Membership(home / "state").current for home in homes] == [PRIVATE, PRIVATE]


def test_a_wrong_code_is_used_up(homes: tuple[Path, Path]) -> None:
    one, two = homes
    with offering(one) as (process, code, commands):
        at = commands[-1].split(" --at ")[1]
        other = next(word for word in word_list() if word not in code.words)
        wrong = run(two, "swarm", "join", str(Code(code.number, (code.words[0], other))), "--at", at)
        assert wrong.code == 1 and "the words are wrong, or somebody interfered; the code is used up" in wrong.err
        burnt = ended(process)
        assert burnt.code == 1 and "somebody gave a wrong code" in burnt.err and not burnt.out
    assert Membership(two / "state").current is None


def test_ctrl_c_ends_the_code(homes: tuple[Path, Path]) -> None:
    with offering(homes[0]) as (process, _, _):
        process.send_signal(signal.SIGINT)
        result = ended(process)
    assert result.code == 130 and "Traceback" not in result.err and "the code has ended" in result.err


@pytest.mark.parametrize(("words", "typed", "error"), [
    ("join 7-gutar-revolver", "", "no code has the word gutar; did you mean guitar?"),
    ("join", "7 gutar revolver\nmore\n", "no code has the word gutar; did you mean guitar?"),
    ("join 7 guitar", "", "has 1 word instead of 2"),
    ("join 7-guitar-revolver --at no-place:x", "", "'no-place:x' is not an address of a meeting place"),
    (f"join {Swarm.of(STARTER).to_line()} --at localhost", "", "--at is for a code"),
    ("invite --at localhost", "", "add --code"),
])  # fmt: skip
def test_a_mistake_is_named_at_once(invoke: Invoke, tmp_path: Path, words: str, typed: str, error: str) -> None:
    """A code that is typed needs no empty line."""
    assert_refused(invoke("swarm", *words.split(), "--home", tmp_path, typed=typed), 2, error)


def test_a_relay_is_a_meeting_place(homes: tuple[Path, Path], tmp_path: Path) -> None:
    one, two = homes
    relay = Relay(tmp_path / "relay").started()
    try:
        at = f"localhost:{relay.addresses[0].split('/')[4]}"
        with offering(one, "--at", at) as (process, code, commands):
            assert commands[-1] == f"sapo swarm join {code} --at {at}"
            assert run(two, "swarm", "join", str(code), "--at", at).code == 0 and ended(process).code == 0
    finally:
        assert relay.stop() == 0


def test_a_swarm_with_such_a_name_can_still_be_joined(invoke: Invoke, tmp_path: Path) -> None:
    swarm = Swarm(bytes.fromhex(STARTER.digest), "7-guitar-revolver")
    assert invoke("swarm", "join", swarm.to_line(), "--home", tmp_path).code == 0
    assert "7-guitar-revolver, open" in invoke("swarm", "join", "7-guitar-revolver", "--home", tmp_path).out


FAR = "from anywhere if their router forwards a port or a volunteer is found"


@pytest.mark.parametrize(("nearby", "elsewhere", "is_announced", "where"), [
    (True, True, True, "from anywhere"), (True, True, False, f"on the same local network; {FAR}"),
    (False, True, False, FAR), (True, False, False, "on the same local network"), (False, False, False, ""),
])  # fmt: skip
def test_an_offer_says_where_its_code_is_enough(nearby: bool, elsewhere: bool, is_announced: bool, where: str) -> None:
    assert _where_alone(nearby, elsewhere, is_announced) == where


QUESTIONS = tuple(OwnQuestion(f"\u202eWhat is {number}? " + "xx " * 300, "1") for number in range(9))
OWN = replace(STARTER, name="own", tasks=(TaskEntry("mine", questions=QUESTIONS), TaskEntry("sums", "chain_sum")))


def finds(patch: pytest.MonkeyPatch, *manifests: Manifest, interrupt: bool = False, trouble: Trouble = "") -> None:
    """Let a search find the swarms of manifests, one member of each."""

    async def run(finder: SwarmFinder) -> None:
        finder.rendezvous.trouble, finder.rendezvous.nodes = trouble, (("192.0.2.1", 6881),)
        for manifest in manifests:
            finder.swarms[manifest.digest] = FoundSwarm(manifest, {PEER: parse_address(HERE)})
            finder.rendezvous.is_heard = True
            finder._changed()
        if interrupt:
            signal.raise_signal(signal.SIGINT)
        await trio.sleep_forever()

    patch.setenv("SAPO_EDGE_RENDEZVOUS", "192.0.2.1:6881")
    patch.setattr(SwarmFinder, "run", run)
    patch.setattr(find, "SECONDS", 60.0 if interrupt else 0.05)


def test_found_swarms_are_told_with_what_they_ask_and_the_line_that_joins(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finds(monkeypatch, STARTER, OWN)
    shown = invoke("swarm", "find", "--home", tmp_path)
    assert shown.code == 0 and "\u202e" not in shown.out and len(shown.out) < 4000
    assert "starter (comes with sapo, yours), 1 member seen" in shown.out and "easy arithmetic" in shown.out
    assert "own (named by strangers), 1 member seen" in shown.out
    assert "chain sum, 9 questions of people's own" in shown.out
    assert "question    \\u202eWhat is 2?" in shown.out and "What is 3?" not in shown.out
    assert f"answers of up to {STARTER.max_tokens} tokens by your own model" in shown.out
    assert "anybody can read" in shown.err and "nobody was seen of: home, extract" in shown.err
    command = next(line for line in shown.out.splitlines() if line.startswith("sapo swarm join") and "=own+" in line)
    joined = invoke(*command.split()[1:], "--home", tmp_path / "two")
    assert joined.code == 0 and "own, open" in joined.out and HERE in joined.out
    finds(monkeypatch, STARTER, OWN)
    records = [json.loads(line) for line in invoke("swarm", "find", "--json", "--home", tmp_path).out.splitlines()]
    assert [len(record["swarms"]) for record in records] == [1, 2, 2]
    own, starter = records[-1]["swarms"]
    assert own["swarm"] == OWN.digest and not own["shipped"] and own["members"] == 1 and not own["joined"]
    assert max(map(len, own["questions"])) == 200 and starter["questions"] == [] and starter["joined"]
    assert parse_invite(own["invite"]).bootstrap == (HERE,) and parse_invite(starter["invite"]).bootstrap == ()


def test_a_reader_that_leaves_ends_the_search(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finds(monkeypatch, STARTER)
    monkeypatch.setattr(finding, "print_json", Mock(side_effect=BrokenPipeError(errno.EPIPE, "nobody reads")))
    monkeypatch.setattr(ending, "discard_output", lambda: None)
    assert invoke("swarm", "find", "--json", "--home", tmp_path).code == 1


def test_ctrl_c_shows_what_was_found(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finds(monkeypatch, OWN, interrupt=True)
    began = time.monotonic()
    shown = invoke("swarm", "find", "--home", tmp_path)
    assert shown.code == 0 and "own (named by strangers)" in shown.out and time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("trouble", "said"), [("library", "libtorrent is not installed"), ("names", "the names"), ("", "no node of")]
)
def test_one_line_says_why_nothing_can_be_found(
    trouble: Trouble, said: str, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = "by the setting rendezvous (environment SAPO_EDGE_RENDEZVOUS)"
    assert_refused(invoke("swarm", "find", "--home", tmp_path), 2, without)
    finds(monkeypatch, trouble=trouble)
    refused = invoke("swarm", "find", "--home", tmp_path)
    assert refused.code == 1 and refused.out == ""
    assert refused.err.splitlines()[-1].startswith(f"sapo: strangers' swarms can't be found from here: {said}")


def test_a_long_manifest_is_described_in_few_words() -> None:
    names = ("chain_sum", "basic_arithmetic", "leg_counting", "gcd", "lcm", "prime_factorization")
    large = TaskEntry("large", questions=QuestionData(150_000, bytes(32), 12_300_000))
    manifest = replace(STARTER, tasks=(*(TaskEntry(name, name) for name in names), large))
    kinds = "chain sum, basic arithmetic, leg counting, gcd, 2 more kinds, 150000 questions of people's own"
    assert describe_kinds(manifest) == kinds and "12.3 MB of questions are downloaded" in describe_demands(manifest)
