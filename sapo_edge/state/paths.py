"""Where everything lives: XDG directories, or all below one directory with `--home` or `SAPO_EDGE_HOME`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from sapo_edge.errors import StateError
from sapo_edge.state.durable import make_private_directory

HOME_VARIABLE = "SAPO_EDGE_HOME"
"""Environment variable that puts everything below one directory."""
_APPLICATION = "sapo-edge"


@dataclass(frozen=True, slots=True)
class Paths:
    """The directories of one installation, all absolute.

    Attributes:
        state: what must not be lost: identity, journal, checkpoints, log.
        config: what the user writes.
        cache: what can be fetched again: models.
        runtime: the control socket.
    """

    state: Path
    config: Path
    cache: Path
    runtime: Path

    @classmethod
    def default(cls, home: Path | None = None) -> Paths:
        """The directories to use; creates nothing.

        Args:
            home: one directory for everything; without it `SAPO_EDGE_HOME`, and without that the platform's own places.

        Raises:
            StateError: if a home directory can't be determined.
        """
        if home is None and (named := os.environ.get(HOME_VARIABLE, "").strip()):
            home = Path(named)
        try:
            if home is not None:
                root = Path(os.path.abspath(home.expanduser()))
                return cls(root / "state", root / "config", root / "cache", root / "run")
            state = platformdirs.user_state_path(_APPLICATION, appauthor=False).absolute()
            config = platformdirs.user_config_path(_APPLICATION, appauthor=False).absolute()
            cache = platformdirs.user_cache_path(_APPLICATION, appauthor=False).absolute()
        except RuntimeError as error:
            raise StateError(
                f"this user has no home directory: {error}", f"name one with --home or {HOME_VARIABLE}"
            ) from error
        # Not XDG_RUNTIME_DIR: it is unset under cron and sudo, and logout removes it while a node may go on, so that
        # node and command would look for each other in different places.
        return cls(state, config, cache, state / "run")

    @property
    def config_file(self) -> Path:
        """The user's settings, TOML."""
        return self.config / "config.toml"

    @property
    def journal(self) -> Path:
        """The SQLite journal of rounds, rollouts and events."""
        return self.state / "journal" / "journal.sqlite"

    @property
    def checkpoints(self) -> Path:
        """Directory of the checkpoints."""
        return self.state / "checkpoints"

    @property
    def identity(self) -> Path:
        """The node's secret."""
        return self.state / "identity"

    @property
    def pool(self) -> Path:
        """Rollouts of others that wait to be trained on."""
        return self.state / "pool"

    @property
    def lock(self) -> Path:
        """Held by the one node that uses the state directory."""
        return self.state / "lock"

    @property
    def log(self) -> Path:
        """The node's log; two older ones stand beside it."""
        return self.state / "sapo-edge.log"

    @property
    def background(self) -> Path:
        """Which process was started in the background last."""
        return self.state / "background.json"

    @property
    def background_output(self) -> Path:
        """What that process says, beside its log."""
        return self.state / "background.log"

    @property
    def consent(self) -> Path:
        """What the owner agreed to on the terminal app's first screen."""
        return self.state / "consent.json"

    def create(self) -> None:
        """Create all four directories with mode 0700; those that exist keep their mode.

        Raises:
            StateError: if one can't be created or written to, or if a file is in its place.
        """
        for directory in (self.state, self.config, self.cache, self.runtime):
            make_private_directory(directory)
