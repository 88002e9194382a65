"""Where settings come from: flags, environment, `config.toml`, manifest, state and defaults; the first one wins."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sapo_edge.config.settings import SETTINGS, Settings
from sapo_edge.errors import ConfigError, ConfigFileError
from sapo_edge.plain import did_you_mean
from sapo_edge.state.durable import state_error, write_atomically
from sapo_edge.state.paths import HOME_VARIABLE

PREFIX = "SAPO_EDGE_"
"""Prefix of all environment variables of the program."""
FILE_VERSION = 1
"""Version of `config.toml`; a file without `version` is of version 1. A higher one is of a newer sapo-edge."""
OTHER_VARIABLES = frozenset({HOME_VARIABLE, "SAPO_EDGE_PASSPHRASE", "SAPO_EDGE_PROFILE", "SAPO_EDGE_INVITE"})
"""Variables with the prefix that are not settings."""

# What Kubernetes sets in every container beside a service named sapo-edge, or sapo-edge-relay.
_OF_KUBERNETES = re.compile(r"SAPO_EDGE_(\w+_)?(SERVICE_(HOST|PORT)|PORT_[0-9]+_|PORT=\w+://)")


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings with the source of each.

    Attributes:
        sources: by setting name: "flag", "environment SAPO_EDGE_OWN", "file PATH", "manifest starter", "state" or
            "default".
    """

    settings: Settings
    sources: Mapping[str, str]

    def rows(self) -> list[tuple[str, int | float | str | None, str, str]]:
        """Name, value, source and explanation of every setting."""
        values = self.settings.as_dict()
        return [(name, values[name], self.sources[name], item.explanation) for name, item in SETTINGS.items()]

    def with_manifest(self, name: str, max_tokens: int) -> Resolved:
        """These settings with the limit of a manifest, unless a layer above it sets one."""
        if self.settings.max_tokens:
            return self
        sources = {**self.sources, "max_tokens": f"manifest {name}"}
        return Resolved(replace(self.settings, max_tokens=max_tokens), sources)


def resolve(
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    state: Mapping[str, object] | None = None,
) -> Resolved:
    """Resolve every setting, without a manifest: see `Resolved.with_manifest`.

    Args:
        flags: by setting name; None for a flag that was not given.
        environ: the process's own by default; an empty variable counts as unset.
        state: what the state directory was made with.
    """
    flag_values = {name.replace("-", "_"): value for name, value in (flags or {}).items() if value is not None}
    check_names(flag_values, "flag")
    layers = [("flag", flag_values), *_environment(os.environ if environ is None else environ)]
    if file is not None:
        layers.append((f"file {file}", read_file(file)))
    layers.append(("state", state or {}))
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, layer in layers:
        for name, value in layer.items():
            # Checked even if a layer above hides it: the mistake would show later.
            checked = SETTINGS[name].check(value, source)
            if name not in values:
                values[name], sources[name] = checked, source
    return Resolved(Settings(**values), {name: sources.get(name, "default") for name in SETTINGS})


def read_file(file: Path) -> dict[str, object]:
    """The settings in a `config.toml`, with names and types checked, but not the bounds."""
    text = _read_text(file)
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{file} is not valid TOML: {error or 'nested too deep'}", "correct it, or move the file away"
        ) from error
    source = f"file {file}"
    version = values.pop("version", FILE_VERSION)
    if version != FILE_VERSION or isinstance(version, bool):
        is_newer = type(version) is int and version > FILE_VERSION
        raise ConfigError(
            f"{file} was written by a newer sapo-edge" if is_newer else f"{file} has no such version: {version!r}",
            "update sapo-edge, or move the file away" if is_newer else f"write version = {FILE_VERSION}, or remove it",
        )
    check_names(values, source)
    for name, value in values.items():
        if isinstance(value, str) and SETTINGS[name].kind is not str:
            wrong = SETTINGS[name].error(value, source)
            raise ConfigError(wrong.message, f"{wrong.remedy}, without quotes")
    return values


def set_values(
    file: Path, values: Mapping[str, object], source: str = "command line"
) -> dict[str, int | float | str | None]:
    """Write settings into `config.toml` at once, keeping comments, order and line endings. Returns them as stored.

    Args:
        file: created, with its directory, if missing; left as it is without values.
        values: by setting name; numbers may come as text. None removes a setting from the file.
        source: of the values, for messages.

    Raises:
        ConfigError: if a setting is unknown, a value is not allowed, of those in the file too, or the file can't be
            read or written. The file is then unchanged.
    """
    import tomlkit.exceptions

    values = {name.replace("-", "_"): value for name, value in values.items()}
    check_names(values, source)
    if not values:
        return {}
    checked = {name: None if value is None else SETTINGS[name].check(value, source) for name, value in values.items()}
    after = read_file(file)
    before = _read_text(file)
    try:
        document = tomlkit.parse(before)
    except tomlkit.exceptions.TOMLKitError as error:
        raise ConfigError(f"{file} can't be edited: {error}", "edit it by hand") from error
    for name, value in checked.items():
        if value is None:
            after.pop(name, None)
            document.pop(name, None)
        else:
            after[name] = document[name] = value
    for name, item in after.items():
        SETTINGS[name].check(item, f"file {file}")
    text = tomlkit.dumps(document)
    if not text and not before:
        return checked
    if "\r\n" in before:
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(file, text.encode("utf-8"), mode=0o644)
    except OSError as error:
        failure = state_error(error, "write", file)
        raise ConfigFileError(failure.message, failure.remedy) from error
    return checked


def _read_text(file: Path) -> str:
    try:
        # Editors on Windows start a file with a byte order mark, which TOML does not allow.
        return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigFileError(
            f"can't read {file}: {error.strerror or error}", "check that it is a file and that you may read it"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 at byte {error.start}", "save it as UTF-8") from error


def _environment(environ: Mapping[str, str]) -> list[tuple[str, Mapping[str, object]]]:
    layers: list[tuple[str, Mapping[str, object]]] = []
    for variable, value in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES or not value.strip():
            continue
        if _OF_KUBERNETES.match(f"{variable}={value}"):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in SETTINGS or variable != variable.upper():
            variables = [PREFIX + setting.upper() for setting in SETTINGS] + sorted(OTHER_VARIABLES)
            raise ConfigError(
                f"the environment variable {variable} is not a setting", _suggest(variable, variables, "unset it")
            )
        layers.append((f"environment {variable}", {name: value.strip()}))
    return layers


def check_names(names: Iterable[str], source: str) -> None:
    """Raise a ConfigError, which names the nearest setting, for a name that no setting has."""
    for name in names:
        if name not in SETTINGS:
            raise ConfigError(f"there is no setting {name!r} ({source})", _suggest(name, SETTINGS, "remove it"))


def _suggest(name: str, names: Iterable[str], otherwise: str) -> str:
    return did_you_mean(name, names, f"{otherwise}; `sapo config show` lists the settings")
