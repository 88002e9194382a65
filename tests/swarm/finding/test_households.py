"""The whole program in two homes that share nothing, in network namespaces: they meet, and learn from each other."""

from __future__ import annotations

import pytest

from tests.swarm.finding.households import tell
from tests.swarm.namespaces import NotPermittedError
from tests.undisturbed import UNDISTURBED


@pytest.mark.parametrize("story", ["strangers, a router that forwards a port"])
def test_two_strangers_train_on_rollouts_of_each_other(story: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in UNDISTURBED:
        monkeypatch.delenv(name)
    try:
        (note,) = tell(story)
    except NotPermittedError as error:
        pytest.skip(str(error))
    assert note.startswith("trained on each other's rollouts")
