"""The swarms that this installation knows, and the one that it is in: `swarms.json` in the state directory.

There are three cases. A swarm was joined: the node is in it. The last one was left: the node works alone. Neither: the
node is in the open swarm of its manifest, or works alone on people's own questions: those reach nobody who was not
invited. Manifests of swarms are files in `manifests/`, named by their digests, with the questions that they name so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sapo_edge.errors import ConfigError, ManifestError, StateError
from sapo_edge.fields import check_list, check_number
from sapo_edge.state.durable import make_private_directory, read_bounded, replace_file, reported, write_atomically
from sapo_edge.swarm.joining.invite import MAX_ADDRESSES, Swarm
from sapo_edge.tasks.manifest import MAX_MANIFEST_BYTES, Manifest, load_manifest, shipped_manifests

MAX_SWARMS = 32
MAX_FILE_BYTES = 256 * 1024
MIN_DIGITS = 8
"""Fewest hexadecimal digits that name a swarm or a manifest."""
_VERSION = 1


class Membership:
    """The swarms of one state directory, which need not exist. The file is read once, and written at every change.

    Attributes:
        swarms: all known swarms, the newest last.
        current: the joined swarm; None if none was joined, or the last one was left.
        alone: whether the last one was left.
        kept: directory of the manifests, and of the questions that they name by digest.
    """

    def __init__(self, state: Path) -> None:
        self._file = state / "swarms.json"
        self.kept = state / "manifests"
        self._peers = state / "peers"
        self.swarms: tuple[Swarm, ...] = ()
        self.current: Swarm | None = None
        self.alone = False
        with reported("read", self._file):
            exists = self._file.exists()
        if exists:
            self._read()

    def swarm_of(self, manifest: Manifest) -> Swarm | None:
        """The swarm of a node; None if it works alone.

        If none was ever joined or left, that is the open swarm of the settings' manifest, unless it has own questions.
        """
        if self.alone:
            return None
        return self.current or (None if manifest.own_questions else Swarm.of(manifest))

    def join(self, swarm: Swarm) -> Swarm:
        """Join a swarm, and return it with all its addresses: those known from before follow the new ones."""
        known = next((other for other in self.swarms if other.id == swarm.id), None)
        if known is not None:
            addresses = tuple(dict.fromkeys(swarm.bootstrap + known.bootstrap))
            swarm = replace(swarm, bootstrap=addresses[:MAX_ADDRESSES])
        others = tuple(other for other in self.swarms if other.id != swarm.id)
        self._write((*others, swarm)[-MAX_SWARMS:], swarm, False)
        return swarm

    def leave(self) -> Swarm | None:
        """Leave the joined swarm, if any, and forget it, key and members too; returns it. The node then works alone."""
        left = self.current
        self._write(tuple(swarm for swarm in self.swarms if swarm != left), None, True)
        if left is not None:
            known = self.known_peers(left)
            with reported("remove", known):
                known.unlink(missing_ok=True)
        return left

    def known_peers(self, swarm: Swarm) -> Path:
        """The file that remembers a swarm's members and their addresses."""
        return self._peers / f"{swarm.id.hex()}.json"

    def find(self, name: str) -> Swarm:
        """A known swarm by its name, or by at least `MIN_DIGITS` digits of its id."""
        matches = [
            swarm
            for swarm in self.swarms
            if swarm.name == name or (len(name) >= MIN_DIGITS and swarm.id.hex().startswith(name.lower()))
        ]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise ConfigError(
                f"{len(matches)} swarms match {name}", "give the first digits of an id; `sapo swarm show` lists them"
            )
        raise ConfigError(
            "this is neither an invite nor a swarm of yours", "paste the whole line of `sapo swarm invite`"
        )

    def manifest(self, digest: bytes) -> Manifest | None:
        """The manifest with a digest, shipped or stored; None if it has to be fetched from a peer."""
        for name in shipped_manifests():
            shipped = load_manifest(name)
            if shipped.digest == digest.hex():
                return shipped
        path = self.kept / f"{digest.hex()}.manifest"
        if not path.exists():
            return None
        try:
            return self._read_manifest(path)
        except (ManifestError, ValueError) as error:
            raise StateError(f"{path} is damaged", "remove it; it will be fetched from a peer again") from error

    def manifests(self) -> list[Manifest]:
        """All stored manifests, sorted by name; damaged files are left out."""
        manifests = []
        for path in self.kept.glob("*.manifest"):
            with contextlib.suppress(ManifestError, StateError, ValueError):
                manifests.append(self._read_manifest(path))
        return sorted(manifests, key=lambda manifest: (manifest.name, manifest.digest))

    def keep_manifest(self, data: bytes, digest: bytes, store: Path | None = None) -> Manifest:
        """Verify a manifest from a file or a peer as `verify_manifest` does, and store it.

        Args:
            store: directory of the questions that it names by digest; None: they are not here, or kept already.
        """
        manifest = verify_manifest(data, digest)
        make_private_directory(self.kept)
        path = self.kept / f"{digest.hex()}.manifest"
        with reported("write", path):
            for questions in manifest.data:
                if store is not None and not questions.is_in(self.kept):
                    write_atomically(questions.path(self.kept), questions.path(store).read_bytes())
            write_atomically(path, data)
        return replace(manifest, store=self.kept)

    def _read_manifest(self, path: Path) -> Manifest:
        with reported("read", path):
            data = read_bounded(path, MAX_MANIFEST_BYTES)
        return replace(verify_manifest(data, bytes.fromhex(path.stem)), store=self.kept)

    def _read(self) -> None:
        try:
            with reported("read", self._file):
                body = json.loads(read_bounded(self._file, MAX_FILE_BYTES))
            if isinstance(body["v"], int) and body["v"] > _VERSION:
                raise StateError(f"{self._file} was written by a newer sapo-edge", "update sapo-edge")
            if body["v"] != _VERSION or not isinstance(body["alone"], bool):
                raise ValueError("another format")
            self.swarms = tuple(_swarm_from_dict(item) for item in body["swarms"][:MAX_SWARMS])
            self.alone = body["alone"]
            if body["current"] is not None:
                self.current = next(swarm for swarm in self.swarms if swarm.id.hex() == body["current"])
        except (ValueError, TypeError, KeyError, AttributeError, StopIteration, RecursionError, ConfigError) as error:
            raise StateError(
                f"{self._file} is damaged", "remove it, and join your swarm again with its invite"
            ) from error

    def _write(self, swarms: tuple[Swarm, ...], current: Swarm | None, alone: bool) -> None:
        body = {
            "v": _VERSION,
            "alone": alone,
            "current": None if current is None else current.id.hex(),
            "swarms": [_as_dict(swarm) for swarm in swarms],
        }
        make_private_directory(self._file.parent)
        replace_file(self._file, json.dumps(body, indent=1).encode("ascii"))
        self.swarms, self.current, self.alone = swarms, current, alone


def verify_manifest(data: bytes, digest: bytes) -> Manifest:
    """Decode a manifest; a ManifestError if it has another digest, or is invalid."""
    if len(data) > MAX_MANIFEST_BYTES or hashlib.sha256(data).digest() != digest:
        raise ManifestError("the manifest is not the requested one", "fetch it from another peer")
    return Manifest.from_bytes(data)


def _as_dict(swarm: Swarm) -> dict[str, Any]:
    return {
        "manifest": swarm.manifest.hex(),
        "name": swarm.name,
        "bootstrap": list(swarm.bootstrap),
        "key": None if swarm.key is None else swarm.key.hex(),
        "joined": swarm.joined,
    }


def _swarm_from_dict(fields: Mapping[str, Any]) -> Swarm:
    key = fields["key"]
    return Swarm(
        bytes.fromhex(fields["manifest"]),
        fields["name"],
        tuple(check_list("bootstrap", fields["bootstrap"])),
        None if key is None else bytes.fromhex(key),
        check_number("joined", fields["joined"]),
    )
