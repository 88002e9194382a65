"""What commands share: settings from their layers, the manifest's tasks, the policy for this host."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sapo_edge.config.layers import Resolved, resolve
from sapo_edge.config.settings import Settings
from sapo_edge.errors import ConfigError
from sapo_edge.policy import LoraSettings
from sapo_edge.state.paths import Paths
from sapo_edge.tasks.manifest import load_manifest

if TYPE_CHECKING:
    from sapo_edge.policy import Policy


def narrate(text: str) -> None:
    """Tell the user what takes time, on stderr."""
    print(text, file=sys.stderr, flush=True)


def parse_assignments(assignments: list[str]) -> dict[str, str]:
    """`name=value` pairs of repeated `--set` flags.

    Raises:
        ConfigError: if one has no "=".
    """
    pairs = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment} has no value", "write it as --set name=value")
        pairs[name.strip()] = value.strip()
    return pairs


@dataclass(frozen=True, slots=True)
class Session:
    """Directories and settings of one command."""

    paths: Paths
    resolved: Resolved

    @property
    def settings(self) -> Settings:
        """The resolved settings."""
        return self.resolved.settings


def open_session(home: Path | None, flags: Mapping[str, object], assignments: list[str] | None = None) -> Session:
    """Resolve paths and settings from flags, environment, file, manifest and defaults.

    Raises:
        ConfigError: naming the setting and its source.
        ManifestError: if the manifest can't be used.
    """
    paths = Paths.default(home)
    given: dict[str, object] = {name: value for name, value in flags.items() if value is not None}
    for name, value in parse_assignments(assignments or []).items():
        if name in given:
            raise ConfigError(f"{name} is given twice", "leave one of them out")
        given[name] = value
    suggestions = lambda name: {"max_tokens": load_manifest(name).max_tokens}  # noqa: E731
    return Session(paths, resolve(given, file=paths.config_file, manifest=suggestions))


def open_policy(
    session: Session, workspace: Path, *, trainable: bool, seed: int, say: Callable[[str], None] = narrate
) -> tuple[Policy, tuple[str, ...]]:
    """The policy for this host and these settings, with the reasons of all choices made for the user.

    Args:
        session: the settings.
        workspace: directory for the adapter file that the sampler reads.
        trainable: whether it learns.
        seed: the node's.
        say: told what takes time.
    """
    from sapo_edge.backends.choose import detect
    from sapo_edge.backends.model.find import find_model
    from sapo_edge.node.rounds import adapter_seed

    settings = session.settings
    model = find_model(settings.model)
    return detect.open_policy(
        detect.detect(settings.backend, model),
        model,
        cache=session.paths.cache,
        workspace=workspace,
        lora=LoraSettings(settings.rank, settings.alpha, adapter_seed(seed)),
        threads=settings.threads,
        trainable=trainable,
        narrate=say,
    )
