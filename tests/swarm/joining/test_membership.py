"""Membership: a file that is bounded and checked, and manifests that have the digests of their names."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.errors import ConfigError, ManifestError, StateError
from sapo_edge.swarm.joining.invite import MAX_ADDRESSES, Swarm
from sapo_edge.swarm.joining.membership import MAX_FILE_BYTES, MAX_SWARMS, Membership, verify_manifest
from sapo_edge.tasks.manifest import MAX_MANIFEST_BYTES, Manifest, TaskEntry, load_manifest
from sapo_edge.tasks.questions import OwnQuestion
from tests.allocated import memory_below
from tests.defences.defence import fails_without
from tests.swarm.joining.test_invite import BEHIND, HERE, PEER

STARTER = load_manifest("starter")
NINE = load_manifest("reasoning-gym-nine")
QUESTIONS = Manifest("questions", (TaskEntry("mine", questions=(OwnQuestion("1 + 1?", "2"),)),))
OWN = Manifest.from_toml('name = "own"\n[[tasks]]\nname = "sums"\ngenerator = "chain_sum"\n')
KEY, OTHER_KEY = b"k" * 32, b"o" * 32


@fails_without("swarm/joining/membership.py", "tuple(swarm for swarm in self.swarms if swarm != left)", "self.swarms")
def test_a_node_is_in_the_open_swarm_then_in_the_joined_one_then_in_none(tmp_path: Path) -> None:
    membership = Membership(tmp_path / "state")
    assert membership.swarm_of(STARTER) == Swarm.of(STARTER) and membership.swarm_of(NINE) == Swarm.of(NINE)
    private = membership.join(Swarm.of(NINE, (HERE,), KEY))
    assert membership.swarm_of(STARTER) == private == Membership(tmp_path / "state").swarm_of(STARTER)
    assert stat.S_IMODE((tmp_path / "state" / "swarms.json").stat().st_mode) == 0o600
    open_one = membership.join(Swarm.of(NINE))
    assert Membership(tmp_path / "state").swarms == (private, open_one)
    assert membership.leave() == open_one
    again = Membership(tmp_path / "state")
    assert again.swarm_of(STARTER) is None and again.current is None and again.swarms == (private,)
    assert KEY.hex() in (tmp_path / "state" / "swarms.json").read_text()
    again.join(private)
    again.leave()
    assert KEY.hex() not in (tmp_path / "state" / "swarms.json").read_text(), "a key goes with its swarm"
    assert again.leave() is None


def test_members_are_remembered_by_swarm_and_forgotten_with_theirs(tmp_path: Path) -> None:
    membership = Membership(tmp_path)
    other, left = (membership.join(swarm) for swarm in (Swarm.of(NINE), Swarm.of(NINE, (HERE,), KEY)))
    files = [membership.known_peers(swarm) for swarm in (other, left)]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("{}")
    membership.leave()
    assert [file.exists() for file in files] == [True, False]


def test_own_questions_are_in_no_swarm_until_one_is_joined(tmp_path: Path) -> None:
    membership = Membership(tmp_path)
    assert membership.swarm_of(QUESTIONS) is None and membership.swarm_of(OWN) == Swarm.of(OWN)
    private = membership.join(Swarm.of(QUESTIONS, key=KEY))
    assert membership.swarm_of(QUESTIONS) == private


@fails_without("swarm/joining/membership.py", "bootstrap=addresses[:MAX_ADDRESSES]", "bootstrap=addresses")
def test_addresses_of_an_earlier_invite_are_kept_after_the_new_ones(tmp_path: Path) -> None:
    membership = Membership(tmp_path)
    membership.join(Swarm.of(STARTER, (HERE,)))
    assert membership.join(Swarm.of(STARTER, (BEHIND,))).bootstrap == (BEHIND, HERE)
    many = tuple(f"/ip4/192.0.2.{number}/tcp/1/p2p/{PEER}" for number in range(MAX_ADDRESSES))
    assert membership.join(Swarm.of(STARTER, many)).bootstrap == many
    assert len(Membership(tmp_path).swarms) == 1


@fails_without("swarm/joining/membership.py", "(len(name) >= MIN_DIGITS and ", "(")
def test_swarms_are_found_by_name_or_digits(tmp_path: Path) -> None:
    membership = Membership(tmp_path)
    first, second, nine = map(membership.join, (Swarm.of(STARTER), Swarm.of(STARTER, (), KEY), Swarm.of(NINE)))
    assert membership.find("reasoning-gym-nine") == nine
    assert membership.find(second.id.hex()[:8].upper()) == second and membership.find(first.id.hex()) == first
    with pytest.raises(ConfigError, match="2 swarms match starter; give the first digits"):
        membership.find("starter")
    for name in ("nothing", second.id.hex()[:7], ""):
        with pytest.raises(ConfigError, match="neither an invite nor a swarm of yours"):
            membership.find(name)


@fails_without("swarm/joining/membership.py", "(*others, swarm)[-MAX_SWARMS:]", "(*others, swarm)")
@fails_without("swarm/joining/membership.py", 'body["swarms"][:MAX_SWARMS]', 'body["swarms"]')
def test_so_many_swarms_are_remembered_and_read_and_the_oldest_is_forgotten(tmp_path: Path) -> None:
    membership, file = Membership(tmp_path), tmp_path / "swarms.json"
    for number in range(MAX_SWARMS + 3):
        membership.join(Swarm.of(STARTER, tuple([BEHIND] * 8), bytes([number]) * 32))
    known = Membership(tmp_path)
    assert len(known.swarms) == MAX_SWARMS and known.current == known.swarms[-1]
    assert file.stat().st_size < MAX_FILE_BYTES
    body = json.loads(file.read_bytes())
    file.write_text(json.dumps({**body, "swarms": [*body["swarms"], *body["swarms"][:3]]}))
    assert Membership(tmp_path).swarms == known.swarms


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def apply(data: bytes) -> bytes:
        body = json.loads(data)
        change(body)
        return json.dumps(body).encode()

    return apply


@fails_without("swarm/joining/invite.py", "if not _NAME.fullmatch(self.name):")
@fails_without("state/durable.py", "if len(data) > limit:")
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"", lambda data: data[:-20], lambda data: b"[]", lambda data: b"\xff" * 100,
        lambda data: b"[" * 100_000, lambda data: data + b" " * MAX_FILE_BYTES,
        changed(lambda body: body.pop("alone")), changed(lambda body: body.update(v="1")),
        changed(lambda body: body.update(alone=1)), changed(lambda body: body.update(current="00" * 32)),
        changed(lambda body: body.update(swarms={})), changed(lambda body: body["swarms"][0].update(name="../x")),
        changed(lambda body: body["swarms"][0].update(name=7)), changed(lambda body: body["swarms"][0].update(key="k")),
        changed(lambda body: body["swarms"][0].update(manifest="00")),
        changed(lambda body: body["swarms"][0].update(bootstrap=["/ip4/1.2.3.4"])),
        changed(lambda body: body["swarms"][0].update(bootstrap="/ip4")),
        changed(lambda body: body["swarms"][0].update(bootstrap=[7])),
        changed(lambda body: body["swarms"][0].update(joined="x")),
    ],
)  # fmt: skip
def test_a_damaged_file_is_reported_and_not_changed(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    Membership(tmp_path).join(Swarm.of(STARTER, (HERE,), KEY))
    file = tmp_path / "swarms.json"
    file.write_bytes(damage(file.read_bytes()))
    before = file.read_bytes()
    with pytest.raises(StateError, match="is damaged; remove it, and join your swarm again"):
        Membership(tmp_path)
    assert file.read_bytes() == before


def test_a_file_of_a_newer_version_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "swarms.json").write_text('{"v": 2}')
    with pytest.raises(StateError, match="newer sapo-edge; update"):
        Membership(tmp_path)


@fails_without("swarm/joining/membership.py", " or hashlib.sha256(data).digest() != digest:", ":")
@fails_without("swarm/joining/membership.py", "= verify_manifest(data, digest)", "= Manifest.from_bytes(data)")
def test_shipped_manifests_are_known_and_others_are_stored_and_verified(tmp_path: Path) -> None:
    membership = Membership(tmp_path)
    digest = bytes.fromhex(OWN.digest)
    assert membership.manifest(bytes.fromhex(NINE.digest)) == NINE and membership.manifest(digest) is None
    for data in (b"", OWN.to_bytes() + b"\0", NINE.to_bytes(), b"\0" * 100_000):
        with pytest.raises(ManifestError, match="not the requested one"):
            membership.keep_manifest(data, digest)
    assert membership.keep_manifest(OWN.to_bytes(), digest) == OWN == Membership(tmp_path).manifest(digest)
    (file,) = (tmp_path / "manifests").iterdir()
    file.write_bytes(NINE.to_bytes())
    with pytest.raises(StateError, match="is damaged; remove it"):
        membership.manifest(digest)


@fails_without("swarm/joining/membership.py", "len(data) > MAX_MANIFEST_BYTES or ")
def test_a_manifest_that_is_too_large_is_not_parsed_whatever_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Manifest, "from_bytes", lambda data: pytest.fail("it is parsed"))
    data = bytes(MAX_MANIFEST_BYTES + 1)
    with pytest.raises(ManifestError, match="not the requested one"):
        verify_manifest(data, hashlib.sha256(data).digest())


@fails_without("state/durable.py", "file.read(limit + 1)", "file.read()")
def test_files_are_bounded_before_they_are_read(tmp_path: Path) -> None:
    membership = Membership(tmp_path)
    (tmp_path / "manifests").mkdir()
    digest = bytes.fromhex(OWN.digest)
    for file, read in (
        (tmp_path / "manifests" / f"{OWN.digest}.manifest", lambda: membership.manifest(digest)),
        (tmp_path / "swarms.json", lambda: Membership(tmp_path)),
    ):
        file.touch()
        os.truncate(file, 64 * 1024 * 1024)
        with memory_below(8 * 1024 * 1024), pytest.raises(StateError, match="is damaged"):
            read()
