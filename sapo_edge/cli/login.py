"""A node at every login: the first run of one in a swarm offers it, and the terminal app does."""

from __future__ import annotations

from sapo_edge.cli.output import narrate
from sapo_edge.cli.streams import ask_yes, can_ask
from sapo_edge.cli.workspace import Workspace
from sapo_edge.errors import SapoError
from sapo_edge.service.plan import DEFAULT_NAME


def starts_at_login() -> bool:
    """Whether a service of this user starts a node at every login.

    Raises:
        SapoError: if no service manager answers this user.
    """
    from sapo_edge.cli import service

    manager = service.manager_of(DEFAULT_NAME, system=False)
    manager.check()
    return manager.unit(DEFAULT_NAME).exists()


def offer_start_at_login(workspace: Workspace) -> None:
    """Ask on a terminal, and install a service of this user if the answer is yes; the node of now is left alone.

    Asks nothing where no service manager answers, where a service exists, and for a run of so many rounds.
    """
    from sapo_edge.cli import service

    if workspace.is_alone or workspace.settings.rounds or not can_ask():
        return
    try:
        if starts_at_login():
            return
    except SapoError:
        return
    if not ask_yes("Start a node whenever you log in, too?"):
        narrate("`sapo service install` does it later")
        return
    try:
        service.install(start=False, home=workspace.paths.home)
        narrate("`sapo service remove` takes it back")
    except SapoError as error:
        narrate(f"it can't be installed: {error}")
