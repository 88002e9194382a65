"""Invites: one line by which somebody joins a swarm. It may come from anybody, so every part of it is checked.

    sapo://join/v=1+swarm=<manifest digest>+name=starter+at=/ip4/192.0.2.1/tcp/4001/p2p/12D3KooW...+check=<12 digits>

The fields are separated by "+" and not by "?" and "&" as in a web address: shells would take those for their own, and
the line is pasted behind a command. Key and digest are hexadecimal: chat programs take "_" and "*" for markup.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sapo_edge.errors import ConfigError
from sapo_edge.swarm.addresses import Address, parse_address

VERSION = 1
"""Version of the line."""
MAX_LINE = 4096
"""Longest line, in characters."""
MAX_ADDRESSES = 8
"""Most addresses in a line."""
KEY_BYTES = 32
"""Length of a private swarm's key, and of a digest."""
PREFIX = "sapo://join/"
"""How every invite begins."""

_CHECK_DIGITS = 12
_ASK = "ask for the line again, and copy it whole"
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)
_FORM = "/ip4/ADDRESS/tcp/PORT/p2p/PEER-ID"


@dataclass(frozen=True, slots=True)
class Invite:
    """What an invite says. It holds nothing of its maker but the addresses.

    Attributes:
        manifest: digest of what the swarm trains on, 32 bytes.
        name: the manifest's, for people.
        bootstrap: multiaddresses of members.
        key: 32 bytes that all members of a private swarm share; None in an open one.

    Raises:
        ConfigError: if a field is outside its bounds.
    """

    manifest: bytes
    name: str
    bootstrap: tuple[str, ...] = ()
    key: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if len(self.manifest) != KEY_BYTES or (self.key is not None and len(self.key) != KEY_BYTES):
            raise ConfigError(f"the invite's digest or key has not {KEY_BYTES} bytes", _ASK)
        if not _NAME.fullmatch(self.name):
            raise ConfigError("the invite's name is not a name", _ASK)
        if len(self.bootstrap) > MAX_ADDRESSES:
            raise ConfigError(f"the invite has {len(self.bootstrap)} addresses", f"keep at most {MAX_ADDRESSES}")
        for address in self.bootstrap:
            check_address(address)

    def to_line(self) -> str:
        """The line to hand on, of characters that no shell or chat program changes."""
        fields = [f"v={VERSION}", f"swarm={self.manifest.hex()}", f"name={self.name}"]
        fields += [f"at={address}" for address in self.bootstrap]
        fields += [f"key={self.key.hex()}"] if self.key is not None else []
        line = PREFIX + "+".join(fields)
        return f"{line}+check={_checksum(line)}"


def parse_invite(text: str) -> Invite:
    """Read an invite; space, line breaks and quotes that copying brought in are left out.

    Fields that this version doesn't know are ignored: later ones may add some.

    Raises:
        ConfigError: saying what is wrong with the line, and what to do.
    """
    line = _bare(text)
    body, found, check = line.rpartition("+check=")
    if not found or len(check) < _CHECK_DIGITS:
        raise ConfigError("the invite is cut off at its end", _ASK)
    if check != _checksum(body):
        raise ConfigError("the invite's checksum is wrong: a character is missing or changed", _ASK)
    fields = list(_fields(body.removeprefix(PREFIX)))
    version = _only(fields, "v")
    if version != str(VERSION):
        raise ConfigError(
            f"the invite is of version {version[:8]}, which this program doesn't know", "update sapo-edge"
        )
    return Invite(
        manifest=_hex(_only(fields, "swarm"), "swarm"),
        name=_only(fields, "name"),
        bootstrap=tuple(value for name, value in fields if name == "at"),
        key=_hex(_only(fields, "key"), "key") if any(name == "key" for name, _ in fields) else None,
    )


def check_address(text: str) -> str:
    """The multiaddress of a peer, if it is one that can be dialled: host, TCP port, the peer's id; or through a relay.

    Returns:
        The same address in its shortest form.

    Raises:
        ConfigError: if it is none.
    """
    try:
        address = parse_address(text)
        if address.ip is not None and address.ip.is_unspecified:
            raise ValueError("no machine's own address")
    except ValueError as error:
        shown = text[:60].encode("unicode_escape").decode("ascii")
        raise ConfigError(f"{shown} is not an address of a peer: {error}", f"write it as {_FORM}") from error
    return str(address)


def worth_sharing(addresses: Iterable[str]) -> tuple[str, ...]:
    """The addresses that others can use, best first: public ones, relays, names, the local network, this machine.

    Addresses of this machine alone are left out if there is any other. At most `MAX_ADDRESSES`; bad ones are left out.
    """
    ranked: dict[str, int] = {}
    for text in addresses:
        try:
            address = parse_address(check_address(text))
        except ConfigError:
            continue
        ranked[str(address)] = _rank(address)
    best = sorted(ranked, key=lambda text: ranked[text])
    elsewhere = [text for text in best if ranked[text] < _HERE]
    return tuple((elsewhere or best)[:MAX_ADDRESSES])


_HERE = 3


def _rank(address: Address) -> int:
    if address.relay is not None or address.ip is None:
        return 1
    if address.ip.is_loopback or address.ip.is_link_local:
        return _HERE
    return 2 if address.ip.is_private else 0


def _bare(text: str) -> str:
    if len(text) > 2 * MAX_LINE:
        raise ConfigError(f"the invite is longer than {MAX_LINE} characters", _ASK)
    line = "".join(text.split()).strip("'\"`<>.,")
    if not line.startswith(PREFIX):
        raise ConfigError(
            f"that is no invite, which begins with {PREFIX}", "paste the line that `sapo swarm invite` prints"
        )
    if len(line) > MAX_LINE:
        raise ConfigError(f"the invite is longer than {MAX_LINE} characters", _ASK)
    if not line.isascii() or not line.isprintable():
        raise ConfigError("the invite has characters that no invite has", _ASK)
    return line


def _fields(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split("+"):
        name, found, value = part.partition("=")
        if not found:
            raise ConfigError("the invite has a field without a value", _ASK)
        yield name, value


def _only(fields: list[tuple[str, str]], name: str) -> str:
    values = [value for found, value in fields if found == name]
    if len(values) != 1:
        raise ConfigError(f"the invite gives {name!r} {len(values)} times", _ASK)
    return values[0]


def _hex(text: str, what: str) -> bytes:
    if not re.fullmatch(f"[0-9a-f]{{{2 * KEY_BYTES}}}", text):
        raise ConfigError(f"the invite's {what!r} is not {2 * KEY_BYTES} hexadecimal digits", _ASK)
    return bytes.fromhex(text)


def _checksum(line: str) -> str:
    return hashlib.sha256(line.encode("ascii")).hexdigest()[:_CHECK_DIGITS]
