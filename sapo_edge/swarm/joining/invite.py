"""Swarms, and invites to them: one line with which somebody joins. Invites come from strangers: every part is checked.

    sapo://join/v=1+swarm=<manifest digest>+name=starter+at=/ip4/192.0.2.1/tcp/4001/p2p/12D3KooW...+check=<12 digits>

    v        1
    swarm    digest of the manifest, 64 hexadecimal digits
    name     of the manifest
    at       multiaddress of a member; up to `MAX_ADDRESSES` times
    key      only of a private swarm, 64 hexadecimal digits
    check    the last field: first 12 digits of the SHA-256 of everything before it

People paste the line after a command: "+" separates the fields because "?" and "&" mean something to a shell. Key and
digest are hexadecimal because chat programs take "_" and "*" for markup.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sapo_edge.errors import ConfigError, ManifestError
from sapo_edge.swarm.addresses import Address, is_public, parse_address

if TYPE_CHECKING:
    from sapo_edge.tasks.manifest import Manifest

VERSION = 1
MAX_LINE = 4096
"""Longest line, in characters."""
MAX_ADDRESSES = 8
KEY_BYTES = 32
"""Length of a private swarm's key and of a manifest's digest."""
PREFIX = "sapo://join/"

_CHECK_DIGITS = 12
_ASK = "ask for the line again, and copy all of it"
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)
_FORM = "/ip4/ADDRESS/tcp/PORT/p2p/PEER-ID"


def swarm_id(manifest: bytes, key: bytes | None) -> bytes:
    """The id of a swarm, 32 bytes. It is part of topics and signed rollouts: those of one swarm are invalid in another.

    It is the digest of the manifest for an open swarm, and a hash that does not reveal the key for a private one.
    """
    if key is None:
        return manifest
    return hashlib.sha256(b"sapo-edge private swarm v1\0" + manifest + key).digest()


@dataclass(frozen=True, slots=True)
class Swarm:
    """A swarm, as an invite names it.

    Attributes:
        manifest: digest of its manifest, 32 bytes.
        name: of the manifest.
        bootstrap: multiaddresses of members, to dial first.
        key: 32 bytes that all members of a private swarm share; None in an open one.
        joined: Unix seconds.
    """

    manifest: bytes
    name: str
    bootstrap: tuple[str, ...] = ()
    key: bytes | None = field(default=None, repr=False)
    joined: float = field(default_factory=time.time, compare=False)

    def __post_init__(self) -> None:
        if len(self.manifest) != KEY_BYTES or (self.key is not None and len(self.key) != KEY_BYTES):
            raise ConfigError(f"the invite's digest or key is not {KEY_BYTES} bytes", _ASK)
        if not _NAME.fullmatch(self.name):
            raise ConfigError("the invite's name is not a valid name", _ASK)
        if len(self.bootstrap) > MAX_ADDRESSES:
            raise ConfigError(f"the invite has {len(self.bootstrap)} addresses", f"keep at most {MAX_ADDRESSES}")
        for address in self.bootstrap:
            check_address(address)

    @classmethod
    def of(cls, manifest: Manifest, bootstrap: tuple[str, ...] = (), key: bytes | None = None) -> Swarm:
        """The open swarm of a manifest, or the private one with a key.

        A ManifestError if functions of this machine judge its answers: nobody else has them.
        """
        if manifest.functions:
            judged = f"answers to {manifest.name} are judged by a function of this machine, so nobody can join it"
            raise ManifestError(judged, "train on it alone, or let its questions have another check")
        return cls(bytes.fromhex(manifest.digest), manifest.name, bootstrap, key)

    @property
    def id(self) -> bytes:
        return swarm_id(self.manifest, self.key)

    @property
    def is_private(self) -> bool:
        return self.key is not None

    def to_line(self) -> str:
        """An invite to it, in characters that no shell or chat program changes."""
        fields = [f"v={VERSION}", f"swarm={self.manifest.hex()}", f"name={self.name}"]
        fields += [f"at={address}" for address in self.bootstrap]
        fields += [f"key={self.key.hex()}"] if self.key is not None else []
        line = PREFIX + "+".join(fields)
        return f"{line}+check={_checksum(line)}"


def parse_invite(text: str) -> Swarm:
    """The swarm of an invite. Spaces, line breaks and quotes from copying are removed, unknown fields ignored."""
    line = _clean(text)
    body, separator, check = line.rpartition("+check=")
    if not separator or len(check) < _CHECK_DIGITS:
        raise ConfigError("the invite is cut off at its end", _ASK)
    if check != _checksum(body):
        raise ConfigError("the invite's checksum is wrong: a character is missing or changed", _ASK)
    fields = list(_fields(body.removeprefix(PREFIX)))
    version = _single(fields, "v")
    if version != str(VERSION):
        raise ConfigError(f"the invite has version {version[:8]}, which this program doesn't know", "update sapo-edge")
    return Swarm(
        manifest=_decode_hex(_single(fields, "swarm"), "swarm"),
        name=_single(fields, "name"),
        bootstrap=tuple(value for name, value in fields if name == "at"),
        key=_decode_hex(_single(fields, "key"), "key") if any(name == "key" for name, _ in fields) else None,
    )


def check_address(text: str) -> str:
    """A multiaddress with host, TCP port and peer id, or through a relay, in its shortest form; else a ConfigError."""
    try:
        address = parse_address(text)
        if address.ip is not None and address.ip.is_unspecified:
            raise ValueError("it is not the address of one machine")
    except ValueError as error:
        shown = text[:60].encode("unicode_escape").decode("ascii")
        raise ConfigError(f"{shown} is not an address of a peer: {error}", f"write it as {_FORM}") from error
    return str(address)


def choose_addresses(addresses: Iterable[str]) -> tuple[str, ...]:
    """Choose the addresses for an invite, best first: public, through relays or DNS, local network, this machine.

    Addresses that only this machine can use are left out if there are others. So are invalid ones, and those beyond
    `MAX_ADDRESSES`.
    """
    ranked: dict[str, int] = {}
    for text in addresses:
        with suppress(ConfigError):
            address = parse_address(check_address(text))
            ranked[str(address)] = _rank(address)
    best = sorted(ranked, key=lambda text: ranked[text])
    usable = [text for text in best if ranked[text] < _THIS_MACHINE]
    return tuple((usable or best)[:MAX_ADDRESSES])


def leads_elsewhere(addresses: Iterable[str]) -> bool:
    """Whether one of an invite's addresses may be of use outside of this machine's local network."""
    return any(_rank(parse_address(text)) < _LOCAL for text in addresses)


_LOCAL, _THIS_MACHINE = 2, 3


def _rank(address: Address) -> int:
    if address.relay is not None or address.ip is None:
        return 1
    if address.ip.is_loopback or address.ip.is_link_local:
        return _THIS_MACHINE
    return 0 if is_public(address.ip) else _LOCAL


def _clean(text: str) -> str:
    if len(text) > 2 * MAX_LINE:
        raise ConfigError(f"the invite is longer than {MAX_LINE} characters", _ASK)
    line = "".join(text.split()).strip("'\"`<>.,")
    if not line.startswith(PREFIX):
        raise ConfigError(
            f"this is not an invite, which begins with {PREFIX}", "paste the line that `sapo swarm invite` prints"
        )
    if len(line) > MAX_LINE:
        raise ConfigError(f"the invite is longer than {MAX_LINE} characters", _ASK)
    if not line.isascii() or not line.isprintable():
        raise ConfigError("the invite has invalid characters", _ASK)
    return line


def _fields(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split("+"):
        name, separator, value = part.partition("=")
        if not separator:
            raise ConfigError("the invite has a field without a value", _ASK)
        yield name, value


def _single(fields: list[tuple[str, str]], name: str) -> str:
    values = [value for field, value in fields if field == name]
    if len(values) != 1:
        raise ConfigError(f"the invite has {name!r} {len(values)} times", _ASK)
    return values[0]


def _decode_hex(text: str, field: str) -> bytes:
    if not re.fullmatch(f"[0-9a-f]{{{2 * KEY_BYTES}}}", text):
        raise ConfigError(f"the invite's {field!r} is not {2 * KEY_BYTES} hexadecimal digits", _ASK)
    return bytes.fromhex(text)


def _checksum(line: str) -> str:
    return hashlib.sha256(line.encode("ascii")).hexdigest()[:_CHECK_DIGITS]
