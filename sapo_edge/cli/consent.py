"""Asks the owner of a machine before its node shares anything for the first time."""

from __future__ import annotations

from dataclasses import replace

from sapo_edge.backends.hub.name import HUB
from sapo_edge.cli.output import ask_yes, can_ask
from sapo_edge.config.curves import describe_curves
from sapo_edge.library.workspace import Workspace
from sapo_edge.plain import narrate
from sapo_edge.state.consent import agreed_to_share, write_consent


def ask_for_consent(workspace: Workspace, *, agree: bool) -> tuple[Workspace, str]:
    """Let a node share only if its owner has agreed; ask on a terminal, and work alone where nobody can answer.

    Returns the workspace, one that works alone without a consent, and then why; otherwise an empty text.
    """
    if workspace.is_alone or agreed_to_share(workspace.paths.consent):
        return workspace, ""
    if not workspace.settings.model.startswith(HUB):
        # A mistyped name is told before the question, and before anything is written; a download waits for the answer.
        _ = workspace.model
    source = workspace.resolved.sources["consent"]
    if agree:
        how = "--agree"
    elif workspace.settings.consent == "given":
        how = f"consent = given ({source})"
    elif _asks_on_terminal(workspace):
        how = "terminal"
    else:
        settings = replace(workspace.settings, network="solo")
        alone = replace(workspace, resolved=replace(workspace.resolved, settings=settings))
        return alone, (
            "this node works alone until its owner agrees to share: run `sapo run` once on a terminal, or with "
            "--agree, or set consent = given; `--solo` works alone without asking"
        )
    workspace.paths.create()
    write_consent(workspace.paths.consent, how)
    return workspace, ""


def _asks_on_terminal(workspace: Workspace) -> bool:
    """Ask the question; False if the answer is no, or if there is no terminal."""
    if not can_ask():
        return False
    assert workspace.swarm is not None
    who = "those who have its invite" if workspace.swarm.is_private else "anybody"
    narrate(f"This node would take part in the swarm {workspace.swarm.name}, in which {who} can read")
    narrate("the questions, your model's answers as text, your node's public key and your IP address.")
    if workspace.settings.rendezvous != "off":
        narrate("Strangers of the swarm find that address in BitTorrent's public table; rendezvous = off keeps it out.")
    if text := describe_curves(workspace.settings.curves):
        narrate(f"Beside the swarm, {text}.")
    narrate("Never shared: weights, files, settings. What was sent can't be taken back (docs/privacy.md).")
    agreed = ask_yes("Share?")
    if not agreed:
        narrate("alone this time; `sapo config set network solo` keeps it so without a question")
    return agreed
