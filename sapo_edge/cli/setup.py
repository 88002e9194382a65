"""`sapo setup`: a machine without a screen, or ten of them, set up by one file or by environment variables."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from sapo_edge.cli import service
from sapo_edge.cli.options import Home
from sapo_edge.errors import ConfigError
from sapo_edge.library.workspace import storable
from sapo_edge.plain import narrate, size
from sapo_edge.state.durable import read_bounded, reported
from sapo_edge.state.paths import Paths

MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Plan:
    """What a machine is to become.

    Attributes:
        profile: "auto", "none", or the name of one.
        invite: of the swarm to join; "" for the open swarm of the manifest.
        service: whose runs the node.
        settings: by name; they win over the profile's.
    """

    profile: str = "auto"
    invite: str = ""
    service: str = "none"
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from sapo_edge.doctor.profile import PROFILES

        for name, allowed in (("profile", ("auto", "none", *PROFILES)), ("service", ("none", "user", "system"))):
            if (value := getattr(self, name)) not in allowed:
                raise ConfigError(f"{name} = {value!r} is not allowed", f"give one of {', '.join(allowed)}")


def setup(
    file: Annotated[Path | None, typer.Argument(help="TOML with profile, invite, service and settings.")] = None,
    profile: Annotated[
        str | None,
        typer.Option(help="auto, none, 512mb, 1gb, 2gb, 4gb or 8gb; default: auto.", envvar="SAPO_EDGE_PROFILE"),
    ] = None,
    invite: Annotated[
        str | None, typer.Option(help="Of the swarm to join.", envvar="SAPO_EDGE_INVITE", show_envvar=True)
    ] = None,
    home: Home = None,
) -> None:
    """Write settings for this machine, join a swarm, install a service; a second time it changes only what differs."""
    plan = read_plan(file, {"profile": profile, "invite": invite})
    system = plan.service == "system"
    home = service.home_of_service(home, system=system)
    paths = Paths.default(home)
    _write_settings(paths, plan)
    if plan.invite:
        _join(home, plan.invite)
    if plan.service != "none":
        service.install(system=system, home=home)
    else:
        narrate('`sapo start` starts the node; service = "user" or "system" in the file starts it with the machine')


def read_plan(file: Path | None, flags: Mapping[str, str | None]) -> Plan:
    """The plan of a file, with what flags or the environment say instead."""
    values: dict[str, object] = {}
    if file is not None:
        try:
            with reported("read", file, "name another file"):
                data = read_bounded(file, MAX_BYTES)
            values = tomllib.loads(data.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{file} can't be used: {error or 'nested too deep'}", "correct it") from error
    values |= {name: value for name, value in flags.items() if value}
    settings = values.pop("settings", {})
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    unknown = [name for name in values if name not in ("profile", "invite", "service") or name not in texts]
    if unknown or not isinstance(settings, dict):
        name = unknown[0] if unknown else "settings"
        remedy = "it may have the texts profile, invite and service, and a table [settings] as in config.toml"
        raise ConfigError(f"{file or 'the environment'}: {name!r} is not understood", remedy)
    return Plan(**texts, settings=settings)


def _write_settings(paths: Paths, plan: Plan) -> None:
    """Write what differs into `config.toml`, the file's settings after the profile's."""
    from sapo_edge.backends.machine.memory import total_memory
    from sapo_edge.config.layers import read_file, set_values
    from sapo_edge.doctor.profile import PROFILES, choose_profile

    memory = total_memory()
    name = choose_profile(memory) if plan.profile == "auto" else plan.profile
    chosen = PROFILES[name].settings if name in PROFILES else {}
    if chosen:
        narrate(f"profile {name} ({size(memory)} of memory here): {PROFILES[name].summary}")
    before = read_file(paths.config_file)
    wanted = {**chosen, **plan.settings}
    # A service works in another directory.
    wanted |= {name: storable(name, value) for name, value in wanted.items() if isinstance(value, str)}
    values = {name: value for name, value in wanted.items() if before.get(name) != value}
    # All or none.
    for setting, value in set_values(paths.config_file, values, "set-up").items() if values else ():
        print(f"{setting} = {value}")


def _join(home: Path | None, invite: str) -> None:
    from sapo_edge.cli.workspace import open_workspace
    from sapo_edge.library.joining import join

    workspace = open_workspace(home)
    before = workspace.membership.current
    swarm = join(workspace.paths, workspace.membership, invite)
    if before is None or before.id != swarm.id:
        print(f"joined {swarm.name}")
