"""Defences in `sapo_edge/library/`: what leaves the machine, which code runs, and what is said of it."""

from __future__ import annotations

from tests.defences.defence import Defences

python = Defences("sapo_edge/library/python.py", "tests/unit/library/test_python.py")
curves = Defences("sapo_edge/library/curves.py", "tests/unit/library/test_curves.py")
environments = Defences("sapo_edge/library/environments.py", "tests/unit/library/test_environments.py")

DEFENCES = (
    python.condition(
        "a setting shares nothing from Python",
        'if "network" in settings:',
        "test_mistakes_are_told_with_what_to_do",
    ),
    curves(
        "no password of a library's words is shown",
        're.sub(r"(?<=//)[^/\\s@]*@|\\?\\S+", "", str(error).partition("\\n")[0])',
        'str(error).partition("\\n")[0]',
        "test_an_error_is_told_once_and_ends_the_curves",
    ),
    environments.condition(
        "an environment runs once its owner has agreed",
        "if not self._agreed(named):",
        "test_a_manifest_is_judged_by_what_its_owner_has_agreed_to_and_nothing_else",
    ),
)
