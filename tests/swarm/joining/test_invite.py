"""Invites: what a line contains, and that damaged, changed and forged ones are rejected."""

from __future__ import annotations

import hashlib
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.errors import ConfigError
from sapo_edge.swarm.joining.invite import MAX_ADDRESSES, MAX_LINE, Swarm, check_address, choose_addresses, parse_invite
from tests.defences.defence import fails_without

PEER = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
RELAY = "12D3KooWHdiAxVd8uMQR1hGWXccidmfCwLqcMpGwR6QcTP6QRMuD"
HERE = f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}"
BEHIND = f"/dns4/relay.example.org/tcp/443/p2p/{RELAY}/p2p-circuit/p2p/{PEER}"
DIGEST = bytes(range(32))
KEY = bytes(range(100, 132))
INVITE = Swarm(DIGEST, "starter", (HERE, BEHIND), KEY)
LINE = INVITE.to_line()


def sealed(body: str) -> str:
    """A line with the right checksum, whatever it says."""
    return f"{body}+check={hashlib.sha256(body.encode()).hexdigest()[:12]}"


BODY = LINE.rpartition("+check=")[0]


@given(
    st.binary(min_size=32, max_size=32),
    st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,63}", fullmatch=True),
    st.lists(st.sampled_from([HERE, BEHIND, f"/ip6/2001:db8::1/tcp/1/p2p/{PEER}"]), max_size=MAX_ADDRESSES),
    st.none() | st.binary(min_size=32, max_size=32),
)
def test_a_line_contains_the_whole_invite_and_no_shell_changes_it(
    digest: bytes, name: str, addresses: list[str], key: bytes | None
) -> None:
    invite = Swarm(digest, name, tuple(addresses), key)
    line = invite.to_line()
    assert parse_invite(line) == invite
    assert len(line) <= MAX_LINE and shlex.quote(line).strip("'") == line
    assert re.fullmatch(r"[A-Za-z0-9:/.=+_-]+", line), "zsh, fish and PowerShell leave these alone, too"


@fails_without("swarm/joining/invite.py", "bytes | None = field(default=None, repr=False)", "bytes | None = None")
def test_the_key_is_in_the_line_and_not_in_the_repr() -> None:
    assert KEY.hex() in LINE and KEY.hex() not in repr(INVITE) and str(KEY) not in repr(INVITE)
    assert "key=" not in Swarm(DIGEST, "starter").to_line()


@fails_without("swarm/joining/invite.py", "if len(self.manifest) != KEY_BYTES or", "if False and")
@pytest.mark.parametrize(
    ("digest", "key"), [(DIGEST[:-1], KEY), (DIGEST + b"x", None), (DIGEST, KEY[:-1]), (DIGEST, b"")]
)
def test_a_digest_and_a_key_have_32_bytes(digest: bytes, key: bytes | None) -> None:
    with pytest.raises(ConfigError, match="not 32 bytes"):
        Swarm(digest, "starter", (), key)


@pytest.mark.parametrize(
    "text",
    [
        f"  {LINE}\n", f"'{LINE}'", f"<{LINE}>", f"{LINE}.", f"{LINE[:50]}\n  {LINE[50:]}\r\n",
        sealed(f"{BODY}+relay=yes"),
    ],
)  # fmt: skip
def test_characters_from_copying_and_fields_of_later_versions_are_ignored(text: str) -> None:
    assert parse_invite(text) == INVITE


@fails_without("swarm/joining/invite.py", "if not separator or len(check) < _CHECK_DIGITS:")
def test_a_line_that_is_cut_off_anywhere_is_rejected() -> None:
    for length in range(len("sapo://join/"), len(LINE)):
        with pytest.raises(ConfigError, match="cut off at its end; ask for the line again"):
            parse_invite(LINE[:length])


@fails_without("swarm/joining/invite.py", "if check != _checksum(body):")
@given(st.integers(len("sapo://join/"), len(LINE) - 1), st.sampled_from("0aZ=/+x "))
def test_a_changed_or_missing_character_is_noticed(position: int, character: str) -> None:
    changed = LINE[:position] + character + LINE[position + 1 :]
    if changed != LINE:
        with pytest.raises(ConfigError, match=r"checksum is wrong|cut off"):
            parse_invite(changed)


@fails_without("swarm/joining/invite.py", "if not _NAME.fullmatch(self.name):")
@fails_without("swarm/joining/invite.py", "if len(self.bootstrap) > MAX_ADDRESSES:")
@fails_without("swarm/joining/invite.py", "check_address(address)", "pass")
@fails_without("swarm/joining/invite.py", "if version != str(VERSION):")
@fails_without("swarm/joining/invite.py", "if len(values) != 1:", "if not values:")
@fails_without("swarm/joining/invite.py", 'if not re.fullmatch(f"[0-9a-f]{{{2 * KEY_BYTES}}}", text):')
@fails_without("swarm/joining/invite.py", "if len(text) > 2 * MAX_LINE:")
@fails_without("swarm/joining/invite.py", "if len(line) > MAX_LINE:")
@fails_without("swarm/joining/invite.py", "if not line.isascii() or not line.isprintable():")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "this is not an invite"),
        ("https://example.org", "this is not an invite, which begins with sapo://join/"),
        ("sapo://join/" + "x" * MAX_LINE, "longer than"),
        pytest.param("x" * 10_000_000, "longer than", id="endless"),
        (sealed(BODY.replace("v=1", "v=2")), "has version 2, which this program doesn't know; update"),
        (sealed(BODY.replace("v=1", "v=\\")), "has version"),
        (sealed(BODY.replace("v=1+", "")), "has 'v' 0 times"),
        (sealed(BODY + "+name=other"), "has 'name' 2 times"),
        (sealed(BODY + f"+key={KEY.hex()}"), "has 'key' 2 times"),
        (sealed(BODY + "+what"), "without a value"),
        (sealed(BODY.replace(DIGEST.hex(), DIGEST.hex()[2:])), "'swarm' is not 64 hexadecimal digits"),
        (sealed(BODY.replace(KEY.hex(), KEY.hex().upper())), "'key' is not 64 hexadecimal digits"),
        (sealed(BODY.replace("name=starter", "name=../../etc")), "name is not a valid name"),
        (sealed(BODY + "+at=/ip4/1.2.3.4"), "/ip4/1.2.3.4 is not an address of a peer"),
        (sealed(BODY + "".join(f"+at={HERE}" for _ in range(7))), "9 addresses; keep at most 8"),
        (LINE.replace("starter", "st\x1b[31marter"), "invalid characters"),
        (LINE.replace("starter", "stаrter"), "invalid characters"),
    ],
)  # fmt: skip
def test_an_invalid_line_is_rejected_with_its_reason(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        parse_invite(line)
    assert len(str(error.value)) < 300 and str(error.value).isprintable()


@fails_without("swarm/joining/invite.py", "if address.ip is not None and address.ip.is_unspecified:")
@fails_without("swarm/joining/invite.py", 'shown = text[:60].encode("unicode_escape").decode("ascii")', "shown = text")
@pytest.mark.parametrize(
    "address",
    ["", "/", "ip4/192.0.2.1", f"/ip4/999.0.2.1/tcp/1/p2p/{PEER}", f"/ip4/0.0.0.0/tcp/1/p2p/{PEER}",
     f"/ip4/192.0.2.1/tcp/0/p2p/{PEER}", f"/ip4/192.0.2.1/tcp/65536/p2p/{PEER}", "/ip4/192.0.2.1/tcp/1",
     f"/ip4/192.0.2.1/udp/1/quic-v1/p2p/{PEER}", f"/unix/tmp/p2p/{PEER}", f"/ip4/192.0.2.1/tcp/1/p2p/{PEER[:-9]}0OIl",
     f"{HERE}/p2p-circuit", f"/ip4/192.0.2.1/tcp/１/p2p/{PEER}", f"{HERE}\x1b[2J",
     f"/dns4/{'a' * 400}/tcp/1/p2p/{PEER}", f"/ip6/nonsense/tcp/1/p2p/{PEER}", f"{HERE}\n",
     f"{BEHIND}/p2p-circuit/p2p/{RELAY}", "/p2p-circuit" * 40],
)  # fmt: skip
def test_addresses_that_nobody_can_dial_are_rejected(address: str) -> None:
    with pytest.raises(ConfigError, match="is not an address of a peer") as error:
        check_address(address)
    assert str(error.value).isprintable()


def test_the_best_addresses_are_chosen() -> None:
    public, home, local = (f"/ip4/{ip}/tcp/4001/p2p/{PEER}" for ip in ("8.8.8.8", "192.168.1.5", "127.0.0.1"))
    assert choose_addresses([local, home, BEHIND, "nonsense", public, home]) == (public, BEHIND, home)
    assert choose_addresses([local]) == (local,), "two nodes on one machine"
    assert len(choose_addresses([f"/ip4/8.8.8.{number}/tcp/1/p2p/{PEER}" for number in range(20)])) == MAX_ADDRESSES
