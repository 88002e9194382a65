"""Questions of other kinds than those of a run: what a model should still know after it has learned something else."""

from __future__ import annotations

from importlib import resources

from sapo_edge.tasks.manifest import Manifest
from sapo_edge.tasks.source import TaskSource


def general_source() -> TaskSource:
    """The general questions, as `own_tasks`; asked without a system text and worked examples."""
    text = resources.files("sapo_edge.tasks").joinpath("general.toml").read_text("utf-8")
    return TaskSource(Manifest.from_toml(text, "the general questions"))
