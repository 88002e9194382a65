"""How long hypothesis's state machines run: a moment in CI, for long with `pytest --hypothesis-profile=long`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

LONG = "long"
settings.register_profile(LONG, deadline=None)


def machine_settings(examples: int, steps: int, long: int) -> settings:
    """Of a state machine: runs in CI, most steps of each, and runs with the profile `long`, of four times the steps."""
    is_long = settings.get_current_profile_name() == LONG
    examples, steps = (long, 4 * steps) if is_long else (examples, steps)
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    return settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=checks)
