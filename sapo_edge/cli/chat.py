"""`sapo chat`: base model and adapter answer the same questions: on a terminal, one question, or as JSON lines."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sapo_edge.cli.adapters import best_adapter, check_model, find_adapter, find_record
from sapo_edge.cli.conversation import MAX_TEMPERATURE, Conversation, Models
from sapo_edge.cli.options import Adapter, Backend, Home, ManifestName, Model, Set, Threads
from sapo_edge.cli.output import narrate
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.errors import ConfigError
from sapo_edge.library.workspace import Workspace
from sapo_edge.plain import printable
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
    if json and (question is not None or not base):
        raise ConfigError("--json reads questions from stdin, for both models", "leave the question and --no-base out")
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
            session.ask(question)
            return
        narrate(printable(models.title))
        session.run()


@contextmanager
def open_conversation(
    workspace: Workspace, adapter: Path | None, say: Callable[[str], None], *, base: bool = True
) -> Iterator[tuple[Conversation, Models]]:
    """Load model and adapter until the block ends, without torch where another backend runs.

    Args:
        adapter: a directory that the user names; None for the best adapter.
        say: receives messages about what takes time.
        base: whether the base model answers beside the adapter.
    """
    from sapo_edge.backends.model.source import open_source

    manifest = workspace.require_manifest()
    model = open_source(workspace.model, mlx=True).model_name
    directory = best_adapter(workspace) if adapter is None else find_adapter(workspace, adapter)
    with tempfile.TemporaryDirectory(prefix="sapo-chat-") as temporary:
        say(f"loading {printable(model)}")
        policy, _ = workspace.open_policy(Path(temporary), trainable=False, seed=0, say=say)
        try:
            models = Models(model, manifest.name)
            if directory is not None:
                check_model(directory, policy.model_digest)
                policy.load(directory)
                checkpoint = find_record(directory)
                about = () if checkpoint is None else (checkpoint.round, checkpoint.accuracy)
                models = Models(model, manifest.name, str(directory), *about)
            limit = workspace.own_max_tokens
            adapted = directory is not None
            yield Conversation(policy, manifest, adapted=adapted, base=base, max_tokens=limit), models
        finally:
            policy.close()
