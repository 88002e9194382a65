"""All defences, in a file for each part of the swarm."""

from __future__ import annotations

from tests.defences.defence import Defence
from tests.defences.listed import finding, judging, mesh, places, visits

DEFENCES: tuple[Defence, ...] = (
    *finding.DEFENCES,
    *judging.DEFENCES,
    *mesh.DEFENCES,
    *places.DEFENCES,
    *visits.DEFENCES,
)
