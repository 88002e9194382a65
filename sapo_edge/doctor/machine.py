"""The checks of `sapo doctor` on this machine, each with its result and remedy."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
from typing import TYPE_CHECKING

from sapo_edge.backends.machine.disk import nearest_existing
from sapo_edge.backends.machine.memory import total_memory
from sapo_edge.config.settings import Settings
from sapo_edge.doctor.backends import backend_checks, memory_check, model_check, sampler_checks
from sapo_edge.doctor.check import Check, Status
from sapo_edge.doctor.profile import PROFILES, URGENT, choose_profile
from sapo_edge.errors import SapoError
from sapo_edge.installing import how_to_install
from sapo_edge.state.paths import Paths

if TYPE_CHECKING:
    from sapo_edge.backends.backend import RoundShape
    from sapo_edge.tasks.manifest import Manifest

MINIMUM_FREE = 1_000_000_000
"""Bytes of free disk space below which checkpoints and derived files may not fit."""


def examine(
    paths: Paths, settings: Settings, manifest: Manifest | None, shape: RoundShape | None, *, deep: bool = False
) -> list[Check]:
    """Run all checks. They create the state directory and change nothing else.

    Args:
        manifest: to train on; None until it is fetched from a member of the swarm.
        shape: sizes of the largest round; None while unknown.
        deep: also load the backends' packages, in separate processes; takes seconds.
    """
    return [
        _python(),
        *backend_checks(settings, deep=deep),
        *sampler_checks(settings, paths.cache),
        _reasoning_gym(),
        model_check(settings),
        _manifest(manifest),
        _state(paths),
        _disk(paths),
        memory_check(settings, shape),
        profile_check(settings, total_memory()),
        _processor(settings, paths),
    ]


def _python() -> Check:
    bits = platform.architecture()[0]
    detail = f"Python {platform.python_version()}, {bits}, {platform.system()} {platform.machine()}"
    if bits != "64bit":
        return Check("python", Status.FAIL, detail, "use a 64-bit system: torch has no 32-bit packages")
    return Check("python", Status.PASS, detail)


def _reasoning_gym() -> Check:
    name = "reasoning-gym"
    if importlib.util.find_spec("reasoning_gym") is None:
        return Check(name, Status.FAIL, "not installed (tasks)", how_to_install(name))
    return Check(name, Status.PASS, f"{importlib.metadata.version(name)} (tasks)")


def _manifest(manifest: Manifest | None) -> Check:
    if manifest is None:
        remedy = "start `sapo run`, which fetches it from a member of the swarm"
        return Check("manifest", Status.WARN, "not fetched yet, because the swarm was joined by an invite", remedy)
    return Check("manifest", Status.PASS, f"{manifest.name}: {', '.join(entry.name for entry in manifest.tasks)}")


def _state(paths: Paths) -> Check:
    from sapo_edge.state.lock import lock_holder, process

    try:
        paths.check()
    except SapoError as error:
        return Check("state", Status.FAIL, error.message, error.remedy)
    try:
        holder = lock_holder(paths.lock)
    except SapoError as error:
        return Check("state", Status.WARN, f"{paths.state}: {error.message}", error.remedy)
    if holder is not None:
        remedy = "nothing to do; to run a second node, give it another --home"
        return Check("state", Status.WARN, f"{paths.state}: in use by another node ({process(holder)})", remedy)
    return Check("state", Status.PASS, f"{paths.state}, writable, no node is running")


def _disk(paths: Paths) -> Check:
    free = shutil.disk_usage(nearest_existing(paths.state)).free
    detail = f"{free / 1e9:.1f} GB free"
    if free < MINIMUM_FREE:
        return Check("disk", Status.WARN, detail, "free some space, or use a --home on another disk")
    return Check("disk", Status.PASS, detail)


def profile_check(settings: Settings, memory: int) -> Check:
    """Check that a machine with so many bytes for this process has the settings that small machines need."""
    name = choose_profile(memory)
    if not name:
        return Check("profile", Status.PASS, "none needed: this machine is large enough for the defaults")
    profile = PROFILES[name]
    values = settings.as_dict()
    other = [setting for setting, value in profile.settings.items() if values[setting] != value]
    detail = f"{name}: {profile.summary}"
    if not other:
        return Check("profile", Status.PASS, detail)
    remedy = f"`sapo setup` sets {', '.join(other)} for a machine of this size"
    return Check("profile", Status.WARN if name in URGENT else Status.PASS, detail, remedy)


def _processor(settings: Settings, paths: Paths) -> Check:
    from sapo_edge.backends.machine.threads import available_cores, cores_in_use
    from sapo_edge.backends.pytorch.rates import products_for

    cores, load = available_cores(), cores_in_use(0.3)
    products = products_for(settings.precision, paths.cache, measure=False)
    detail = f"{cores} cores, {load:.1f} in use now, {products}"
    if load > 0.5 * cores:
        remedy = "nothing to do; sapo-edge is slower beside other programs"
        return Check("processor", Status.WARN, detail, remedy)
    return Check("processor", Status.PASS, detail)
