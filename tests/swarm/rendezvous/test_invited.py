"""Invites between homes that share nothing but a public DHT, with the whole program."""

from __future__ import annotations

import pytest

from tests.swarm.finding.households import tell
from tests.swarm.namespaces import NotPermittedError


@pytest.mark.parametrize("story", ["line, a week old", "code, nobody else", "code, a volunteer"])
def test_an_invite_leads_to_a_home_that_nothing_else_names(story: str) -> None:
    try:
        assert tell(story)
    except NotPermittedError as error:
        pytest.skip(str(error))
