"""The whole program in two homes that share nothing, in network namespaces: they meet, and learn from each other."""

from __future__ import annotations

import pytest

from tests.swarm.finding.households import tell
from tests.swarm.javascript import modules, node
from tests.swarm.namespaces import NotPermittedError

__all__ = ["modules", "node"]


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("who", ["a member", "a volunteer"])
def test_two_strangers_train_on_rollouts_of_each_other(who: str) -> None:
    try:
        (note,) = tell(f"strangers, {who}")
    except NotPermittedError as error:
        pytest.skip(str(error))
    assert note.startswith("trained on each other's rollouts")
