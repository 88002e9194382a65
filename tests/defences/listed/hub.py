"""Defences of `sapo pull` against what a stranger published on the Hugging Face hub."""

from __future__ import annotations

from tests.defences.defence import Defences

TESTS, STRANGER = "tests/cli/test_push.py", "test_what_a_stranger_published_is_checked"

DEFENCES = (
    Defences("backends/hub/files.py", TESTS).condition(
        "size of a file of the hub", "if size is None or size > limit:", STRANGER
    ),
    Defences("backends/adapter/files.py", TESTS)(
        "weights are finite as float32",
        "{name: np.asarray(array, np.float32) for",
        "{name: array for",
        STRANGER,
    ),
    Defences("sapo_edge/library/pull.py", TESTS)(
        "a stranger's name in a command is quoted",
        'shlex.quote(f"{HUB}{published.base_repository}")',
        'f"{HUB}{published.base_repository}"',
        STRANGER,
    ),
)
