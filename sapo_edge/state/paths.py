"""The directories: the platform's own, or all below one directory with `--home` or `SAPO_EDGE_HOME`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from sapo_edge.errors import ConfigError, StateError
from sapo_edge.state.durable import check_creatable, make_private_directory, state_error

HOME_VARIABLE = "SAPO_EDGE_HOME"
"""Environment variable with one directory for everything."""
FIRST_RUN = "first"
"""Name of the run which nodes continue until another one is chosen."""
IDENTITIES = ("identity", "relay-identity")
"""Files in the state directory with the secret keys of node and relay."""
_APPLICATION = "sapo-edge"
_RUN_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


def check_run_name(name: str) -> str:
    """The name of a run, which names its directory, too.

    Raises:
        ConfigError: if it has other characters than small letters, digits and hyphens, or more than 40.
    """
    if not _RUN_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} can't be the name of a run", "use up to 40 small letters, digits and hyphens: my-run-2"
        )
    return name


@dataclass(frozen=True, slots=True)
class RunPaths:
    """What one run has for itself."""

    directory: Path

    @property
    def journal(self) -> Path:
        """The SQLite journal of rounds, rollouts and events."""
        return self.directory / "journal" / "journal.sqlite"

    @property
    def checkpoints(self) -> Path:
        """Directory of the checkpoints."""
        return self.directory / "checkpoints"

    @property
    def pool(self) -> Path:
        """The saved pool of other nodes' rollouts."""
        return self.directory / "pool"

    @property
    def rollback(self) -> Path:
        """A return to an earlier checkpoint that is decided and not complete."""
        return self.directory / "rollback.json"

    @property
    def looked(self) -> Path:
        """The last round that somebody has seen in the terminal app."""
        return self.directory / "looked"


@dataclass(frozen=True, slots=True)
class Paths:
    """The directories of one installation, all absolute.

    Attributes:
        state: identity, journal, checkpoints, pool, log: data that must not be lost.
        cache: data that can be created again.
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
    def runs(self) -> Path:
        """Directory of all runs."""
        return self.state / "runs"

    @property
    def current_run(self) -> Path:
        """The file that names the run which nodes continue; missing until one is chosen."""
        return self.state / "current-run"

    @property
    def run_name(self) -> str:
        """The run which nodes continue. It changes only while no node runs."""
        try:
            return check_run_name(self.current_run.read_text("ascii").strip())
        except FileNotFoundError:
            return FIRST_RUN
        except OSError as error:
            raise state_error(error, "read", self.current_run) from error
        except (ValueError, ConfigError) as error:
            raise StateError(
                f"{self.current_run} does not name a run", f"choose one of those in {self.runs} with `sapo runs use`"
            ) from error

    def run_of(self, name: str) -> RunPaths:
        """The directories of one run, whether it exists or not."""
        return RunPaths(self.runs / name)

    @property
    def run(self) -> RunPaths:
        """The directories of the current run."""
        return self.run_of(self.run_name)

    @property
    def journal(self) -> Path:
        """The journal of the current run."""
        return self.run.journal

    @property
    def checkpoints(self) -> Path:
        """Directory of the checkpoints of the current run."""
        return self.run.checkpoints

    @property
    def identity(self) -> Path:
        """The node's secret."""
        return self.state / "identity"

    @property
    def lock(self) -> Path:
        """The lock of the node that uses the state directory."""
        return self.state / "lock"

    @property
    def questions(self) -> Path:
        """Directory of the questions of files that are too many for a manifest, as they were last read."""
        return self.cache / "questions"

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
        """Create all four directories with mode 0700; existing ones keep their mode."""
        for directory in self._needed():
            make_private_directory(directory)

    def check(self) -> None:
        """Check that `create` would succeed; creates nothing."""
        for directory in self._needed():
            check_creatable(directory)

    def _needed(self) -> tuple[Path, ...]:
        """The directories that a node writes to, and that of the settings if it has to be created."""
        # Settings may be read-only for a node: under a service manager, or where others manage them.
        settings = () if self.config.is_dir() and os.access(self.config, os.R_OK | os.X_OK) else (self.config,)
        return (self.state, *settings, self.cache, self.runtime)
