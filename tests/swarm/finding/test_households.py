"""The whole program in two homes that share nothing but a public DHT, in network namespaces."""

from __future__ import annotations

import pytest

from tests.swarm.finding.households import tell
from tests.swarm.namespaces import NotPermittedError


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    "stories",
    [("strangers, a volunteer", "code, a volunteer"), ("code, nobody else", "line, a week old")],
    ids=["a volunteer", "a router that forwards a port"],
)
def test_homes_meet_that_share_nothing(stories: tuple[str, ...]) -> None:
    """Codes and a line lead into a private swarm; strangers train on rollouts of each other."""
    try:
        assert "trained on each other's rollouts" in " ".join(tell(*stories))
    except NotPermittedError as error:
        pytest.skip(str(error))
