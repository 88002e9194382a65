"""The numbers that SECURITY.md and docs/attacks.md promise are those of the code; other tests show what they do."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version
from pathlib import Path

from sapo_edge import authors, room, selection
from sapo_edge.backends.model import gguf_header
from sapo_edge.cli import metrics
from sapo_edge.cli.web import serve, server
from sapo_edge.config.settings import Settings
from sapo_edge.pool import PoolLimits
from sapo_edge.swarm.addresses import HOME_BITS, LOWEST_PORT, neighbourhood, region
from sapo_edge.swarm.addresses import Address as At
from sapo_edge.swarm.finding import circuit, dialing, hop, mapping, mdns, peerbook, router
from sapo_edge.swarm.finding.outside import AGREE
from sapo_edge.swarm.host import hardening, host, identify, pubsub, traffic, work
from sapo_edge.swarm.joining import code, identity
from sapo_edge.swarm.judging import external, reputation
from sapo_edge.swarm.member import config, pull, session
from sapo_edge.tasks import answers, bounded, manifest

MIB = 1024 * 1024
DOCUMENTS = Path(__file__).parents[2]
OFFER, SHARE = hop.MEMBERS_OFFER, Settings().share

SECURITY: dict[str, bool] = {
    "At most 4096 characters are verified": answers.MAX_ANSWER_CHARACTERS == 4096,
    "At most 256 KiB; generators": manifest.MAX_MANIFEST_BYTES == 256 * 1024,
    "a header has at most 64 MiB": gguf_header.MAX_HEADER_BYTES == 64 * MIB,
    "arrays 3 million elements": gguf_header.MAX_ELEMENTS == 3 << 20,
    "for tasks of peers, 5 seconds": external.TASK_SECONDS == 5,
    "10 s for a handshake": host.UPGRADE_SECONDS == 10,
    "30 s for a write": traffic.WRITE_STALLED == 30,
    "share a fortieth of a core": work.ARRIVING_SHARE == 1 / 40,
    "has 10 s and at most 8 KiB": (identify.IDENTIFY_SECONDS, identify.MAX_IDENTIFY_BYTES) == (10, 8192),
    "32 protocols and 16 addresses": (identify.MAX_PROTOCOLS, identify.MAX_ADDRESSES) == (32, 16),
    "among more than 16 others": room.FEW == 16,
    "eight networks": pull.PULLS.max_served == 8,
    "The mesh takes 24 neighbours": pubsub.MAX_MESH == 24,
    "at most a quarter of it": PoolLimits().author_share == 1 / 4,
    "on ports from 1024 on": LOWEST_PORT == 1024,
    "one peer a second, at three addresses at most": dialing.DIALS_PER_SECOND * dialing.ADDRESSES_PER_ATTEMPT == 3,
    "each address once in 10 s": dialing.SAME_HOST_SECONDS == 10,
    "one dial of a public address in 10 s": dialing.SAME_HOST_SECONDS == 10,
    "until two other networks agree": AGREE == 2,
    "with 20 s and 512 MiB": (router.SECONDS, router.MEMORY) == (20, 512 * MIB),
    "more than 512 bytes counts as none": mapping.MAX_OUTPUT == 512,
    "ports below 1024": LOWEST_PORT == 1024,
    "the newest 256 are remembered": mdns.MAX_SERVICES == 256,
    "at most 32 unreached ones": peerbook.MAX_FROM_ONE_SOURCE == 32,
    "16 through one relay": circuit.MAX_CIRCUITS_OF_RELAY == 16,
    "8 circuits of 32 MiB and 30 minutes": (OFFER.circuits, OFFER.circuit_bytes, OFFER.circuit_seconds)
    == (8, 32 * MIB, 1800),
    "one in 5 seconds and of each address one in 50": OFFER.openings[::2] == (1 / 50, 1 / 5),
    "64 KiB a second for all": config.MEMBERS_RATE == 64 * 1024,
    "64 KiB a second": config.MEMBERS_RATE == 64 * 1024,
    "a hundredth of a core for each address, and 12 hundredths": (work.SHARE, work.COMMON) == (0.01, 0.12),
    "4 Mbit/s unless you change it": Settings().upload * 8 == 4_000_000,
    "a second and 256 MB": identity._MEMORY == 256 * MIB,
    "two of 1295 words": (code.WORDS, len(code.word_list())) == (2, 1295),
    "one of 1.7 million pairs": round(len(code.word_list()) ** code.WORDS / 1e6, 1) == 1.7,
    "two tries in 1.7 million a code": True,
    "a minute at first and up to an hour": (reputation.FIRST_IGNORED, reputation.LONGEST_IGNORED) == (60, 3600),
    "256 random bits": "token_urlsafe(256 // 8)" in inspect.getsource(server.PageServer),
    "5 requests a second": metrics.REQUESTS_PER_SECOND == 5,
    "127.0.0.1 alone is listened on": serve.HOST == "127.0.0.1",
    "4 apps at a time": server.MAX_SESSIONS == 4,
    "a factor of 4 each half hour, down to the budget / 16384": (
        authors.STEP,
        PoolLimits().seconds / 2,
        selection.LARGEST_SWARM,
    )
    == (4, 1800, 16384),
    "four budgets a round": room.GENEROUS == 4,
    "Sixty-four networks can take all inbound connections": traffic.MAX_SOCKETS == 64,
    "an IPv4 /24 or IPv6 /48 each": (neighbourhood("9.9.9.9"), neighbourhood("2a00:1:2:3::4"))
    == ("9.9.9.0/24", "2a00:1:2::/48"),
    "(of IPv6, of the /56)": HOME_BITS == 56,
    "several /16 networks": region(At("ip4", "9.9.9.9", 4001, "")) == "9.9.0.0/16",
    "twice at most": bounded.MAX_ABANDONED == 2,
    "py-libp2p** 0.8.1": version("libp2p") == "0.8.1",
}
"""Sentences, and whether they are true."""
OTHERS = (
    "SHA-256", "0600", "0700", "127.0.0.1", "/64", "every failure scores 0", "longer than 5 minutes", "100 nodes", "96",
    "0.70", "0.41", "64 keys", "0.09", "640", "3 simulated hours",
)  # fmt: skip
"""Numbers in SECURITY.md that promise no bound: modes of files, which other tests see, and what was measured."""
ATTACKS: dict[str, bool] = {
    "four requests at a time, 20 s each": (pull.MAX_PULLS, pull.PULLS.answer_seconds) == (4, 20),
    "24 connections at most": traffic.MAX_SOCKETS_PER_ADDRESS == 24,
    "0.3 s are free at the beginning": work.COMMON_BURST == 0.3,
    "0.6 s are free at the beginning": round(work.COMMON_BURST + work.ARRIVING_BURST + session.NEWCOMERS_CHECK_BURST, 9)
    == 0.6,
    "looked at every 50 ms at most": traffic.SHORTEST_DELAY == 0.05,
    "first 5 minutes and 4 rollouts": (reputation.ESTABLISHED_SECONDS, reputation.ESTABLISHED_AFTER) == (300, 4),
    "newcomers' 600 rollouts a minute": reputation.RATE == 600,
    "120 a minute of the network": reputation.NETWORK_RATE == 120,
    "more than 16 others these are an eighth": (room.FEW, room.NEWCOMERS) == (16, 1 / 8),
    "a fifth of that": reputation.NETWORK_RATE / reputation.RATE == 1 / 5,
    "in a round of a minute among 1,000 authors for a quarter of an hour": 840 < 1000 / (SHARE / 60) < 960,
    "up to 3 MiB each": min(hardening.MAX_BUFFERED, traffic.UNREAD_BYTES // 2) == 3 * MIB,
    "7 MiB together": traffic.UNREAD_BYTES * 9 / 8 < 7 * MIB,
}


def text_of(name: str) -> str:
    """A document without the names of what is in the code, on one line."""
    return " ".join(re.sub(r" ?\(?`[^`]*`\)?,? ?", " ", (DOCUMENTS / name).read_text("utf-8")).split())


def test_what_is_promised_is_so() -> None:
    for name, promises in (("SECURITY.md", SECURITY), ("docs/attacks.md", ATTACKS)):
        text = text_of(name)
        assert [phrase for phrase in promises if phrase not in text] == [], f"{name} does not say it like this"
        assert [phrase for phrase, is_so in promises.items() if not is_so] == [], f"{name} says it"


def test_no_number_is_promised_that_is_not_looked_at() -> None:
    text = text_of("SECURITY.md")
    for phrase in (*SECURITY, *OTHERS):
        text = text.replace(phrase, "")
    assert re.findall(r".{0,40}(?<![A-Za-z\d])\d.{0,20}", text) == []
