"""The directories: the platform's own, or all below one directory with `--home` or `SAPO_EDGE_HOME`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
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
    """The name of a run, which names its directory, too; a ConfigError if it has other characters, or too many."""
    if not _RUN_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} can't be the name of a run", "use up to 40 small letters, digits and hyphens: my-run-2"
        )
    return name


class _Below:
    """A path below a directory that its owner has."""

    def __init__(self, directory: str, *parts: str) -> None:
        self._directory, self._parts = directory, parts

    def __get__(self, owner: object, kind: type | None = None) -> Path:
        return Path(getattr(owner, self._directory), *self._parts)


@dataclass(frozen=True, slots=True)
class RunPaths:
    """What one run has for itself."""

    directory: Path

    journal = _Below("directory", "journal", "journal.sqlite")
    """The SQLite journal of rounds, rollouts and events."""
    checkpoints = _Below("directory", "checkpoints")
    pool = _Below("directory", "pool")
    """The saved pool of other nodes' rollouts."""
    rollback = _Below("directory", "rollback.json")
    """A return to an earlier checkpoint that is decided and not complete."""
    looked = _Below("directory", "looked")
    """The last round that somebody has seen in the terminal app."""
    origin = _Below("directory", "origin.json")
    """The adapter of others that the run began with; missing for a run that began with the untrained model."""


@dataclass(frozen=True, slots=True)
class Paths:
    """The directories of one installation, all absolute.

    Attributes:
        state: identity, journal, checkpoints, pool, log: data that must not be lost.
        cache: data that can be created again.
        named: a run that counts as the current one here; None for that of all programs.
    """

    state: Path
    config: Path
    cache: Path
    runtime: Path
    named: str | None = field(default=None, compare=False)

    config_file = _Below("config", "config.toml")
    """The user's settings, TOML."""
    runs = _Below("state", "runs")
    current_run = _Below("state", "current-run")
    """The file that names the run which nodes continue; missing until one is chosen."""
    identity = _Below("state", "identity")
    """The node's secret."""
    lock = _Below("state", "lock")
    """The lock of the node that uses the state directory."""
    relay_lock = _Below("state", "relay.lock")
    """The same of its relay."""
    questions = _Below("cache", "questions")
    """Directory of the questions of files that are too many for a manifest, as they were last read."""
    log = _Below("state", "sapo-edge.log")
    """The node's log; older ones are beside it."""
    background = _Below("state", "background.json")
    background_output = _Below("state", "background.log")
    """The process that was last started in the background, and its output."""
    background_lock = _Below("state", "background.lock")
    """The lock of whoever starts one."""
    code = _Below("state", "code.json")
    """The environments that the user lets judge answers: programs that run on this machine."""
    api_token = _Below("state", "api-token")
    """What programs show to `sapo api`."""
    consent = _Below("state", "consent.json")
    """The user's consent to share."""

    @classmethod
    def default(cls, home: Path | None = None) -> Paths:
        """The directories to use: all below `home`, else `SAPO_EDGE_HOME`, else the platform's own; creates nothing."""
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
    def run_name(self) -> str:
        """The run which nodes continue. It changes only while no node runs."""
        if self.named is not None:
            return self.named
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
