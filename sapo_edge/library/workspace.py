"""What a command or a call works on: directories, settings, swarm, manifest and model, resolved once.

Settings come from flags, environment, `config.toml`, the manifest, the state and defaults, in this order. The manifest
is the one that the settings name; otherwise that of the joined swarm, of the state, or the default.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sapo_edge.errors import ConfigError, ManifestError, NoNodeError, SapoError
from sapo_edge.library.progress import DownloadReport
from sapo_edge.plain import narrate

if TYPE_CHECKING:
    from sapo_edge.backends.backend import RoundShape
    from sapo_edge.config.layers import Resolved
    from sapo_edge.config.settings import Settings
    from sapo_edge.policy import Policy
    from sapo_edge.state.paths import Paths
    from sapo_edge.swarm.joining.invite import Swarm
    from sapo_edge.swarm.joining.membership import Membership
    from sapo_edge.swarm.rendezvous.lookup import Entry
    from sapo_edge.tasks.manifest import Manifest

FETCH_SECONDS = 60.0
"""How long `sapo run` looks for members of a swarm that send its manifest, or questions."""
STATE_SETTINGS = ("model", "rank", "alpha", "seed")
"""Settings that belong to a state directory, beside the manifest."""


@dataclass(frozen=True)
class Workspace:
    """What a command works on.

    Attributes:
        resolved: the settings and their sources. `max_tokens` is the manifest's limit unless somebody sets another; it
            stays 0 while the manifest is missing.
        manifest: what is trained on; None if the swarm was joined by an invite and no member has sent it yet.
        swarm: the joined one, or the open swarm of the manifest; None after the last one was left, and for a manifest
            with own questions until one is joined.
        narrates: whether to tell on stderr what takes time: in lines, and of a download by a bar on a terminal.
    """

    paths: Paths
    resolved: Resolved
    membership: Membership
    manifest: Manifest | None
    swarm: Swarm | None
    narrates: bool

    def say(self, text: str) -> None:
        if self.narrates:
            narrate(text)

    @property
    def settings(self) -> Settings:
        return self.resolved.settings

    @property
    def is_alone(self) -> bool:
        """Whether a node works alone: by its settings, or because it is in no swarm."""
        return self.swarm is None or self.settings.network == "solo"

    @property
    def node_settings(self) -> Settings:
        """Settings of a node: `network` is solo without a swarm."""
        return replace(self.settings, network="solo") if self.is_alone else self.settings

    @property
    def own_max_tokens(self) -> int:
        """Longest answer that a flag, the environment or the file sets; 0 if the manifest decides."""
        source = self.resolved.sources["max_tokens"]
        return 0 if source == "default" or source.startswith("manifest ") else self.settings.max_tokens

    @property
    def contacts(self) -> tuple[tuple[str, int], ...]:
        """DHT nodes for the first contact, as the settings say; none if nothing is looked up."""
        from sapo_edge.config.settings import dht_contacts
        from sapo_edge.swarm.rendezvous.rendezvous import CONTACTS

        contacts = dht_contacts(self.settings.rendezvous) if self.settings.listen == "all" else ()
        return CONTACTS if contacts is None else contacts

    @property
    def maps_port(self) -> bool:
        """Whether to ask the router to forward a port."""
        return self.settings.port_mapping == "on" and self.settings.listen == "all"

    @property
    def dht_nodes(self) -> Path:
        """The file that remembers DHT nodes."""
        return self.paths.state / "dht.json"

    def entry(self) -> Entry | None:
        """To the DHT; None if nothing is looked up there, by the settings or because libtorrent is missing."""
        from sapo_edge.swarm.rendezvous.lookup import Entry
        from sapo_edge.swarm.status import TROUBLES

        if not self.contacts:
            return None
        if find_spec("libtorrent") is None:
            what, remedy = TROUBLES["library"]
            self.say(f"{what}, so nobody is found elsewhere; {remedy}")
            return None
        return Entry(self.contacts, self.dht_nodes)

    @cached_property
    def model(self) -> Path:
        """The model's file or directory, downloaded if necessary."""
        from sapo_edge.backends.model.find import find_model

        if not self.narrates:
            return find_model(self.settings.model)
        with closing(DownloadReport(self.settings.model, narrate)) as progress:
            return find_model(self.settings.model, progress=progress)

    def require_manifest(self) -> Manifest:
        """The manifest, for a command that doesn't wait for the network."""
        if self.manifest is None:
            assert self.swarm is not None
            raise NoNodeError(
                f"the manifest of {self.swarm.name} is not here yet", "start `sapo run`: it fetches it from a member"
            )
        return self.manifest

    def check_swarm(self) -> None:
        """Make sure that the settings name no other manifest than the swarm's."""
        if self.is_alone or self.manifest is None or self.swarm is None:
            return
        if bytes.fromhex(self.manifest.digest) != self.swarm.manifest:
            raise ConfigError(
                f"the joined swarm trains on {self.swarm.name}, not on {self.settings.manifest}",
                "leave out the manifest, or leave the swarm with `sapo swarm leave`",
            )

    def fetch_manifest(self) -> Workspace:
        """This workspace with its manifest and its questions, asking members of the swarm for them if necessary."""
        swarm, manifest = self.swarm, self.manifest
        missing = [] if manifest is None else [data for data in manifest.data if not data.is_in(manifest.store)]
        if swarm is None or (manifest is not None and (self.is_alone or not missing)):
            return self
        from sapo_edge.swarm.host.logs import preserve_logging

        with preserve_logging():
            from sapo_edge.swarm.visits.fetch import fetch_manifest, fetch_questions
        mdns = self.settings.mdns == "on" and self.settings.listen == "all"
        for data in missing:
            size = f"{data.size / 1e6:.1f} MB"
            self.say(f"asking members of {swarm.name} for its {data.count} questions, {size}")
            fetch_questions(data, self.membership.kept, swarm, FETCH_SECONDS, self.entry(), mdns)
        if manifest is not None:
            return self
        self.say(f"asking members of {swarm.name} for its manifest (at most {FETCH_SECONDS:.0f} s)")
        fetched = fetch_manifest(swarm, FETCH_SECONDS, self.entry(), mdns)
        manifest = self.membership.keep_manifest(fetched.to_bytes(), swarm.manifest)
        resolved = self.resolved.with_manifest(manifest.name, manifest.max_tokens)
        return replace(self, manifest=manifest, resolved=resolved).fetch_manifest()

    def round_shape(self) -> RoundShape | None:
        """Sizes of a node's largest round, for an estimate of memory; None while the manifest is missing."""
        from sapo_edge.backends.backend import PROMPT_TOKENS, RoundShape
        from sapo_edge.node.conversion import round_settings

        settings = self.node_settings
        if not settings.max_tokens:
            return None
        round = round_settings(settings, settings.max_tokens)
        groups = round.own + (round.external if round.train else 0)
        return RoundShape(
            settings.rank, groups, settings.answers, PROMPT_TOKENS, settings.max_tokens, round.train,
            int(settings.memory * 1e9), self.quantise, settings.precision,
            self.paths.cache,
        )  # fmt: skip

    @property
    def quantise(self) -> str:
        """The number format of the setting `quantise`; "" for none."""
        return "" if self.settings.quantise == "none" else self.settings.quantise

    def open_policy(
        self,
        directory: Path,
        *,
        trainable: bool,
        seed: int,
        say: Callable[[str], None] | None = None,
        as_learner: bool = False,
    ) -> tuple[Policy, tuple[str, ...]]:
        """Open the policy for this machine; returns it with the reasons of all choices.

        Args:
            directory: for the adapter file that the sampler reads.
            say: receives messages in place of stderr.
            as_learner: sample as a node does that learns here, though this policy does not.
        """
        from sapo_edge.backends.backend import OpenOptions
        from sapo_edge.backends.choose import detect
        from sapo_edge.policy import LoraSettings
        from sapo_edge.tasks.source import derive_seed

        settings, size = self.settings, self.round_shape()
        options = OpenOptions(
            self.model,
            self.paths.cache,
            directory,
            LoraSettings(settings.rank, settings.alpha, derive_seed("adapter", seed)),
            settings.threads,
            trainable,
            say or self.say,
            thinking=settings.thinking == "on",
            quantise=self.quantise,
            precision=settings.precision,
            sampler=settings.sampler,
            size=size and replace(size, trainable=trainable),
        )
        choice = detect.detect(settings.backend, self.model)
        return detect.open_policy(detect.as_learner_samples(choice, options) if as_learner else choice, options)

    @contextmanager
    def answering_policy(
        self, use: str, *, seed: int = 0, say: Callable[[str], None] | None = None, as_learner: bool = False
    ) -> Iterator[Policy]:
        """A policy that answers and does not learn, until the block ends; `use` names its temporary directory."""
        with tempfile.TemporaryDirectory(prefix=f"sapo-{use}-") as directory:
            policy, _ = self.open_policy(Path(directory), trainable=False, seed=seed, say=say, as_learner=as_learner)
            with closing(policy):
                yield policy


def open_workspace(
    home: Path | None,
    flags: Mapping[str, object] | None = None,
    run: str | None = None,
    *,
    narrates: bool = False,
    needs_manifest: bool = True,
) -> Workspace:
    """Resolve what a command works on. Creates nothing outside of the cache and uses no network.

    Args:
        flags: values by setting name; None where a flag is missing.
        needs_manifest: refuse settings whose manifest can't be read. Where another one is chosen, it is None then.
        run: the run to work on instead of the current one. What it was made with counts then unless a flag says
            otherwise, whatever swarm was joined and whatever environment and file say.
    """
    from sapo_edge.config.layers import resolve
    from sapo_edge.state.paths import Paths
    from sapo_edge.swarm.joining.membership import Membership

    paths = replace(Paths.default(home), named=run)
    values = {name: value for name, value in (flags or {}).items() if value is not None}
    for name in ("manifest", "model"):
        if isinstance(path := values.get(name), str):
            # The state keeps it, for commands that run elsewhere.
            values[name] = storable(name, path)
    membership = Membership(paths.state)
    made = _made_with(paths, membership)
    if run is not None:
        values = made | values
    resolved = resolve(values, file=paths.config_file, state=made)
    manifest: Manifest | None
    if resolved.sources["manifest"] == "default" and membership.current is not None:
        manifest = membership.manifest(membership.current.manifest)
        swarm: Swarm | None = membership.current
    else:
        try:
            manifest = find_manifest(paths, membership, resolved.settings.manifest)
            swarm = membership.swarm_of(manifest)
        except ManifestError:
            if needs_manifest:
                raise
            manifest, swarm = None, membership.current
    if manifest is not None:
        resolved = resolved.with_manifest(manifest.name, manifest.max_tokens)
    return Workspace(paths, resolved, membership, manifest, swarm, narrates)


def _made_with(paths: Paths, membership: Membership) -> dict[str, object]:
    """The settings that the state directory was made with; empty before its first checkpoint."""
    from sapo_edge.config.settings import SETTINGS
    from sapo_edge.state.checkpoints import Checkpoints
    from sapo_edge.tasks.manifest import shipped_name

    try:
        checkpoint = Checkpoints(paths.checkpoints).newest_record()
        if checkpoint is None:
            return {}
        values = {name: checkpoint.settings[name] for name in STATE_SETTINGS if name in checkpoint.settings}
        values = {name: SETTINGS[name].check(value, "state") for name, value in values.items() if value is not None}
        kept = membership.manifest(bytes.fromhex(checkpoint.manifest_digest))
    except (SapoError, ValueError):
        # A command that needs the checkpoints says what is wrong with them.
        return {}
    if kept is not None and (membership.current is None or paths.named is not None):
        values["manifest"] = shipped_name(kept.digest) or kept.digest
    return values


def find_manifest(paths: Paths, membership: Membership, name: str) -> Manifest:
    """A manifest by its shipped name, by the path of a file, or by name or digest of one that a swarm brought.

    Args:
        paths: whose cache gets the questions of a file that are too many for a manifest.
        name: also the first digits of a digest, at least `MIN_DIGITS`.
    """
    from sapo_edge.swarm.joining.membership import MIN_DIGITS
    from sapo_edge.tasks.allowed import nearest
    from sapo_edge.tasks.manifest import load_manifest, shipped_manifests

    path = os.path.expanduser(name)
    if path in shipped_manifests() or os.path.isfile(path):
        return load_manifest(path, paths.questions)
    kept = membership.manifests()
    matches = [
        manifest
        for manifest in kept
        if manifest.name == name or (len(name) >= MIN_DIGITS and manifest.digest.startswith(name.lower()))
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        listed = ", ".join(manifest.digest[: MIN_DIGITS + 4] for manifest in matches)
        raise ManifestError(f"{len(matches)} manifests match {name}", f"give the first digits of a digest: {listed}")
    if any(swarm.name == name for swarm in membership.swarms):
        raise ManifestError(
            f"the manifest of {name} is not here yet",
            f"`sapo swarm join {name}`, then `sapo run` without --manifest: it fetches it from a member",
        )
    shipped = shipped_manifests()
    names = [*shipped, *(manifest.name for manifest in kept)]
    listed = ", ".join(f"{manifest.name} ({manifest.digest[: MIN_DIGITS + 4]})" for manifest in kept)
    known = f"shipped: {', '.join(shipped)}" + (f"; kept: {listed}" if listed else "")
    raise ManifestError(f"there is no manifest {name}", f"{nearest(name, names)} ({known}; or the path of a file)")


def storable(name: str, value: str) -> str:
    """The value of a setting as `config.toml` keeps it: a relative path becomes absolute, for commands run anywhere.

    Of `model` it is a path unless it is empty or names the hub, of `manifest` if it is a file's.
    """
    from sapo_edge.backends.hub.name import HUB
    from sapo_edge.tasks.manifest import shipped_manifests

    path = os.path.expanduser(value)
    if name == "model":
        is_path = bool(value) and not value.startswith(HUB)
    else:
        is_path = name == "manifest" and value not in shipped_manifests() and os.path.isfile(path)
    return os.path.abspath(path) if is_path else value
