"""Settings that keep the nodes of tests and benchmarks from pausing because of the machine, and from asking its router,
its owner or strangers. They begin with the first round: a head start has tests of its own."""

from __future__ import annotations

UNDISTURBED = {
    "SAPO_EDGE_ON_BATTERY": "run", "SAPO_EDGE_MAX_TEMPERATURE": "0", "SAPO_EDGE_BUSY": "0", "SAPO_EDGE_NICE": "0",
    "SAPO_EDGE_PORT_MAPPING": "off", "SAPO_EDGE_RENDEZVOUS": "off", "SAPO_EDGE_CONSENT": "given",
    "SAPO_EDGE_HEAD_START": "0",
}  # fmt: skip
"""Environment variables."""
