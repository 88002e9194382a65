"""`sapo swarm find`: what it prints of the swarms that were found, and why it finds none."""

from __future__ import annotations

import errno
import json
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from sapo_edge.cli import ending, finding
from sapo_edge.swarm.addresses import parse_address
from sapo_edge.swarm.joining.invite import parse_invite
from sapo_edge.swarm.status import Trouble
from sapo_edge.swarm.visits import find
from sapo_edge.swarm.visits.find import FoundSwarm, SwarmFinder
from sapo_edge.tasks.about import describe_demands, describe_kinds
from sapo_edge.tasks.manifest import Manifest, TaskEntry, load_manifest
from sapo_edge.tasks.question_data import QuestionData
from sapo_edge.tasks.questions import OwnQuestion
from tests.cli.inprocess import Invoke
from tests.cli.process import assert_refused
from tests.swarm.joining.test_invite import HERE, PEER

STARTER = load_manifest("starter")
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
    def leave(record: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "nobody reads")

    finds(monkeypatch, STARTER)
    monkeypatch.setattr(finding, "print_json", leave)
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
    finds(monkeypatch, trouble=trouble)
    refused = invoke("swarm", "find", "--home", tmp_path)
    assert refused.code == 1 and refused.out == ""
    assert refused.err.splitlines()[-1].startswith(f"sapo: strangers' swarms can't be found from here: {said}")


def test_who_wants_no_rendezvous_finds_nothing_by_it(invoke: Invoke, tmp_path: Path) -> None:
    setting = "by the setting rendezvous (environment SAPO_EDGE_RENDEZVOUS)"
    assert_refused(invoke("swarm", "find", "--home", tmp_path), 2, setting)


def test_a_long_manifest_is_described_in_few_words() -> None:
    names = ("chain_sum", "basic_arithmetic", "leg_counting", "gcd", "lcm", "prime_factorization")
    large = TaskEntry("large", questions=QuestionData(150_000, bytes(32), 12_300_000))
    manifest = replace(STARTER, tasks=(*(TaskEntry(name, name) for name in names), large))
    kinds = "chain sum, basic arithmetic, leg counting, gcd, 2 more kinds, 150000 questions of people's own"
    assert describe_kinds(manifest) == kinds and "12.3 MB of questions are downloaded" in describe_demands(manifest)
