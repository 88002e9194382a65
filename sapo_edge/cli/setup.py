"""`sapo setup`: a machine without a screen, or ten of them, set up by one file or by environment variables."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from sapo_edge.cli import service
from sapo_edge.cli.options import Home
from sapo_edge.doctor.profile import PROFILES, choose_profile
from sapo_edge.errors import ConfigError
from sapo_edge.library.workspace import storable
from sapo_edge.plain import narrate, size
from sapo_edge.state.durable import read_bounded, reported
from sapo_edge.state.paths import Paths

MAX_BYTES = 64 * 1024
TEXTS = {"profile": "auto", "invite": "", "service": "none"}
"""What a file says besides settings: the name of a profile, "auto" or "none"; the invite of the swarm to join; whose
service runs the node."""


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
    texts, settings = _read(file, {"profile": profile, "invite": invite})
    system = texts["service"] == "system"
    home = service.home_of_service(home, system=system)
    _write_settings(Paths.default(home), texts["profile"], settings)
    if texts["invite"]:
        _join(home, texts["invite"])
    if texts["service"] != "none":
        service.install(system=system, home=home)
    else:
        narrate('`sapo start` starts the node; service = "user" or "system" in the file starts it with the machine')


def _read(file: Path | None, flags: Mapping[str, str | None]) -> tuple[dict[str, str], dict[str, object]]:
    """The `TEXTS` and the settings of a file, with what flags or the environment say instead."""
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
    texts = TEXTS | {name: value for name, value in values.items() if isinstance(value, str)}
    unknown = [name for name, value in values.items() if name not in TEXTS or not isinstance(value, str)]
    if unknown or not isinstance(settings, dict):
        name = unknown[0] if unknown else "settings"
        remedy = "it may have the texts profile, invite and service, and a table [settings] as in config.toml"
        raise ConfigError(f"{file or 'the environment'}: {name!r} is not understood", remedy)
    for name, allowed in (("profile", ("auto", "none", *PROFILES)), ("service", ("none", "user", "system"))):
        if texts[name] not in allowed:
            raise ConfigError(f"{name} = {texts[name]!r} is not allowed", f"give one of {', '.join(allowed)}")
    return texts, settings


def _write_settings(paths: Paths, profile: str, settings: Mapping[str, object]) -> None:
    """Write what differs into `config.toml`; the settings win over those of a profile."""
    from sapo_edge.backends.machine.memory import total_memory
    from sapo_edge.config.layers import read_file, set_values

    memory = total_memory()
    name = choose_profile(memory) if profile == "auto" else profile
    chosen = PROFILES[name].settings if name in PROFILES else {}
    if chosen:
        narrate(f"profile {name} ({size(memory)} of memory here): {PROFILES[name].summary}")
    before = read_file(paths.config_file)
    wanted = {**chosen, **settings}
    # A service works in another directory.
    wanted |= {name: storable(name, value) for name, value in wanted.items() if isinstance(value, str)}
    values = {name: value for name, value in wanted.items() if before.get(name) != value}
    # All or none.
    for setting, value in set_values(paths.config_file, values, "set-up").items():
        print(f"{setting} = {value}")


def _join(home: Path | None, invite: str) -> None:
    from sapo_edge.cli.workspace import open_workspace
    from sapo_edge.library.joining import join

    workspace = open_workspace(home)
    before = workspace.membership.current
    swarm = join(workspace.paths, workspace.membership, invite)
    if before is None or before.id != swarm.id:
        print(f"joined {swarm.name}")
