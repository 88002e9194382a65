"""The models that a program can name, and which adapter each run has for them.

In the order of `/v1/models`: the base model, then for each run, the current one first,

    NAME       its best adapter, asked as in training: the last message of the user with the manifest's own prompt
    NAME-chat  the same adapter, with the messages as they are
    NAME-base  the base model, asked as in training
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sapo_edge.errors import CheckpointError, SapoError, StateError
from sapo_edge.plain import printable
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.runs import run_names
from sapo_edge.tasks.manifest import name_like

if TYPE_CHECKING:
    from sapo_edge.library.workspace import Workspace
    from sapo_edge.policy import Policy
    from sapo_edge.state.checkpoint import Checkpoint
    from sapo_edge.tasks.manifest import Manifest

MAX_TOLD = 256
"""Most different messages that are remembered as told."""


@dataclass(frozen=True, slots=True)
class Served:
    """One model.

    Attributes:
        run: whose adapter answers; None: the base model answers.
        manifest: whose prompt precedes the user's last message; None: the messages are taken as they are.
        created: Unix seconds.
    """

    name: str
    run: str | None
    manifest: Manifest | None
    created: int
    about: str


class Catalogue:
    """The models of a state directory, read again each time: runs begin while a server works.

    Args:
        digest: SHA-256 (hex) of the base model's file.
    """

    def __init__(self, workspace: Workspace, base: str, digest: str, say: Callable[[str], None]) -> None:
        self._workspace, self._digest = workspace, digest
        self._base = Served(name_like(base), None, None, 0, "the base model, with the messages as they are")
        self._manifests: dict[str, Manifest] = {}
        self._once = Once(say)

    def models(self) -> dict[str, Served]:
        """All models by name, in the documented order."""
        models = {self._base.name: self._base}
        for model in self._of_runs():
            if model.name in models:
                self._once(f"two models are called {model.name}: the one of the run {model.run} can't be asked")
            else:
                models[model.name] = model
        return models

    def _of_runs(self) -> Iterator[Served]:
        paths = self._workspace.paths
        names = run_names(paths)
        with suppress(StateError):
            names.sort(key=lambda name: name != paths.run_name)
        for name in names:
            checkpoint = self._newest(name)
            if checkpoint is None:
                continue
            created = int(checkpoint.time)
            manifest = self._manifest(checkpoint.manifest_digest)
            if manifest is not None:
                asked = f"asked as in training on {manifest.name}"
                yield Served(name, name, manifest, created, f"the best adapter of the run {name}, {asked}")
            yield Served(f"{name}-chat", name, None, created, f"the adapter of {name}, with the messages as they are")
            if manifest is not None:
                yield Served(f"{name}-base", None, manifest, created, f"the base model, {asked}")
            else:
                self._once(f"the prompt of the run {name} is not here any more, so it is served as {name}-chat alone")

    def _newest(self, name: str) -> Checkpoint | None:
        try:
            checkpoint = Checkpoints(self._workspace.paths.run_of(name).checkpoints).newest_record()
        except SapoError as error:
            self._once(f"the run {name} is left out: {error}")
            return None
        if checkpoint is not None and checkpoint.model_digest != self._digest:
            self._once(f"the run {name} is left out: it was trained from another model; serve it with --model")
            return None
        return checkpoint

    def _manifest(self, digest: str) -> Manifest | None:
        if digest not in self._manifests:
            manifest = self._workspace.manifest
            try:
                if manifest is None or manifest.digest != digest:
                    manifest = self._workspace.membership.manifest(bytes.fromhex(digest))
            except (SapoError, ValueError) as error:
                self._once(f"a manifest can't be read: {error}")
                return None
            if manifest is not None:
                self._manifests[digest] = manifest
        return self._manifests.get(digest)


class Adapters:
    """Which adapter a policy has loaded; loads another one, or a better one of the same run, when it is asked for."""

    def __init__(self, workspace: Workspace, policy: Policy, say: Callable[[str], None]) -> None:
        self._paths, self._policy = workspace.paths, policy
        self._say, self._once = say, Once(say)
        self._run: str | None = None
        self._loaded: Checkpoint | None = None
        self._unusable: list[Checkpoint] = []

    def use(self, run: str) -> None:
        """Load a run's best adapter. Its loaded one stays while that can't be used; without one, a CheckpointError."""
        loaded = self._loaded if self._run == run else None
        best = self._best(run, loaded)
        if best is not None and not best.is_same(loaded):
            self._load(run, best, loaded)
        elif loaded is None:
            remedy = f"`sapo runs use {run}`, then `sapo run`"
            raise CheckpointError(f"the run {run} has no complete checkpoint", remedy)

    def _best(self, run: str, loaded: Checkpoint | None) -> Checkpoint | None:
        best = Checkpoints(self._paths.run_of(run).checkpoints).to_use(loaded, self._once)
        return loaded if best is not None and any(map(best.is_same, self._unusable)) else best

    def _load(self, run: str, best: Checkpoint, loaded: Checkpoint | None) -> None:
        try:
            if best.model_digest != self._policy.model_digest:
                raise CheckpointError(f"{best.directory} was made with another model", "serve it with --model")
            self._policy.load(best.directory)
        except CheckpointError as error:
            if loaded is None:
                raise
            # A node removes old checkpoints while this one reads, so only what is still there counts as unusable.
            if best.directory.is_dir():
                self._unusable = [*self._unusable[-MAX_TOLD:], best]
            self._once(f"{printable(error)}; the adapter of round {loaded.round} stays")
            return
        accuracy = "" if best.accuracy is None else f" (held-out {best.accuracy:.2f})"
        if loaded is not None:
            self._say(f"{run} answers with its adapter of round {best.round} now{accuracy}")
        self._run, self._loaded = run, best


class Once:
    """Says each message once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._told: dict[str, None] = {}

    def __call__(self, text: str) -> None:
        text = printable(text)
        if text not in self._told and len(self._told) < MAX_TOLD:
            self._told[text] = None
            self._say(text)
