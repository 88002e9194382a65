from __future__ import annotations

import pytest

from sapo_edge.policy import UpdateSettings


def test_the_rate_rises_holds_and_falls_or_is_constant() -> None:
    settings = UpdateSettings(learning_rate=1.0, warmup=4, decay_after=16)
    assert [settings.rate(update) for update in (1, 2, 4, 10, 16)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    assert settings.rate(64) == pytest.approx(0.5)
    assert settings.rate(1600) == pytest.approx(0.1)
    constant = UpdateSettings(learning_rate=3e-4, warmup=0, decay_after=0)
    assert {constant.rate(update) for update in (1, 10, 10_000)} == {3e-4}
