"""Members whose packets are lost and late, and a network that falls into two parts and heals.

`python -m tests.swarm.member.network_faults` does the same for longer, and prints figures.
"""

from __future__ import annotations

import pytest

from tests.swarm.member.network_faults import trial
from tests.swarm.namespaces import NotPermittedError


def test_rollouts_arrive_over_a_bad_network_and_after_a_partition() -> None:
    try:
        with trial(2) as it:
            it.bad_network(loss=0.1, delay=0.2, rounds=1)
            it.partition(seconds=3.0)
    except NotPermittedError as error:
        pytest.skip(str(error))
