"""Questions of other kinds than those of a run: what a model should still know after it has learned something else."""

from __future__ import annotations

from importlib import resources

from sapo_edge.policy import Message, Prompt
from sapo_edge.tasks.manifest import Manifest
from sapo_edge.tasks.source import TaskSource


def rehearsed_prompts() -> tuple[Prompt, ...]:
    """Questions of many kinds, none of them among the general ones; asked in the same way."""
    text = resources.files("sapo_edge.tasks").joinpath("rehearsed.txt").read_text("utf-8")
    return tuple((Message("user", question),) for question in text.splitlines())


def general_source() -> TaskSource:
    """The general questions, as `own_tasks`; asked without a system text and worked examples."""
    text = resources.files("sapo_edge.tasks").joinpath("general.toml").read_text("utf-8")
    return TaskSource(Manifest.from_toml(text, "the general questions"))
