"""Which swarms this installation knows, and which one it is in: a small file beside the checkpoints.

Three things can be: nothing was ever chosen, and a node is in the open swarm of its manifest; a swarm was joined; or
the last one was left, and the node works alone. The manifests of swarms lie beside the file, each under its digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sapo_edge.errors import ConfigError, ManifestError, StateError
from sapo_edge.fields import check_list, check_number
from sapo_edge.state.durable import make_private_directory, reported, write_atomically
from sapo_edge.swarm.joining.invite import MAX_ADDRESSES, Invite
from sapo_edge.tasks.manifest import MAX_MANIFEST_BYTES, Manifest, load_manifest, shipped_manifests

MAX_SWARMS = 32
"""Most swarms that are remembered."""
MAX_FILE_BYTES = 256 * 1024
"""Largest file."""
MIN_DIGITS = 8
"""Fewest hexadecimal digits by which a swarm or a manifest can be named."""
_VERSION = 1


def swarm_id(manifest: bytes, key: bytes | None) -> bytes:
    """What topics and signatures are bound to, so that nothing of one swarm counts in another.

    Args:
        manifest: its digest, 32 bytes.
        key: of a private swarm, 32 bytes.

    Returns:
        32 bytes. Of an open swarm it is the digest; of a private one a hash that doesn't tell the key.
    """
    if key is None:
        return manifest
    return hashlib.sha256(b"sapo-edge private swarm v1\0" + manifest + key).digest()


@dataclass(frozen=True, slots=True)
class Swarm:
    """One swarm.

    Attributes:
        manifest: digest of what it trains on, 32 bytes.
        name: the manifest's, for people.
        bootstrap: multiaddresses to dial first.
        key: 32 bytes that all members of a private swarm share; None in an open one.
        joined: Unix seconds.

    Raises:
        ConfigError: if a field is outside its bounds.
    """

    manifest: bytes
    name: str
    bootstrap: tuple[str, ...] = ()
    key: bytes | None = field(default=None, repr=False)
    joined: float = field(default_factory=time.time, compare=False)

    def __post_init__(self) -> None:
        self.invite()

    @property
    def id(self) -> bytes:
        """See `swarm_id`."""
        return swarm_id(self.manifest, self.key)

    @property
    def private(self) -> bool:
        """Whether only holders of its key can take part."""
        return self.key is not None

    def invite(self, addresses: tuple[str, ...] | None = None) -> Invite:
        """An invite to it, with these addresses instead of its own ones."""
        return Invite(self.manifest, self.name, self.bootstrap if addresses is None else addresses, self.key)

    @classmethod
    def of(cls, manifest: Manifest, bootstrap: tuple[str, ...] = (), key: bytes | None = None) -> Swarm:
        """The swarm of a manifest: the open one, or the private one of a key."""
        return cls(bytes.fromhex(manifest.digest), manifest.name, bootstrap, key)

    @classmethod
    def from_invite(cls, invite: Invite) -> Swarm:
        """The swarm that an invite leads to."""
        return cls(invite.manifest, invite.name, invite.bootstrap, invite.key)


class Membership:
    """The swarms of one state directory. Reads the file when it is made, writes it at every change.

    Args:
        state: the state directory; it need not exist.

    Attributes:
        swarms: all that are known, the newest last.
        current: the one it is in; None if none was chosen, or the last one was left.
        alone: whether the last one was left.

    Raises:
        StateError: if the file can't be read, is damaged, or is of a newer version.
    """

    def __init__(self, state: Path) -> None:
        self._file = state / "swarms.json"
        self._manifests = state / "manifests"
        self.swarms: tuple[Swarm, ...] = ()
        self.current: Swarm | None = None
        self.alone = False
        if self._file.exists():
            self._read()

    def chosen(self, manifest: Manifest) -> Swarm | None:
        """The swarm that a node takes part in; None if it works alone.

        Args:
            manifest: that the settings name: its open swarm is the one if none was ever chosen.
        """
        if self.alone:
            return None
        return self.current or Swarm.of(manifest)

    def join(self, swarm: Swarm) -> Swarm:
        """Be in a swarm from now on; addresses known of it before are kept behind the new ones.

        Returns:
            The swarm with all its addresses.

        Raises:
            StateError: if the file can't be written.
        """
        known = next((other for other in self.swarms if other.id == swarm.id), None)
        if known is not None:
            addresses = tuple(dict.fromkeys(swarm.bootstrap + known.bootstrap))
            swarm = replace(swarm, bootstrap=addresses[:MAX_ADDRESSES])
        others = tuple(other for other in self.swarms if other.id != swarm.id)
        self._write((*others, swarm)[-MAX_SWARMS:], swarm, False)
        return swarm

    def leave(self) -> Swarm | None:
        """Be alone from now on, and forget the swarm, its key included.

        Returns:
            The one that was left; None if none had been joined.

        Raises:
            StateError: if the file can't be written.
        """
        left = self.current
        self._write(tuple(swarm for swarm in self.swarms if swarm != left), None, True)
        return left

    def find(self, name: str) -> Swarm:
        """A known swarm by its name, or by at least `MIN_DIGITS` digits of its id.

        Raises:
            ConfigError: if there is none, or several.
        """
        found = [
            swarm
            for swarm in self.swarms
            if swarm.name == name or (len(name) >= MIN_DIGITS and swarm.id.hex().startswith(name.lower()))
        ]
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigError(
                f"{len(found)} swarms match {name}", "give the first digits of an id; `sapo swarm show` lists them"
            )
        raise ConfigError(
            "that is neither an invite nor a swarm of yours", "paste the line of `sapo swarm invite` whole"
        )

    def manifest(self, digest: bytes) -> Manifest | None:
        """The manifest of a digest, if it is shipped or was kept; None if a peer must be asked for it.

        Raises:
            StateError: if it is kept and can't be read.
        """
        for name in shipped_manifests():
            shipped = load_manifest(name)
            if shipped.digest == digest.hex():
                return shipped
        path = self._manifests / f"{digest.hex()}.manifest"
        if not path.exists():
            return None
        with reported("read", path), path.open("rb") as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
        try:
            return verified(data, digest)
        except ManifestError as error:
            raise StateError(f"{path} is damaged", "remove it; it is then fetched again from a peer") from error

    def manifests(self) -> list[Manifest]:
        """All manifests that `keep_manifest` has kept, sorted by name; damaged files are left out."""
        manifests = []
        for path in self._manifests.glob("*.manifest"):
            with contextlib.suppress(ManifestError, StateError, ValueError), reported("read", path):
                manifests.append(verified(path.read_bytes(), bytes.fromhex(path.stem)))
        return sorted(manifests, key=lambda manifest: (manifest.name, manifest.digest))

    def keep_manifest(self, data: bytes, digest: bytes) -> Manifest:
        """Check a manifest that came from a file or a peer, and keep it.

        Args:
            data: its canonical bytes.
            digest: that it must have.

        Raises:
            ManifestError: if it is another one, or not valid.
            StateError: if it can't be written.
        """
        manifest = verified(data, digest)
        make_private_directory(self._manifests)
        path = self._manifests / f"{digest.hex()}.manifest"
        with reported("write", path):
            write_atomically(path, data)
        return manifest

    def _read(self) -> None:
        with reported("read", self._file), self._file.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        try:
            body = json.loads(data)
            if isinstance(body["v"], int) and body["v"] > _VERSION:
                raise StateError(f"{self._file} was written by a newer sapo-edge", "update sapo-edge")
            if body["v"] != _VERSION or len(data) > MAX_FILE_BYTES or not isinstance(body["alone"], bool):
                raise ValueError("not of this form")
            self.swarms = tuple(_swarm(item) for item in body["swarms"][:MAX_SWARMS])
            self.alone = body["alone"]
            if body["current"] is not None:
                self.current = next(swarm for swarm in self.swarms if swarm.id.hex() == body["current"])
        except (ValueError, TypeError, KeyError, AttributeError, StopIteration, RecursionError, ConfigError) as error:
            raise StateError(
                f"{self._file} is damaged", "remove it, and join your swarm again by its invite"
            ) from error

    def _write(self, swarms: tuple[Swarm, ...], current: Swarm | None, alone: bool) -> None:
        body = {
            "v": _VERSION,
            "alone": alone,
            "current": None if current is None else current.id.hex(),
            "swarms": [_as_dict(swarm) for swarm in swarms],
        }
        make_private_directory(self._file.parent)
        with reported("write", self._file):
            write_atomically(self._file, json.dumps(body, indent=1).encode("ascii"))
        self.swarms, self.current, self.alone = swarms, current, alone


def verified(data: bytes, digest: bytes) -> Manifest:
    """The manifest that `data` encodes, if it is the one of `digest`.

    Raises:
        ManifestError: if it is another one, or not valid.
    """
    if len(data) > MAX_MANIFEST_BYTES or hashlib.sha256(data).digest() != digest:
        raise ManifestError("the manifest is not the one that was asked for", "fetch it from another peer")
    return Manifest.from_bytes(data)


def _as_dict(swarm: Swarm) -> dict[str, Any]:
    return {
        "manifest": swarm.manifest.hex(),
        "name": swarm.name,
        "bootstrap": list(swarm.bootstrap),
        "key": None if swarm.key is None else swarm.key.hex(),
        "joined": swarm.joined,
    }


def _swarm(found: Mapping[str, Any]) -> Swarm:
    key = found["key"]
    return Swarm(
        bytes.fromhex(found["manifest"]),
        found["name"],
        tuple(check_list("bootstrap", found["bootstrap"])),
        None if key is None else bytes.fromhex(key),
        check_number("joined", found["joined"]),
    )
