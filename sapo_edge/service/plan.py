"""What a service runs, where it may write, and how much memory it may use: the same for every service manager."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sapo_edge.state.paths import Paths

DEFAULT_NAME = "sapo-edge"
"""Name of the service, and of the user that a system service runs as."""
SYSTEM_HOME = Path("/var/lib/sapo-edge")
"""Home of a system service unless --home names another."""
STOP_SECONDS = 15 * 60
"""How long a stop waits for the round in progress, unless the node asks for more."""
_SPARE_BYTES = 512 * 1024 * 1024
_SPARE_SHARE = 0.5
_MACHINE_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """What a service manager has to know.

    Attributes:
        paths: the node's directories; all exist before the service starts.
        user: that a system service runs as; empty for a service of the user who installs it.
        memory: most bytes that the node may use.
        nice: scheduling priority, 0 to 19.
        hub: where a model of the hub is kept; empty for another model.
        environment: variables that place the node's files.
        shares_tmp: whether other programs must see files of the node in the directory for temporary ones.
        devices: whether the node may use devices such as a GPU.
        groups: further groups of a system service's user, for those devices.
    """

    name: str
    command: tuple[str, ...]
    paths: Paths
    user: str
    memory: int
    nice: int
    hub: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    shares_tmp: bool = False
    devices: bool = False
    groups: tuple[str, ...] = ()

    @property
    def writable(self) -> tuple[Path, ...]:
        """Directories that the node writes to."""
        paths = self.paths
        return (paths.state, paths.cache, paths.runtime, *self.hub)

    def lies_in(self, *roots: str) -> bool:
        """Whether the program, or a directory of the node, is below one of these."""
        places = [Path(self.command[0]), *self.writable]
        return any(place.is_relative_to(root) for place in places for root in roots)


def memory_limit(needed: int | None, machine: int) -> int:
    """Most memory for a node, bytes, by the estimate of what a round needs at its peak; None if that is unknown."""
    highest = int(machine * _MACHINE_SHARE)
    return highest if needed is None else min(int(needed * (1 + _SPARE_SHARE)) + _SPARE_BYTES, highest)
