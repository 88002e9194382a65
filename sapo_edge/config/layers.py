"""Settings in layers: flags over environment over `config.toml` over manifest over defaults; each knows its source."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sapo_edge.config.settings import SETTINGS, Settings
from sapo_edge.errors import ConfigError
from sapo_edge.plain import did_you_mean
from sapo_edge.state.durable import write_atomically
from sapo_edge.state.paths import HOME_VARIABLE

PREFIX = "SAPO_EDGE_"
"""Every environment variable of the program begins with this."""
OTHER_VARIABLES = frozenset({HOME_VARIABLE, "SAPO_EDGE_PASSPHRASE"})
"""Variables with the prefix that are no settings."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings, and where each of them comes from.

    Attributes:
        settings: the values.
        sources: by name: "flag", "environment SAPO_EDGE_OWN", "file PATH", "manifest starter" or "default".
    """

    settings: Settings
    sources: Mapping[str, str]

    def rows(self) -> list[tuple[str, int | float | str | None, str, str]]:
        """Name, value, source and explanation of every setting, for `sapo config show`."""
        values = self.settings.as_dict()
        return [(name, values[name], self.sources[name], item.explanation) for name, item in SETTINGS.items()]


def resolve(
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    manifest: Callable[[str], Mapping[str, object]] | None = None,
) -> Resolved:
    """Resolve every setting.

    Args:
        flags: by setting name; None is a flag that was not given.
        environ: the process's own by default; an empty variable counts as unset.
        file: `config.toml`; one that doesn't exist is an empty one.
        manifest: gives what the manifest of a name suggests; called once, with the name that the layers above it chose.

    Raises:
        ConfigError: for an unknown name or a value that is not allowed, naming its source; for a malformed file, with
            line and column.
    """
    layers: list[tuple[str, Mapping[str, object]]] = []
    given = {name.replace("-", "_"): value for name, value in (flags or {}).items() if value is not None}
    layers.append(("flag", _known(given, "flag")))
    layers.extend(_environment(os.environ if environ is None else environ))
    if file is not None:
        layers.append((f"file {file}", read_file(file)))
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, layer in layers:
        for name, value in layer.items():
            # A value that a layer above hides is checked all the same: it is wrong whether or not it counts today.
            checked = SETTINGS[name].check(value, source)
            if name not in values:
                values[name], sources[name] = checked, source
    if manifest is not None:
        chosen = values.get("manifest", Settings().manifest)
        source = f"manifest {chosen}"
        for name, value in manifest(chosen).items():
            _check_suggestion(name, source)
            checked = SETTINGS[name].check(value, source)
            if name not in values:
                values[name], sources[name] = checked, source
    settings = Settings(**values)
    _check_together(settings, sources)
    return Resolved(settings, {name: sources.get(name, "default") for name in SETTINGS})


def read_file(file: Path) -> dict[str, object]:
    """The settings that a `config.toml` gives, of known names and right types but not yet within bounds.

    Raises:
        ConfigError: if it can't be read, is malformed (with line and column), or holds an unknown key.
    """
    text = _read_text(file)
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{file} is not valid TOML: {error or 'nested too deep'}", "correct that place, or move the file away"
        ) from error
    source = f"file {file}"
    for name, value in _known(values, source).items():
        if isinstance(value, str) and SETTINGS[name].kind is not str:
            refusal = SETTINGS[name].refusal(value, source)
            raise ConfigError(refusal.message, f"{refusal.remedy}, without quotes")
    return values


def set_value(file: Path, name: str, value: str | None) -> int | float | str | None:
    """Write one setting into `config.toml`, keeping comments, order and line ends.

    Args:
        file: created, with its directory, if it doesn't exist.
        name: of the setting.
        value: as written on a command line; None removes the setting from the file.

    Returns:
        The value as stored.

    Raises:
        ConfigError: if the setting is unknown, the value is not allowed, it contradicts the others in the file, or the
            file can't be read or written; it is then unchanged.
    """
    # Only this command needs the library.
    import tomlkit.exceptions

    name = name.replace("-", "_")
    _known({name: value}, "command line")
    checked = None if value is None else SETTINGS[name].check(value, "command line")
    after = read_file(file)
    before = _read_text(file)
    try:
        document = tomlkit.parse(before)
    except tomlkit.exceptions.TOMLKitError as error:
        raise ConfigError(f"{file} can't be edited: {error}", "edit it by hand") from error
    if checked is None:
        after.pop(name, None)
        document.pop(name, None)
    else:
        after[name] = checked
        document[name] = checked
    _check_together(
        Settings(**{key: SETTINGS[key].check(item, f"file {file}") for key, item in after.items()}),  # type: ignore[arg-type]
        dict.fromkeys(after, f"file {file}"),
    )
    text = tomlkit.dumps(document)
    if "\r\n" in before:
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(file, text.encode("utf-8"), mode=0o644)
    except OSError as error:
        raise ConfigError(
            f"can't write {file}: {error.strerror or error}", "check its directory's owner, permissions and free space"
        ) from error
    return checked


def _read_text(file: Path) -> str:
    try:
        # Editors on Windows begin a file with a byte order mark, which is not TOML.
        return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(
            f"can't read {file}: {error.strerror or error}", "check that it is a file that you may read"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 at byte {error.start}", "save it as UTF-8") from error


def _environment(environ: Mapping[str, str]) -> list[tuple[str, Mapping[str, object]]]:
    layers: list[tuple[str, Mapping[str, object]]] = []
    for variable, value in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES or not value.strip():
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in SETTINGS or variable != variable.upper():
            known = [PREFIX + item.upper() for item in SETTINGS] + sorted(OTHER_VARIABLES)
            raise ConfigError(
                f"the environment variable {variable} is no setting", _nearest(variable, known, "unset it")
            )
        layers.append((f"environment {variable}", {name: value.strip()}))
    return layers


def _known(values: Mapping[str, object], source: str) -> Mapping[str, object]:
    for name in values:
        if name not in SETTINGS:
            raise ConfigError(f"there is no setting {name!r} ({source})", _nearest(name, SETTINGS, "remove it"))
    return values


def _check_suggestion(name: str, source: str) -> None:
    if name not in SETTINGS or not SETTINGS[name].manifest:
        allowed = ", ".join(item.name for item in SETTINGS.values() if item.manifest)
        raise ConfigError(f"{source} sets {name!r}", f"use another manifest: one may suggest only {allowed}")


def _check_together(settings: Settings, sources: Mapping[str, str]) -> None:
    if 0 < settings.questions < settings.own:
        raise ConfigError(
            f"questions = {settings.questions} ({sources.get('questions', 'default')}) is less than "
            f"own = {settings.own} ({sources.get('own', 'default')})",
            "give at least as many questions as own rollouts, or 0 for the same number",
        )


def _nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    return did_you_mean(name, known, f"{otherwise}; `sapo config show` lists the settings")
