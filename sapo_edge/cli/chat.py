"""`sapo chat`: base model and adapter answer the same questions: on a terminal, one question, or as JSON lines."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sapo_edge.cli.options import Adapter, Backend, Home, ManifestName, Model, Set, Threads
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.errors import Cancelled, ConfigError
from sapo_edge.library.adapters import open_conversation
from sapo_edge.library.conversation import MAX_TEMPERATURE
from sapo_edge.plain import narrate, printable
from sapo_edge.rollout import MAX_QUESTION_BYTES


def chat(
    question: Annotated[
        str | None, typer.Argument(help="One question, then the command ends; - reads it from stdin.")
    ] = None,
    adapter: Adapter = None, model: Model = None, manifest: ManifestName = None, backend: Backend = None,
    task: Annotated[
        bool | None,
        typer.Option(
            "--task/--plain",
            help="Ask with the manifest's prompt, as in training, or without it; default: one question as in training.",
        ),
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0, max=MAX_TEMPERATURE, help="0 takes the most likely token.")
    ] = 0.0,
    base: Annotated[bool, typer.Option("--base/--no-base", help="Let the base model answer, too.")] = True,
    threads: Threads = None, settings: Set = None, home: Home = None,
    json: Annotated[bool, typer.Option("--json", help="JSON lines on stdin and stdout.")] = False,
) -> None:  # fmt: skip
    """Talk to base model and adapter side by side."""
    if json and (question is not None or not base or task is not None or temperature):
        raise ConfigError(
            "--json reads questions from stdin, each with its own task and temperature, for both models",
            "leave the question, --task, --plain, --temperature and --no-base out",
        )
    if question == "-":
        question = sys.stdin.read(MAX_QUESTION_BYTES + 1) if sys.stdin is not None else ""
    flags = {"model": model, "manifest": manifest, "backend": backend, "threads": threads}
    workspace = open_workspace(home, flags, settings)
    if json:
        from sapo_edge.cli.chat_service import ChatService

        ChatService(lambda say: open_conversation(workspace, adapter, say)).run()
        return
    from sapo_edge.cli.chat_session import ChatSession

    is_task = question is not None if task is None else task
    with open_conversation(workspace, adapter, narrate, base=base) as (conversation, models):
        session = ChatSession(conversation, models, task=is_task, temperature=temperature)
        if question is not None:
            if task is None:
                narrate("asked as in training; --plain asks without that prompt")
            try:
                session.ask(question)
            except Cancelled:
                raise KeyboardInterrupt from None
            return
        narrate(printable(models.title))
        session.run()
