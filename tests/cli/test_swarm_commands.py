"""`sapo swarm` and `sapo answer`: from a manifest to a line, from the line to a swarm, and a person's answers."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from sapo_edge.errors import UnknownTaskError
from sapo_edge.library import workspace
from sapo_edge.node.person import PersonAnswers, draw_question, person_rollout, verify_answers
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.paths import Paths
from sapo_edge.swarm.joining.invite import Swarm, parse_invite
from sapo_edge.swarm.joining.membership import Membership
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from tests.cli.inprocess import FakeNode, Invoke, running
from tests.cli.process import assert_refused
from tests.swarm.joining.test_invite import BEHIND, HERE, PEER

STARTER = load_manifest("starter")
NINE = load_manifest("reasoning-gym-nine")


def test_an_invite_leads_from_one_home_to_another(invoke: Invoke, tmp_path: Path) -> None:
    one, two, own = (tmp_path / name for name in ("one", "two", "own.toml"))
    own.write_text('name = "own-sums"\n[[tasks]]\nname = "sums"\ngenerator = "chain_sum"\n')
    made = invoke("swarm", "create", own, "--private", "--bootstrap", HERE, "--home", one)
    assert made.code == 0 and "own-sums, private" in made.out and "manifest    known" in made.out
    told = invoke("swarm", "invite", "--home", one)
    assert told.code == 0 and told.out.count("\n") == 1 and "join and pass it on" in told.err
    joined = invoke("swarm", "join", told.out.strip(), "--home", two)
    assert joined.code == 0 and "the next `sapo run` fetches it from a peer" in joined.out
    swarms = [Membership(home / "state").current for home in (one, two)]
    swarm = swarms[0]
    assert swarm == swarms[1] and swarm is not None and swarm.key is not None
    key = swarm.key.hex()
    shown = invoke("swarm", "show", "--home", two, "--json")
    record = shown.record
    assert record["v"] == 1 and record["joined"] and key not in shown.out
    assert record["swarm"]["addresses"] == [HERE] and not record["swarm"]["manifest_known"]
    assert key in told.out and key not in made.out + joined.out + made.err + joined.err
    invoke("config", "set", "manifest", "gone.toml", "--home", two).ok()
    left = invoke("swarm", "leave", "--home", two)
    invoke("config", "set", "manifest", "--home", two).ok()
    assert left.out == "left own-sums\n" and "its key is removed" in left.err
    assert "works alone" in invoke("swarm", "show", "--home", two).out
    assert_refused(invoke("swarm", "leave", "--home", two), 1, "in no swarm already")
    assert_refused(invoke("swarm", "invite", "--home", two), 1, "in no swarm; create one")


def test_the_default_is_the_open_swarm_of_the_manifest(invoke: Invoke, tmp_path: Path) -> None:
    shown = invoke("swarm", "show", "--home", tmp_path)
    assert "starter, open; by default" in shown.out and STARTER.digest in shown.out
    assert not (tmp_path / "state").exists()
    told = invoke("swarm", "invite", "--home", tmp_path)
    assert parse_invite(told.out).manifest.hex() == STARTER.digest and "start `sapo run` first" in told.err
    created = invoke("swarm", "create", "--home", tmp_path, "--json")
    assert created.record["swarm"]["id"] == STARTER.digest and "anybody can find it" in created.err
    assert invoke("config", "set", "network", "solo", "--home", tmp_path).code == 0
    assert "network     solo, by the settings" in invoke("swarm", "show", "--home", tmp_path).out
    assert invoke("swarm", "show", "--home", tmp_path, "--json").record["solo"]
    assert "config set network swarm" in invoke("swarm", "join", told.out, "--home", tmp_path).err


def test_two_private_swarms_of_one_manifest_differ(invoke: Invoke, tmp_path: Path) -> None:
    create = ("swarm", "create", "starter", "--private", "--home", tmp_path, "--json")
    ids = {invoke(*create).record["swarm"]["id"] for _ in range(2)}
    assert len(ids) == 2 and STARTER.digest not in ids
    known = invoke("swarm", "show", "--home", tmp_path, "--json").record["known"]
    assert len(known) == 1 and known[0]["id"] in ids
    assert invoke("swarm", "join", known[0]["id"][:10], "--home", tmp_path).code == 0
    assert_refused(invoke("swarm", "join", "starter", "--home", tmp_path), 2, "2 swarms match")


def test_the_swarm_of_own_questions_is_private_unless_asked(invoke: Invoke, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('name = "own"\n[[tasks]]\nname = "mine"\nquestions = [{ question = "1 + 1?", answer = "2" }]\n')
    assert invoke("config", "set", "manifest", own, "--home", tmp_path).code == 0
    assert "none: this node works alone" in invoke("swarm", "show", "--home", tmp_path).out
    assert_refused(invoke("swarm", "invite", "--home", tmp_path), 1, "in no swarm; create one")
    created = invoke("swarm", "create", own, "--home", tmp_path, "--json")
    assert created.record["swarm"]["private"] and "anybody can find it" not in created.err
    assert "what is shared of your 1 question, with those who have the invite of own:" in created.err
    opened = invoke("swarm", "create", own, "--open", "--home", tmp_path, "--json")
    assert not opened.record["swarm"]["private"] and "ANYBODY" in opened.err


def test_nobody_is_invited_to_a_node_that_works_alone(invoke: Invoke, tmp_path: Path) -> None:
    with running(tmp_path, FakeNode({"v": 1, "swarm": None})):
        told = invoke("swarm", "invite", "--home", tmp_path)
    assert told.out == ""
    assert_refused(told, 1, "would lead to nobody", "--solo")
    # Without a terminal nobody was asked.
    assert_refused(told, 1, "sapo run --agree")
    assert invoke("config", "set", "network", "solo", "--home", tmp_path).code == 0
    assert_refused(invoke("swarm", "invite", "--home", tmp_path), 1, "would lead to nobody", "network = swarm")


def test_an_invite_can_be_pasted_in_pieces(invoke: Invoke, tmp_path: Path) -> None:
    text = Swarm.of(STARTER, (HERE,)).to_line()
    assert invoke("swarm", "join", "--home", tmp_path, typed=f"{text[:80]}\n{text[80:]}\nmore\n").code == 0
    assert_refused(invoke("swarm", "join", "--home", tmp_path, typed="\n"), 2, "no invite is given; paste")
    assert_refused(invoke("swarm", "join", text[:-1], "--home", tmp_path), 2, "cut off", "ask for the line again")


def test_checkpoints_of_another_manifest_are_kept(invoke: Invoke, tmp_path: Path) -> None:
    paths = Paths.default(tmp_path)
    paths.create()
    state = Checkpoint(3, "model", STARTER.digest, 1)
    Checkpoints(paths.checkpoints).save(state, lambda directory: (directory / "adapter").touch())
    line = Swarm.of(NINE).to_line()
    for arguments in (("join", line), ("create", "reasoning-gym-nine")):
        result = invoke("swarm", *arguments, "--home", tmp_path)
        assert_refused(result, 1, "holds 3 rounds on starter", "trains on reasoning-gym-nine", "`sapo runs new`")
    assert invoke("swarm", "create", "starter", "--private", "--home", tmp_path).code == 0
    assert invoke("runs", "new", "--home", tmp_path).code == 0
    assert invoke("swarm", "join", line, "--home", tmp_path).code == 0


def test_the_running_nodes_addresses_come_first(invoke: Invoke, tmp_path: Path) -> None:
    invoke("swarm", "create", "--bootstrap", BEHIND, "--home", tmp_path)
    here = [f"/ip4/{ip}/tcp/4001/p2p/{PEER}" for ip in ("127.0.0.1", "8.8.8.8")]
    node = FakeNode({"swarm": {"swarm": STARTER.digest, "addresses": [*here, 7, "\x1b]0;x"]}})
    with running(tmp_path, node):
        assert parse_invite(invoke("swarm", "invite", "--home", tmp_path).out).bootstrap == (here[1], BEHIND)
        node.record["swarm"]["swarm"] = NINE.digest
        other = invoke("swarm", "invite", "--home", tmp_path)
        assert parse_invite(other.out).bootstrap == (BEHIND,) and "not in this swarm" in other.err
        many = [BEHIND.replace("relay", f"relay-{number}") for number in range(8)]
        node.record["swarm"] = {"swarm": STARTER.digest, "addresses": many}
        long = invoke("swarm", "invite", "--home", tmp_path).out
        assert len(long) < 1024 and parse_invite(long).bootstrap == tuple(many[:5])
        assert "until you restart it" in invoke("swarm", "leave", "--home", tmp_path).err
        # A private swarm's invite does not lead to a node of the open one.
        created = invoke("swarm", "create", "--private", "--home", tmp_path, "--json").record
        for swarm, shown in ((STARTER.digest, ()), (created["swarm"]["id"], here[1:])):
            node.record["swarm"] = {"swarm": swarm, "addresses": here}
            told = invoke("swarm", "invite", "--home", tmp_path)
            assert parse_invite(told.out).bootstrap == tuple(shown) and ("not in this swarm" in told.err) == (not shown)


def test_an_invite_waits_for_the_router(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invoke("swarm", "create", "--home", tmp_path)
    home, public = (f"/ip4/{ip}/tcp/4001/p2p/{PEER}" for ip in ("192.168.1.5", "8.8.8.8"))
    swarm = {"swarm": STARTER.digest, "state": "alone"}
    told_by = (("asking", [home]), ("forwards", [home, public]), *2 * [("silent", [home])])
    replies = [{**swarm, "router": router, "addresses": addresses} for router, addresses in told_by]
    node = FakeNode()
    node.status = lambda: {"swarm": replies.pop(0)}  # type: ignore[method-assign]
    with running(tmp_path, node):
        told = invoke("swarm", "invite", "--home", tmp_path)
        assert parse_invite(told.out).bootstrap == (public, home) and "local network" not in told.err
        told = invoke("swarm", "invite", "--home", tmp_path)
        assert parse_invite(told.out).bootstrap == (home,)
        assert "from the same local network only" in told.err and "can invite you instead" in told.err
        monkeypatch.setenv("SAPO_EDGE_RENDEZVOUS", "on")
        monkeypatch.setattr(workspace, "find_spec", lambda name: name)
        told = invoke("swarm", "invite", "--home", tmp_path)
        assert "and from elsewhere if the other side's router or another member's forwards a port" in told.err


def test_an_invite_by_an_ipv6_address_or_loopback_alone_says_whom_it_leads_here(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most home routers let nobody in over IPv6, whatever address they give to a machine."""
    firewalled = "only if this side's firewall lets connections in"
    for ips, is_told in ((("192.168.1.5", "2001:4860::5"), True), (("8.8.8.8", "2001:4860::5"), False)):
        addresses = [f"/ip{6 if ':' in ip else 4}/{ip}/tcp/4001/p2p/{PEER}" for ip in ips]
        with running(tmp_path, FakeNode({"swarm": {"swarm": STARTER.digest, "addresses": addresses}})):
            told = invoke("swarm", "invite", "--home", tmp_path)
        assert (firewalled in told.err, "can invite you instead" in told.err) == (is_told, is_told), ips
    monkeypatch.setenv("SAPO_EDGE_LISTEN", "loopback")
    told = invoke("swarm", "invite", "--home", tmp_path)
    assert told.code == 0 and "from this machine only" in told.err and "local network" not in told.err


def test_answers_are_verified_and_shared_by_the_running_node(invoke: Invoke, tmp_path: Path) -> None:
    source = TaskSource(STARTER)
    question = draw_question(source, 1)
    node = FakeNode(source=source)
    node.question = question.as_dict  # type: ignore[method-assign]
    right, wrong = source.regenerate(question.ref).ground_truth, "wrong"
    with running(tmp_path, node):
        typed = f"{right}\n{wrong}\x1b[2J\n  {wrong} \n{'9' * 5000}\n{'9' * 20_000}\n\n7\n"
        result = invoke("answer", "--home", tmp_path, typed=typed)
        wrong_only = invoke("answer", "--home", tmp_path, "--json", typed="nothing\n")
        told = invoke("answer", "--home", tmp_path, typed="nothing\n")
    assert result.code == 0 and result.out == f"right  {right}\nwrong  {wrong}\n"
    assert question.text in result.err and "control characters" in result.err and result.err.count("too long") == 2
    assert "\x1b" not in result.err and "shared with the swarm" in result.err
    given = node.answers[0]
    task, rewards = verify_answers(source, given)
    rollout = person_rollout(task, given, author="me", round=3, sequence=4)
    assert rewards == (1.0, 0.0) and rollout.question == question.text
    assert [answer.text for answer in rollout.answers] == [f"<answer>{right}</answer>", f"<answer>{wrong}</answer>"]
    assert wrong_only.record["rewards"] == [0.0] and wrong_only.record["shared"]
    assert f"expected {right}" in told.out


def test_answers_that_other_nodes_would_hold_against_this_one_are_not_shared() -> None:
    source = TaskSource(STARTER)
    ref = draw_question(source, 1).ref
    other = next(entry.name for entry in STARTER.tasks if entry.name != ref.entry)
    with pytest.raises(UnknownTaskError, match="does not draw"):
        verify_answers(source, PersonAnswers(replace(ref, entry=other), ("1",), STARTER.digest))


def test_what_is_typed_as_an_answer_is_shared_as_one_and_nothing_as_none(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = FakeNode(source=TaskSource(NINE))
    with running(tmp_path, node):
        assert invoke("answer", "--home", tmp_path, typed="<answer>x</answer>\n32\n").code == 0
        told = invoke("answer", "--home", tmp_path, "--json", typed="").record
        hostile = {**node.question(), "question": "2+2\x1b[2J\x9b\u202e?\nnext"}
        monkeypatch.setattr(node, "question", lambda: hostile)
        none = invoke("answer", "--home", tmp_path, typed="")
    assert told["answers"] == told["rewards"] == [] and told["question"] and not told["shared"]
    assert none.code == 0 and none.out == "" and "nothing is shared" in none.err
    assert "2+2\\x1b[2J\\x9b\\u202e?\nnext" in none.err
    assert [answers.answers for answers in node.answers] == [("<answer>x</answer>", "<answer>32</answer>")]


def test_ctrl_c_while_answering_shares_nothing(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = Mock(**{"isatty.return_value": False, "readline.side_effect": KeyboardInterrupt})
    with running(tmp_path, node := FakeNode(source=TaskSource(STARTER))):
        monkeypatch.setattr(io, "StringIO", lambda _text: typed)
        result = invoke("answer", "--home", tmp_path)
    assert result.code == 130 and result.out == "" and "nothing was shared" in result.err and node.answers == []
