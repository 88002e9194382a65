"""`sapo service`: a node that starts with the machine or the session, under systemd or launchd."""

from __future__ import annotations

import getpass
import os
import re
import subprocess
import sys
from contextlib import ExitStack, redirect_stdout, suppress
from pathlib import Path
from typing import Annotated

import typer

from sapo_edge.children import sapo_command
from sapo_edge.cli.consent import ask_for_consent
from sapo_edge.cli.options import Agree, Home, Json
from sapo_edge.cli.output import ask_yes, can_ask, emit, print_json
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.errors import ConfigError, ExitCode, SapoError, StateError
from sapo_edge.library.workspace import Workspace
from sapo_edge.plain import narrate, size
from sapo_edge.service.launchd import Launchd
from sapo_edge.service.manager import run_command
from sapo_edge.service.plan import DEFAULT_NAME, SYSTEM_HOME, ServicePlan, memory_limit
from sapo_edge.service.systemd import Systemd, lingers
from sapo_edge.state.durable import reported
from sapo_edge.state.lock import lock_holder
from sapo_edge.state.paths import HOME_VARIABLE, Paths

_PLACES = ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE")
"""Variables that say where files are, which a service must have as the shell has them."""
_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri")
_DEVICE_GROUPS = ("render", "video")
MAX_LINES = 10_000

app = typer.Typer(no_args_is_help=True, help="Let a node start with the machine, and restart after a failure.")
System = Annotated[bool, typer.Option("--system", help="Of the system, with a user of its own; needs root.")]
Name = Annotated[str, typer.Option("--name", help="Name of the service, for several on one machine.")]


@app.command()
def install(
    system: System = False,
    name: Name = DEFAULT_NAME,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the unit and change nothing.")] = False,
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start it now, too.")] = True,
    agree: Agree = False,
    json: Json = False,
    home: Home = None,
) -> None:
    """Install a service that runs `sapo run`, or renew it."""
    manager = manager_of(name, system=system)
    home = home_of_service(home, system=system)
    workspace = open_workspace(home)
    plan = _plan(workspace, name, home, system=system)
    if dry_run:
        text = manager.render(plan)
        record = {"service": name, "unit": str(manager.unit(name)), "changed": False, "text": text}
        emit(record, [text.removesuffix("\n")], json)
        return
    manager.check(name)
    workspace.check_swarm()
    _warn_of_variables()
    if system:
        _check_readable(plan)
        _create_user(plan)
    _, alone = ask_for_consent(workspace, agree=agree)
    for directory in (*plan.writable, plan.paths.config):
        with reported("create", directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if system:
        _hand_over(plan)
    starts = start and (manager.is_active(name) or _is_free(plan.paths))
    changed = manager.install(plan, start=starts)
    unit = str(manager.unit(name))
    emit({"service": name, "unit": unit, "changed": changed}, [unit], json)
    narrate(f"{'installed' if changed else 'nothing to change'}; at most {size(plan.memory)} of memory")
    for text in filter(None, (alone, *_advice(manager, plan, starts=starts))):
        narrate(text)


@app.command()
def status(system: System = False, name: Name = DEFAULT_NAME, json: Json = False) -> None:
    """Show whether the service runs; exit with 3 if not."""
    manager = manager_of(name, system=system)
    if json:
        properties = manager.properties(name) if isinstance(manager, Systemd) else {"running": manager.is_running(name)}
        print_json({"service": name, "properties": properties})
    elif isinstance(manager, Systemd):
        scope = [] if system else ["--user"]
        _show(["systemctl", *scope, "status", "--no-pager", "--lines=5", f"{name}.service"])
    else:
        print(f"{name}: {'running' if manager.is_running(name) else 'not running'} ({manager.unit(name)})")
    raise typer.Exit(ExitCode.DONE if manager.is_running(name) else ExitCode.NO_NODE)


@app.command()
def logs(
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing lines as they come.")] = False,
    lines: Annotated[int, typer.Option("--lines", min=0, max=MAX_LINES, help="Past lines to print.")] = 50,
    system: System = False,
    name: Name = DEFAULT_NAME,
) -> None:
    """Show what the service wrote to the journal, its starts and failures included."""
    manager = manager_of(name, system=system)
    if not isinstance(manager, Systemd):
        raise ConfigError("launchd keeps no journal", "use `sapo logs`, which needs no running node")
    raise typer.Exit(_show(manager.log_command(name, lines, follow=follow)))


@app.command()
def remove(system: System = False, name: Name = DEFAULT_NAME, json: Json = False) -> None:
    """Stop the service after its round and remove it; everything that the node learned stays."""
    manager = manager_of(name, system=system)
    manager.check(name)
    if manager.unit(name).exists():
        narrate("stopping after the round in progress")
    removed = manager.remove(name)
    if json:
        print_json({"service": name, "removed": removed})
    if not removed:
        narrate(f"there is no service {name}; nothing to remove")
        return
    narrate("removed; settings, adapter and identity are untouched")
    if system:
        narrate(f"the user {name} stays, too, and its files in {SYSTEM_HOME}, or the --home of its install:")
        narrate(f"`userdel {name}` and rm remove them")


def starts_at_login() -> bool:
    """Whether a service of this user starts a node at every login; a SapoError if no service manager answers."""
    manager = manager_of(DEFAULT_NAME, system=False)
    manager.check(DEFAULT_NAME)
    return manager.unit(DEFAULT_NAME).exists()


def may_start_at_login() -> bool:
    """Whether a service manager answers this user, and has no service that starts a node at every login."""
    try:
        return not starts_at_login()
    except SapoError:
        return False


def offer_start_at_login(workspace: Workspace) -> None:
    """Ask on a terminal, and install a service of this user if the answer is yes; the node of now is left alone.

    Asks nothing where no service manager answers, where a service exists, and for a run of so many rounds.
    """
    if workspace.is_alone or workspace.settings.rounds or not can_ask() or not may_start_at_login():
        return
    if not ask_yes("Start a node whenever you log in, too?"):
        narrate("`sapo service install` does it later")
        return
    try:
        # A node's own output is events, or nothing.
        with redirect_stdout(sys.stderr):
            install(start=False, home=workspace.paths.home)
        narrate("`sapo service remove` takes it back")
    except SapoError as error:
        narrate(f"it can't be installed: {error}")


def manager_of(name: str, *, system: bool) -> Systemd | Launchd:
    if re.fullmatch(r"[a-z][a-z0-9_-]{0,30}", name) is None:
        remedy = "use lower-case letters, digits and hyphens, 31 at most"
        raise ConfigError(f"{name!r} is no name for a service", remedy)
    return Launchd(system=system) if sys.platform == "darwin" else Systemd(system=system)


def home_of_service(home: Path | None, *, system: bool) -> Path | None:
    """The directory of `--home`, else that of the environment, else the usual one of a service of the system."""
    if home is None and (named := os.environ.get(HOME_VARIABLE, "").strip()):
        return Path(named)
    return SYSTEM_HOME if home is None and system else home


def _plan(workspace: Workspace, name: str, home: Path | None, *, system: bool) -> ServicePlan:
    import psutil

    from sapo_edge.backends.hub.name import HUB
    from sapo_edge.control.protocol import socket_path
    from sapo_edge.doctor.backends import local_model, memory_need

    paths, settings = workspace.paths, workspace.settings
    model, shape = local_model(settings), workspace.round_shape()
    need = None if model is None or shape is None else memory_need(model, settings, shape)
    devices = any(Path(place).exists() for place in _DEVICES)
    return ServicePlan(
        name,
        tuple(sapo_command("run", home)),
        paths,
        user=name if system else "",
        memory=memory_limit(None if need is None or need.on_device else need.needed, psutil.virtual_memory().total),
        nice=settings.nice,
        hub=_hub(paths, system=system) if settings.model.startswith(HUB) else (),
        environment=_environment(paths, system=system),
        # A socket whose path would be too long is among the temporary files.
        shares_tmp=socket_path(paths).parent != paths.runtime,
        devices=devices,
        groups=_device_groups() if system and devices else (),
    )


def _hub(paths: Paths, *, system: bool) -> tuple[Path, ...]:
    """Where the hub's client keeps its own files, and models."""
    if system:
        return (paths.cache / "hub",)
    from huggingface_hub import constants

    own, models = Path(constants.HF_HOME), Path(constants.HF_HUB_CACHE)
    return (own,) if models.is_relative_to(own) else (own, models)


def _environment(paths: Paths, *, system: bool) -> dict[str, str]:
    if system:
        return {"HF_HOME": str(paths.cache / "hub")}
    return {name: os.environ[name] for name in _PLACES if os.environ.get(name, "").strip()}


def _device_groups() -> tuple[str, ...]:
    import grp

    existing = {group.gr_name for group in grp.getgrall()}
    return tuple(name for name in _DEVICE_GROUPS if name in existing)


def _warn_of_variables() -> None:
    """Name the settings that this shell has and the service will not."""
    from sapo_edge.config.layers import OTHER_VARIABLES, PREFIX

    names = [name for name in os.environ if name.startswith(PREFIX) and name not in OTHER_VARIABLES]
    if names:
        narrate(f"a service doesn't see {', '.join(sorted(names))}: use `sapo config set` instead")


def _is_free(paths: Paths) -> bool:
    """Whether no other node holds the state directory; says so otherwise."""
    if lock_holder(paths.lock) is None:
        return True
    narrate("another node uses this state directory: the service starts at the next boot, or after `sapo stop --wait`")
    narrate("with `sapo service install` again")
    return False


def _check_readable(plan: ServicePlan) -> None:
    """Check that a user of its own can run the program."""
    program = Path(plan.command[0])
    for place in (program, program.resolve(), Path(__file__).resolve().parent):
        for part in (place, *place.parents):
            if not part.stat().st_mode & 0o001:
                raise ConfigError(
                    f"the user {plan.user} may not enter {part}",
                    "install sapo-edge for everybody, for example with `sudo pipx install --global`, or leave out "
                    "--system",
                )


def _create_user(plan: ServicePlan) -> None:
    """Create the user of a system service, without a password and a shell."""
    import pwd

    if any(entry.pw_name == plan.user for entry in pwd.getpwall()):
        return
    home = str(plan.paths.state.parent)
    options = ["--system", "--user-group", "--no-create-home", "--home-dir", home, "--shell", "/usr/sbin/nologin"]
    result = run_command(["useradd", *options, plan.user])
    if result.returncode:
        raise StateError(f"useradd failed: {result.stderr.strip()}", f"create the user {plan.user}, then try again")
    narrate(f"created the user {plan.user}")


def _hand_over(plan: ServicePlan) -> None:
    """Give the service's directories, the consent, the swarms and the place of questions to its user, and no more."""
    import grp
    import pwd

    home, state = plan.paths.state.parent, plan.paths.state
    user, group = pwd.getpwnam(plan.user).pw_uid, grp.getgrnam(plan.user).gr_gid
    # Root may have joined a swarm for it, and has read its questions: their user replaces the files in that place.
    kept = (path for end in ("manifest", "questions") for path in (state / "manifests").glob(f"*.{end}"))
    swarms = (state / "swarms.json", state / "manifests", *kept)
    for place in (home, *plan.writable, plan.paths.config, plan.paths.consent, plan.paths.questions, *swarms):
        # Nothing that a link leads to: its user may have put one there, or on the way, since the last time.
        with reported("hand over", place), suppress(FileNotFoundError, NotADirectoryError), ExitStack() as stack:
            # Only root can have put a link in the place of the home itself.
            *ahead, last = home.resolve(), *place.relative_to(home).parts
            directory = None
            for part in ahead:
                directory = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
                stack.callback(os.close, directory)
            os.chown(last, user, group, dir_fd=directory, follow_symlinks=False)


def _advice(manager: Systemd | Launchd, plan: ServicePlan, *, starts: bool) -> list[str]:
    lines = ["it starts now; `sapo service status` shows how it does" if starts else "it is not started now"]
    if isinstance(manager, Launchd):
        return lines
    if manager.system:
        return [*lines, f"ask it with `sudo -u {plan.user} sapo --home {plan.paths.state.parent} status`"]
    if not lingers(user := _user()):
        lines.append("it runs while you are logged in; to start with the machine and stay after you leave:")
        lines.append(f"  sudo loginctl enable-linger {user}")
    return lines


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _show(command: list[str]) -> int:
    sys.stdout.flush()
    try:
        return subprocess.run(command, check=False).returncode
    except FileNotFoundError as error:
        raise StateError(f"{command[0]} is not installed", "install systemd's tools") from error
