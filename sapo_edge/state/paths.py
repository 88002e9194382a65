"""The directories: the platform's own, or all below one directory with `--home` or `SAPO_EDGE_HOME`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from sapo_edge.errors import StateError
from sapo_edge.state.durable import check_creatable, make_private_directory

HOME_VARIABLE = "SAPO_EDGE_HOME"
"""Environment variable with one directory for everything."""
_APPLICATION = "sapo-edge"


@dataclass(frozen=True, slots=True)
class Paths:
    """The directories of one installation, all absolute.

    Attributes:
        state: identity, journal, checkpoints, pool, log: data that must not be lost.
        config: the user's settings.
        cache: data that can be created again.
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
            home: one directory for everything; None: `SAPO_EDGE_HOME`, or else the platform's own directories.

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
        # Not XDG_RUNTIME_DIR: it is unset under cron and sudo, and logout removes it while a node may still run. Node
        # and command would then use different sockets.
        return cls(state, config, cache, state / "run")

    @property
    def home(self) -> Path | None:
        """The one directory of all four; None for the platform's own."""
        root = self.state.parent
        return root if self == Paths.default(root) else None

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
        """The saved pool of other nodes' rollouts."""
        return self.state / "pool"

    @property
    def rollback(self) -> Path:
        """A return to an earlier checkpoint that is decided and not complete."""
        return self.state / "rollback.json"

    @property
    def lock(self) -> Path:
        """The lock of the node that uses the state directory."""
        return self.state / "lock"

    @property
    def log(self) -> Path:
        """The node's log; older ones are beside it."""
        return self.state / "sapo-edge.log"

    @property
    def background(self) -> Path:
        """The process that was last started in the background."""
        return self.state / "background.json"

    @property
    def background_output(self) -> Path:
        """Output of that process."""
        return self.state / "background.log"

    @property
    def consent(self) -> Path:
        """The user's consent from the terminal app's first screen."""
        return self.state / "consent.json"

    def create(self) -> None:
        """Create all four directories with mode 0700; existing ones keep their mode.

        Raises:
            StateError: if one can't be created or written to, or if a file is in its place.
        """
        for directory in self._needed():
            make_private_directory(directory)

    def check(self) -> None:
        """Check that `create` would succeed; creates nothing.

        Raises:
            StateError: if it would not.
        """
        for directory in self._needed():
            check_creatable(directory)

    def _needed(self) -> tuple[Path, ...]:
        """The directories that a node writes to, and that of the settings if it has to be created."""
        # Settings may be read-only for a node: under a service manager, or where others manage them.
        settings = () if self.config.is_dir() and os.access(self.config, os.R_OK | os.X_OK) else (self.config,)
        return (self.state, *settings, self.cache, self.runtime)
