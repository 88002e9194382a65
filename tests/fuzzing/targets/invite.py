"""An invite is read or is a ConfigError; written again it is the same invite, and its line has no odd character."""

from __future__ import annotations

import re
from hashlib import sha256

from sapo_edge.errors import ConfigError
from sapo_edge.swarm.joining.invite import MAX_LINE, PREFIX, Swarm, choose_addresses, parse_invite
from tests.fuzzing.target import KIB, Target
from tests.fuzzing.targets.address import ADDRESSES
from tests.swarm.wire.make_vectors import vectors

LINE = re.compile(r"sapo://join/[0-9A-Za-z+=/.:_-]+")


def check(data: bytes) -> None:
    """The text as it is, and its fields with a checksum that is right: a fuzzer can't find one."""
    text = data.decode("utf-8", "replace")
    body = PREFIX + "".join(text.split())
    for line in (text, f"{body}+check={sha256(body.encode()).hexdigest()[:12]}"):
        try:
            invite = parse_invite(line)
        except ConfigError as error:
            assert str(error).isprintable()
            continue
        assert parse_invite(invite.to_line()) == invite
        assert LINE.fullmatch(invite.to_line()) and len(choose_addresses(invite.bootstrap)) <= len(invite.bootstrap)


def seeds() -> list[bytes]:
    lines = [vector["invite"] for vector in vectors("codes.json")]
    lines.append(Swarm(bytes(range(32)), "starter", tuple(map(str, ADDRESSES)), bytes(32)).to_line())
    fields = [line.removeprefix(PREFIX).rpartition("+check=")[0] for line in lines]
    return [text.encode() for text in (*lines, *fields, f"{fields[-1]}+later=1", fields[-1].replace("v=1", "v=2"))]


TARGET = Target(check, seeds, 2 * MAX_LINE + 1, 128 * KIB, 64)
