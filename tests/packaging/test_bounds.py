"""What `make test-lowest` and `make test-newest` install."""

from __future__ import annotations

from packaging.requirements import Requirement

from tests.packaging.script import load_script


def test_the_lowest_versions_are_the_lower_bounds_and_the_newest_are_left_to_pip() -> None:
    script = load_script("bounds")
    lowest, newest = ([Requirement(line) for line in script.requirements(name)] for name in ("lowest", "newest"))
    assert {"torch", "transformers", "peft", "mlx-lm", "numpy"} <= {line.name for line in lowest}
    for low, new in zip(lowest, newest, strict=True):
        (bound,) = low.specifier
        assert (low.name, low.extras, low.marker) == (new.name, new.extras, new.marker)
        assert bound.operator == "==" and bound.version in new.specifier
